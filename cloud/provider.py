"""A model behind an HTTP API: a far agent at a provider, or a near one at a server of the user's."""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import anyio
import anyio.to_thread
import httpx

from ..protocols import (
    AgentCard,
    Capabilities,
    ContentFiltered,
    FinishReason,
    InvalidOutput,
    InvalidRequest,
    Limits,
    NearfarError,
    Prices,
    RateLimited,
    RequestRefused,
    Side,
    StepEvent,
    StepLost,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    Unavailable,
)
from ..protocols.agent import LoopBound
from ..protocols.limits import most_calls_upstream
from ..protocols.secrets import Key
from ..protocols.security import IDENTITY
from ..protocols.validation import check_request
from .connections import Connections, near_client, unpacks_bounded
from .dialect import Decoder, Dialect, EndedEarly, Ending, JsonObject, provider_name, server_of
from .failures import (
    UNREADABLE_STATES,
    Deadline,
    Pause,
    RetryPolicy,
    encoding_error,
    error_for,
    fault_in,
    fault_of,
    no_stream_error,
    redirect_error,
    transport_errors,
)
from .streaming import StopCutter, SurrogateJoiner, check_text, checked_calls, counted_usage, finished, json_events

_ERROR_BYTES = 65536
_PROVIDER_LENGTH = 300
_HEADERS = {"Accept": "text/event-stream", "Content-Type": "application/json"}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of a provider's time, in seconds."""

    connect: float = 10.0
    idle: float = 300.0
    """Longest silence, before the first byte or between two."""
    step: float = 600.0
    """The whole step with its retries; a shorter `StepRequest.timeout` wins."""


PlaceCheck = Callable[[httpx.AsyncClient, str | None], Awaitable[None]]
"""Asks a near server by the client and with the key; raises `ConfigError` if it is near no longer."""


@dataclass(frozen=True, slots=True)
class NearPlace:
    """The server of a near agent."""

    label: str
    """Name of the server for messages."""
    trusted: bool = False
    """It is the user's own although it may be on another machine."""
    check: PlaceCheck | None = None
    """Called before each request."""


