"""An engine in plain Python, with which the engines of the memory store are compared."""

import itertools
import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast
from uuid import uuid4

import orjson

from nearfar.orchestrator.memory.engine import (
    MOST_FORGOTTEN,
    Change,
    Forgotten,
    Hit,
    ItemRow,
    ItemSelection,
    Logged,
    Position,
    Transaction,
    Unembedded,
    check_told,
    selects,
)
from nearfar.orchestrator.memory.operation import Dot, Operation, VersionVector, address_tag, tick
from nearfar.protocols.items import ItemAddress, Namespace, within

if TYPE_CHECKING:
    from nearfar.orchestrator.memory.engine import Vector

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""A character of a script that has no spaces between words, or a run of other letters and digits."""
_SATURATION: Final = 1.2
_LENGTH_WEIGHT: Final = 0.75


@dataclass(frozen=True, slots=True)
class _Kept:
    """The stored state of an item."""

    number: int
    position: int
    positions: dict[Dot, int]
    """The position of each head."""
    change: Change


class InMemoryEngine:
    """A replica in this process's memory, which is gone when the process ends. See `Engine` for the methods."""

    def __init__(self, *, device: str | None = None, embedder: str | None = None) -> None:
        self.device = device or uuid4().hex[:16]
        self._embedder = embedder
        self._lock = threading.RLock()
        self._kept: dict[ItemAddress, _Kept] = {}
        self._state = _State({}, 0, {})
        self._numbers = itertools.count(1)
        self._position = 0
        self._forgotten: dict[str, int] = {}
        """Positions of forgotten items, by tag, in order."""
        self._told_since = 0

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._lock:
            transaction = _Transaction(self.device, self._state, self._heads)
            yield transaction
            self._state = transaction.state
            for change in transaction.changes:
                self._keep(change)

    def rows(self, addresses: Sequence[ItemAddress], selection: ItemSelection) -> dict[ItemAddress, ItemRow]:
        with self._lock:
            kept = ((address, self._kept.get(address)) for address in addresses)
            rows = ((address, one.change.row) for address, one in kept if one is not None)
            return {address: _copy(row) for address, row in rows if row is not None and selects(selection, row)}

    def numbered(self, numbers: Sequence[int]) -> dict[int, ItemRow]:
        wanted = set(numbers)
        with self._lock:
            return {kept.number: _copy(row) for kept, row in self._visible() if kept.number in wanted}

    def select(self, selection: ItemSelection, *, limit: int, offset: int) -> list[ItemRow]:
        with self._lock:
            rows = sorted((row for _, row in self._visible(selection)), key=lambda row: (-row.updated_at, row.address))
            return [_copy(row) for row in rows[offset : offset + limit]]

    def keyword(self, query: str, selection: ItemSelection, *, limit: int) -> list[Hit]:
        """Rank by bm25, over the rows of the selection alone."""
        with self._lock:
            documents = {kept.number: Counter(_words(" ".join(kept.change.texts))) for kept, _ in self._visible(selection)}
        return _best(_bm25(set(_words(query)), documents), limit)

    def nearest(self, vector: "Vector", selection: ItemSelection, *, limit: int) -> list[Hit]:
        with self._lock:
            found = [(kept.number, kept.change.vectors) for kept, _ in self._visible(selection)]
        return _best({number: max(float(vector @ one) for one in vectors) for number, vectors in found if vectors}, limit)

    def namespaces(self, selection: ItemSelection) -> list[Namespace]:
        with self._lock:
            return sorted({row.address.namespace for _, row in self._visible(selection)})

    def refresh(self, addresses: Sequence[ItemAddress], now: float) -> None:
        with self._lock:
            for address in addresses:
                kept = self._kept.get(address)
                if kept and (row := kept.change.row) and row.meta.ttl is not None:
                    later = kept.change._replace(row=row._replace(expires_at=now + row.meta.ttl))
                    self._kept[address] = replace(kept, change=later)

    def expired(self, now: float, *, limit: int) -> list[ItemAddress]:
        with self._lock:
            rows = (row for _, row in self._visible() if row.expires_at is not None and row.expires_at <= now)
            return [row.address for row in itertools.islice(rows, limit)]

    def changes(self, after: int, *, limit: int) -> list[Position]:
        with self._lock:
            found = [Position(kept.position, address, kept.change.row is None) for address, kept in self._kept.items()]
        return sorted(one for one in found if one.position > after)[:limit]

    def forgotten(self, after: int, *, limit: int) -> list[Forgotten]:
        check_told(after, self._told_since)
        with self._lock:
            found = [Forgotten(position, tag) for tag, position in self._forgotten.items() if position > after]
        return found[:limit]

    def position(self) -> int:
        return self._position

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        with self._lock:
            found = [Logged(kept.positions[head.dot], head) for kept in self._kept.values() for head in kept.change.heads]
        return sorted((one for one in found if one.position > after), key=lambda one: one.position)[:limit]

    def first_unknown(self, after: int, known: VersionVector) -> int | None:
        heads = self.operations(after, limit=self._position)
        return next((position for position, head, _ in heads if head.dot.sequence > known.get(head.dot.device, 0)), None)

    def unembedded(self, *, limit: int) -> list[Unembedded]:
        if self._embedder is None:
            return []
        with self._lock:
            waiting = (
                Unembedded(kept.number, row.version, kept.change.texts)
                for kept, row in self._visible()
                if kept.change.texts and kept.change.vectors is None
            )
            return list(itertools.islice(waiting, limit))

    def embed(self, rows: "Sequence[tuple[Unembedded, Sequence[Vector]]]") -> None:
        vectors = {(one.row, one.version): made for one, made in rows}
        with self._lock:
            for kept, row in self._visible():
                if (kept.number, row.version) in vectors:
                    change = kept.change._replace(vectors=vectors[kept.number, row.version])
                    self._kept[row.address] = replace(kept, change=change)

    def conflicts(self, *, limit: int, offset: int) -> list[ItemAddress]:
        with self._lock:
            return sorted(address for address, kept in self._kept.items() if kept.change.conflicts)[offset : offset + limit]

    def traces(
        self, *, prefix: Namespace | None = None, subject: str | None = None, derived_from: Sequence[ItemAddress] = ()
    ) -> list[ItemAddress]:
        sources = set(derived_from)

        def is_trace(address: ItemAddress, heads: Sequence[Operation]) -> bool:
            metas = [meta for head in heads for meta in (head.meta, *(sibling.meta for sibling in head.siblings))]
            return (
                (prefix is not None and within(address.namespace, prefix))
                or (subject is not None and any(subject in meta.subjects for meta in metas))
                or any(not sources.isdisjoint(meta.lineage) for meta in metas)
            )

        with self._lock:
            return sorted(address for address, kept in self._kept.items() if is_trace(address, kept.change.heads))

    def scrub(self) -> None:
        """Do nothing: no file has any deleted data."""

    def statistics(self) -> dict[str, int]:
        with self._lock:
            changes = [kept.change for kept in self._kept.values()]
        rows = [change.row for change in changes if change.row is not None]
        return {
            "items": len(rows),
            "deleted": len(changes) - len(rows),
            "operations": sum(len(change.heads) for change in changes),
            "conflicts": sum(change.conflicts for change in changes),
            "vectors": sum(len(change.vectors or ()) for change in changes),
            "bytes": sum(len(orjson.dumps(row.value)) for row in rows),
        }

    def close(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def _heads(self, address: ItemAddress) -> tuple[Operation, ...]:
        kept = self._kept.get(address)
        return () if kept is None else kept.change.heads

    def _visible(self, selection: ItemSelection | None = None) -> Iterator[tuple[_Kept, ItemRow]]:
        for kept in list(self._kept.values()):
            row = kept.change.row
            if row is not None and (selection is None or selects(selection, row)):
                yield kept, row

    def _keep(self, change: Change) -> None:
        before = self._kept.pop(change.address, None)
        if not change.heads:
            if before is not None:
                self._note_forgotten(address_tag(change.address))
            return
        known = before.positions if before else {}
        positions = {head.dot: known.get(head.dot) or self._next_position() for head in change.heads}
        number = before.number if before else next(self._numbers)
        change = change if change.row is None else change._replace(row=_copy(change.row))
        self._kept[change.address] = _Kept(number, self._next_position(), positions, change)

    def _note_forgotten(self, tag: str) -> None:
        self._forgotten.pop(tag, None)
        self._forgotten[tag] = self._next_position()
        if len(self._forgotten) > MOST_FORGOTTEN:
            self._told_since = self._forgotten.pop(next(iter(self._forgotten)))

    def _next_position(self) -> int:
        self._position += 1
        return self._position


@dataclass(frozen=True, slots=True)
class _State:
    """The replica's state apart from its items."""

    known: dict[str, int]
    clock: int
    settings: dict[str, str]


class _Transaction:
    def __init__(self, device: str, state: _State, heads: Callable[[ItemAddress], tuple[Operation, ...]]) -> None:
        self._device = device
        self._before = heads
        self._applied: dict[ItemAddress, tuple[Operation, ...]] = {}
        self.state = _State(dict(state.known), state.clock, dict(state.settings))
        self.changes: list[Change] = []

    def reserve(self, count: int, now: float) -> tuple[int, int]:
        first, clock = self.state.known.get(self._device, 0) + 1, tick(self.state.clock, now)
        self.learn({self._device: first + count - 1}, clock + count - 1)
        return first, clock

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        found = {address: self._applied[address] if address in self._applied else self._before(address) for address in addresses}
        return {address: heads for address, heads in found.items() if heads}

    def apply(self, changes: Sequence[Change]) -> None:
        self.changes.extend(changes)
        self._applied.update((change.address, change.heads) for change in changes)

    def known(self) -> dict[str, int]:
        return dict(self.state.known)

    def learn(self, known: VersionVector, clock: int) -> None:
        higher = {device: max(sequence, self.state.known.get(device, 0)) for device, sequence in known.items()}
        self.state = replace(self.state, known={**self.state.known, **higher}, clock=max(clock, self.state.clock))

    def setting(self, name: str) -> str | None:
        return self.state.settings.get(name)

    def set(self, name: str, value: str | None) -> None:
        if value is None:
            self.state.settings.pop(name, None)
        else:
            self.state.settings[name] = value


def _copy(row: ItemRow) -> ItemRow:
    """Return the row with a value of its own, which no other code can change."""
    return row._replace(value=orjson.loads(orjson.dumps(row.value)))


def _words(text: str) -> list[str]:
    plain = "".join(one for one in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(one))
    return cast("list[str]", _WORD.findall(unicodedata.normalize("NFC", plain)))


def _bm25(query: set[str], documents: dict[int, "Counter[str]"]) -> dict[int, float]:
    """Score documents by BM25 (Robertson and Zaragoza, *The Probabilistic Relevance Framework: BM25 and Beyond*, 2009)."""
    average = sum(words.total() for words in documents.values()) / max(1, len(documents)) or 1.0
    rarity = {word: _rarity(sum(word in words for words in documents.values()), len(documents)) for word in query}

    def score(words: "Counter[str]") -> float:
        length = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * words.total() / average
        return sum(rarity[word] * words[word] * (_SATURATION + 1) / (words[word] + _SATURATION * length) for word in query if word in words)

    return {number: score(words) for number, words in documents.items() if not query.isdisjoint(words)}


def _rarity(containing: int, count: int) -> float:
    return math.log(1 + (count - containing + 0.5) / (containing + 0.5))


def _best(scores: dict[int, float], limit: int) -> list[Hit]:
    return sorted((Hit(number, score) for number, score in scores.items()), key=lambda hit: (-hit.score, hit.row))[:limit]
