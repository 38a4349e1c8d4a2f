"""Connect to another replica, over gRPC."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from ....protocols import NearfarError, Unavailable
from ....protocols.address import parse_address
from ....protocols.channel import ClientTls, open_channel
from ....protocols.diagnosis import explained
from ....protocols.security import bearer_metadata
from ....protocols.status import from_rpc_error
from ....protocols.v1 import memory_pb2 as pb
from ....protocols.v1.memory_pb2_grpc import MemoryServiceStub
from . import wire
from .calls import IDLE_LIMIT, UNARY_LIMIT, in_time
from .messages import Batch, Hello, Received, Request

Explain: TypeAlias = Callable[[grpc.aio.AioRpcError], Awaitable[NearfarError | None]]
"""Explains why a connection failed; None: the reason is not known."""

_BATCHES_AHEAD: Final = 4
"""Batches that are sent before the first of them is confirmed."""


class Link:
    """A connection to a replica that another process serves. Every method raises what the other side raised, and `Unavailable` if it
    cannot be reached."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...], explain: Explain) -> None:
        self._stub = MemoryServiceStub(channel)
        self._metadata = metadata
        self._explain = explain

    async def greet(self, hello: Hello) -> Hello:
        """Exchange hellos with the other replica."""
        async with self._connecting():
            return wire.hello_from_proto(await self._stub.Greet(wire.hello_to_proto(hello), metadata=self._metadata, timeout=UNARY_LIMIT))

    async def pull(self, hello: Hello, request: Request) -> AsyncGenerator[Batch]:
        """Yield what the other replica has for this one. Close it when done."""
        message = pb.PullRequest(hello=wire.hello_to_proto(hello), continuation=wire.request_to_proto(request))
        async with aclosing(_messages(self._stub.Pull(message, metadata=self._metadata))) as messages:
            async for batch in messages:
                yield wire.batch_from_proto(batch)

    @asynccontextmanager
    async def push(self, hello: Hello) -> AsyncIterator["Push"]:
        """Open a stream of batches to the other replica."""
        call = self._stub.Push(metadata=self._metadata)
        try:
            yield await Push.begun(call, hello)
        finally:
            call.cancel()

    async def watch(self, hello: Hello) -> AsyncGenerator[int]:
        """Yield the end of the other replica's log, at once and at each change. Close it when done; it has no time limit."""
        call = self._stub.Watch(pb.WatchRequest(hello=wire.hello_to_proto(hello)), metadata=self._metadata)
        try:
            async with self._connecting():
                async for changed in call:
                    yield changed.position
        finally:
            call.cancel()

    @asynccontextmanager
    async def _connecting(self) -> AsyncIterator[None]:
        """Explain certificate errors of the calls that come first."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise await self._explain(error) or from_rpc_error(error) from error


class Push:
    """A stream of batches to another replica."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Any, Any]", request: Request) -> None:
        self._call = call
        self._unconfirmed = 0
        self.request = request
        """The position from which the other side wants batches."""

    @classmethod
    async def begun(cls, call: "grpc.aio.StreamStreamCall[Any, Any]", hello: Hello) -> "Push":
        with _reported(), in_time(UNARY_LIMIT):
            with suppress(asyncio.InvalidStateError):  # the call is over, and reading tells why
                await call.write(pb.PushMessage(hello=wire.hello_to_proto(hello)))
            reply = await call.read()
        if not isinstance(reply, pb.PushReply):
            raise Unavailable("the other side ended the call")
        return cls(call, wire.request_from_proto(reply.continuation))

    async def send(self, batch: Batch) -> list[Received]:
        """Send one more batch, and return what has been confirmed meanwhile, perhaps nothing yet."""
        try:
            with _reported(), in_time(IDLE_LIMIT):
                await self._call.write(pb.PushMessage(batch=wire.batch_to_proto(batch)))
        except asyncio.InvalidStateError:
            while True:  # the call is over, and reading on tells why
                await self._confirmed()
        self._unconfirmed += 1
        return [await self._confirmed()] if self._unconfirmed >= _BATCHES_AHEAD else []

    async def finish(self) -> list[Received]:
        """Return all confirmations that have not come yet."""
        with _reported(), in_time(IDLE_LIMIT):
            await self._call.done_writing()
        return [await self._confirmed() for _ in range(self._unconfirmed)]

    async def _confirmed(self) -> Received:
        with _reported(), in_time(IDLE_LIMIT):
            reply = await self._call.read()
        if not isinstance(reply, pb.PushReply):
            raise Unavailable("the other side ended the call before all was confirmed")
        self._unconfirmed -= 1
        return wire.received_from_proto(reply.received)


@asynccontextmanager
async def connected(address: str, *, token: str | None = None, tls: ClientTls | None = None) -> AsyncIterator[Link]:
    """Connect to the replica at `host:port` or `unix:/path`. Raises `ConfigError` for an invalid address or token."""
    where = parse_address(address)
    async with open_channel(where, tls) as channel:
        yield Link(channel, bearer_metadata(token), partial(explained, where, tls))


async def _messages(call: "grpc.aio.UnaryStreamCall[Any, Any]") -> AsyncGenerator[Any]:
    """Yield the messages of a stream, each within the time limit."""
    try:
        while True:
            with _reported(), in_time(IDLE_LIMIT):
                message = await call.read()
            if message is grpc.aio.EOF:
                return
            yield message
    finally:
        call.cancel()


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
