"""The configuration of a near agent whose model a server on the user's own machine runs, and the addresses that count as near."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, Literal, Self
from urllib.parse import urlsplit

import anyio
from pydantic import Field, ValidationError, field_validator, model_validator

from ..protocols import ConfigError
from ..protocols.steps import Value
from .config import api_root

if TYPE_CHECKING:
    from .server_info import RunningServer
    from .server_trials import ServerAgent

IpAddress = IPv4Address | IPv6Address
ServerProvider = Literal["ollama", "lmstudio", "llama-server", "vllm", "openai"]


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A program that serves models over OpenAI's API."""

    label: str
    port: int
    """The port that it listens at unless it is told otherwise."""
    start: str
    """The command that starts it."""


PROGRAMS: Final[Mapping[str, ServerProgram]] = {
    "ollama": ServerProgram("Ollama", 11434, "ollama serve"),
    "lmstudio": ServerProgram("LM Studio", 1234, "lms server start"),
    "llama-server": ServerProgram("llama-server", 8080, "llama-server -m MODEL.gguf --jinja"),
    "vllm": ServerProgram("vLLM", 8000, "vllm serve MODEL --enable-auto-tool-choice --tool-call-parser PARSER"),
}
"""The known programs by the names that a configuration uses."""
_HOST_AND_PORT: Final = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}(?:/v1/?)?")
_HOST: Final = re.compile(r"[\w.-]+|[0-9a-fA-F]*:[0-9a-fA-F:.]+(?:%[\w.-]+)?", re.ASCII)
"""Hosts that all parsers of addresses read alike."""
_PORTS: Final = {"http": 80, "https": 443}
_OWN_HINT: Final = "if the server is yours, set trusted = true under [near] in nearfar.toml; else use it as the far side: --far URL"


class NearServerConfig(Value):
    """The `[near]` section for a model that a server runs: one on this machine, or on another one that the user declares their own."""

    provider: ServerProvider
    """The program: "ollama", "lmstudio", "llama-server" or "vllm"; "openai": any other server of OpenAI's chat completions."""
    model: str | None = Field(default=None, min_length=1)
    """Name of the model there; None: the only one that the server has, or has loaded."""
    base_url: str | None = None
    """Address of the server; None: the program's usual one on this machine, and for Ollama the one in OLLAMA_HOST."""
    key_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable, or keyring entry, that holds the server's key; None: it needs none."""
    trusted: bool = False
    """The server is the user's own although it is on another machine: it may see private text."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""

    @field_validator("base_url")
    @classmethod
    def _address_is_complete(cls, value: str | None) -> str | None:
        return None if value is None else _as_client(api_root(value))

    @model_validator(mode="after")
    def _address_is_near(self) -> Self:
        if self.base_url is None:
            if self.provider == "openai":
                raise ValueError('base_url is missing: provider = "openai" has no usual address')
        elif (problem := _literal_problem(self.base_url, trusted=self.trusted)) is not None:
            raise ValueError(str(problem))
        return self

    @property
    def label(self) -> str:
        """Return the server's name for messages."""
        return PROGRAMS[self.provider].label if self.provider in PROGRAMS else "OpenAI-compatible"

    @property
    def host(self) -> str:
        """Return the host that the address names. Raise `ConfigError` as `located` does."""
        return urlsplit(self.located().base_url or "").hostname or ""

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the server may be on another machine. Raise `ConfigError` as `located` does."""
        address = literal_address(self.host)  # of a name, even localhost, another machine's address may be looked up
        return self.trusted and not (address is not None and address.is_loopback)

    @property
    def place(self) -> str:
        """Return the other machine for the audit: what the configuration says about it. Raise `ConfigError` as `located` does."""
        return f"a server at {self.host}, which the configuration trusts as the user's own"

    def located(self, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration with its address filled in from `environment`: what that says later does not move the agent.

        Raise `ConfigError` for an OLLAMA_HOST that is malformed, or is another machine which the configuration does not trust.
        """
        if self.base_url is not None:
            return self
        given = environment.get("OLLAMA_HOST", "") if self.provider == "ollama" else ""
        address = _ollama_address(given) if given.strip() else f"http://127.0.0.1:{PROGRAMS[self.provider].port}/v1"
        if (problem := _literal_problem(address, trusted=self.trusted, named_by="OLLAMA_HOST: " if given else "")) is not None:
            raise problem
        return self.model_copy(update={"base_url": address})


def parse_server(text: str) -> NearServerConfig | None:
    """Parse the short form of a near agent behind a server, such as `ollama:qwen3:4b`, `llama-server:` or an address.

    An address may end in `#MODEL`. Return None for a text of another form. Raise `ConfigError` for an address that is malformed or not
    near.
    """
    provider, colon, rest = text.partition(":")
    provider = provider.lower()
    is_address = provider in ("http", "https") and rest.startswith("//")
    if not is_address and not (colon and provider in PROGRAMS):
        return None
    address, model = (text if is_address else rest), ""
    if address.lower().startswith(("http://", "https://")):
        address, _, model = address.partition("#")
    elif provider == "llama-server" and _HOST_AND_PORT.fullmatch(address):
        address = f"http://{address}"
    else:
        address, model = "", address
    fields = {"provider": "openai" if is_address else provider, "base_url": address or None, "model": model or None}
    try:
        return NearServerConfig.model_validate(fields)
    except ValidationError as error:
        message = error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"the near server cannot be used: {message}") from None


