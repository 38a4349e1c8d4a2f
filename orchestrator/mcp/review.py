"""The review of an MCP server: compare what it offers with what the user has approved, and keep the user's decisions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...protocols import InvalidRequest
from .config import McpServerConfig
from .connection import McpConnection
from .pins import PinnedTool, read_pins, write_pins
from .tools import arguments_schema


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


async def review_mcp_server(name: str, config: McpServerConfig, approve: Callable[[McpToolOffer], bool]) -> list[McpToolOffer]:
    """Start an MCP server, ask about each tool that it offers, and keep the decisions. Return the offers.

    To be called once the user has seen the command, or the address. Tools that are not offered any more lose their approval.

    Args:
        name: of the server, for errors.
        config: its section. A relative folder is that of the current one.
        approve: decides about a usable tool; False turns it off.

    Raises `Unavailable` if the server cannot be reached, `ConfigError` for a program that is not there, or pins that cannot be kept.
    """
    connection = McpConnection(name, config)
    try:
        offered = await connection.offered()
    finally:
        await connection.release()
    pins = read_pins(config)
    approved = {} if pins is None else pins.by_name
    offers = [McpToolOffer(tool, approved.get(tool.name), _problem(tool)) for tool in offered]
    write_pins(config, [offer.tool for offer in offers if offer.state != "unusable" and approve(offer)])
    return offers


def _problem(tool: PinnedTool) -> str:
    try:
        arguments_schema(tool)
    except InvalidRequest as error:
        return error.message
    return ""
