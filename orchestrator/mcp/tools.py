"""The tools of MCP servers: reviewed by the user, and once approved, tools that agents may call."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

import anyio
from pydantic import ValidationError

from ...protocols import (
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    NearfarError,
    StepLost,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from ...protocols.steps import JsonSchema
from ...protocols.validation import check_schema
from ..task.context import current_approver
from ..task.tools import NOT_RUN, UNKNOWN, Effect, Tool, ToolOptions, explain_arguments
from . import McpServer, McpServerConfig, PinnedTool, read_pins, write_pins
from .connection import CallUnderWay, McpConnection

if TYPE_CHECKING:
    import asyncio

    from mcp_types import CallToolResult, ContentBlock

logger = logging.getLogger(__name__)
_LONGEST_NAME: Final = 64
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """Return the name by which models call a tool: `SERVER__TOOL`.

    Models' APIs take 64 letters, digits, `_` and `-`. Where that changes the name, a hash keeps it apart from all others.
    """
    plain = _NO_NAME.sub("_", f"{server}__{tool}")
    if plain == f"{server}__{tool}" and len(plain) <= _LONGEST_NAME:
        return plain
    mark = hashlib.sha256(tool.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_NAME - len(mark) - 1]}_{mark}"


def arguments_schema(pinned: PinnedTool) -> JsonSchema:
    """Return the schema of a tool's arguments as models are shown it. Raises `InvalidRequest` if it cannot be used.

    A reference that leads out of the document is such a reason: nothing is ever fetched.
    """
    schema = {**pinned.parameters, "type": "object", "properties": pinned.parameters.get("properties", {})}
    if pinned.parameters.get("type", "object") != "object" or not isinstance(schema["properties"], dict):
        raise InvalidRequest(f"the arguments of tool {pinned.name!r} are no object")
    check_schema(schema, f"the schema of the arguments of tool {pinned.name!r}")
    if pinned.result is not None:
        check_schema(pinned.result, f"the schema of the result of tool {pinned.name!r}")
    return schema


class McpTool(Tool):
    """A tool of an MCP server, as the user has approved it. The server's own hints about its effects are not believed.

    Args:
        connection: to its server.
        pinned: its definition.
    """

    is_external = True

    def __init__(self, connection: McpConnection, pinned: PinnedTool) -> None:
        self._connection = connection
        self._pinned = pinned
        self._context = None
        spec = ToolSpec(name=tool_name(connection.name, pinned.name), description=pinned.description, parameters=arguments_schema(pinned))
        self._describe(self._text_of_call, spec, _options(connection.config, pinned.name))

    async def run(
        self, call: ToolCall, *, effect_key: str = "", overdue: "Callable[[asyncio.Task[ToolResult]], None] | None" = None
    ) -> ToolResult:
        """Run the `call` at the server. Any failure becomes an error result, which says whether the call may have had its effect.

        `effect_key` and `overdue` are for plain functions, and are not used.
        """
        try:
            self.arguments(call)
        except ValidationError as error:
            return self._result(call, explain_arguments(error), is_error=True)
        under_way = CallUnderWay(call, current_approver())
        try:
            result = await self._connection.call(self._pinned, under_way)
        except NearfarError as error:
            return self._failure(call, under_way, error)
        return self._result(call, text_of(result), is_error=result.is_error)

    def _failure(self, call: ToolCall, under_way: CallUnderWay, error: NearfarError) -> ToolResult:
        if not under_way.has_begun:
            return self._result(call, f"{NOT_RUN}{error}", is_error=True)
        if isinstance(error, DeadlineExceeded):
            return self._past_limit(call, "was given up, perhaps after it had acted")
        is_unknown = isinstance(error, StepLost) and self.declared.effect is not Effect.READ
        return self._result(call, f"{UNKNOWN if is_unknown else ''}{error}", is_error=True)

    async def _text_of_call(self, **arguments: object) -> str:
        """Call the tool outside of a task. Raises what the connection raises, and `InvalidRequest` for an error of the tool."""
        result = await self.run(ToolCall.model_validate({"id": "direct", "name": self.name, "arguments": arguments}))
        if result.is_error:
            raise InvalidRequest(result.content)
        return result.content


def text_of(result: "CallToolResult") -> str:
    """Return a result as text for a model: its texts, and the structured content where they do not say it. Other media are named."""
    texts = "\n".join(map(_text_of_block, result.content))
    if result.structured_content is None or _says(texts, result.structured_content):
        return texts
    structured = json.dumps(result.structured_content, ensure_ascii=False)
    return f"{texts}\n{structured}" if texts else structured


def _says(texts: str, structured: object) -> bool:
    """Return whether the texts are the structured content already: as JSON, or as its only value `result`."""
    said: list[object] = [texts]
    with suppress(ValueError, RecursionError):
        said.append(json.loads(texts))
    return any(structured in (each, {"result": each}) for each in said)


def _text_of_block(block: "ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
        case "resource_link":
            return f"[resource: {block.name}, {block.uri}]"
        case "resource":
            text = getattr(block.resource, "text", None)
            return text if isinstance(text, str) else f"[resource: {block.resource.uri}, not shown]"


def _options(config: McpServerConfig, name: str) -> ToolOptions:
    own = config.of_tool(name)
    declared = {field: getattr(own, field) for field in ("effect", "approval", "source", "returns", "sends", "sinks", "keys")}
    given = {field: value for field, value in declared.items() if value is not None}
    return cast(ToolOptions, {"time_limit": config.call_seconds, "result_limit": config.result_characters, **given})


class McpServers:
    """The MCP servers of one `Hybrid`, and their approved tools. No server is started before one of its tools is called.

    Raises `ConfigError` for two servers of one name.
    """

    def __init__(self, servers: Sequence[McpServer]) -> None:
        names = [server.name for server in servers]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two MCP servers are called {name!r}", hint="give one of them another name")
        self.connections = [McpConnection(server.name, server) for server in servers]
        self.tools: Sequence[Tool] = [tool for connection in self.connections for tool in _approved_tools(connection)]

    async def release(self) -> None:
        """Close all connections, and end the servers that were started here. The next call opens them again."""
        async with anyio.create_task_group() as closing:
            for connection in self.connections:
                closing.start_soon(connection.release)

    def forget(self) -> None:
        """Drop what belongs to an event loop that is closed."""
        for connection in self.connections:
            connection.forget()


def _approved_tools(connection: McpConnection) -> list[McpTool]:
    """Return the tools that the user has approved. Raises `ConfigError` for pins that cannot be read, and unusable declarations."""
    pins = read_pins(connection.config)
    if pins is None or not pins.tools:
        logger.warning("no tool of the MCP server %s is approved, so it is not used: run `nearfar mcp review`", connection.name)
        return []
    by_name = pins.by_name
    for unknown in sorted(set(connection.config.tools) - set(by_name)):
        known = ", ".join(by_name) or "none"
        logger.warning("mcp.%s.tools.%s: no such tool is approved; approved tools: %s", connection.name, unknown, known)
    return [McpTool(connection, pinned) for pinned in by_name.values()]


@dataclass(frozen=True, slots=True)
class McpToolOffer:
    """A tool that an MCP server offers, and how it stands to what the user has approved."""

    tool: PinnedTool
    """The definition that the server gives now."""
    approved: PinnedTool | None
    """The definition that the user has approved; None: none yet."""
    problem: str
    """Reason why the tool cannot be used, such as a schema with references to other documents; empty if it can."""

    @property
    def state(self) -> Literal["approved", "new", "changed", "unusable"]:
        """`approved`: as the user has approved it; `new`, `changed`: off until the user approves it; `unusable`: it has a `problem`."""
        if self.problem:
            return "unusable"
        if self.approved is None:
            return "new"
        return "approved" if self.approved.sha256 == self.tool.fingerprint else "changed"


async def review_mcp_server(server: McpServer, approve: Callable[[McpToolOffer], bool]) -> list[McpToolOffer]:
    """Start an MCP server, ask about each tool that it offers, and keep the decisions. Return the offers.

    To be called once the user has seen the command, or the address. Tools that are not offered any more lose their approval.

    Args:
        server: a relative folder is that of the current one.
        approve: decides about a usable tool; False turns it off.

    Raises `Unavailable` if the server cannot be reached, `ConfigError` for a program that is not there, or pins that cannot be kept.
    """
    connection = McpConnection(server.name, server)
    try:
        offered = await connection.offered()
    finally:
        await connection.release()
    pins = read_pins(server)
    approved = {} if pins is None else pins.by_name
    offers = [McpToolOffer(tool, approved.get(tool.name), _problem(tool)) for tool in offered]
    write_pins(server, [offer.tool for offer in offers if offer.state != "unusable" and approve(offer)])
    return offers


def _problem(tool: PinnedTool) -> str:
    try:
        arguments_schema(tool)
    except InvalidRequest as error:
        return error.message
    return ""