class ProviderAgent:
    """An `Agent` over one model of one provider. It never sends private text, unless it is near: at a server of the user's."""

    def __init__(
        self,
        dialect: Dialect,
        model: str,
        *,
        key: Key | None = None,
        base_url: str | None = None,
        name: str | None = None,
        capabilities: Capabilities | None = None,
        limits: Limits | None = None,
        prices: Prices | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        near: NearPlace | None = None,
    ) -> None:
        """Set up the agent. Without `key`, no key is sent; without `capabilities`, the dialect's apply; without `near`, it is far."""
        self._dialect = dialect
        self._model = model
        self._key = key
        self._base_url = (base_url or dialect.default_base_url).rstrip("/")
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        self._pause = Pause()
        self._near = near
        self._card = AgentCard(
            name=name or model,
            side=Side.FAR if near is None else Side.NEAR,
            model=model,
            description=f"{model} over the {dialect.name} API" if near is None else f"{model} at {self._base_url}",
            capabilities=capabilities or dialect.capabilities,
            limits=limits or Limits(concurrency=most_calls_upstream()),
            prices=prices,
            provider=provider_name(dialect.name, self._base_url),
        )
        self._connections: Connections | None = None
        self._home = LoopBound()
        self._closed = False
        self._deadlines: set[Deadline] = set()

    @property
    def card(self) -> AgentCard:
        return self._card

    @property
    def server(self) -> tuple[str, int]:
        """Return host and port of the API, for telemetry."""
        return server_of(self._base_url)

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run one step. Its call is repeated only while nothing has arrived, see `RetryPolicy`."""
        self._check(request)
        with self._limited(request) as deadline:
            async with aclosing(self._calls(request, deadline)) as events:
                async for event in events:
                    yield event

    async def _calls(self, request: StepRequest, deadline: Deadline) -> AsyncGenerator[StepEvent, None]:
        request = self._keeping_states(request, self._state_provider)
        key = None if self._key is None else await deadline.run(partial(anyio.to_thread.run_sync, self._key.reveal, abandon_on_cancel=True))
        calls_made = 0
        while True:
            await self._sit_out_the_pause(deadline)
            calls_made += 1
            answer = _Answer(self._dialect.decoder(), self._dialect.unsent_stops(request.stop, self._model))
            try:
                async with aclosing(self._call(request, key, deadline, answer)) as events:
                    async for event in events:
                        yield event
                return
            except NearfarError as error:
                if not answer.has_begun and self._refuses_states(error) and (without := self._keeping_states(request, None)) != request:
                    request = without
                    continue
                self._pause.note(error)
                delay = self._retry.delay(error, calls_made=calls_made, seconds_left=deadline.seconds_left)
                if delay is None or (answer.has_begun and not isinstance(error, RateLimited)):
                    raise
                _logger.warning("%s: call %d failed, the next one follows in %.1f s: %s", self._card.name, calls_made, delay, error)
                deadline.was_sent = isinstance(error, StepLost)  # else it was refused, and nothing was computed
            await deadline.run(partial(anyio.sleep, delay))

    async def _sit_out_the_pause(self, deadline: Deadline) -> None:
        """Wait as long as the provider has asked any step to wait. Raise `RateLimited` if that is too long."""
        while (early := self._pause.left(self._provider)) is not None:
            delay = self._retry.delay(early, calls_made=0, seconds_left=deadline.seconds_left)
            if delay is None:
                raise early
            await deadline.run(partial(anyio.sleep, delay))

    async def aclose(self) -> None:
        """Close all connections; steps under way end with `StepLost`."""
        self._closed = True
        for deadline in tuple(self._deadlines):
            deadline.abort(self._closed_error(StepLost))
        if self._connections is not None:
            self._home.require(f"agent {self._card.name!r}")
            await self._connections.aclose()

    async def _call(self, request: StepRequest, key: str | None, deadline: Deadline, answer: "_Answer") -> AsyncGenerator[StepEvent, None]:
        limit = _smaller(request.max_output_tokens, self._card.limits.max_output_tokens)
        body = self._dialect.body(request, self._model, max_output_tokens=limit)
        with transport_errors(self._provider, self._base_url, self._timeouts.idle):
            async with self._open(body, request, key, deadline) as response, aclosing(json_events(response)) as chunks:
                while (chunk := await deadline.run(partial(anext, chunks, None))) is not None:
                    self._refuse_fault(chunk, answer)
                    if text := answer.add(chunk):
                        yield TextDelta(text=text)
        if rest := answer.rest():
            yield TextDelta(text=rest)
        for event in self._conclude(answer.end(), request, "".join(answer.text), body, limit):
            yield event

    @asynccontextmanager
    async def _open(
        self, body: JsonObject, request: StepRequest, key: str | None, deadline: Deadline
    ) -> AsyncGenerator[httpx.Response, None]:
        """Yield the response to one HTTP call, if it is an event stream; closing it at the end also ends the provider's work."""
        connections = self._connected()
        headers = self._dialect.headers(key, f"{IDENTITY.get().caller}/{request.idempotency_key}") | _HEADERS
        content = _as_json(body)
        pool = await deadline.run(connections.take)
        try:
            if self._near is not None and self._near.check is not None:
                await deadline.run(partial(self._near.check, pool.client, key))
            message = pool.client.build_request("POST", self._address, headers=headers, content=content)
            deadline.was_sent = True
            response = await deadline.run(partial(pool.client.send, message, stream=True))
            try:
                await self._refuse_failure(response, deadline)
                yield response
            finally:
                await response.aclose()
        finally:
            connections.give_back(pool)

    async def _refuse_failure(self, response: httpx.Response, deadline: Deadline) -> None:
        headers = response.headers
        if response.is_redirect:
            raise redirect_error(self._provider, headers.get("location", ""))
        is_readable = unpacks_bounded(headers.get("content-encoding", ""))
        is_stream = "text/event-stream" in headers.get("content-type", "").lower()
        if response.is_success and is_stream and is_readable:
            return
        body = await deadline.run(partial(_beginning, response)) if is_readable else b""
        if not response.is_success:
            raise error_for(fault_of(response.status_code, headers, body), provider=self._provider)
        if not is_readable:
            raise encoding_error(self._provider, headers["content-encoding"])
        raise no_stream_error(self._provider, headers, body)

    def _refuse_fault(self, chunk: JsonObject, answer: "_Answer") -> None:
        if (fault := fault_in(chunk)) is None:
            return
        error = error_for(fault, provider=self._provider)
        if answer.is_lost_by(error):
            raise StepLost(error.message, hint=error.hint, retry_after=error.retry_after)
        raise error

    def _conclude(self, ending: Ending, request: StepRequest, text: str, body: JsonObject, limit: int | None) -> list[StepEvent]:
        calls = checked_calls(ending, request)
        check_text(text, ending, request)
        usage = counted_usage(
            ending.usage,
            body,
            _written_bytes(text, calls),
            attachments=[attachment for message in request.messages for attachment in message.attachments],
            reason=ending.reason,
            limit=limit,
            is_free=self._near is not None,
        )
        events: list[StepEvent] = [ToolCalled(call=call) for call in calls]
        return [*events, finished(ending, usage, request, provider=self._state_provider, model=self._model, called=bool(calls))]

    def _keeping_states(self, request: StepRequest, provider: str | None) -> StepRequest:
        """Return the request with the message states that come from `provider` and this model, and without all others."""
        if not any(message.state for message in request.messages):
            return request
        kept = [
            message if message.state and (message.state.provider, message.state.model) == (provider, self._model) else message.without_state
            for message in request.messages
        ]
        return request.model_copy(update={"messages": tuple(kept)})

    def _refuses_states(self, error: NearfarError) -> bool:
        said = error.message.lower()
        return isinstance(error, RequestRefused) and any(mark in said for mark in UNREADABLE_STATES)

    def _check(self, request: StepRequest) -> None:
        """Refuse a request that must not or cannot be sent, before anything is sent."""
        if self._closed:
            raise self._closed_error()
        check_request(self._card, request)

    def _closed_error(self, error: type[Unavailable] = Unavailable) -> Unavailable:
        return error(f"agent {self._card.name!r} is closed", hint="use it before aclose()")

    @contextmanager
    def _limited(self, request: StepRequest) -> Iterator[Deadline]:
        deadline = Deadline(min(self._timeouts.step, request.timeout or self._timeouts.step))
        self._deadlines.add(deadline)
        try:
            yield deadline
        finally:
            deadline.close()
            self._deadlines.discard(deadline)

    @cached_property
    def _address(self) -> httpx.URL:
        return httpx.URL(self._base_url + self._dialect.path(self._model))

    @property
    def _state_provider(self) -> str:
        """API and address: another address has other keys, and cannot read states that this one encrypted."""
        return f"{self._dialect.name} {self._base_url}"[:_PROVIDER_LENGTH]

    @property
    def _provider(self) -> str:
        place = f"{self._dialect.name} provider" if self._near is None else f"{self._near.label} server"
        return f"{place} of agent {self._card.name!r}"

    def _connected(self) -> Connections:
        self._home.require(f"agent {self._card.name!r}")
        if self._connections is None:
            timeout = httpx.Timeout(self._timeouts.idle, connect=self._timeouts.connect, pool=None)
            open_client = None if self._near is None else partial(near_client, self._base_url, timeout, trusted=self._near.trusted)
            self._connections = Connections(self._base_url, self._card.limits.concurrency, timeout, open_client=open_client)
        return self._connections


