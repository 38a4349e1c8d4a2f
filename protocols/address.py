"""Addresses of servers, and pairing: one line, short enough for a QR code, with all that a worker needs to attach to a hub.

    nearfar://192.168.1.20:7445?token=...&fingerprint=sha256:...&name=phone

The line holds the worker's token, so every reader of it can attach as the worker: keep it out of logs and process lists. This module
uses the standard library only, as phones need it too.
"""

import getpass
import ipaddress
import re
import stat
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from .errors import ConfigError

_HINT = "write host:port, [ipv6]:port or unix:/path"
_LONGEST_SOCKET_PATH = 100
"""Bytes. The kernel's limit is 104 to 108, depending on the system."""
_MISREAD: Final = frozenset("%#?,")
"""Characters that gRPC decodes in a path, or splits it at. With them, server and client would use different sockets."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Return whether everything sent to this address stays on this machine."""
        return bool(self.path) or is_loopback(self.host)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse an address. Raise `ConfigError` if `text` is not one."""
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
    """Return whether a request to `host` stays on this machine: loopback, or 0.0.0.0 and ::, which servers print when they listen
    everywhere.

    Do not use it for an address to listen at: there, 0.0.0.0 and :: are open to every machine.
    """
    return is_loopback(host) or host in ("0.0.0.0", "::")  # nothing listens


SCHEME = "nearfar"
_PAIRING_HINT = "copy the whole line that `nearfar worker pair` shows"
_LONGEST_LINE = 2048
"""Characters; a QR code holds no more."""
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A worker's access to one hub."""

    address: str
    token: str = field(repr=False)
    fingerprint: str | None = None
    """Fingerprint of the hub's certificate, as `fingerprint_of` writes it; None: a public authority has signed it, or the hub is on this
    machine."""
    name: str = ""
    """The hub's name for the worker. It is only shown: the hub identifies the worker by its token."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a malformed address, token or fingerprint."""
        parse_address(self.address)
        if not self.token or not self.token.isascii() or not self.token.isprintable():
            raise ConfigError("the pairing holds no token, or a malformed one", hint=_PAIRING_HINT)
        if self.fingerprint is not None:
            object.__setattr__(self, "fingerprint", parse_fingerprint(self.fingerprint))

    @property
    def uri(self) -> str:
        """Return the pairing as one line."""
        fields = {"token": self.token, "fingerprint": self.fingerprint or "", "name": self.name}
        query = urlencode({key: value for key, value in fields.items() if value}, safe=":")
        return f"{SCHEME}://{self.address}?{query}"


def parse_pairing(text: str) -> Pairing:
    """Parse the line of `Pairing.uri`. Raise `ConfigError`, whose message never quotes the text, since it may hold a token."""
    text = text.strip()
    if not text.startswith(f"{SCHEME}://") or len(text) > _LONGEST_LINE:
        raise ConfigError(f"this is not a pairing: it does not start with {SCHEME}://, or is too long", hint=_PAIRING_HINT)
    try:
        parts = urlsplit(text)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        raise ConfigError("the pairing is damaged", hint=_PAIRING_HINT) from None
    fields = dict(pairs)
    if parts.path or parts.fragment or len(fields) != len(pairs) or not fields.keys() <= {"token", "fingerprint", "name"}:
        raise ConfigError("the pairing is damaged, or made by a newer version", hint=_PAIRING_HINT)
    return Pairing(address=parts.netloc, token=fields.get("token", ""), fingerprint=fields.get("fingerprint"), name=fields.get("name", ""))


def read_pairing(file: str) -> Pairing:
    """Read the pairing in `file`. `-` reads standard input; a person at a terminal is asked for the line, which is not shown.

    Raise `ConfigError` for a file that is missing or readable by others.
    """
    if file != "-":
        return parse_pairing(read_secret(Path(file)))
    if sys.stdin.isatty():
        return parse_pairing(getpass.getpass("Paste the line of the pairing (it is not shown): "))
    return parse_pairing(sys.stdin.readline(_LONGEST_LINE + 2))


def read_secret(path: Path) -> str:
    """Return the text of a file that only its owner may read. Raise `ConfigError` if it cannot be read, or is readable by others."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="give the path of a text file of your own") from None
    if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others can read the secret in {path}", hint=f"chmod 600 {path}, and make a new one if it was seen")
    return text.strip()


def parse_fingerprint(text: str) -> str:
    """Return a fingerprint in the form that is compared; `openssl x509 -fingerprint -sha256` writes colons and capitals."""
    kind, _, digits = text.strip().lower().partition(":")
    fingerprint = f"{kind}:{digits.replace(':', '')}"
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ConfigError("the fingerprint is not sha256: and 64 hexadecimal digits", hint=_PAIRING_HINT)
    return fingerprint


def fingerprint_of(certificate: bytes) -> str:
    """Return the fingerprint of a certificate in DER form."""
    return f"sha256:{sha256(certificate).hexdigest()}"
