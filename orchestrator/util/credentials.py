"""Secrets from the environment or the keyring, and the self-signed certificate of a hub at home."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocols import ConfigError
from ...protocols.address import fingerprint_of
from ...protocols.certificates import first_certificate
from ...protocols.secrets import StoredKey

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName


_NAME = "nearfar-hub"
_LIFETIME = datetime.timedelta(days=3650)
"""Ten years: it is trusted by its fingerprint alone, so that an early end would only force all devices to pair again."""


def secret(variable: str) -> str:
    """Return the value of an environment variable, or of the keyring under the same name. Raises `ConfigError` if there is none."""
    stored = StoredKey(variable)
    if not stored.is_set():
        raise ConfigError(f"{variable} is not set", hint=stored.how_to_set)
    return stored.reveal()


def find_secret(variable: str) -> str | None:
    """Return the value of an environment variable, or of the keyring under the same name; None if there is none."""
    return StoredKey(variable).find()


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
        _make(certificate, key, hosts)
    try:
        return fingerprint_of(first_certificate(certificate.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{certificate} is not a certificate: {error}", hint="give the path of a PEM file") from error


def _make(certificate: Path, key: Path, hosts: Sequence[str]) -> None:
    if find_spec("cryptography") is None:
        raise ConfigError("making a certificate needs the Python package cryptography", hint="pip install 'nearfar[hub]'")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # a device whose clock is behind takes it too
        .not_valid_after(now + _LIFETIME)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys((_NAME, "localhost", *hosts))]), critical=False
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
