"""Throw-away certificates."""

import datetime
import ipaddress
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

CertificateAndKey = tuple[Path, Path]
"""Paths of a certificate and of its private key."""

HOSTS = ("localhost", "127.0.0.1")
DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates, which it writes into `folder`; `certificate` is the path of its own."""

    def __init__(self, folder: Path, name: str = "authority", *, end: datetime.timedelta = DAY) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        made = _builder(self._name, self._name, self._key, -2 * DAY, end)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self,
        *names: str,
        subject: str = "somebody",
        begin: datetime.timedelta = -DAY,
        end: datetime.timedelta = DAY,
    ) -> CertificateAndKey:
        """A certificate for hosts or callers of these names, which begins and ends at these times from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, _name(subject), key, begin, end)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(list(_alternatives(names))), critical=False)
        number = next(self._numbers)
        return _written(made.sign(self._key, hashes.SHA256()), key, self._folder / f"{number}.pem", self._folder / f"{number}-key.pem")


def write_certificate(folder: Path, *, lifetime: datetime.timedelta = DAY) -> CertificateAndKey:
    """A self-signed certificate for localhost."""
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("localhost")
    made = (
        _builder(name, name, key, -DAY, lifetime)
        .add_extension(x509.SubjectAlternativeName(list(_alternatives(HOSTS))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _written(made, key, folder / "certificate.pem", folder / "key.pem")


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime.timedelta, end: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now + begin, now + end)


def _written(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, certificate_path: Path, key_path: Path) -> CertificateAndKey:
    certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_path, key_path


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternatives(names: Sequence[str]) -> Iterator[x509.GeneralName]:
    for name in names:
        try:
            yield x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            yield x509.DNSName(name)
