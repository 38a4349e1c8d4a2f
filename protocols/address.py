"""Addresses of agents: `host:port` or `unix:/path`, and whether they stay on this machine."""

import ipaddress
from dataclasses import dataclass
from typing import Final

from .errors import ConfigError

_HINT = "write host:port, [ipv6]:port or unix:/path"
_LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 104 to 108, depending on the system."""
_MISREAD: Final = frozenset("%#?,")
"""Characters that gRPC decodes in a path, or ends or splits it at: server and client would not meet at the socket that is named."""


@dataclass(frozen=True, slots=True)
class Address:
    """Either a host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Whether nothing sent there leaves this machine."""
        return bool(self.path) or is_loopback(self.host)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises `ConfigError` if `text` is no address."""
    if text.startswith("unix:"):
        return Address(path=_socket_path(text))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not bracketed):
        raise ConfigError(f"{text!r} is not an address", hint=_HINT)
    return Address(host=host.strip("[]"), port=int(port))


def _socket_path(text: str) -> str:
    path = text.removeprefix("unix:")
    path = path[2:] if path.startswith("///") else path
    if not path.startswith("/"):
        raise ConfigError(f"{text!r} is not an address: the socket's path must be absolute", hint=_HINT)
    if not is_readable_path(path):
        raise ConfigError(f"the socket path {path!r} holds characters that gRPC misreads", hint="use letters, digits, /, -, _ and .")
    if len(path.encode()) > _LONGEST_SOCKET_PATH:
        raise ConfigError(f"the socket path {path!r} is too long", hint=f"use at most {_LONGEST_SOCKET_PATH} bytes")
    return path


def is_readable_path(path: str) -> bool:
    """Return whether gRPC takes a socket's path as it is written."""
    return path.isprintable() and _MISREAD.isdisjoint(path)


def is_loopback(host: str) -> bool:
    """Tell whether a host name or IP address is this machine itself; a name is not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_this_machine(host: str) -> bool:
    """Tell whether a request to a host stays on this machine: loopback, or 0.0.0.0 and ::, which servers print when they listen everywhere.

    Not for addresses to listen at: there, the latter two are open to everybody.
    """
    return is_loopback(host) or host in ("0.0.0.0", "::")  # nothing listens
