"""Pairing: all that a worker needs to attach to a hub, in one line that fits into a QR code.

    nearfar://192.168.1.20:7445?token=...&fingerprint=sha256:...&name=phone

It holds the worker's token, so whoever reads it can attach in the worker's name: it belongs into no log and no process list. Standard
library only, as phones use it too.
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
"""Characters; a QR code holds no more, and what is longer is something else."""
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A hub as one worker knows it."""

    address: str
    token: str = field(repr=False)
    fingerprint: str | None = None
    """Of the hub's certificate, as `fingerprint_of` writes it; None: a public authority has signed it, or the hub is on this machine."""
    name: str = ""
    """What the hub calls the worker. For people: the hub itself goes by the token."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for an address, a token or a fingerprint that cannot be one."""
        parse_address(self.address)
        if not self.token or not self.token.isascii() or not self.token.isprintable():
            raise ConfigError("the pairing holds no token, or one that cannot be one", hint=_HINT)
        if self.fingerprint is not None:
            object.__setattr__(self, "fingerprint", parse_fingerprint(self.fingerprint))

    @property
    def uri(self) -> str:
        """The one line."""
        fields = {"token": self.token, "fingerprint": self.fingerprint or "", "name": self.name}
        query = urlencode({key: value for key, value in fields.items() if value}, safe=":")
        return f"{SCHEME}://{self.address}?{query}"


def parse_pairing(text: str) -> Pairing:
    """The inverse of `Pairing.uri`. Raises `ConfigError`, whose message never quotes the text: it may hold a token."""
    text = text.strip()
    if not text.startswith(f"{SCHEME}://") or len(text) > _LONGEST:
        raise ConfigError(f"this is no pairing: it does not start with {SCHEME}://, or is too long", hint=_HINT)
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
    """The pairing in `file`. `-` reads standard input, and a person there is asked for it without showing it.

    Raises `ConfigError` for a file that is missing, or that others can read.
    """
    if file != "-":
        return parse_pairing(read_secret(Path(file)))
    if sys.stdin.isatty():
        return parse_pairing(getpass.getpass("Paste the line of the pairing (it is not shown): "))
    return parse_pairing(sys.stdin.readline(_LONGEST + 2))


def read_secret(path: Path) -> str:
    """The text of a file that only its owner may read. Raises `ConfigError` if it cannot be read, or can be read by others."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="give the path of a text file of your own") from None
    if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others can read the secret in {path}", hint=f"chmod 600 {path}, and make a new one if it was seen")
    return text.strip()


def parse_fingerprint(text: str) -> str:
    """A fingerprint in the one form that is compared; `openssl x509 -fingerprint -sha256` writes colons and capitals."""
    kind, _, digits = text.strip().lower().partition(":")
    fingerprint = f"{kind}:{digits.replace(':', '')}"
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ConfigError("the fingerprint is not sha256: and 64 hexadecimal digits", hint=_HINT)
    return fingerprint


def fingerprint_of(certificate: bytes) -> str:
    """Of a certificate in DER form."""
    return f"sha256:{sha256(certificate).hexdigest()}"
