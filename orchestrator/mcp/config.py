"""The `[mcp.NAME]` sections of nearfar.toml: MCP servers, and what is declared of their tools."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from ...protocols.address import is_loopback
from ...protocols.items import Source, Tier
from ...protocols.steps import Value
from ..task.stores import VariableName
from ..task.tools import DEFAULT_RESULT_LIMIT, DEFAULT_TIME_LIMIT, Effect
from ..util.json_text import digest

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

    def anchored(self, folder: Path) -> "McpServerConfig":
        """Return the section with an absolute folder, relative to that of nearfar.toml."""
        return self if self.url else self.model_copy(update={"folder": folder / (self.folder or Path()).expanduser()})


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("url must be an http or https address")
    if parts.username or parts.password:
        raise ValueError("url must not hold a password: name a token_variable")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("url must begin with https: only this machine is reached without TLS")
