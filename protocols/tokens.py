"""Tokens of a server: the records that it keeps of them, and the credentials that a call carries."""

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

from .address import fingerprint_of
from .certificates import first_certificate
from .errors import ConfigError

if TYPE_CHECKING:
    from .access import Context


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The certificate of a caller, which an authority that the server trusts has signed."""

    names: tuple[str, ...]
    """The DNS names in the certificate's subjectAltName. Its common name is ignored, as RFC 9525 demands for servers."""
    pem: bytes = field(repr=False)
    """The certificate as PEM."""

    def __str__(self) -> str:
        return f"for {', '.join(map(repr, self.names))}" if self.names else "without a name"

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(first_certificate(self.pem))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one call."""

    authorization: str = field(default="", repr=False)
    """Value of the `authorization` header; empty if there is none."""
    certificate: ClientCertificate | None = None
    """None if the server demands no certificate."""


_READ: "Final[ContextVar[tuple[Context, Credentials] | None]]" = ContextVar("nearfar_credentials", default=None)
"""The credentials of the call that is being answered; gRPC runs each call in a task of its own."""


def credentials_of(context: "Context") -> Credentials:
    """Return the credentials of the call behind `context`. They are read once per call, though needed twice."""
    read = _READ.get()
    if read is None or read[0] is not context:
        read = context, _read(context)
        _READ.set(read)
    return read[1]


def _read(context: "Context") -> Credentials:
    given = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), "")
    authorization = given.decode(errors="replace") if isinstance(given, bytes) else given
    return Credentials(authorization, _certificate(context))


def _certificate(context: "Context") -> ClientCertificate | None:
    # gRPC has verified it in the handshake; what is not encrypted has no such entries.
    shown = context.auth_context()
    pem = next(iter(shown.get("x509_pem_cert", ())), None)
    if pem is None:
        return None
    names = (name.decode("ascii", errors="replace") for name in shown.get("peer_dns", ()))
    return ClientCertificate(tuple(names), pem)


_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Scope(StrEnum):
    """A permission that a token gives."""

    DESCRIBE = "describe"
    """See the cards of a server's agents."""
    STEPS = "steps"
    """Run steps, and cancel them."""
    MEMORY = "memory"
    """Read, write and synchronise a memory, as the user to whom the calling device belongs."""
    ATTACH = "attach"
    """Lend agents to a hub."""
    TASKS = "tasks"
    """Have tasks served, by a server of whole `Hybrid`s."""
    METRICS = "metrics"
    """Read the metrics of such a server."""


EVERY_SCOPE: Final = frozenset(Scope)
ANY_CERTIFICATE: Final = "any"
"""Value in place of a fingerprint: accept every certificate that names the caller and that a trusted authority has signed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    """One token, without the token itself; or the certificate that a caller may show instead."""

    id: str
    """Id that distinguishes the tokens of one caller while one replaces the other."""
    caller: str
    """Name of the caller."""
    digest: str = field(default="", repr=False)
    """Digest of the token; empty: the caller shows a certificate."""
    certificate: str = ""
    """Fingerprint of the certificate, or `ANY_CERTIFICATE`: every certificate that names the caller."""
    scopes: frozenset[Scope] = EVERY_SCOPE
    """Services that the token opens."""
    created: datetime | None = None
    """When it was made; None: unknown."""
    expires: datetime | None = None
    """End of validity; None: valid for ever."""

    def is_expired(self, now: datetime) -> bool:
        """Return whether the token has expired at the moment `now`."""
        return self.expires is not None and self.expires <= now

    def is_shown(self, certificate: ClientCertificate) -> bool:
        """Return whether `certificate` is the one of this record."""
        if self.certificate == ANY_CERTIFICATE:
            return self.caller in certificate.names
        return bool(self.certificate) and self.certificate == certificate.fingerprint

    def continues(self, former: "TokenRecord") -> bool:
        """Return whether this record still gives its caller everything that `former` gave, the expiry aside."""
        is_same = self.proof == former.proof and (self.id, self.caller) == (former.id, former.caller)
        return is_same and self.scopes >= former.scopes

    @property
    def proof(self) -> tuple[str, str]:
        """Return what a caller has to show, as digest and certificate."""
        return self.digest, self.caller if self.certificate == ANY_CERTIFICATE else self.certificate


Tokens: TypeAlias = Mapping[str, str] | Iterable[TokenRecord]
"""Tokens, or their digests, by caller, valid for everything and for ever; or the records of a token file."""


def token_records(tokens: Tokens) -> tuple[TokenRecord, ...]:
    """Return the records of `tokens`. Raise `ConfigError`, which quotes none, for a malformed token and for one that two callers share."""
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
    """Return the digest of `token`, "sha256:" and hex digits; return a digest unchanged.

    One round of hashing suffices: nearfar's tokens are 256 random bits, which cannot be guessed however fast the hash is.
    """
    return token if is_digest(token) else hashed(token)


def hashed(token: str) -> str:
    """Return the digest of the text that a caller shows, even if it is a digest: showing a digest must not give access."""
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def is_digest(text: str) -> bool:
    """Return whether `text` has the form of a digest by `hashed`."""
    return _DIGEST.fullmatch(text) is not None
