"""The callers of a server: the records of their tokens, the credentials of a call, and who shows them; and where it may listen."""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

from .address import Address, fingerprint_of
from .errors import ConfigError, PermissionDenied, Unauthenticated
from .tls import ServerTls, first_certificate

if TYPE_CHECKING:
    from .access import Context

_SCHEME: Final = "Bearer"
OWNER_HINT: Final = "ask the server's owner for a new token"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A caller's name and permissions."""

    caller: str = ""
    """The caller's name; "" on a server without tokens."""
    token: str = ""
    """The id of the token that the caller has shown."""
    scopes: frozenset[Scope] = EVERY_SCOPE

    def require(self, scope: Scope) -> None:
        """Raise `PermissionDenied` if the caller's token lacks `scope`."""
        if scope not in self.scopes:
            raise PermissionDenied(
                f"the token of {self.caller!r} lacks the scope {str(scope)!r}",
                hint=f"the server's owner gives it with `nearfar serve token rotate {self.caller} --scope {scope}`",
            )


_ANYBODY: Final = Identity()
IDENTITY: Final[ContextVar[Identity]] = ContextVar("nearfar_identity", default=_ANYBODY)
"""The identity of the caller, inside a call that a server answers and inside the step that it runs."""


def system_time() -> datetime:
    """Return the current time, by which tokens expire."""
    return datetime.now(UTC)


class Authenticator:
    """Identifies callers by their bearer token or certificate, never by what they say about themselves."""

    def __init__(self, tokens: Tokens | None, *, now: Callable[[], datetime] = system_time) -> None:
        """Treat every caller as anonymous, named '', if there are no tokens. Raise `ConfigError` for unusable tokens."""
        self._records = token_records(tokens or {})
        self._now = now
        self.is_open = not self._records
        """True if every caller is admitted. Decided once: a server whose last caller was revoked stays closed."""

    def replace(self, tokens: Tokens) -> set[str]:
        """Admit only callers with these tokens. Return the ids of the former tokens that are removed or lost a permission.

        Raise `ConfigError`, and change nothing, if a token is unusable or the server is open: its callers have no names.
        """
        if self.is_open:
            raise ConfigError("a server that was started without tokens cannot get any later", hint="restart it with tokens")
        before, self._records = self._records, token_records(tokens)
        return {former.id for former in before if not any(record.continues(former) for record in self._records)}

    def expired(self) -> set[str]:
        """Return the ids of the tokens that have expired."""
        now = self._now()
        return {record.id for record in self._records if record.is_expired(now)}

    def identify(self, credentials: Credentials) -> Identity:
        """Return the caller's identity: the owner of the token or, without a token, of the certificate. On an open server it is the name
        in the certificate, if there is exactly one.

        Raise `Unauthenticated` if the token is missing, wrong or expired, or the certificate names another caller.
        """
        certificate = credentials.certificate
        if self.is_open:
            return Identity(caller=certificate.names[0]) if certificate is not None and len(certificate.names) == 1 else _ANYBODY
        if certificate is not None and not credentials.authorization:
            record = self._certified(certificate)
        else:
            record = self._record(_bearer(credentials))
            if certificate is not None:
                _check_owner(certificate, record.caller)
        if record.is_expired(self._now()):
            what = "certificate was valid here until" if record.certificate else "token expired at"
            raise Unauthenticated(f"the {what} {record.expires:%Y-%m-%d %H:%M} UTC", hint=OWNER_HINT)
        return Identity(caller=record.caller, token=record.id, scopes=record.scopes)

    def _certified(self, certificate: ClientCertificate) -> TokenRecord:
        """Return the record of the caller that needs only this certificate."""
        found = [record for record in self._records if record.is_shown(certificate)]
        if not found:
            raise Unauthenticated(
                f"the call carries no token, and its certificate, {certificate}, gives no access: it is unknown here or was revoked",
                hint="give the client a token, or ask the server's owner to let in its certificate",
            )
        if len({record.caller for record in found}) > 1:
            raise Unauthenticated(f"the certificate, {certificate}, is that of several callers", hint="give each caller its own")
        return next((record for record in found if not record.is_expired(self._now())), found[0])

    def _record(self, token: str) -> TokenRecord:
        # All digests are compared, each in constant time, so that the duration tells nothing about any of them.
        given = hashed(token)
        found = [record for record in self._records if hmac.compare_digest(record.digest, given)]
        if not found:
            raise Unauthenticated("the token is wrong", hint="give the client the token that the server's owner made for it")
        return found[0]


def _bearer(credentials: Credentials) -> str:
    """Return the token that a call carries."""
    scheme, _, token = credentials.authorization.partition(" ")
    if scheme.lower() != _SCHEME.lower():  # RFC 9110: in any case
        raise Unauthenticated("the call carries no token", hint="give the client the token that the server's owner made for it")
    return token.strip()


def _check_owner(certificate: ClientCertificate, owner: str) -> None:
    """Raise `Unauthenticated` if the certificate names other callers than the token's owner: one of the two may be stolen."""
    if certificate.names and owner not in certificate.names:
        raise Unauthenticated(
            f"the token is that of {owner!r}, and the certificate is {certificate}",
            hint="give the client a token and a certificate of one and the same caller",
        )


def bearer_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the call metadata that carries `token`. Raise `ConfigError` for a malformed token."""
    if token is None:
        return ()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError("the token is empty or not printable ASCII", hint="check for stray spaces, line ends or quotes")
    return (("authorization", f"{_SCHEME} {token}"),)


def check_exposure(address: Address, *, authenticator: Authenticator, tls: ServerTls | None, insecure: bool) -> None:
    """Raise `ConfigError` if serving at `address` would expose text or agents to unknown callers."""
    if insecure and not address.is_local:
        raise ConfigError(f"insecure serving is refused at {address}", hint="use localhost or a unix socket, or set up TLS")
    if insecure and tls is not None:
        raise ConfigError("insecure and tls contradict each other", hint="give one of them")
    if address.is_local:
        return
    if tls is None:
        raise ConfigError(
            f"{address} can be reached from outside and needs TLS", hint="give a certificate and a private key, or use localhost"
        )
    if authenticator.is_open:
        raise ConfigError(f"{address} can be reached from outside and needs tokens", hint="give every caller a token, or use localhost")
