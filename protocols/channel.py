"""Channels of gRPC: the options of client and server, which have to match, and why a connection fails if certificates may be the reason.

gRPC says little about that, and nothing at all to a client whose certificate was refused. So after such a failure, one more handshake is
made by Python's own ssl; it sends no request and no token.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc

from .address import Address
from .errors import ConfigError, NearfarError, Unauthenticated, Unavailable
from .limits import (
    CALLS,
    CALLS_OF_A_CONNECTION,
    HANDSHAKE_SECONDS,
    IDLE_CONNECTION_SECONDS,
    MAX_MESSAGE_BYTES,
    METADATA_BYTES,
    most_connections,
)
from .tls import ClientTls, first_certificate, validity_of

Options = tuple[tuple[str, int | str], ...]

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

_SECONDS: Final = 2.0
_SYMPTOMS: Final = ("Tls handshake failed", "Hostname Verification", "Socket closed", "Connection reset")
"""gRPC's messages for failures that certificates may cause. A server that is down produces none of them, so no time is lost on it."""
_MOST_NAMES: Final = 5
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""A client's first bytes, with empty settings (RFC 9113, section 3.4). A server that accepts the client answers with its own settings."""
_BACK_AFTER: Final = 5.0
"""Seconds. A server that is being stopped looks like one that refuses a certificate."""

# OpenSSL's codes, of x509_vfy.h.
_NOT_YET_VALID, _EXPIRED, _SELF_SIGNED, _OTHER_HOST, _OTHER_ADDRESS = 9, 10, 18, 62, 64
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""OpenSSL's reasons for an answer that is not TLS."""
_CLIENT_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_ASK_OWNER: Final = "ask the server's owner to install another certificate"


def server_options() -> Options:
    """Return a server's options; its connection limit depends on the number of files that the process may open now."""
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most_connections()))


def open_channel(address: Address, tls: ClientTls | None) -> grpc.aio.Channel:
    """Open a channel to `address`; it connects with the first call. Use TLS, unless the address is on this machine and `tls` is not
    given."""
    options = list(CLIENT_OPTIONS)
    if address.is_local:
        options.append(("grpc.enable_http_proxy", 0))
    if tls is None and address.is_local:
        return grpc.aio.insecure_channel(str(address), options=options)
    tls = tls or ClientTls()
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(str(address), tls.credentials(), options=options)


async def explained(address: Address, tls: ClientTls | None, error: grpc.aio.AioRpcError) -> NearfarError | None:
    """Return the certificate problem behind `error`, or None if certificates did not cause it.

    `Unavailable` is a problem with the server's certificate, `Unauthenticated` one with this client's, `ConfigError` one with the
    client's files or options.
    """
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or address.path or not any(symptom in details for symptom in _SYMPTOMS):
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            if tls is None and address.is_local:
                return await _plain_text(address)
            return await _encrypted(address, tls or ClientTls())
    except (OSError, ValueError):  # the network is to blame, also for a TimeoutError; or a host that no certificate can name
        return None


async def _plain_text(address: Address) -> NearfarError | None:
    async with _connected(address, _unchecked(_context(ClientTls()))):
        return ConfigError(
            f"{address} speaks TLS, and this client plain text", hint="give the client the certificate of the server or of its authority"
        )


async def _encrypted(address: Address, tls: ClientTls) -> NearfarError | None:
    host = tls.server_name or address.host
    try:
        answers = await _is_answered(address, tls, host)
    except ssl.SSLCertVerificationError as error:
        return await _distrusted(address, tls, host, error)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason:
            return _refused(address, tls) if any(word in reason for word in _CLIENT_ALERTS) else None
        if reason not in _NO_TLS:
            return None
        return Unavailable(f"{address} does not speak TLS", hint="start the server with a certificate, or check the address and its port")
    return None if answers else _refused(address, tls)


async def _is_answered(address: Address, tls: ClientTls, host: str) -> bool:
    """Return whether the server continues after the handshake; with TLS 1.3, it checks the client's certificate only then."""
    async with _connected(address, _context(tls), host) as connection:
        reader, writer = connection
        try:
            writer.write(_PREFACE)
            return bool(await reader.read(1))
        except ConnectionError:
            return False


async def _distrusted(address: Address, tls: ClientTls, host: str, error: ssl.SSLCertVerificationError) -> NearfarError:
    what = f"the certificate of {address}"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        problem = _untimely(await _shown(address)) or "is signed by one that has expired, or is not valid yet"
        return Unavailable(f"{what} {problem}", hint=f"{_ASK_OWNER}, unless the clock of one of the machines is wrong")
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        names = ", ".join(await _names(address, tls)) or "no host"
        return Unavailable(f"{what} is for {names}, and not for {host}", hint=f"use an address that it is for, or {_ASK_OWNER}")
    signer = "itself alone" if error.verify_code == _SELF_SIGNED else "no authority that this client trusts"
    hint = "give the client the server's own certificate or that of its authority, unless the connection may be intercepted"
    return Unavailable(f"{what} is signed by {signer}", hint=hint)


def _refused(address: Address, tls: ClientTls) -> NearfarError:
    pair = tls.pair
    if pair is None:
        return Unauthenticated(
            f"{address} demands a certificate of its clients, and this one has none",
            hint="give the client a certificate that the server's owner has signed, and its key",
            retry_after=_BACK_AFTER,
        )
    problem = _untimely(first_certificate(pair[0].read_bytes())) or "is of an authority that the server does not trust"
    return Unauthenticated(
        f"{address} refuses this client: the certificate in {pair[0]} {problem}",
        hint="get another one from the server's owner",
        retry_after=_BACK_AFTER,
    )


def _untimely(certificate: bytes) -> str:
    """Return what is wrong with a certificate's dates, or an empty string."""
    now, dates = datetime.now(UTC), validity_of(certificate)
    if dates.ends <= now:
        return f"expired on {dates.ends:%Y-%m-%d %H:%M} UTC"
    return f"is valid from {dates.begins:%Y-%m-%d %H:%M} UTC on" if now < dates.begins else ""


async def _shown(address: Address) -> bytes:
    """Return the server's certificate in DER form, unchecked."""
    async with _connected(address, _unchecked(_context(ClientTls()))) as (_, writer):
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""


async def _names(address: Address, tls: ClientTls) -> list[str]:
    """Return the hosts that an otherwise valid certificate names. The client's own certificate is not shown: this is not the host it
    meant to call."""
    context = _context(ClientTls(roots=tls.roots))
    context.check_hostname = False
    async with _connected(address, context) as (_, writer):
        certificate = writer.get_extra_info("ssl_object").getpeercert()
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")][:_MOST_NAMES]


def _context(tls: ClientTls) -> ssl.SSLContext:
    """Return a context that checks as gRPC does: every certificate among the roots is trusted, even one that is not an authority's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.roots is None:
        context.load_default_certs()
    elif isinstance(tls.roots, Path):
        context.load_verify_locations(tls.roots)
    else:
        context.load_verify_locations(cadata=tls.roots.decode("ascii"))
    if (pair := tls.pair) is not None:
        context.load_cert_chain(*pair)
    return context


def _unchecked(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@asynccontextmanager
async def _connected(
    address: Address, context: ssl.SSLContext, host: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=host or address.host)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
