"""The certificate of a running server: read again when its files change, with a warning before it expires."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc

from .certificates import Validity, first_certificate, look, read_pair, read_roots, validity_of
from .errors import ConfigError

logger = logging.getLogger(__name__)

_DAY: Final = timedelta(days=1)


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

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials. Raise `ConfigError` if a file cannot be used."""
        return grpc.dynamic_ssl_server_credentials(
            self._read(),
            self.before_handshake,  # type: ignore[arg-type]  # the stubs do not know that None is allowed
            require_client_authentication=self._client_roots is not None,
        )

    def before_handshake(self) -> grpc.ServerCertificateConfiguration | None:
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

    def _read(self) -> grpc.ServerCertificateConfiguration:
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
