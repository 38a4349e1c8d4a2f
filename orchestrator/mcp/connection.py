"""The connection to one MCP server: opened with the first call, watched by a circuit breaker, and opened again after the server died."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import anyio
from pydantic import ValidationError

from ...protocols import (
    ApprovalRequest,
    ConfigError,
    DeadlineExceeded,
    InvalidOutput,
    NearfarError,
    PermissionDenied,
    RequestRefused,
    StepLost,
    ToolCall,
    Unavailable,
)
from ...protocols.propagation import annotate_span, without_baggage
from ...protocols.secrets import log_defect, quote
from ...protocols.validation import parse_output
from ..agents.breaker import Health
from ..task.context import ask_approver
from ..task.tools import Approver
from ..util.runtime import cancel_task, shielded
from . import McpServerConfig, PinnedTool, offered_tool

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import ClientRequestContext
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage
    from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

    from .transports import ServerProcess

logger = logging.getLogger(__name__)
_MOST_TOOLS: Final = 1000
_MOST_PAGES: Final = 100
_LIST_SECONDS: Final = 10.0
"""Seconds, or fewer if a call may take fewer, in which a server must list its tools. One that does not is ended, and started again for
the next call."""
_LEAVING_SECONDS: Final = 10.0
"""Time to close a connection in order."""
_NO_TIMEOUT: Final = 7 * 86_400.0
"""Seconds, in place of the package's own time limit for a call, which would run on while the user is asked."""
_HIDDEN: Final = "the server refused"
_TEXT: Final = "nearfar.text"
"""Key in the data of a server's error under which its text stands."""
_REVIEW: Final = "look at it with `nearfar mcp review`"


