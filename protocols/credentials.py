"""The credentials that a call carries: a bearer token, and a certificate if the server demands one."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .certificates import first_certificate
from .pairing import fingerprint_of

if TYPE_CHECKING:  # a client, which needs none of it, may be a phone without what statuses are read with
    from .status import Context


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The certificate of a caller, which an authority that the server trusts has signed."""

    names: tuple[str, ...]
    """The DNS names in the certificate's subjectAltName. Its common name is ignored, as RFC 9525 demands for servers."""
    pem: bytes = field(repr=False)

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
