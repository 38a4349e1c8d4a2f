"""Who may call a server, and which addresses it may be served at."""

import hmac
import re
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import sha256

from .address import Address
from .channel import ServerTls
from .credentials import ClientCertificate, Credentials
from .errors import ConfigError, Unauthenticated

_SCHEME = "Bearer "
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

CALLER: ContextVar[str] = ContextVar("nearfar_caller", default="")
"""Inside a step that a server runs: the authenticated caller's name, "" for an anonymous one."""


class Authenticator:
    """Finds the caller's name from its bearer token, and from nothing that the caller says about itself."""

    def __init__(self, tokens: Mapping[str, str] | None) -> None:
        """`tokens` maps caller name to token, or to its digest; without any, every caller is the anonymous one, named ''."""
        self._digests = _digests(tokens or {})
        self.is_open = not self._digests
        """Anybody may call. Decided once: a server whose last caller was shut out stays closed."""

    def replace(self, tokens: Mapping[str, str]) -> set[str]:
        """Let in the callers in `tokens` and no others; returns those whose former token is worth nothing now.

        Raises `ConfigError`, and changes nothing, if a token is unusable or the server is open: its callers have no names.
        """
        if self.is_open:
            raise ConfigError("a server that was started without tokens cannot be given some", hint="start it anew with tokens")
        before, self._digests = self._digests, _digests(tokens)
        return {name for name, digest in before.items() if self._digests.get(name) != digest}

    def caller(self, credentials: Credentials) -> str:
        """The name that belongs to the token in `credentials`; on an open server, that of their certificate if it has just one.

        Raises `Unauthenticated` if the token is missing or wrong, or the certificate is somebody else's.
        """
        certificate = credentials.certificate
        if self.is_open:
            return certificate.names[0] if certificate is not None and len(certificate.names) == 1 else ""
        if not credentials.authorization.startswith(_SCHEME):
            raise Unauthenticated("the call carries no token", hint="give the client the token that the server was started with")
        owner = self._owner(_hashed(credentials.authorization.removeprefix(_SCHEME)))
        if certificate is not None:
            _check_owner(certificate, owner)
        return owner

    def _owner(self, given: str) -> str:
        # All digests are compared, each in constant time, so that the duration tells nothing about any of them.
        owners = [name for name, digest in self._digests.items() if hmac.compare_digest(digest, given)]
        if not owners:
            raise Unauthenticated("the token is wrong", hint="give the client the token that the server was started with")
        return owners[0]


def _check_owner(certificate: ClientCertificate, owner: str) -> None:
    """A certificate that names somebody must name the token's owner: else one of the two is stolen."""
    if certificate.names and owner not in certificate.names:
        raise Unauthenticated(
            f"the token is that of {owner!r}, and the certificate that of {', '.join(map(repr, certificate.names))}",
            hint="give the client a token and a certificate of one and the same caller",
        )


def token_digest(token: str) -> str:
    """What a server keeps of `token`, "sha256:" and hex digits; of a digest, itself.

    One round suffices: the tokens that nearfar makes are 256 random bits, which nobody guesses however fast the hash is.
    """
    return token if _DIGEST.fullmatch(token) else _hashed(token)


def _hashed(token: str) -> str:
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def _digests(tokens: Mapping[str, str]) -> dict[str, str]:
    for name, token in tokens.items():
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError(f"the token of caller {name!r} is empty or not printable ASCII", hint="use 32 random hex digits")
    return {name: token_digest(token) for name, token in tokens.items()}


def bearer_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """The call metadata that shows `token`. Raises `ConfigError` for one that cannot be a token."""
    if token is None:
        return ()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError("the token is empty or not printable ASCII", hint="check for stray spaces, line ends or quotes")
    return (("authorization", _SCHEME + token),)


def check_exposure(address: Address, *, authenticator: Authenticator, tls: ServerTls | None, insecure: bool) -> None:
    """Raise `ConfigError` if serving at `address` would show text or lend the agents to strangers."""
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
