"""Test tools for implementations of `Agent`: the conformance suite, its transports, and a TCP proxy that breaks connections on command."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Literal, TypeAlias, TypeVarTuple

Ts = TypeVarTuple("Ts")


class EventLoop(asyncio.SelectorEventLoop):
    """The loop of one test, as `loop_factory` of pytest's anyio plugin.

    gRPC has one queue of answers for all loops. A late answer, as of a call that was cancelled at the end of its test, would fail the
    test that runs next.
    """

    def call_soon_threadsafe(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self.is_closed() and callback.__name__ == "_handle_callback_wrapper":
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)


Way: TypeAlias = Literal["to_target", "from_target"]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CHUNK = 64 * 1024


class ChaosProxy:
    """Forwards connections to a target until told otherwise. Created by `chaos_proxy`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._reset_after: int | None = None
        self.address = ""
        """Address to connect to instead of the target."""
        self.latency = 0.0
        """Seconds by which every chunk is delayed, in both directions."""
        self.connections = 0
        """Connections accepted so far."""

    async def start(self, port: int = 0) -> None:
        """Listen; `port` 0 takes a free one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        host, bound = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{bound}"

    async def refuse(self) -> None:
        """Stop listening: new connections are refused. Open ones stay; `resume` listens again at the same address."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def resume(self) -> None:
        """Undo `refuse` and `black_hole`."""
        if self._server is None:
            await self.start(int(self.address.rpartition(":")[2]))
        self._flowing.set()

    def retarget(self, target: str) -> None:
        """Forward new connections to another `host:port`."""
        self._target = _split(target)

    def black_hole(self) -> None:
        """Keep all connections open and accept new ones, but forward nothing more."""
        self._flowing.clear()

    def reset(self) -> None:
        """Break all open connections with a TCP reset."""
        for link in tuple(self._links):
            link.break_off(reset=True)

    def close(self) -> None:
        """End all open connections in order."""
        for link in tuple(self._links):
            link.break_off(reset=False)

    def reset_after(self, count: int) -> None:
        """Reset the next connection that has carried `count` bytes from the target, once."""
        self._reset_after = count

    async def stop(self) -> None:
        """Close everything and wait for it."""
        await self.refuse()
        self.reset()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        link = _Link(writer, upstream[1])
        self._links.add(link)
        self._spawn(self._pump(reader, upstream[1], link, "to_target"))
        self._spawn(self._pump(upstream[0], writer, link, "from_target"))

    def _spawn(self, pump: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(pump)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: "_Link", way: Way) -> None:
        try:
            while chunk := await reader.read(_CHUNK):
                if self.latency:
                    await asyncio.sleep(self.latency)
                await self._flowing.wait()
                chunk = self._up_to_reset(chunk) if way == "from_target" else chunk
                writer.write(chunk)
                await writer.drain()
                if self._reset_after == 0:
                    self._reset_after = None
                    link.break_off(reset=True)
        except OSError:  # either side broke off: so does the other
            link.break_off(reset=True)
        finally:
            link.break_off(reset=False)
            self._links.discard(link)

    def _up_to_reset(self, chunk: bytes) -> bytes:
        if self._reset_after is None:
            return chunk
        chunk = chunk[: self._reset_after]
        self._reset_after -= len(chunk)
        return chunk


class _Link:
    """The two ends of one forwarded connection."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers

    def break_off(self, *, reset: bool) -> None:
        for writer in self._writers:
            if reset and not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
            else:
                writer.close()


@asynccontextmanager
async def chaos_proxy(target: str) -> AsyncIterator[ChaosProxy]:
    """Run a proxy in front of `target` (`host:port`) until the context ends."""
    proxy = ChaosProxy(*_split(target))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def _split(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host, int(port)
