"""Server-sent events to one client, which may be slow, and may leave."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio

from ..util.runtime import cancel_task
from .requests import Receive, Send

QUIET_SECONDS: Final = 5.0
"""Seconds without an event until a comment line keeps the connection alive: two are at most twice as far apart."""
_MOST_WAITING: Final = 64 * 1024
"""Bytes that wait to be sent until the turn has to wait, too."""
COMMENT: Final = b": wait\n\n"
"""A line that clients skip."""
_HEAD: Final = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream:
    """Writes events as they come; those that come at once are sent together. The head of the response waits for the first event, as long
    as the connection need not be kept alive."""

    def __init__(self, send: Send, headers: Callable[[], Mapping[str, str]], *, sign: bytes = COMMENT) -> None:
        """Send events by `send`.

        Args:
            send: the server's.
            headers: returns the headers of the response; called when its head is sent.
            sign: sent now and then where nothing else is, so that the connection stays open.
        """
        self._send = send
        self._headers = headers
        self._sign = sign
        self._waiting: list[bytes] = []
        self._size = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        self._has_ended = False
        """The server was told that the response is over, together with its last event."""
        self._latest = time.monotonic()
        self._has_head = False
        self.has_begun = False
        """An event was written, so that no other status can be sent."""

    async def write(self, data: bytes) -> None:
        """Send events. Waits while the client does not read; the server ends such connections."""
        self.has_begun = True
        self._waiting.append(data)
        self._size += len(data)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())
        if self._size > _MOST_WAITING:
            await asyncio.wait({self._sending})

    async def end(self) -> None:
        """End the response after its last event."""
        self._is_over = True
        if self._sending is not None:
            await self._sending
        if not self._has_ended:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def aclose(self) -> None:
        """Send nothing more."""
        if self._sending is not None:
            await cancel_task(self._sending)

    async def keep_alive(self) -> None:
        """Send a sign of life if nothing was sent for a while."""
        if time.monotonic() - self._latest >= QUIET_SECONDS and not self._is_over:
            await self.write(self._sign)

    async def _send_waiting(self) -> None:
        while self._waiting:
            data = b"".join(self._waiting)
            self._waiting, self._size = [], 0
            if not self._has_head:
                self._has_head = True
                await self._send({"type": "http.response.start", "status": 200, "headers": encoded({**_HEAD, **self._headers()})})
            self._has_ended = self._is_over
            await self._send({"type": "http.response.body", "body": data, "more_body": not self._is_over})
            self._latest = time.monotonic()


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI takes them."""
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


def event(data: bytes, *, name: str = "") -> bytes:
    """Return one event with JSON `data`, of a type with this `name` if it has any."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b"data: %s\n\n" % data


@asynccontextmanager
async def while_connected(receive: Receive, tick: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[anyio.CancelScope]:
    """Cancel the block when the client closes the connection: the scope that it yields tells. The whole request has been read before.

    `tick` is called every few seconds.
    """
    with anyio.CancelScope() as scope:
        watching = asyncio.create_task(_watch(receive, scope, tick))
        try:
            yield scope
        finally:
            await cancel_task(watching)


async def _watch(receive: Receive, scope: anyio.CancelScope, tick: Callable[[], Awaitable[None]] | None) -> None:
    while True:
        try:
            async with asyncio.timeout(None if tick is None else QUIET_SECONDS):
                message = await receive()
        except TimeoutError:
            assert tick is not None, "else there is no timeout"
            await tick()
        else:
            if message["type"] == "http.disconnect":
                scope.cancel()
                return