class _Answer:
    """One call's answer as it arrives."""

    def __init__(self, decoder: Decoder, stops: Sequence[str]) -> None:
        """Cut the text at `stops`, the sequences at which the provider does not end the text."""
        self.decoder = decoder
        self.text: list[str] = []
        self.has_begun = False
        """True if the provider is at work, which it charges for, even if no output has been shown yet."""
        self._joiner = SurrogateJoiner()
        self._cutter = StopCutter(stops)

    def add(self, chunk: JsonObject) -> str:
        """Add the next chunk; return the new text in it, or ""."""
        self.has_begun = True
        self.text.append(self._cutter.cut(self._joiner.join(self.decoder.feed(chunk))))
        return self.text[-1]

    def is_lost_by(self, error: NearfarError) -> bool:
        """Return whether the provider will charge for the work before this error.

        An error before the first word is a refusal, unless it is the provider's own trouble. A content filter acts on text that was
        written.
        """
        if self.decoder.has_written:
            return not isinstance(error, ContentFiltered)
        return self.has_begun and isinstance(error, Unavailable)

    def end(self) -> Ending:
        """Return the provider's result. Raise `StepLost` if an answer had begun and just ends, because the connection was cut."""
        try:
            ending = self.decoder.end()
        except EndedEarly as early:
            error = StepLost if self.has_begun else InvalidOutput
            raise error(early.message, hint=early.hint) from None
        stop = self._cutter.stopped_at
        return ending if stop is None else replace(ending, reason=FinishReason.STOP, calls=(), parts=(), stop=stop)

    def rest(self) -> str:
        """Return the text that remains when the stream has ended."""
        self.text.append(self._cutter.cut(self._joiner.rest()) + self._cutter.rest())
        return self.text[-1]


def _as_json(body: JsonObject) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        message = f"the request holds a value that JSON cannot represent: {error}"
        raise InvalidRequest(message, hint="remove NaN, infinity and half characters from schemas and arguments") from None


async def _beginning(response: httpx.Response) -> bytes:
    """Return the first 64 KiB of a body: a longer error is a web page."""
    read = bytearray()
    async with aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]  # an async generator behind an iterator's type
        async for piece in pieces:
            read += piece
            if len(read) >= _ERROR_BYTES:
                break
    return bytes(read[:_ERROR_BYTES])


def _written_bytes(text: str, calls: tuple[ToolCall, ...]) -> int:
    return len(text.encode()) + sum(len(call.model_dump_json().encode()) for call in calls)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)
