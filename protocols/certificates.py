"""Certificates and private keys in PEM files. They are checked here because gRPC does not say what is wrong with one."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .errors import ConfigError

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
