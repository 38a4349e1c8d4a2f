"""Synchronise this store with another replica: once, or continuously."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from random import uniform
from typing import TYPE_CHECKING, Final

import anyio

from ....protocols import NearfarError, Unavailable
from ....protocols.channel import ClientTls
from ....protocols.namespaces import Namespace
from ...util.runtime import in_thread
from .calls import ahead, moves
from .client import Link, connected
from .messages import Batch, Hello, Peer, Received
from .receiving import receive
from .replica import Replica
from .sending import Leaving, batches, outgoing

if TYPE_CHECKING:
    from ..store import MemoryStore

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
class Progress:
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


async def sync_once(store: "MemoryStore", neighbour: Neighbour, *, report: Callable[[Progress], None] | None = None) -> Synchronised:
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


async def _exchange(store: "MemoryStore", peer: Peer, link: Link, report: Callable[[Progress], None]) -> Synchronised:
    replica, progress = store.replica(), Progress()
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


def _ignore(_: Progress) -> None:
    """Do nothing."""