async def open_server(config: NearServerConfig, *, name: str) -> "ServerAgent":
    """Open the near agent that `config` describes; see `open_near_server`. Raise `ConfigError` if the cloud extra is not installed."""
    # Here, so that a configuration can be read and checked without the extra.
    try:
        from .server_trials import open_near_server
    except ModuleNotFoundError as error:
        raise ConfigError(f"near servers need the module {error.name}", hint="pip install 'nearfar[cloud]'") from error
    return await open_near_server(config, name=name)


async def find_servers() -> "list[RunningServer]":
    """Return the servers of models that run on this machine, within about a second; none if the cloud extra is not installed."""
    try:
        from .server_info import running_servers
    except ModuleNotFoundError:
        return []
    return await running_servers()


def literal_address(host: str) -> IpAddress | None:
    """Return the address that a host is written as, an IPv4 address inside of IPv6 as itself; None for a name."""
    try:
        address = ip_address(host.partition("%")[0] if ":" in host else host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


async def near_addresses(scheme: str, host: str, port: int | None, *, trusted: bool) -> list[IpAddress]:
    """Return the addresses to connect to, IPv4 first.

    Raise `ConfigError` unless all of them are this machine's, or `trusted` and not reached in plain text over the internet. What is
    returned has to be connected to without another look-up: a name may resolve differently a moment later (DNS rebinding).
    """
    found = [address] if (address := literal_address(host)) is not None else await _resolve(host, port or _PORTS[scheme], trusted=trusted)
    for address in found:
        if (problem := _problem(scheme, host, address, trusted=trusted)) is not None:
            raise problem
    return sorted(found, key=lambda each: each.version)


async def _resolve(host: str, port: int, *, trusted: bool) -> list[IpAddress]:
    try:
        answers = await anyio.getaddrinfo(host, port, type=1)  # 1: a stream, on every system
    except (OSError, UnicodeError):
        answers = []
    named = (literal_address(str(answer[4][0])) for answer in answers)
    found = list(dict.fromkeys(address for address in named if address is not None))
    if not found and trusted:
        raise ConfigError(f"the name of the near server, {host}, is not known here", hint="check base_url and the network")
    if not found:
        raise ConfigError(f"{host} cannot be resolved, so it is not known to be this machine", hint=_OWN_HINT)
    return found


def _problem(scheme: str, host: str, address: IpAddress, *, trusted: bool) -> ConfigError | None:
    """Return the reason why an address may not see private text; None if it may."""
    if address.is_loopback:
        return None
    place = host if host == str(address) else f"{host} ({address})"
    if not trusted:
        return ConfigError(f"{place} is not this machine, and a near agent sees private text", hint=_OWN_HINT)
    if scheme == "http" and address.is_global:
        message = f"{place} is on the public internet, and http:// would carry private text there in the clear"
        return ConfigError(message, hint="use https://, or a tunnel and its address on this machine")
    return None


def _literal_problem(url: str, *, trusted: bool, named_by: str = "") -> ConfigError | None:
    """Return the problem of an address that is written out; a name is looked up when the server is first used."""
    parts = urlsplit(url)
    address = literal_address(parts.hostname or "")
    problem = None if address is None else _problem(parts.scheme, parts.hostname or "", address, trusted=trusted)
    return problem and ConfigError(named_by + problem.message, hint=problem.hint)


def _as_client(url: str) -> str:
    """Return the address that a client uses: 0.0.0.0 and :: are where servers listen. An address without a path means `/v1`.

    Raise `ValueError` for a host that is no name and no address.
    """
    parts = urlsplit(url)
    if not _HOST.fullmatch(parts.hostname or ""):
        raise ValueError("its host is neither a name nor an IP address")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(parts.hostname or "", parts.hostname or "")
    place = f"[{host}]" if ":" in host else host
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{place}{port}{parts.path.rstrip('/') or '/v1'}"


def _ollama_address(given: str) -> str:
    """Return the address in OLLAMA_HOST, a host, a port, both, or a URL. Raise `ConfigError`, which never quotes it."""
    text = given.strip().strip("\"'").strip().rstrip("/")
    scheme, is_url, place = text.partition("://") if "://" in text else ("http", "", text)
    usual = PROGRAMS["ollama"].port if not is_url else _PORTS.get(scheme, 0)
    place = f"[{place}]" if literal_address(place) is not None and ":" in place else place
    place = f"127.0.0.1{place}" if place.startswith(":") else place
    try:
        parts = urlsplit(f"{scheme}://{place}")
        host, port = parts.hostname or "127.0.0.1", parts.port or usual
        host = f"[{host}]" if ":" in host else host
        user = f"{parts.username}@" if parts.username else ""
        return _as_client(api_root(f"{scheme}://{user}{host}:{port}{parts.path.removesuffix('/v1')}/v1"))
    except ValueError:
        raise ConfigError("OLLAMA_HOST is not an address", hint="write HOST:PORT, such as 127.0.0.1:11434") from None
