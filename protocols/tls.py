"""TLS of clients and servers: certificates and private keys in PEM files are checked, renewed, pinned, and made for a hub.

They are checked here because gRPC does not say what is wrong with one, and it can trust roots only. So a certificate that no authority has
signed is fetched first, compared with its fingerprint, and then used as the only root. An attacker in between has another certificate, or
this one without its private key, and either fails.
"""

import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from .address import Address, fingerprint_of
from .errors import ConfigError, Unavailable
from .system import creating

if TYPE_CHECKING:
    import grpc  # imported where it is used: servers of HTTP need the rest of this module alone
    from cryptography.x509 import GeneralName

logger = logging.getLogger(__name__)

_DAY: Final = timedelta(days=1)
_HUB_NAME = "nearfar-hub"
_HUB_LIFETIME = timedelta(days=3650)
"""Ten years: it is trusted by its fingerprint alone, so that an early end would only force all devices to pair again."""
_VERSION = 0xA0
_UTC_TIME = 0x17
_SECONDS = "%Y%m%d%H%M%SZ"
_WARNING_TIME = timedelta(days=21)
"""The earliest warning before a certificate ends. Automatic renewal happens earlier. A shorter-lived certificate warns with a quarter of
its life left."""
_PEM_HINT = "give the path of a PEM file; `openssl x509 -inform der -in FILE -out FILE.pem` makes one of a DER file"
_FETCHING_SECONDS = 10.0
"""Time in which a server has to show its certificate."""


def read_roots(path: Path) -> bytes:
    """Return the authorities' certificates in `path`. Raise `ConfigError` if it cannot be read or holds none."""
    pem = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise _no_certificate(path, pem) from None
    return pem


def read_pair(certificate: Path, private_key: Path) -> tuple[bytes, bytes]:
    """Return the private key and its certificate chain, in gRPC's order.

    Raise `ConfigError` if a file cannot be read, holds something else, or the two do not belong together; the message names the file.
    """
    chain, key = read_roots(certificate), _read(private_key)
    if b"ENCRYPTED" in key:
        hint = f"a server cannot ask for the passphrase: openssl pkey -in {private_key} -out plain.pem, and chmod 600 plain.pem"
        raise ConfigError(f"the private key in {private_key} is encrypted", hint=hint)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"the private key in {private_key} does not belong to the certificate in {certificate}"
            raise ConfigError(message, hint="give the pair that was made together, the server's certificate first in its file") from None
        raise ConfigError(f"{private_key} holds no private key in PEM form", hint="give the path of the certificate's key") from None
    return key, chain


