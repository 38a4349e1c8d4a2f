"""Tools of MCP servers: configured, approved once by the user, and called as untrusted tools.

This module has the `[mcp.NAME]` sections, and the pins: the tools of a server as the user has approved them, in a file of the user.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator

from ...protocols import ConfigError
from ...protocols.address import is_loopback
from ...protocols.items import Source, Tier
from ...protocols.steps import JsonSchema, Value
from ...protocols.system import data_folder, hint_for, replace_text
from ..task.stores import VariableName
from ..task.tools import DEFAULT_RESULT_LIMIT, DEFAULT_TIME_LIMIT, Effect
from ..util.text import digest

if TYPE_CHECKING:
    from mcp_types import Tool as McpTypesTool

McpName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,31}$")]
"""Name of a server; its tools are called `NAME__tool`."""


class McpToolConfig(Value):
    """Declarations of one tool: a `[mcp.NAME.tools.TOOL]` section. A key that is left out is that of the server."""

    effect: Effect | None = None
    """Effect of a call: `read`, `idempotent` or `at_most_once`. The server's own hints are not believed."""
    approval: bool | None = None
    """Each call needs approval."""
    source: Source | None = None
    """Author of the results: `external_tool`, `document`, or `internal_tool` if only the user and the app write them."""
    returns: Tier | None = None
    """Privacy tier of the results: `shared`, `user` or `device`."""
    sends: Tier | None = None
    """Privacy tier to which the arguments go: `shared`, or `device` for a server that keeps them on this machine."""
    sinks: tuple[str, ...] | None = None
    """Arguments that decide what is done, and to whom; by default all, and none of a tool that only reads on this device."""
    keys: tuple[str, ...] = ()
    """Arguments that name a record of the user's own data, for a tool that reads it."""


class McpServerConfig(Value):
    """An MCP server whose tools the agents may call: a `[mcp.NAME]` section. Its tools are off until the user has approved them."""

    command: str = ""
    """Program to start, which speaks MCP on standard input and output."""
    args: tuple[str, ...] = ()
    """Arguments of the program."""
    folder: Path | None = None
    """Folder in which the program starts; None: that of nearfar.toml."""
    env: Mapping[str, str] = {}
    """Environment variables of the program, in addition to PATH, HOME and LANG. Secrets stand in `variables`."""
    variables: tuple[VariableName, ...] = ()
    """Names of further variables that the program gets, with their values from the environment or the keyring."""
    url: str = ""
    """Address of a server that runs already, in place of `command`: https, or http on this machine."""
    token_variable: VariableName | None = None
    """Name of the variable, in the environment or the keyring, with the bearer token for `url`."""
    start_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds until the server must have answered for the first time."""
    call_seconds: float = Field(default=DEFAULT_TIME_LIMIT, gt=0, allow_inf_nan=False)
    """Seconds that a call may take. The time in which a user is asked does not count."""
    result_characters: int = Field(default=DEFAULT_RESULT_LIMIT, gt=0)
    """Characters of a result that the model sees; the rest is cut."""
    effect: Effect = Effect.AT_MOST_ONCE
    """Effect of the calls of its tools; by default they count as writing."""
    approval: bool = False
    """Each call needs approval."""
    source: Source = Source.EXTERNAL_TOOL
    """Author of the results; by default untrusted."""
    returns: Tier = Tier.SHARED
    """Privacy tier of the results."""
    sends: Tier = Tier.SHARED
    """Privacy tier to which the arguments go; by default, what must stay on this device is not sent without approval."""
    tools: Mapping[str, McpToolConfig] = {}
    """Declarations of single tools, by the names that the server gives them."""

    @model_validator(mode="after")
    def _is_one_server(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        if self.url and (self.args or self.env or self.variables or self.folder):
            raise ValueError("args, env, variables and folder belong to command")
        if self.token_variable and not self.url:
            raise ValueError("token_variable belongs to url; a program gets its secrets by variables")
        if self.url:
            _check_url(self.url)
        return self

    @model_validator(mode="after")
    def _effects_are_usable(self) -> Self:
        effects = {self.effect, *(tool.effect for tool in self.tools.values())}
        if Effect.TRANSACTIONAL in effects:
            raise ValueError("effect cannot be transactional: a server does not write into the database of the runs")
        return self

    @property
    def identity(self) -> str:
        """A hash of what is started or called, for which the user's consent holds."""
        if self.url:
            return digest("url", self.url, self.token_variable)
        return digest("command", self.command, self.args, self.env, self.variables, str(self.folder or Path.cwd()))

    @property
    def shown(self) -> tuple[str, ...]:
        """The command with its arguments, or the address, as a user is shown it."""
        return (self.url,) if self.url else (self.command, *self.args)

    def of_tool(self, name: str) -> McpToolConfig:
        """Return all declarations of the tool that the server calls `name`."""
        own = self.tools.get(name, McpToolConfig())
        fields = ("effect", "approval", "source", "returns", "sends")
        return own.model_copy(update={field: getattr(self, field) for field in fields if getattr(own, field) is None})

    def anchored(self, folder: Path) -> Self:
        """Return the section with an absolute folder, relative to that of nearfar.toml."""
        return self if self.url else self.model_copy(update={"folder": folder / (self.folder or Path()).expanduser()})


class McpServer(McpServerConfig):
    """An MCP server with its name, among the tools of a `Hybrid`: `McpServer(name="notes", command="notes-mcp")`."""

    name: McpName
    """Name of the server; its tools are called `NAME__tool`."""

    @classmethod
    def of_section(cls, name: str, section: McpServerConfig) -> Self:
        """Return the server called `name` that a `section` [mcp.NAME] describes."""
        return cls.model_validate({"name": name, **dict(section)})


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("url must be an http or https address")
    if parts.username or parts.password:
        raise ValueError("url must not hold a password: name a token_variable")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("url must begin with https: only this machine is reached without TLS")


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
        replace_text(path, json.dumps(pins.model_dump(mode="json"), ensure_ascii=False, indent=1), mode=0o600)
    except OSError as error:
        hint = hint_for(error, "NEARFAR_HOME names another folder")
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint=hint) from error
    return path
