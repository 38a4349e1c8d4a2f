"""Trust one certificate by its fingerprint, for servers whose certificate no authority has signed.

gRPC can trust roots only. So the certificate is fetched first, compared with the fingerprint, and then used as the only root. An
attacker in between has another certificate, or this one without its private key, and either fails.
"""

import socket
import ssl
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from .address import Address
from .channel import ClientTls
from .errors import ConfigError, Unavailable
from .pairing import fingerprint_of

_SECONDS = 10.0


def pinned_tls(address: Address, fingerprint: str, client: ClientTls | None = None, *, timeout: float = _SECONDS) -> ClientTls:
    """Return TLS options that accept only the certificate with this `fingerprint` at `address`. The call blocks on the network.

    The certificate of `client` is kept, and is not shown before the server is verified. Raise `Unavailable` if no server answers,
    `ConfigError` if the certificate is another one, or has expired.
    """
    try:
        shown = _certificate(address, timeout)
        if fingerprint_of(shown) != fingerprint:
            raise ConfigError(
                f"the certificate of {address} is not the one that this worker was paired with",
                hint="pair again if the hub has a new certificate; otherwise the connection may be intercepted",
            )
        pem = ssl.DER_cert_to_PEM_cert(shown)
        return replace(client or ClientTls(), roots=pem.encode(), server_name=_name(address, pem, timeout))
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {address} cannot be used: {error.verify_message}"
        raise ConfigError(message, hint="make a new one on the hub's machine and pair again") from error
    except ssl.SSLError as error:
        message = f"{address} does not speak TLS as a hub does: {(error.reason or str(error)).replace('_', ' ').lower()}"
        raise Unavailable(message, hint="check the address and its port, and that the hub has a certificate") from error
    except OSError as error:
        raise Unavailable(f"no TLS server answers at {address}: {error}", hint="check the address, and that the hub runs") from error


def _certificate(address: Address, timeout: float) -> bytes:
    """Return the server's certificate in DER form, unchecked."""
    context = _context()
    context.verify_mode = ssl.CERT_NONE
    with _connected(address, context, timeout) as connection:
        certificate = connection.getpeercert(binary_form=True)
    if not certificate:
        raise OSError("it shows no certificate")
    return certificate


def _name(address: Address, pem: str, timeout: float) -> str:
    """Return a host name of the certificate: gRPC insists on one, and the address need not be among them."""
    context = _context()
    context.load_verify_locations(cadata=pem)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate is trusted, whatever signature it has
    with _connected(address, context, timeout) as connection:
        names = connection.getpeercert() or {}
    listed = cast("Iterable[tuple[str, str]]", names.get("subjectAltName", ()))
    alternatives = sorted((kind, value) for kind, value in listed if kind in ("DNS", "IP Address"))
    if not alternatives:
        raise ConfigError(f"the certificate of {address} names no host", hint="make one with a subjectAltName and pair again")
    return alternatives[0][1].replace("*", "hub")


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    return context


def _connected(address: Address, context: ssl.SSLContext, timeout: float) -> ssl.SSLSocket:
    opened = socket.create_connection((address.host, address.port), timeout)
    try:
        return context.wrap_socket(opened)
    except BaseException:
        opened.close()
        raise
