"""Pins: the tools of an MCP server as the user has approved them, in a file of the user's own."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ...protocols import ConfigError
from ...protocols.steps import JsonSchema, Value
from ..task.stores import data_folder
from ..util.json_text import digest
from .config import McpServerConfig

if TYPE_CHECKING:
    from mcp_types import Tool as McpTypesTool


class PinnedTool(Value):
    """A tool of an MCP server, as it was when the user approved it."""

    name: str
    """The name that the server calls it by."""
    description: str = ""
    """The server's description, which models see."""
    parameters: JsonSchema
    """JSON Schema of the arguments."""
    result: JsonSchema | None = None
    """JSON Schema of the structured result; None: any text."""
    sha256: str = ""
    """Hash of all that, written at the time of approval."""

    @property
    def fingerprint(self) -> str:
        """The hash of name, description and schemas as they are here."""
        return digest(self.name, self.description, self.parameters, self.result)

    def pinned(self) -> "PinnedTool":
        """Return the tool with its hash."""
        return self.model_copy(update={"sha256": self.fingerprint})


def offered_tool(tool: "McpTypesTool") -> PinnedTool:
    """Return the definition that a server gives of a tool now."""
    return PinnedTool(name=tool.name, description=tool.description or "", parameters=tool.input_schema, result=tool.output_schema)


class Pins(Value):
    """The approved tools of one server."""

    server: tuple[str, ...]
    """The command, or the address, that the approval holds for, as people read it."""
    tools: tuple[PinnedTool, ...] = ()
    """The approved tools."""

    @property
    def by_name(self) -> Mapping[str, PinnedTool]:
        """The tools by the server's names, without those whose hash does not fit: the file was edited."""
        return {tool.name: tool for tool in self.tools if tool.sha256 == tool.fingerprint}


def pins_file(config: McpServerConfig) -> Path:
    """Return the path of a server's pins: in the user's data folder, or below `NEARFAR_HOME`."""
    # Not in the folder of nearfar.toml: a project of other people could bring the approval of its own servers.
    return data_folder() / "mcp" / f"{config.identity[:32]}.json"


def read_pins(config: McpServerConfig) -> Pins | None:
    """Return the approved tools of a server; None if it was never approved. Raises `ConfigError` for a file that cannot be read."""
    path = pins_file(config)
    try:
        return Pins.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        hint = "remove it, and approve the tools again with `nearfar mcp review`"
        raise ConfigError(f"{path} cannot be read: {error.__class__.__name__}", hint=hint) from error


def write_pins(config: McpServerConfig, tools: Iterable[PinnedTool]) -> Path:
    """Replace the approved tools of a server, for its owner's eyes only. Return the file. Raises `ConfigError`."""
    path = pins_file(config)
    pins = Pins(server=config.shown, tools=tuple(tool.pinned() for tool in tools))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(prefix=".pins", dir=path.parent)
        with contextlib.ExitStack() as cleaning:
            cleaning.callback(Path(name).unlink, missing_ok=True)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(pins.model_dump(mode="json"), file, ensure_ascii=False, indent=1)
            os.replace(name, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="NEARFAR_HOME names another folder") from error
    return path
