"""Serve requests: who calls, what is asked, and every error as its dialect words it. The answer comes in one piece, or as server-sent
events to a client that may be slow and may leave.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import anyio
import orjson
from starlette.datastructures import Headers

from ...protocols import InternalError, Message, NearfarError
from ...protocols.propagation import TRACEPARENT, continued_trace
from ...protocols.secrets import log_defect
from ...protocols.security import Identity, Scope
from ..compose.hub import ServeConfig
from ..hybrid import Hybrid
from ..task import as_messages
from ..task.events import Speaker, Turn, TurnFinished, TurnText
from ..util.runtime import cancel_task
from ..util.text import tokens_at_most
from .callers import Callers
from .dialect import COMMENT, SCHEMA, AskedOfTurn, Incoming, TurnDialect, common_headers, speaker_headers, turn_headers
from .requests import Body, ClientLeft, Receive, Send, WrongMethod, encoded, openai_error, read_object, retry_headers, status_of
from .requests import Scope as Asgi

logger = logging.getLogger(__name__)

_JSON: Final = {"content-type": "application/json"}
QUIET_SECONDS: Final = 5.0
"""Seconds without an event until a comment line keeps the connection alive: two are at most twice as far apart."""
_MOST_WAITING: Final = 64 * 1024
"""Bytes that wait to be sent until the turn has to wait, too."""
_HEAD: Final = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class Face:
    """The parts that all endpoints of a server share."""

    hybrid: Hybrid
    config: ServeConfig
    callers: Callers


class Endpoint:
    """An ASGI app that answers one path.

    Args:
        face: what it shares with the others.
        answer: serves a request of a caller who may make it.
        methods: the methods that it answers.
        needed: the scope that the caller's token needs.
        error_body: makes the body of errors.
    """

    def __init__(
        self,
        face: Face,
        answer: "Callable[[Exchange], Awaitable[None]]",
        *,
        methods: tuple[str, ...] = ("POST",),
        needed: Scope = Scope.TASKS,
        error_body: Body = openai_error,
    ) -> None:
        self._face = face
        self._answer = answer
        self._methods = methods
        self._needed = needed
        self._error_body = error_body

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._face, scope, receive, send, self._error_body)
        try:
            if scope["method"] not in self._methods:
                raise WrongMethod(f"{scope['path']} is not answered to {scope['method']}", hint=f"use {' or '.join(self._methods)}")
            identity = self._face.callers.identify(scope, exchange.headers, self._needed)
            with continued_trace(exchange.headers.get(TRACEPARENT)):
                await self._face.callers.access.run(identity, self._answered(exchange, identity))
        except ClientLeft:
            logger.debug("a client left before it was answered")
        except NearfarError as error:
            await exchange.fail(error)
        except Exception as defect:  # the boundary of a request: its client learns that it failed, and the log where
            log_defect(logger, f"{scope['method']} {scope['path']} failed", defect)
            await exchange.fail(InternalError("the request failed unexpectedly", hint="the server's log has the details"))
        finally:
            await exchange.aclose()

    async def _answered(self, exchange: "Exchange", identity: Identity) -> None:
        exchange.caller = identity.caller
        with self._face.callers.call(identity) as share:
            async with share.reading:
                await exchange.read()
            with share.holding(exchange.size):
                await self._answer(exchange)


class Exchange:
    """One request, and the response to it."""

    def __init__(self, face: Face, scope: Asgi, receive: Receive, send: Send, error_body: Body) -> None:
        self.face = face
        self.scope = scope
        self.headers: Mapping[str, str] = Headers(scope=scope)
        self.run = uuid4().hex
        """Id of the request, and of the run that serves it."""
        self.caller = ""
        self.body: Mapping[str, Any] = {}
        self.size = 0
        """Bytes of the body."""
        self._receive = receive
        self._send = send
        self._error_body = error_body
        self._has_begun = False
        self._stream: EventStream | None = None
        self._failure: Callable[[NearfarError], bytes] | None = None
        """Writes the event that ends a stream with an error."""

    async def read(self) -> None:
        """Read the body, if the method has one."""
        if self.scope["method"] == "POST":
            self.body, self.size = await read_object(self._receive, self.headers)

    @property
    def incoming(self) -> Incoming:
        """Return the request as dialects read it."""
        face, allowed = self.face, self.face.config.caller(self.caller)
        return Incoming(run=self.run, hybrid=face.hybrid, caller=self.caller, allowed=allowed, headers=self.headers, body=self.body)

    async def reply(self, body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        told = {**_JSON, "content-length": str(len(data)), **(headers or {})}
        self._has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": encoded(told)})
        await self._send({"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else data})

    async def fail(self, error: NearfarError) -> None:
        """Tell the client of an error: by a status, or by an event where the stream has begun."""
        if self._stream is not None and self._stream.has_begun:
            assert self._failure is not None, "a stream has one"
            await self._stream.write(self._failure(error))
            await self._stream.end()
        elif not self._has_begun:
            headers = {**retry_headers(error), "x-request-id": self.run, "request-id": self.run}
            status = status_of(error, self._error_body)
            await self.reply(self._error_body(error, self.run), status=status, headers=headers)

    async def aclose(self) -> None:
        """Send nothing more."""
        if self._stream is not None:
            await self._stream.aclose()

    async def while_connected(self, work: Awaitable[Any]) -> Any:  # noqa: ANN401 - whatever the work returns
        """Return the result of the work. Cancel it, and raise `ClientLeft`, when the client closes the connection."""
        async with while_connected(self._receive) as scope:
            return await work
        assert scope.cancelled_caught
        raise ClientLeft

    async def send_events(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str], *, failure: Callable[[NearfarError], bytes]
    ) -> None:
        """Send events as they come, and keep the connection alive between them. When the client closes it, `events` are closed.

        `failure`: writes the event that ends them with an error.
        """
        stream = self._stream = EventStream(self._send, lambda: headers)
        self._failure = failure
        async with while_connected(self._receive, stream.keep_alive), aclosing(events):
            async for data in events:
                await stream.write(data)
            await stream.end()

    async def serve_turn(self, dialect: TurnDialect) -> None:
        """Serve the turn that the request asks for."""
        incoming = self.incoming
        asked = await dialect.read(incoming)
        if asked.stream:
            await self._stream_turn(dialect, incoming, asked)
            return
        serving = self.face.hybrid.turn(asked.prompt, tools=asked.tools, tool_choice=asked.tool_choice, **asked.options)
        turn: Turn = await self.while_connected(serving)
        written = dialect.whole(incoming, asked, turn)
        await dialect.keep(incoming, asked, turn, written)
        await self.reply(written, headers=_headers(self.run, asked, turn.speaker) | turn_headers(turn))

    async def _stream_turn(self, dialect: TurnDialect, incoming: Incoming, asked: AskedOfTurn) -> None:
        speaker: Speaker | None = None
        turn: Turn | None = None

        def headers() -> Mapping[str, str]:
            return _headers(self.run, asked, speaker) | ({} if turn is None else turn_headers(turn))

        encoder = dialect.encoder(incoming, asked)
        stream = self._stream = EventStream(self._send, headers, sign=encoder.sign)
        self._failure = encoder.fail
        events = self.face.hybrid.stream_turn(asked.prompt, tools=asked.tools, tool_choice=asked.tool_choice, **asked.options)
        async with while_connected(self._receive, stream.keep_alive), aclosing(events):
            async for event in events:
                if isinstance(event, TurnText):
                    opening = b"" if speaker is not None else encoder.begin(event.by)
                    speaker = event.by
                    await stream.write(opening + encoder.text(event.text))
                elif isinstance(event, TurnFinished):
                    turn = event.turn
                    opening = b"" if speaker is not None else encoder.begin(turn.speaker)
                    speaker = speaker or turn.speaker
                    ending = encoder.finish(turn)
                    await dialect.keep(incoming, asked, turn, encoder)
                    await stream.write(opening + ending)
            await stream.end()


def _headers(run: str, asked: AskedOfTurn, speaker: Speaker | None) -> dict[str, str]:
    strategy = asked.options.get("strategy", "auto") if speaker is None else speaker.strategy
    return common_headers(run, str(strategy), asked.warnings) | ({} if speaker is None else speaker_headers(speaker))


def turn_endpoint(face: Face, dialect: TurnDialect) -> Endpoint:
    """Return the endpoint that answers with turns in a dialect."""

    async def answer(exchange: Exchange) -> None:
        await exchange.serve_turn(dialect)

    return Endpoint(face, answer, error_body=dialect.error_body)


_OF_MESSAGE: Final = 8
"""Tokens by which a template marks a message."""
_OF_TOOL: Final = 24
"""Tokens by which a template describes a tool, besides its schema."""


async def answer_count(exchange: Exchange, asked: AskedOfTurn, **body: str) -> None:
    """Answer with `body` and the tokens of a request: messages, images, tools and template; and whether they are exact."""
    exact = await exchange.while_connected(_exact_tokens(exchange.face.hybrid, asked))
    tokens, count = (_estimated_tokens(asked), "estimated") if exact is None else (exact, "exact")
    told = {**body, "input_tokens": tokens, "nearfar": {"schema": SCHEMA, "count": count}}
    await exchange.reply(told, headers={"x-nearfar-count": count})


async def _exact_tokens(hybrid: Hybrid, asked: AskedOfTurn) -> int | None:
    """Return the tokens that the near agent would count; None where it would not begin the turn, or cannot count."""
    try:
        return await hybrid.count_turn_tokens(asked.prompt, tools=asked.tools, tool_choice=asked.tool_choice, **asked.options)
    except NearfarError as error:  # clients count also what no agent here would serve
        logger.debug("tokens are estimated, since they cannot be counted: %s", error)
        return None


def _estimated_tokens(asked: AskedOfTurn) -> int:
    tools = sum(_OF_TOOL + tokens_at_most(_as_text(tool)) for tool in asked.tools)
    return sum(map(_message_tokens, as_messages(asked.prompt))) + tools


def _as_text(tool: object) -> str:
    return json.dumps(tool, ensure_ascii=False, default=str)


def _message_tokens(message: Message) -> int:
    result = message.tool_result
    texts = [message.text, "" if result is None else f"{result.name}{result.content}"]
    texts += [f"{call.name}{json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
    return _OF_MESSAGE + sum(map(tokens_at_most, texts)) + sum(each.most_tokens for each in message.attachments)


class EventStream:
    """Writes events as they come; those that come at once are sent together. The head of the response waits for the first event, as long
    as the connection need not be kept alive."""

    def __init__(self, send: Send, headers: Callable[[], Mapping[str, str]], *, sign: bytes = COMMENT) -> None:
        """Send events by `send`.

        Args:
            send: the server's.
            headers: returns the headers of the response; called when its head is sent.
            sign: sent now and then where nothing else is, so that the connection stays open.
        """
        self._send = send
        self._headers = headers
        self._sign = sign
        self._waiting: list[bytes] = []
        self._size = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        self._has_ended = False
        """The server was told that the response is over, together with its last event."""
        self._latest = time.monotonic()
        self._has_head = False
        self.has_begun = False
        """An event was written, so that no other status can be sent."""

    async def write(self, data: bytes) -> None:
        """Send events. Waits while the client does not read; the server ends such connections."""
        self.has_begun = True
        self._waiting.append(data)
        self._size += len(data)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())
        if self._size > _MOST_WAITING:
            await asyncio.wait({self._sending})

    async def end(self) -> None:
        """End the response after its last event."""
        self._is_over = True
        if self._sending is not None:
            await self._sending
        if not self._has_ended:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def aclose(self) -> None:
        """Send nothing more."""
        if self._sending is not None:
            await cancel_task(self._sending)

    async def keep_alive(self) -> None:
        """Send a sign of life if nothing was sent for a while."""
        if time.monotonic() - self._latest >= QUIET_SECONDS and not self._is_over:
            await self.write(self._sign)

    async def _send_waiting(self) -> None:
        while self._waiting:
            data = b"".join(self._waiting)
            self._waiting, self._size = [], 0
            if not self._has_head:
                self._has_head = True
                await self._send({"type": "http.response.start", "status": 200, "headers": encoded({**_HEAD, **self._headers()})})
            self._has_ended = self._is_over
            await self._send({"type": "http.response.body", "body": data, "more_body": not self._is_over})
            self._latest = time.monotonic()


@asynccontextmanager
async def while_connected(receive: Receive, tick: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[anyio.CancelScope]:
    """Cancel the block when the client closes the connection: the scope that it yields tells. The whole request has been read before.

    `tick` is called every few seconds.
    """
    with anyio.CancelScope() as scope:
        watching = asyncio.create_task(_watch(receive, scope, tick))
        try:
            yield scope
        finally:
            await cancel_task(watching)


async def _watch(receive: Receive, scope: anyio.CancelScope, tick: Callable[[], Awaitable[None]] | None) -> None:
    while True:
        try:
            async with asyncio.timeout(None if tick is None else QUIET_SECONDS):
                message = await receive()
        except TimeoutError:
            assert tick is not None, "else there is no timeout"
            await tick()
        else:
            if message["type"] == "http.disconnect":
                scope.cancel()
                return
