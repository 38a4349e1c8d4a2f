"""A TCP proxy that keeps what goes to its target."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Recording:
    """Made by `recording_proxy`."""

    def __init__(self) -> None:
        self.address = ""
        self.sent = bytearray()
        """All that was sent to the target since it was last cleared."""
        self.total = 0


@asynccontextmanager
async def recording_proxy(target: str) -> AsyncIterator[Recording]:
    """A proxy on a free port in front of `host:port`."""
    recording, links = Recording(), set[asyncio.Task[None]]()
    host, _, port = target.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_kept: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if is_kept:
                    recording.sent += data
                    recording.total += len(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()  # also where the proxy ends first: the target would wait for this connection's end

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        for task in (forward(reader, back, is_kept=True), forward(there, writer, is_kept=False)):
            links.add(asyncio.create_task(task))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    recording.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield recording
    finally:
        server.close()
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
