"""`RemoteTaskAgent`: an agent of other people's that is reached by the A2A protocol, as a far agent that answers in text."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

import anyio
import httpx

from ..protocols import (
    AgentCard,
    Capabilities,
    ConfigError,
    DeadlineExceeded,
    Finished,
    FinishReason,
    InvalidOutput,
    Limits,
    Message,
    NearfarError,
    ProviderAuthError,
    RequestRefused,
    Side,
    Stalled,
    StepEvent,
    StepRequest,
    TextDelta,
    Unavailable,
    Usage,
)
from ..protocols.limits import LINE_CHARACTERS
from ..protocols.secrets import StoredKey
from ..protocols.validation import check_request
from .config import A2aAgentConfig
from .connections import at_address

try:
    from a2a.client import Client, ClientConfig, ClientFactory
    from a2a.client.card_resolver import A2ACardResolver
    from a2a.client.errors import A2AClientTimeoutError
    from a2a.types import AgentCard as RemoteCard
    from a2a.types import (
        Artifact,
        CancelTaskRequest,
        GetTaskRequest,
        Part,
        Role,
        SendMessageConfiguration,
        SendMessageRequest,
        StreamResponse,
        Task,
        TaskState,
        TaskStatus,
    )
    from a2a.types import Message as RemoteMessage
    from a2a.utils.constants import TransportProtocol
    from a2a.utils.errors import A2AError
    from google.protobuf.json_format import MessageToDict
except ImportError as error:
    raise ConfigError("asking A2A agents needs the Python package a2a-sdk", hint="pip install 'nearfar[a2a]'") from error

logger = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 5.0
"""Seconds for the other side to hear that its answer is not needed any more."""
_POLL_SECONDS: Final = (0.2, 5.0)
"""Seconds between two looks at a task: at first, and at most."""
_TOKEN: Final = 4
"""Characters of a token, about."""
_LONGEST_QUOTE: Final = 300
"""Characters of what the other side says that an error repeats."""
_WORKING: Final = frozenset({TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})
_BINDINGS: Final = [TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value]


class RemoteTaskAgent:
    """Gives tasks to a remote agent, and returns its answers. It calls no tools of ours, follows no schema, and states no confidence.

    Made by `connect`.
    """

    def __init__(self, card: AgentCard, client: Client, http: httpx.AsyncClient, config: A2aAgentConfig, *, streams: bool) -> None:
        self._card = card
        self._client = client
        self._http = http
        self._config = config
        self._streams = streams
        self._free = anyio.Semaphore(config.concurrency)
        self._is_closed = False

    @classmethod
    async def connect(cls, config: A2aAgentConfig, *, name: str) -> "RemoteTaskAgent":
        """Read the agent's card and connect.

        Raises `ConfigError` for a card that was not accepted, or leads elsewhere, and `Unavailable` where it cannot be read.
        """
        http = _http_client(config)
        try:
            with _errors(config):
                remote = await A2ACardResolver(http, config.url).get_agent_card()
            _check_card(remote, config)
            try:
                client = ClientFactory(ClientConfig(httpx_client=http, supported_protocol_bindings=_BINDINGS)).create(remote)
            except ValueError as error:
                hint = "its card must offer JSON-RPC or HTTP+JSON"
                raise ConfigError(f"the agent at {config.url} speaks no protocol that is known here", hint=hint) from error
        except BaseException:
            await http.aclose()
            raise
        description = f"an A2A agent at {config.url}"
        limits = Limits(concurrency=config.concurrency)
        card = AgentCard(
            name=name, side=Side.FAR, model=remote.name or "a2a", description=description, capabilities=Capabilities(), limits=limits
        )
        return cls(card, client, http, config, streams=remote.capabilities.streaming)

    @property
    def card(self) -> AgentCard:
        return self._card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Give the conversation of the `request` to the agent as one task, and yield its whole answer. Closed early, the task is
        cancelled."""
        check_request(self._card, request)
        if self._is_closed:
            raise Unavailable(f"agent {self._card.name!r} is closed")
        seconds = min(request.timeout or self._config.step_timeout, self._config.step_timeout)
        text, reason = _limited(await self._answer(request, seconds), request)
        if text:
            yield TextDelta(text=text)
        usage = Usage(input_tokens=sum(map(_tokens, _texts(request.messages))), output_tokens=_tokens(text))
        yield Finished(reason=reason, usage=usage, model=self._card.model)

    async def aclose(self) -> None:
        """Close the connections."""
        self._is_closed = True
        await self._client.close()
        await self._http.aclose()

    async def _answer(self, request: StepRequest, seconds: float) -> str:
        work = _RemoteWork()
        working = asyncio.create_task(self._work_in_turn(work, request))
        try:
            with _errors(self._config):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(working)
        except TimeoutError:
            raise DeadlineExceeded(f"agent {self._card.name!r} took longer than {seconds:g} s", hint="raise step_timeout") from None
        finally:
            if not working.done() or work.is_open:
                with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
                    await self._leave(work, working)
        return work.answer()

    async def _leave(self, work: "_RemoteWork", working: "asyncio.Task[None]") -> None:
        """Cancel a task whose answer is not needed any more."""
        naming = asyncio.create_task(work.is_named.wait())  # a task that was just sent has no id yet, and cannot be cancelled without one
        try:
            if work.was_sent:
                await asyncio.wait({naming, working}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            naming.cancel()
            working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if work.is_open:
            await self._cancel(work.task)

    async def _work_in_turn(self, work: "_RemoteWork", request: StepRequest) -> None:
        async with self._free:
            await self._work(work, request)

    async def _work(self, work: "_RemoteWork", request: StepRequest) -> None:
        parts = [Part(text=text, media_type="text/plain") for text in _texts(request.messages)]
        message = RemoteMessage(message_id=request.idempotency_key, role=Role.ROLE_USER, parts=parts)
        asked = SendMessageRequest(message=message, configuration=SendMessageConfiguration(accepted_output_modes=["text/plain"]))
        if not self._streams:
            asked.configuration.return_immediately = True
        work.was_sent = True
        async with aclosing(_patient(self._client.send_message(asked), self._config.idle_timeout)) as responses:
            async for response in responses:
                work.hear(response)
        pause, longest = _POLL_SECONDS
        while work.is_open:
            await asyncio.sleep(pause)
            work.take(await self._client.get_task(GetTaskRequest(id=work.task)))
            pause = min(2 * pause, longest)

    async def _cancel(self, task: str) -> None:
        try:
            await self._client.cancel_task(CancelTaskRequest(id=task))
        except (A2AError, httpx.HTTPError, ValueError) as error:  # it may have ended, or the agent may be gone
            logger.info("task %s of agent %s could not be cancelled: %s", task, self._card.name, error)


class _RemoteWork:
    """Follows one task and what came of it."""

    def __init__(self) -> None:
        self.task = ""
        self.was_sent = False
        self.is_named = asyncio.Event()
        """The id of the task is known, or that there is none."""
        self._status = TaskStatus()
        self._artifacts: dict[str, Artifact] = {}
        self._said: RemoteMessage | None = None
        self._size = 0

    @property
    def is_open(self) -> bool:
        """Return whether the agent may still be at work."""
        return bool(self.task) and self._said is None and self._status.state in _WORKING

    def hear(self, response: StreamResponse) -> None:
        """Take in what the agent streams."""
        self._size += response.ByteSize()
        if self._size > LINE_CHARACTERS:
            raise InvalidOutput(f"the agent sends more than {LINE_CHARACTERS} bytes")
        self.is_named.set()
        match response.WhichOneof("payload"):
            case "task":
                self.take(response.task)
            case "message":
                self._said = response.message
            case "status_update":
                self.task = response.status_update.task_id
                self._status = response.status_update.status
            case "artifact_update":
                self._add(response.artifact_update.artifact, append=response.artifact_update.append)

    def take(self, task: Task) -> None:
        """Take in the whole task."""
        self.task, self._status = task.id, task.status
        self._artifacts = {artifact.artifact_id: artifact for artifact in task.artifacts}

    def answer(self) -> str:
        """Return the answer: the texts of the artifacts, else the agent's message. Raises the error for a task that came to nothing."""
        if self._said is not None:
            return _text_of(self._said.parts)
        said = _text_of(self._status.message.parts)
        match self._status.state:
            case TaskState.TASK_STATE_COMPLETED:
                texts = [_text_of(artifact.parts) for artifact in self._artifacts.values()]
                return "\n\n".join(text for text in texts if text) or said
            case TaskState.TASK_STATE_INPUT_REQUIRED:
                raise RequestRefused(f"the agent asks for more: {_quoted(said)}", hint="say all that it needs in the task")
            case TaskState.TASK_STATE_AUTH_REQUIRED:
                raise ProviderAuthError("the agent demands another sign-in", hint="token_variable names its token")
        raise RequestRefused(f"the agent did not do the task ({TaskState.Name(self._status.state)}): {_quoted(said)}")

    def _add(self, artifact: Artifact, *, append: bool) -> None:
        known = self._artifacts.get(artifact.artifact_id)
        if known is not None and append:
            known.parts.extend(artifact.parts)
        else:
            self._artifacts[artifact.artifact_id] = artifact


def card_digest(card: RemoteCard) -> str:
    """Return the hash of a card, without its signatures: "sha256:" and hex digits."""
    fields = {name: value for name, value in MessageToDict(card).items() if name != "signatures"}
    return f"sha256:{sha256(json.dumps(fields, sort_keys=True, separators=(',', ':')).encode()).hexdigest()}"


def _check_card(card: RemoteCard, config: A2aAgentConfig) -> None:
    """Raise `ConfigError` unless the card is the one that the user has accepted."""
    digest = card_digest(card)
    if digest == config.card:
        return
    offers = _quoted(f"{card.name}: {card.description}")
    state = "has changed its card" if config.card else "is new"
    addresses = ", ".join(each.url for each in card.supported_interfaces if each.protocol_binding in _BINDINGS)
    sent = f"tasks{' and the token' if config.token_variable else ''} go to {_quoted(addresses)}"
    raise ConfigError(f"the agent at {config.url} {state}: it calls itself {offers}, and {sent}", hint=f'to accept it: card = "{digest}"')


def _http_client(config: A2aAgentConfig) -> httpx.AsyncClient:
    headers = {"user-agent": "nearfar", "accept-encoding": "identity"}  # a packed kilobyte may unpack to gigabytes
    if config.token_variable is not None:
        headers["authorization"] = f"Bearer {_token(config.token_variable)}"
    timeout = httpx.Timeout(config.connect_timeout, read=None)  # each step has a deadline of its own
    return httpx.AsyncClient(headers=headers, transport=A2aTransport(config.url), timeout=timeout, trust_env=False)


def _token(variable: str) -> str:
    key = StoredKey(variable)
    if not key.is_set():
        raise ConfigError(f"{variable} is not set", hint=key.how_to_set)
    return key.reveal()


class A2aTransport(httpx.AsyncBaseTransport):
    """Sends requests to one host, wherever it is, and to public addresses: a card cannot lead into the user's own network.

    The address that was checked is the one that is connected to. Nothing but a `url` of the user's with http:// is asked in plain text,
    which would show the token. Responses are cut off at a size.
    """

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._transport = httpx.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        is_named = url.host.lower() == self._url.host.lower()
        if url.scheme != "https" and not (is_named and self._url.scheme == "http"):
            raise ConfigError(f"the agent's card leads to {url.host} without TLS", hint="ask its owner for a card with https addresses")
        if not is_named:
            request = at_address(request, await _public_address(url.host, url.port or 443))
        response = await self._transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream), "of an asynchronous transport"
        response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > LINE_CHARACTERS:
                raise InvalidOutput(f"the agent sends more than {LINE_CHARACTERS} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _public_address(host: str, port: int) -> IPv4Address | IPv6Address:
    """Return the first address of a host. Raise `ConfigError` unless all are public."""
    try:
        answers = await anyio.getaddrinfo(host, port, type=1)
    except (OSError, UnicodeError):
        raise Unavailable(f"{host} cannot be resolved", hint="check the network") from None
    addresses = [ip_address(str(answer[4][0])) for answer in answers]
    if not addresses or not all(address.is_global for address in addresses):
        raise ConfigError(f"the agent's card leads to {host}, which is no public address", hint="give that host in url, if it is yours")
    return addresses[0]


@contextmanager
def _errors(config: A2aAgentConfig) -> Iterator[None]:
    """Raise our errors for those of the package and of the connection."""
    try:
        yield
    except NearfarError:
        raise
    except A2AClientTimeoutError as error:
        raise Unavailable(f"the agent at {config.url} does not answer", hint="check the network, and that it runs") from error
    except A2AError as error:
        status = getattr(error, "status_code", None)
        if isinstance(error.__cause__, httpx.RequestError) or (status is not None and status >= 500):
            raise Unavailable(f"the agent at {config.url} cannot be reached: {_quoted(str(error))}") from error
        raise RequestRefused(f"the agent at {config.url} refuses: {_quoted(str(error))}") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"the agent at {config.url} cannot be reached: {_quoted(str(error))}") from error
    except (ValueError, RecursionError, httpx.InvalidURL) as error:  # it sends none of the protocol's messages, or its card leads nowhere
        raise InvalidOutput(f"the agent at {config.url} sends what cannot be read: {_quoted(str(error))}") from error


