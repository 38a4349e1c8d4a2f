"""Pairing: one line, short enough for a QR code, with all that a worker needs to attach to a hub.

    nearfar://192.168.1.20:7445?token=...&fingerprint=sha256:...&name=phone

The line holds the worker's token, so every reader of it can attach as the worker: keep it out of logs and process lists. This module
uses the standard library only, as phones need it too.
"""

import getpass
import re
import stat
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from .address import parse_address
from .errors import ConfigError

SCHEME = "nearfar"
_HINT = "copy the whole line that `nearfar worker pair` shows"
_LONGEST = 2048
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
            raise ConfigError("the pairing holds no token, or a malformed one", hint=_HINT)
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
    if not text.startswith(f"{SCHEME}://") or len(text) > _LONGEST:
        raise ConfigError(f"this is not a pairing: it does not start with {SCHEME}://, or is too long", hint=_HINT)
    try:
        parts = urlsplit(text)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        raise ConfigError("the pairing is damaged", hint=_HINT) from None
    fields = dict(pairs)
    if parts.path or parts.fragment or len(fields) != len(pairs) or not fields.keys() <= {"token", "fingerprint", "name"}:
        raise ConfigError("the pairing is damaged, or made by a newer version", hint=_HINT)
    return Pairing(address=parts.netloc, token=fields.get("token", ""), fingerprint=fields.get("fingerprint"), name=fields.get("name", ""))


def read_pairing(file: str) -> Pairing:
    """Read the pairing in `file`. `-` reads standard input; a person at a terminal is asked for the line, which is not shown.

    Raise `ConfigError` for a file that is missing or readable by others.
    """
    if file != "-":
        return parse_pairing(read_secret(Path(file)))
    if sys.stdin.isatty():
        return parse_pairing(getpass.getpass("Paste the line of the pairing (it is not shown): "))
    return parse_pairing(sys.stdin.readline(_LONGEST + 2))


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
        raise ConfigError("the fingerprint is not sha256: and 64 hexadecimal digits", hint=_HINT)
    return fingerprint


def fingerprint_of(certificate: bytes) -> str:
    """Return the fingerprint of a certificate in DER form."""
    return f"sha256:{sha256(certificate).hexdigest()}"