@dataclass(eq=False)
class CallUnderWay:
    """A call that the server works on, and may ask the user about."""

    call: ToolCall
    approver: Approver | None
    limit: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends the call; its deadline moves while the user is asked."""
    has_begun: bool = False
    """The request was sent, so that the call may have had its effect."""
    _questions: list[anyio.CancelScope] = field(default_factory=list)
    """Open questions to the user: none outlives its call."""
    _rest: float = 0.0
    """Seconds of the call that are left while the user is asked."""

    @contextmanager
    def question(self) -> Iterator[None]:
        """Stop the clock of the call while the user is asked; the block is cancelled when the call ends."""
        if not self._questions:  # a server may ask several at a time
            self._rest = self.limit.deadline - anyio.current_time()
            self.limit.deadline = float("inf")
        with anyio.CancelScope() as scope:
            self._questions.append(scope)
            try:
                yield
            finally:
                self._questions.remove(scope)
                if not self._questions:
                    self.limit.deadline = anyio.current_time() + self._rest

    def end_questions(self) -> None:
        """Cancel the questions that are open."""
        for question in self._questions:
            question.cancel()


_calling: Final[ContextVar[CallUnderWay | None]] = ContextVar("nearfar_mcp_call", default=None)


class McpConnection:
    """The connection of a `Hybrid` to one MCP server.

    Args:
        name: of the server, in the configuration.
        config: its section.
    """

    def __init__(self, name: str, config: McpServerConfig) -> None:
        self.name = name
        self.config = config
        self.entering: Callable[[], Awaitable[None]] | None = None
        """Makes the running event loop the one that the server belongs to; None: there is no such rule."""
        self._health = Health(f"MCP server {name}")
        self._forget()

    def _forget(self) -> None:
        self._process: ServerProcess | None = None
        self._serving: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._opening = anyio.Lock()
        self._leaving = anyio.Event()
        self._under_way: list[CallUnderWay] = []
        self._was_left = False
        """A call was given up that the server may still work on, and ask about."""

    def forget(self) -> None:
        """Drop what belongs to an event loop that is closed; the next call opens it again."""
        if self._process is not None:
            self._process.kill()
        self._forget()

    async def release(self) -> None:
        """Close the connection, and end a server that was started here; the next call opens it again."""
        serving, self._serving, self._client = self._serving, None, None
        self._leaving.set()
        if serving is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([serving], timeout=_LEAVING_SECONDS)
                await cancel_task(serving)

    async def call(self, tool: PinnedTool, under_way: CallUnderWay) -> "CallToolResult":
        """Let the server run a tool, if it still defines the tool as it was approved.

        Raises `PermissionDenied` for a tool that has changed or is gone, `Unavailable` if the server cannot be reached or has just failed,
        `StepLost` if it dies during the call, `DeadlineExceeded` if it takes too long, `InvalidOutput` for a malformed result,
        `RequestRefused` for an error of the server.
        """
        if objection := self._health.objection():
            raise Unavailable(f"the MCP server {self.name} was not called: {objection.reason}", retry_after=objection.retry_after)
        with self._health.trying():
            client = await self._opened()
            await self._require_unchanged(client, tool)
            under_way.limit.deadline = anyio.current_time() + self.config.call_seconds
            self._under_way.append(under_way)
            try:
                with under_way.limit:
                    async with self._told_errors(client):
                        under_way.has_begun = True
                        annotate_span({"mcp.method.name": "tools/call", "mcp.protocol.version": client.protocol_version})
                        result = await self._result_of(client, tool, under_way)
                    self._check_result(tool, result)
                    return result
                raise DeadlineExceeded(f"the MCP server {self.name} took longer than {self.config.call_seconds:g} s")
            finally:
                self._under_way.remove(under_way)
                under_way.end_questions()

    async def _result_of(self, client: "Client", tool: PinnedTool, under_way: CallUnderWay) -> "CallToolResult":
        token = _calling.set(under_way)
        try:
            return await client.call_tool(tool.name, under_way.call.arguments, _NO_TIMEOUT)
        except asyncio.CancelledError:  # of the caller, or past the limit
            self._was_left = True
            raise
        finally:
            _calling.reset(token)

    def _check_result(self, tool: PinnedTool, result: "CallToolResult") -> None:
        """Raise `InvalidOutput` for a result that does not fit the schema that was approved."""
        if tool.result is None or result.is_error:
            return
        try:
            parse_output(json.dumps(result.structured_content), tool.result)
        except InvalidOutput as error:
            raise InvalidOutput(f"the MCP server {self.name} gave a result that does not fit: {error.message}") from error

    async def offered(self) -> list[PinnedTool]:
        """Return the tools that the server offers now, approved or not. Raises what `call` raises if it cannot be reached."""
        return [offer async for offer in self._list(await self._opened())]

    async def _require_unchanged(self, client: "Client", tool: PinnedTool) -> None:
        async for offer in self._list(client):
            if offer.name == tool.name:
                if offer.fingerprint == tool.sha256:
                    return
                logger.warning("the MCP server %s has changed its tool %r: it is off; %s", self.name, quote(tool.name), _REVIEW)
                raise PermissionDenied(f"the MCP server {self.name} has changed this tool since it was approved", hint=_REVIEW)
        raise PermissionDenied(f"the MCP server {self.name} does not offer this tool any more", hint=_REVIEW)

    async def _list(self, client: "Client") -> AsyncIterator[PinnedTool]:
        """Yield the server's tools: those that its last list holds, for as long as the server has said that it stands."""
        cursor, count = None, 0
        seconds = min(_LIST_SECONDS, self.config.call_seconds)
        for _ in range(_MOST_PAGES):
            try:
                with anyio.fail_after(seconds):
                    async with self._told_errors(client):
                        page = await client.list_tools(cursor=cursor)
            except TimeoutError:
                await self.release()
                raise Unavailable(f"the MCP server {self.name} did not list its tools within {seconds:g} s") from None
            count += len(page.tools)
            if count > _MOST_TOOLS:
                break
            for tool in page.tools:
                yield offered_tool(tool)
            cursor = page.next_cursor
            if cursor is None:
                return
        raise InvalidOutput(f"the MCP server {self.name} offers more than {_MOST_TOOLS} tools, or more than {_MOST_PAGES} pages of them")

    @asynccontextmanager
    async def _told_errors(self, client: "Client") -> AsyncGenerator[None]:
        """Translate errors of the `mcp` package. Close a connection that has failed, so that the next call opens another one."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            with without_baggage():
                yield
        except MCPError as error:
            if error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise RequestRefused(f"the MCP server {self.name} refused: {quote(_said(error))}") from error
            said = self._process.last_words if self._process is not None else ""
            if client is self._client:
                await self.release()
            raise StepLost(f"the connection to the MCP server {self.name} was lost" + (f"; it said: {said}" if said else "")) from error
        except (ValidationError, RuntimeError) as error:  # the package's errors for results that break the protocol or the tool's schema
            raise InvalidOutput(f"the MCP server {self.name} gave a result that does not fit: {quote(str(error))}") from error

    async def _opened(self) -> "Client":
        if self.entering is not None:
            await self.entering()
        async with self._opening:
            if self._client is None:
                self._client = await self._open()
            return self._client

    async def _open(self) -> "Client":
        if find_spec("mcp") is None:
            raise ConfigError("an MCP server needs the Python package mcp", hint="pip install 'nearfar[mcp]'")
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._leaving = anyio.Event()
        self._was_left = False
        # A task of its own, since the connection must be closed in the task that opened it; without the context of this call.
        self._serving = asyncio.create_task(self._serve(opened, self._leaving), context=Context())
        try:
            async with asyncio.timeout(self.config.start_seconds):
                return await shielded(opened)
        except TimeoutError:
            raise Unavailable(f"the MCP server {self.name} did not answer within {self.config.start_seconds:g} s") from None
        finally:
            if not opened.done() or opened.cancelled() or opened.exception() is not None:
                await cancel_task(self._serving)
                self._serving = None

    async def _serve(self, opened: "asyncio.Future[Client]", leaving: anyio.Event) -> None:
        from mcp import Client
        from mcp_types import Implementation

        try:
            client = Client(
                self._transport(),
                read_timeout_seconds=self.config.start_seconds / 2,  # a server of the older kind may ignore the first request
                elicitation_callback=self._asked,
                client_info=Implementation(name="nearfar", version="1"),
            )
            async with client:
                # The package would check results by Python's `re`, for which a server's pattern may take for ever.
                client.session.validate_tool_result = _leave_unchecked  # type: ignore[method-assign]  # it has no option for that
                opened.set_result(client)
                await leaving.wait()
        except Exception as error:  # a task boundary: raised again in the call that opens the server, or the connection is over
            if not opened.done():
                opened.set_exception(self._opening_error(error))

    def _opening_error(self, error: Exception) -> NearfarError:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, NearfarError):
            return error
        said = self._process.last_words if self._process is not None else ""
        reason = quote(f"{type(error).__name__}: {_said(error)}")
        return Unavailable(f"the MCP server {self.name} cannot be reached: {reason}" + (f"; it said: {said}" if said else ""))

    @asynccontextmanager
    async def _transport(self) -> "AsyncGenerator[TransportStreams]":
        async with self._streams() as (heard, said):
            yield _HiddenErrors(heard), said

    def _streams(self) -> "AbstractAsyncContextManager[TransportStreams]":
        from .transports import ServerProcess, http_transport  # with the package, which nothing else needs

        if self.config.command:
            self._process = ServerProcess(self.name, self.config)
            return self._process.transport()
        return http_transport(self.config)

    async def _asked(self, context: "ClientRequestContext", params: "ElicitRequestParams") -> "ElicitResult | ErrorData":
        """Answer a question of the server: the user is asked if it can be answered by yes. All other questions are declined."""
        from mcp_types import ElicitRequestFormParams, ElicitResult

        content = content_of_yes(params.requested_schema) if isinstance(params, ElicitRequestFormParams) else None
        under_way = self._asking_call()
        if content is None or under_way is None or under_way.approver is None:
            logger.info("a question of the MCP server %s was declined: %s", self.name, quote(params.message))
            return ElicitResult(action="decline")
        reason = f"the MCP server {self.name} asks: {params.message} (yes means {json.dumps(content)})"
        request = ApprovalRequest(id=uuid4().hex[:12], call=under_way.call, reason=reason)
        if await self._is_approved(request, under_way, under_way.approver):
            return ElicitResult(action="accept", content=content)
        return ElicitResult(action="decline")

    def _asking_call(self) -> CallUnderWay | None:
        """Return the call that a question is about; None if that is not sure. Since 2026-07-28 a question comes in the result of its call,
        before, it may be about any call that the server works on, also one that was given up."""
        known = _calling.get()
        if known is not None:
            return known if known in self._under_way else None
        return self._under_way[0] if len(self._under_way) == 1 and not self._was_left else None

    async def _is_approved(self, request: ApprovalRequest, under_way: CallUnderWay, approver: Approver) -> bool:
        """Ask the user, as long as the call lasts. What an approver raises is a no, which the server is not told."""
        with under_way.question():
            try:
                answers = await ask_approver(approver, [request])
            except Exception as defect:  # the boundary to the server, which would be sent the text of the error
                log_defect(logger, f"a question of the MCP server {self.name} was declined, as the approver failed", defect)
                return False
            return answers[request.id] and under_way in self._under_way
        return False


async def _leave_unchecked(name: str, result: "CallToolResult") -> None:
    """Check nothing: `McpConnection.call` checks the result."""


class _HiddenErrors:
    """The messages of a server, with the texts of its errors in the errors' data: a text may quote the arguments of a call, and the package
    would write it into a span, which the app may export.

    Args:
        heard: the messages as they come.
    """

    def __init__(self, heard: "ReadStream[SessionMessage | Exception]") -> None:
        self._heard = heard

    @property
    def last_context(self) -> object:
        return getattr(self._heard, "last_context", None)

    async def receive(self) -> "SessionMessage | Exception":
        return _hide_error(await self._heard.receive())

    async def aclose(self) -> None:
        await self._heard.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "SessionMessage | Exception":
        return _hide_error(await anext(self._heard))

    async def __aenter__(self) -> Self:
        await self._heard.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return await self._heard.__aexit__(kind, error, trace)


def _hide_error(item: "SessionMessage | Exception") -> "SessionMessage | Exception":
    from mcp_types import JSONRPCError

    message = getattr(item, "message", None)
    if isinstance(message, JSONRPCError):
        data = message.error.data if isinstance(message.error.data, Mapping) else {}
        message.error.data = {**data, _TEXT: message.error.message}
        message.error.message = _HIDDEN
    return item


def _said(error: Exception) -> str:
    """Return the text of an error of the package; of a server's, the one that was hidden."""
    data = getattr(error, "data", None)
    return str(data[_TEXT] if isinstance(data, Mapping) and _TEXT in data else error)


def content_of_yes(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a form whose user says yes: its only field, if that is a yes or no, or the defaults of all fields. None for a
    form that a user would have to fill in."""
    fields = schema.get("properties") or {}
    if not isinstance(fields, Mapping) or not all(isinstance(field, Mapping) for field in fields.values()):
        return None
    if len(fields) == 1 and all(field.get("type") == "boolean" for field in fields.values()):
        return dict.fromkeys(fields, True)
    if all("default" in field for field in fields.values()):
        return {name: field["default"] for name, field in fields.items()}
    return None