def look(path: Path) -> object:
    """Return a value that changes whenever the file changes."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class Validity:
    """The period in which a certificate is valid."""

    begins: datetime
    ends: datetime

    def is_ending(self, now: datetime) -> bool:
        """Return whether the certificate should have been renewed by `now`."""
        return now >= self.ends - min(_WARNING_TIME, (self.ends - self.begins) / 4)


def validity_of(certificate: bytes) -> Validity:
    """Return the validity of a certificate in DER form (RFC 5280, section 4.1). Raise `ConfigError` if it is not a certificate.

    Parsed by hand: Python's ssl tells only the dates of a peer's certificate, and phones have no other parser.
    """
    try:
        ((_, signed),) = _elements(certificate)
        (_, body), *_ = _elements(signed)
        _serial, _algorithm, _issuer, (_, dates), *_ = (field for field in _elements(body) if field[0] != _VERSION)
        begins, ends = (_time(tag, text.decode("ascii")) for tag, text in _elements(dates))
    except (ValueError, IndexError):
        raise ConfigError("this is not a certificate in DER form", hint=_PEM_HINT) from None
    return Validity(begins, ends)


def first_certificate(pem: bytes) -> bytes:
    """Return the first certificate in a PEM file's text, in DER form; the others lead to its root. Raise `ValueError` if there is none."""
    text = pem.decode("ascii")
    begin = text.index(ssl.PEM_HEADER)
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)])


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and contents of the consecutive elements in `der` (X.690, section 8.1)."""
    position = 0
    while position < len(der):
        tag, length = der[position], der[position + 1]
        position += 2
        if length & 0x80:
            digits = length & 0x7F
            length = int.from_bytes(der[position : position + digits], "big")
            position += digits
        yield tag, der[position : position + length]
        position += length


def _time(tag: int, text: str) -> datetime:
    if tag == _UTC_TIME:  # two digits for the year, of 1950 to 2049
        text = ("20" if int(text[:2]) < 50 else "19") + text
    return datetime.strptime(text, _SECONDS).replace(tzinfo=UTC)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="give the path of a readable PEM file") from error


def _no_certificate(path: Path, pem: bytes) -> ConfigError:
    if b"PRIVATE KEY" in pem:
        return ConfigError(f"{path} holds a private key and no certificate", hint="the two may have been swapped")
    return ConfigError(f"{path} holds no certificate in PEM form", hint=_PEM_HINT)


def ensure_certificate(certificate: Path, key: Path, hosts: Sequence[str]) -> str:
    """Return the fingerprint of `certificate`. If neither file exists, both are made, the key readable by its owner only.

    Raises `ConfigError` if only one of them exists, or the certificate cannot be read.
    """
    if certificate.exists() != key.exists():
        there, missing = (certificate, key) if certificate.exists() else (key, certificate)
        raise ConfigError(
            f"{there} is there and {missing} is not", hint="they belong together: name the right pair, or remove it for a new one"
        )
    if not certificate.exists():
        _make_pair(certificate, key, hosts)
    try:
        return fingerprint_of(first_certificate(certificate.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{certificate} is not a certificate: {error}", hint="give the path of a PEM file") from error


def _make_pair(certificate: Path, key: Path, hosts: Sequence[str]) -> None:
    if find_spec("cryptography") is None:
        raise ConfigError("making a certificate needs the Python package cryptography", hint="pip install 'nearfar[hub]'")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HUB_NAME)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a device whose clock is behind takes it too
        .not_valid_after(now + _HUB_LIFETIME)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys((_HUB_NAME, "localhost", *hosts))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    written = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with creating(key, mode=0o600) as fresh_key, creating(certificate) as fresh_certificate:  # both or none
        fresh_key.write_bytes(written)
        fresh_certificate.write_bytes(made.public_bytes(pem))


def _general_name(host: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class RenewedCertificate:
    """A server's certificate and trusted roots, always as their files are now. gRPC asks for them before every handshake."""

    def __init__(
        self, certificate: Path, private_key: Path, client_roots: Path | None, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._certificate = certificate
        self._private_key = private_key
        self._client_roots = client_roots
        self._now = now
        self._stamps: Sequence[object] = ()
        self._validity: Validity | None = None
        self._warned: datetime | None = None

    def credentials(self) -> "grpc.ServerCredentials":
        """Return the credentials. Raise `ConfigError` if a file cannot be used."""
        import grpc

        return grpc.dynamic_ssl_server_credentials(
            self._read(),
            self.before_handshake,  # type: ignore[arg-type]  # the stubs do not know that None is allowed
            require_client_authentication=self._client_roots is not None,
        )

    def before_handshake(self) -> "grpc.ServerCertificateConfiguration | None":
        """Return the configuration if the files have changed, else None. Called in a thread of gRPC's.

        Files that are replaced one after the other may not match for a moment; the old configuration stays then.
        """
        if self._stamps == self._look():
            self._warn()
            return None
        try:
            configuration = self._read()
        except ConfigError as error:
            logger.error("the certificate stays as it was: %s", error)
            return None
        logger.info("read the certificate in %s again", self._certificate)
        return configuration

    def _read(self) -> "grpc.ServerCertificateConfiguration":
        import grpc

        self._stamps = self._look()
        pair = read_pair(self._certificate, self._private_key)
        roots = None if self._client_roots is None else read_roots(self._client_roots)
        self._validity = validity_of(first_certificate(pair[1]))
        self._warned = None
        self._warn()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _look(self) -> Sequence[object]:
        files = (self._certificate, self._private_key, self._client_roots)
        return [look(file) for file in files if file is not None]

    def _warn(self) -> None:
        """Warn once a day that the certificate expires soon."""
        now = self._now()
        if self._validity is None or not self._validity.is_ending(now) or (self._warned is not None and now < self._warned + _DAY):
            return
        self._warned = now
        when = expiry(self._validity.ends, now)
        logger.warning("the certificate in %s %s: replace the file, no restart is needed", self._certificate, when)


def expiry(ends: datetime, now: datetime) -> str:
    """Return when a certificate expires or has expired, as text for people."""
    if ends <= now:
        return f"expired on {ends:%Y-%m-%d}"
    return f"expires on {ends:%Y-%m-%d}, in {(ends - now).days} days" if ends > now + _DAY else f"expires on {ends:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """A server's certificate; with `client_roots` it also demands one of every client."""

    certificate: Path
    """PEM file with the server's certificate and those that lead to its root."""
    private_key: Path
    """PEM file of the certificate's private key."""
    client_roots: Path | None = None
    """PEM file with the authorities whose certificates clients may show; None: clients show none."""

    def credentials(self) -> "grpc.ServerCredentials":
        """Return credentials that follow the files. Raise `ConfigError` if a file cannot be read, holds something else, or does not fit
        the others."""
        return RenewedCertificate(self.certificate, self.private_key, self.client_roots).credentials()


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """The roots that a client trusts, and the certificate that it shows if the server demands one."""

    roots: Path | bytes | None = None
    """PEM file with the trusted roots, or its content; None: the public ones."""
    certificate: Path | None = None
    """PEM file of this client's certificate chain; None: it shows none."""
    private_key: Path | None = None
    """PEM file of its private key."""
    server_name: str | None = None
    """The name that the server's certificate is checked against; None: the host of the address."""

    def credentials(self) -> "grpc.ChannelCredentials":
        """Return the credentials. Raise `ConfigError` if a file cannot be read, holds something else, or does not fit the others."""
        import grpc

        private_key, certificate = None, None
        if (pair := self.pair) is not None:
            private_key, certificate = read_pair(*pair)
        roots = read_roots(self.roots) if isinstance(self.roots, Path) else self.roots
        return grpc.ssl_channel_credentials(roots, private_key, certificate)

    def look(self) -> object:
        """Return a value that changes whenever one of the files changes."""
        files = (self.roots, self.certificate, self.private_key)
        return tuple(look(file) for file in files if isinstance(file, Path))

    @property
    def pair(self) -> tuple[Path, Path] | None:
        """Return the paths of the client's certificate and key. Raise `ConfigError` if only one is given."""
        if self.certificate is None and self.private_key is None:
            return None
        if self.certificate is None or self.private_key is None:
            raise ConfigError("a client's certificate and its private key belong together", hint="give both or neither")
        return self.certificate, self.private_key


def server_tls(certificate: Path | None, private_key: Path | None, client_roots: Path | None) -> ServerTls | None:
    """Return the TLS of a server from options or a configuration, or None for plain text. Raise `ConfigError` if it is incomplete."""
    if certificate is None and private_key is None and client_roots is None:
        return None
    if certificate is None or private_key is None:
        hint = "give both, also where clients show certificates, or neither"
        raise ConfigError("a server's certificate and its private key belong together", hint=hint)
    return ServerTls(certificate=certificate, private_key=private_key, client_roots=client_roots)


def client_tls(roots: Path | None, certificate: Path | None, private_key: Path | None) -> ClientTls | None:
    """Return the TLS of a client from options or a configuration, or None if they give nothing and the address decides.

    Raise `ConfigError` for a certificate without its key.
    """
    tls = ClientTls(roots=roots, certificate=certificate, private_key=private_key)
    return tls if tls.pair is not None or roots is not None else None


def pinned_tls(address: Address, fingerprint: str, client: ClientTls | None = None, *, timeout: float = _FETCHING_SECONDS) -> ClientTls:
    """Return TLS options that accept only the certificate with this `fingerprint` at `address`. The call blocks on the network.

    The certificate of `client` is kept, and is not shown before the server is verified. Raise `Unavailable` if no server answers,
    `ConfigError` if the certificate is another one, or has expired.
    """
    try:
        shown = _shown_certificate(address, timeout)
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


def _shown_certificate(address: Address, timeout: float) -> bytes:
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
