"""A small real HTTP/1.1 server on loopback that answers as the test tells it to."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

STREAM = "text/event-stream"


@dataclass
class Exchange:
    """One request and the connection to answer it on."""

    path: str
    headers: dict[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def respond(self, status: int, body: bytes | str, *, content_type: str = "application/json", **headers: str) -> None:
        """A whole response; underscores in header names without a hyphen become hyphens."""
        data = body.encode() if isinstance(body, str) else body
        await self.start(status, content_type, headers | {"content_length": str(len(data))})
        self.writer.write(data)
        await self.writer.drain()

    async def start(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"content-type: {content_type}"]
        lines += [f"{(name if '-' in name else name.replace('_', '-'))}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        await self.writer.drain()

    async def open_stream(self) -> None:
        await self.start(200, STREAM, {"transfer_encoding": "chunked"})

    async def send(self, piece: bytes | str) -> None:
        data = piece.encode() if isinstance(piece, str) else piece
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def finish(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def stream(self, pieces: Iterable[bytes | str]) -> None:
        await self.open_stream()
        for piece in pieces:
            await self.send(piece)
        await self.finish()

    async def until_client_leaves(self) -> None:
        """Returns when the client has closed its end."""
        try:
            while await self.reader.read(1024):
                pass
        except ConnectionError:
            pass


Answer = Callable[[Exchange], Awaitable[None]]


@dataclass
class Server:
    """What the server saw."""

    base_url: str
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def http_server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server whose every request is handed to `answer`."""
    seen = Server("")
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (exchange := await _read(reader, writer)) is not None:
                seen.exchanges.append(exchange)
                await answer(exchange)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        tasks.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    seen.base_url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(head[0].split()[1], headers, json.loads(body or b"null"), reader, writer)


def sse(*chunks: object, event: str | None = None) -> str:
    """`chunks` as server-sent events; a string stands for itself."""
    prefix = f"event: {event}\n" if event else ""
    return "".join(f"{prefix}data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks)
