"""Identify the callers of a server, and check the addresses that it may listen at."""

import hmac
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from .address import Address
from .errors import ConfigError, PermissionDenied, Unauthenticated
from .tokens import EVERY_SCOPE, ClientCertificate, Credentials, Scope, TokenRecord, Tokens, hashed, token_records

if TYPE_CHECKING:
    from .channel import ServerTls  # with gRPC, which an agent that asks over HTTP does not need

_SCHEME: Final = "Bearer"
OWNER_HINT: Final = "ask the server's owner for a new token"


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


def check_exposure(address: Address, *, authenticator: Authenticator, tls: "ServerTls | None", insecure: bool) -> None:
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
