"""gRPC options of client and server, which have to match, and TLS for both.

gRPC can trust roots only. So a certificate that no authority has signed is fetched first, compared with its fingerprint, and then used as
the only root. An attacker in between has another certificate, or this one without its private key, and either fails.
"""

import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from .address import Address, fingerprint_of
from .certificates import Validity, first_certificate, look, read_pair, read_roots, validity_of
from .errors import ConfigError, Unavailable
from .limits import (
    CALLS,
    CALLS_OF_A_CONNECTION,
    HANDSHAKE_SECONDS,
    IDLE_CONNECTION_SECONDS,
    MAX_MESSAGE_BYTES,
    METADATA_BYTES,
    most_connections,
)

if TYPE_CHECKING:
    import grpc  # imported where it is used: servers of HTTP need the rest of this module alone

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


Options = tuple[tuple[str, int | str], ...]

_FETCHING_SECONDS = 10.0
"""Time in which a server has to show its certificate."""
_PING_EVERY_MS = 1_500
_PING_TIMEOUT_MS = 1_500
_SERVER_PING_EVERY_MS = 10_000
_SERVER_PING_TIMEOUT_MS = 5_000

CLIENT_OPTIONS: Options = (
    # A peer that is gone without a word is noticed within 3 s. The ping timeout is a second setting: without it, 60 s.
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Back within 2 s of the end of an outage, instead of 6 s. The minimum is also the time limit of a connection attempt.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Every agent has a connection of its own, so that closing one or losing its connection touches no other.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

SERVER_OPTIONS: Options = (
    # Must allow the client's pings: a default server ends the connection after the fourth ("too many pings").
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", _SERVER_PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _SERVER_PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _SERVER_PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # With port sharing, a second server on a taken port would start and steal half of the calls.
    ("grpc.so_reuseport", 0),
    # There is no limit on a connection's age: a worker stays attached for days, and a token that is revoked ends its calls anyway.
    ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
    # Calls that Python has not got to yet. By default, gRPC cancels some beyond 1,000 by chance, without a word.
    ("grpc.server.max_pending_requests", CALLS),
    ("grpc.server.max_pending_requests_hard_limit", CALLS),
    ("grpc.max_connection_idle_ms", round(IDLE_CONNECTION_SECONDS * 1000)),
    ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SECONDS * 1000)),
    # The second is what gRPC refuses for certain; between the two, some calls by chance.
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def server_options() -> Options:
    """Return a server's options; its connection limit depends on the number of files that the process may open now."""
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most_connections()))


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


def open_channel(address: Address, tls: ClientTls | None) -> "grpc.aio.Channel":
    """Open a channel to `address`; it connects with the first call. Use TLS, unless the address is on this machine and `tls` is not
    given."""
    import grpc

    options = list(CLIENT_OPTIONS)
    if address.is_local:
        options.append(("grpc.enable_http_proxy", 0))
    if tls is None and address.is_local:
        return grpc.aio.insecure_channel(str(address), options=options)
    tls = tls or ClientTls()
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(str(address), tls.credentials(), options=options)


def pinned_tls(address: Address, fingerprint: str, client: ClientTls | None = None, *, timeout: float = _FETCHING_SECONDS) -> ClientTls:
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