async def _patient(responses: AsyncIterator[StreamResponse], seconds: float) -> AsyncGenerator[StreamResponse, None]:
    """Yield responses. Raise `Stalled` if the next one is late."""
    with suppress(StopAsyncIteration):
        while True:
            try:
                async with asyncio.timeout(seconds):
                    response = await anext(responses)
            except TimeoutError:
                raise Stalled(f"the agent has said nothing for {seconds:g} s", hint="raise idle_timeout") from None
            yield response


def _texts(messages: tuple[Message, ...]) -> list[str]:
    """Return the parts of the message that stands for a conversation: the prompt alone as it is, else who said what."""
    if len(messages) == 1:
        return [messages[0].text]
    names: Mapping[str, str] = {"system": "Instructions", "user": "User", "assistant": "Assistant", "tool": "Tool"}
    return [f"{names[message.role]}: {message.text}" for message in messages if message.text]


def _limited(text: str, request: StepRequest) -> tuple[str, FinishReason]:
    """Return an answer up to a stop sequence and the limit of output, which the agent is not told, and why it ends there."""
    for stop in request.stop:
        text = text.partition(stop)[0]
    most = request.max_output_tokens
    if most is None or _tokens(text) <= most:
        return text, FinishReason.STOP
    return text[: most * _TOKEN], FinishReason.LENGTH


def _tokens(text: str) -> int:
    """Estimate the tokens of a text: the protocol counts none."""
    return -(-len(text) // _TOKEN)


def _text_of(parts: Any) -> str:  # noqa: ANN401 - protobuf's repeated field
    """Return the text of parts; data as JSON. Files are left out."""
    found = []
    for part in parts:
        kind = part.WhichOneof("content")
        if kind == "text":
            found.append(part.text)
        elif kind == "data":
            found.append(json.dumps(MessageToDict(part.data), ensure_ascii=False))
    return "".join(found)


def _quoted(text: str) -> str:
    """Return the beginning of what a stranger says, in one line."""
    shown = text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
    return repr(shown)
