"""Retire facts that repeat newer ones, or are outdated by them: they stay as no longer valid, and searches do not find them."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import anyio

from ....protocols import NotFound, VersionConflict
from ....protocols.namespaces import ItemAddress
from ...util.threads import in_thread
from ..memory_item import MemoryItem
from ..recall.granularity import SEMANTIC, TEXT
from .bench import ALL, Bench, Slept
from .journal import Deed, Entry
from .updates import Pair, Relation, asked, certain, queue


async def retire_facts(bench: Bench, slept: Slept) -> AsyncGenerator[None]:
    """Compare each fact with the newer ones that may be related to it, some at a time."""
    pairs = await in_thread(_pairs, bench)
    gone: set[ItemAddress] = set()
    for start in range(0, len(pairs), bench.policy.parallel):
        together = pairs[start : start + bench.policy.parallel]
        relations = await _relations(bench, together)
        with anyio.CancelScope(shield=True):  # items and journal must agree; it takes milliseconds
            for pair, relation in zip(together, relations, strict=True):
                if relation is Relation.UNRELATED or gone & {pair.older.address, pair.newer.address}:
                    continue
                if await in_thread(_retire, bench, pair, slept):
                    gone.add(pair.older.address)
                    slept.retired += 1
        yield


def _pairs(bench: Bench) -> list[Pair]:
    namespace = (*bench.scope, SEMANTIC)
    refused = bench.journal.refused()
    found = bench.store.search(namespace, limit=ALL, refresh_ttl=False)
    facts = [item for item in found if item.namespace == namespace and item.address not in refused and _is_fact(bench, item)]
    return queue(facts, [bench.store.meaning(item.value[TEXT]) for item in facts], bench.policy)


def _is_fact(bench: Bench, item: MemoryItem) -> bool:
    """Return whether an item is a fact of the store's own user without conflicts. Others correct their own facts, and people resolve
    conflicts."""
    return isinstance(item.value.get(TEXT), str) and item.user == bench.store.origin.user and not item.conflicts


async def _relations(bench: Bench, pairs: Sequence[Pair]) -> list[Relation]:
    """Return the relation of each pair: the certain one, else the model's answer; the model is asked concurrently."""
    relations = [certain(pair, bench.policy) for pair in pairs]
    summarizer = bench.summarizer
    if summarizer is None:
        return [relation or Relation.UNRELATED for relation in relations]
    slots = anyio.CapacityLimiter(summarizer.card.limits.concurrency)

    async def ask(place: int) -> None:
        async with slots:
            relations[place] = await asked(pairs[place], summarizer)

    async with anyio.create_task_group() as asking:
        for place, relation in enumerate(relations):
            if relation is None:
                asking.start_soon(ask, place)
    return [relation or Relation.UNRELATED for relation in relations]


def _retire(bench: Bench, pair: Pair, slept: Slept) -> bool:
    """Retire the older fact; return False if it was changed or removed meanwhile."""
    place, subject, batch = pair.older.address, pair.older.subject, bench.batch(slept)
    entry = Entry(Deed.RETIRED, place, because_of=pair.newer.address, until=pair.older.invalid_from)
    bench.journal.note(batch, entry, subject=subject)
    try:
        version = bench.store.invalidate(*place, at=bench.moment, if_version=pair.older.version)
    except (VersionConflict, NotFound):
        return False
    bench.journal.note(batch, replace(entry, version=version), subject=subject)
    return True
