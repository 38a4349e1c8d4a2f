"""Connect to another replica over gRPC and synchronise with it: once, or continuously."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import uniform
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import grpc

from ....protocols import NearfarError, Unavailable
from ....protocols.address import parse_address
from ....protocols.channel import explained, open_channel
from ....protocols.items import Namespace
from ....protocols.security import bearer_metadata
from ....protocols.status import from_rpc_error
from ....protocols.tls import ClientTls
from ....protocols.v1 import memory_pb2 as pb
from ....protocols.v1.memory_pb2_grpc import MemoryServiceStub
from ...util.runtime import in_thread
from . import Replica, wire
from .exchange import Leaving, batches, outgoing, receive
from .messages import Batch, Hello, Peer, Received, Request
from .wire import IDLE_LIMIT, UNARY_LIMIT, ahead, in_time, moves

if TYPE_CHECKING:
    from ..store import MemoryStore


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


logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0
"""The longest pause between two attempts to reach a peer, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A replica that can be dialled."""

    peer: Peer
    address: str
    """`host:port` or `unix:/path`."""
    token: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """The state of a running synchronisation."""

    received: Received = Received()
    sent: Received = Received()
    """The results that the other side has confirmed."""


@dataclass(frozen=True, slots=True)
class Synchronised:
    """The result of a synchronisation."""

    device: str
    """Device of the other replica."""
    received: Received
    sent: Received
    skew: float
    """Seconds by which the other clock is ahead of ours."""


Outcome = Synchronised | NearfarError


async def plan(store: "MemoryStore", neighbour: Neighbour) -> dict[Namespace, Leaving]:
    """Return what would be sent to the neighbour now, by namespace.

    To find that out, both sides exchange their erasures, and erase. Raises what `sync_once` raises.
    """
    async with _linked(neighbour) as link:
        replica = store.replica()
        await _greet(replica, neighbour.peer, link)
        async with link.push(await in_thread(replica.hello)) as push:
            return await in_thread(outgoing, replica, neighbour.peer, push.request)


async def sync_once(store: "MemoryStore", neighbour: Neighbour, *, report: Callable[[SyncProgress], None] | None = None) -> Synchronised:
    """Pull what the neighbour has for this store, and push what is for the neighbour.

    If it ends early, what was done stays done, and the next call continues from there. Raises `SyncRefused` if the two cannot
    synchronise, `Unavailable` if the neighbour cannot be reached, and otherwise what it raised.
    """
    async with _linked(neighbour) as link:
        return await _exchange(store, neighbour.peer, link, report or _ignore)


async def keep_in_sync(store: "MemoryStore", neighbours: Sequence[Neighbour], report: Callable[[Neighbour, Outcome], None]) -> None:
    """Synchronise with all neighbours whenever they can be reached, until cancelled: news of either side is exchanged at once."""
    async with anyio.create_task_group() as tasks:
        for neighbour in neighbours:
            tasks.start_soon(_keep, store, neighbour, report)


async def _keep(store: "MemoryStore", neighbour: Neighbour, report: Callable[[Neighbour, Outcome], None]) -> None:
    pause = _FIRST_PAUSE

    def tell(outcome: Outcome) -> None:
        nonlocal pause
        pause = _FIRST_PAUSE if isinstance(outcome, Synchronised) else min(2 * pause, _LONGEST_PAUSE)
        report(neighbour, outcome)

    while True:
        try:
            async with _linked(neighbour) as link:
                await _follow(store, neighbour.peer, link, tell)
        except* NearfarError as errors:
            tell(_first(errors))
        # All replicas that lost the same hub would otherwise come back at the same moment.
        await anyio.sleep(uniform(0, pause))


async def _follow(store: "MemoryStore", peer: Peer, link: Link, tell: Callable[[Outcome], None]) -> None:
    """Exchange news until the connection is lost."""
    replica, news = store.replica(), asyncio.Event()
    news.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_signal, news, moves(replica, store.watchers))
        tasks.start_soon(_signal, news, link.watch(await in_thread(replica.hello)))
        while True:
            await news.wait()
            news.clear()
            tell(await _exchange(store, peer, link, _ignore))


async def _signal(news: asyncio.Event, positions: AsyncGenerator[int]) -> None:
    async with aclosing(positions):
        async for _ in positions:
            news.set()
    raise Unavailable("the other side ended the watch call")


async def _exchange(store: "MemoryStore", peer: Peer, link: Link, report: Callable[[SyncProgress], None]) -> Synchronised:
    replica, progress = store.replica(), SyncProgress()
    theirs, skew = await _greet(replica, peer, link)
    # Sending comes first: it may show that this store is a copy, which then has to get its own device's writes back.
    async with link.push(await in_thread(replica.hello)) as push:
        sending = batches(replica, peer, push.request)
        async with aclosing(ahead(lambda: in_thread(next, sending, None))) as made:
            async for batch in made:
                await in_thread(replica.check_peer, peer, theirs.device)
                report(progress := replace(progress, sent=_sum([progress.sent, *await push.send(batch)])))
        report(progress := replace(progress, sent=_sum([progress.sent, *await push.finish()])))
    request = await in_thread(replica.request, peer, theirs.log)
    pulled = link.pull(await in_thread(replica.hello), request)
    is_whole = False
    async with aclosing(pulled), aclosing(ahead(lambda: _next(pulled))) as arriving:
        async for batch in arriving:
            received = await in_thread(receive, replica, peer, theirs.device, batch)
            store.watchers.notify()
            report(progress := replace(progress, received=_sum([progress.received, received])))
            is_whole = batch.known is not None
    if not is_whole:
        raise Unavailable(
            "the other side ended the call before it had sent all", hint="synchronise again: the data that has arrived is kept"
        )
    return Synchronised(theirs.device, progress.received, progress.sent, skew)


async def _greet(replica: Replica, peer: Peer, link: Link) -> tuple[Hello, float]:
    """Exchange hellos; return the other side's, and by how many seconds its clock is ahead."""
    theirs = await link.greet(await in_thread(replica.hello))
    return theirs, await in_thread(replica.meet, peer, theirs, is_caller=False)


async def _next(pulled: AsyncGenerator[Batch]) -> Batch | None:
    return await anext(pulled, None)


def _linked(neighbour: Neighbour) -> AbstractAsyncContextManager[Link]:
    return connected(neighbour.address, token=neighbour.token, tls=neighbour.tls)


def _sum(all_received: Iterable[Received]) -> Received:
    return Received(*map(sum, zip(*all_received, strict=True)))


def _first(errors: BaseExceptionGroup[NearfarError]) -> NearfarError:
    """Return one of the errors in a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, NearfarError)  # the group was split by it
    return error


def _ignore(_: SyncProgress) -> None:
    """Do nothing."""
