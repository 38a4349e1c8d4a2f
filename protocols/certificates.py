"""Certificates and private keys in PEM files: check them, because gRPC does not say what is wrong with one, and make those of a hub."""

import ipaddress
import os
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .address import fingerprint_of
from .errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

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
    with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(written)
    certificate.write_bytes(made.public_bytes(pem))


def _general_name(host: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
