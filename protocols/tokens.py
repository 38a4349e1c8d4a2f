"""What a server keeps of the tokens that let callers in: whose each one is, what it is good for, and until when."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final, TypeAlias

from .credentials import ClientCertificate
from .errors import ConfigError

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Scope(StrEnum):
    """What a token is good for."""

    DESCRIBE = "describe"
    """See the cards of a server's agents."""
    STEPS = "steps"
    """Ask them, and cancel what was asked."""
    MEMORY = "memory"
    """Read, write and synchronise a memory, as the user whose device the caller is."""
    ATTACH = "attach"
    """Lend agents to a hub."""


EVERY_SCOPE: Final = frozenset(Scope)
ANY_CERTIFICATE: Final = "any"
"""In place of a fingerprint: an authority whose certificates the server takes has signed it, and it names the caller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    """One token, without the token itself; or the certificate that a caller may show in place of one."""

    id: str
    """Tells the tokens of one caller apart, while one takes the place of the other."""
    caller: str
    digest: str = field(default="", repr=False)
    """Of the token; empty: a certificate stands in its place."""
    certificate: str = ""
    """Its fingerprint, or `ANY_CERTIFICATE`: each one that names the caller."""
    scopes: frozenset[Scope] = EVERY_SCOPE
    created: datetime | None = None
    expires: datetime | None = None
    """From this moment on it is worth nothing; None: it is good for ever."""

    def is_expired(self, now: datetime) -> bool:
        """Whether it is worth nothing any more."""
        return self.expires is not None and self.expires <= now

    def is_shown(self, certificate: ClientCertificate) -> bool:
        """Whether `certificate` is the one that stands in the place of a token."""
        if self.certificate == ANY_CERTIFICATE:
            return self.caller in certificate.names
        return bool(self.certificate) and self.certificate == certificate.fingerprint

    def continues(self, former: "TokenRecord") -> bool:
        """Whether all that `former` lets its caller do, this record does, the time aside."""
        is_same = self.proof == former.proof and (self.id, self.caller) == (former.id, former.caller)
        return is_same and self.scopes >= former.scopes

    @property
    def proof(self) -> tuple[str, str]:
        """What a caller has to show."""
        return self.digest, self.caller if self.certificate == ANY_CERTIFICATE else self.certificate


Tokens: TypeAlias = Mapping[str, str] | Iterable[TokenRecord]
"""Tokens, or their digests, by caller, each good for everything and for ever; or records, as a token file holds them."""


def token_records(tokens: Tokens) -> tuple[TokenRecord, ...]:
    """The records of `tokens`. Raises `ConfigError`, which quotes none, for one that cannot be a token, and for one of two callers."""
    records = tuple(_records(tokens) if isinstance(tokens, Mapping) else tokens)
    if len({record.proof for record in records}) != len(records):
        raise ConfigError("two callers share a token or a certificate", hint="give each its own, so that the log can tell them apart")
    if any(bool(record.digest) == bool(record.certificate) for record in records):
        raise ConfigError("a record holds neither a token nor a certificate, or both", hint="make them with `nearfar serve token add`")
    if any(record.expires is not None and record.expires.tzinfo is None for record in records):
        raise ConfigError("the time at which a token expires has no zone", hint="give a datetime with tzinfo=datetime.UTC")
    if len({record.id for record in records}) != len(records):
        raise ConfigError("two tokens have the same id", hint="make them with `nearfar serve token add`, which chooses ids at random")
    return records


def _records(tokens: Mapping[str, str]) -> Iterable[TokenRecord]:
    for caller, token in tokens.items():
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError(f"the token of caller {caller!r} is empty or not printable ASCII", hint="use 32 random hex digits")
        yield TokenRecord(id=caller, caller=caller, digest=token_digest(token))


def token_digest(token: str) -> str:
    """What a server keeps of `token`, "sha256:" and hex digits; of a digest, itself.

    One round suffices: the tokens that nearfar makes are 256 random bits, which nobody guesses however fast the hash is.
    """
    return token if is_digest(token) else hashed(token)


def hashed(token: str) -> str:
    """The digest of what a caller shows, whatever it is: to show a digest must let nobody in."""
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def is_digest(text: str) -> bool:
    """Whether `text` is what `hashed` makes."""
    return _DIGEST.fullmatch(text) is not None
