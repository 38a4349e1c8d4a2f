"""Search by meaning: all vectors of an embedder in memory, updated from the database."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy

from ...storage.sqlite import Connection
from ..engine import Hit
from .estimates import FEW, IS_AVAILABLE, Codes, promising
from .vectors import unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Vector

log = logging.getLogger(__name__)

_Number = TypeVar("_Number", bound=numpy.generic)
_AT_ONCE: Final = 4096
"""Rows per fetch."""
NOBODY: Final = 0
"""The number of no item."""
_FEWEST_SLOTS: Final = 1024
_SPARE: Final = 20
"""The number of passages that are ranked first, beyond those that are asked for."""


class Passages(NamedTuple):
    """All passages at one state of the database."""

    items: "NDArray[numpy.int64]"
    """The item of each passage; `NOBODY` if it is gone."""
    codes: Codes


class VectorCache:
    """The vectors of an embedder in memory. Each passage has a slot. Slots are only ever added, so that searches need no lock; a larger
    array leaves out unused ones."""

    def __init__(self, width: int) -> None:
        self._lock = threading.Lock()
        self._width = width
        self._forget()

    def passages(self, connection: Connection, embedder: int) -> Passages:
        """Return the passages that the connection sees."""
        with self._lock:
            self._follow(connection, embedder)
            return Passages(self._items[: self._used], self._codes.first(self._used))

    def _forget(self) -> None:
        self._position = 0
        self._generation = -1
        self._used = 0
        self._newest = NOBODY
        """The greatest number of an item."""
        self._items = numpy.zeros(0, numpy.int64)
        self._codes = Codes(numpy.zeros((0, self._width), numpy.int8), numpy.zeros(0, numpy.float32), 0.0)

    def _follow(self, connection: Connection, embedder: int) -> None:
        """Read the changes since the last time."""
        position, generation = connection.execute("SELECT position, generation FROM replica").fetchone()
        if generation != self._generation:
            self._forget()
            self._generation = generation
        if position <= self._position:  # a reader that began before another one
            return
        before, started = self._used, time.monotonic()
        self._drop([item for (item,) in connection.execute("SELECT item FROM removals WHERE position > ?", (self._position,))])
        if self._used == 0:
            self._reserve(connection, embedder)
        # Stored vectors are newer than all removals of the same item.
        added = "SELECT item, passages FROM vectors WHERE position > ? AND embedder = ?"
        rows = connection.execute(added, (self._position, embedder))
        while batch := rows.fetchmany(_AT_ONCE):
            self._add(*zip(*batch, strict=True))
        self._codes = self._codes.arranged(self._used)
        self._position = position
        if self._used - before > FEW:
            log.info("reading %s vectors into memory took %.1f s", f"{self._used - before:,}", time.monotonic() - started)

    def _reserve(self, connection: Connection, embedder: int) -> None:
        """Reserve room for the rows to read, which is cheaper than growing step by step."""
        count = "SELECT count(*) FROM vectors INDEXED BY vectors_by_item WHERE embedder = ?"
        (rows,) = connection.execute(count, (embedder,)).fetchone()
        self._grow(rows)

    def _drop(self, items: Sequence[int]) -> None:
        """Clear the passages of those items that may have some."""
        known = [item for item in items if item <= self._newest]
        if known:
            present = self._items[: self._used]
            slots = numpy.flatnonzero(present == known[0] if len(known) == 1 else numpy.isin(present, known))
            self._items[slots] = NOBODY
            self._codes.codes[slots] = 0
            self._codes.scales[slots] = 0.0

    def _add(self, items: Sequence[int], passages: Sequence[bytes]) -> None:
        new, counts = unpacked(passages, self._width)
        count = len(new.codes)
        if self._used + count > len(self._items):
            self._grow(self._used + count)
        added, self._used = slice(self._used, self._used + count), self._used + count
        self._codes.codes[added], self._codes.scales[added] = new.codes, new.scales
        self._codes = self._codes._replace(length=max(self._codes.length, new.length))
        self._items[added] = numpy.repeat(items, counts)
        self._newest = max(self._newest, *items)

    def _grow(self, least: int) -> None:
        """Move to larger arrays, without unused slots; running searches keep the old ones."""
        present = numpy.flatnonzero(self._items[: self._used])
        size = max(_FEWEST_SLOTS, 2 * (len(present) + least - self._used))
        self._items = _moved(self._items, present, size)
        codes, scales = _moved(self._codes.codes, present, size), _moved(self._codes.scales, present, size)
        outline = None if self._codes.outline is None else self._codes.outline._replace(blocks=())
        self._codes = self._codes._replace(codes=codes, scales=scales, blocks=(), outline=outline)
        self._used = len(present)


def _moved(array: "NDArray[_Number]", present: "NDArray[numpy.intp]", size: int) -> "NDArray[_Number]":
    moved = numpy.zeros((size, *array.shape[1:]), array.dtype)
    moved[: len(present)] = array[present]
    return moved


def best(
    passages: Passages,
    vector: "Vector",
    limit: int,
    passing: Callable[[Sequence[int]], Collection[int]],
    selected: Callable[[], Sequence[int]],
) -> list[Hit]:
    """Return the best items that pass, each by its best passage.

    Most selections let most items through, so the best few of all are tried first. `selected` returns all items that pass.
    """
    few = limit + _SPARE
    is_all = few >= len(passages.items)
    first = _ranked(passages, numpy.arange(len(passages.items)) if is_all else _first(passages, vector, few), vector, few)
    present = passing(list(first))
    found = [Hit(item, score) for item, score in first.items() if item in present][:limit]
    if len(found) == limit or is_all:
        return found
    ranked = _ranked(passages, numpy.flatnonzero(numpy.isin(passages.items, selected())), vector, limit)
    return list(starmap(Hit, ranked.items()))


def _first(passages: Passages, vector: "Vector", count: int) -> "NDArray[numpy.intp]":
    """Return the slots of the `count` best passages, and maybe more."""
    if IS_AVAILABLE:
        return promising(passages.codes, vector, count)
    return numpy.argpartition(passages.codes.similarities(numpy.arange(len(passages.items)), vector), -count)[-count:]


def _ranked(passages: Passages, slots: "NDArray[numpy.intp]", vector: "Vector", most: int) -> dict[int, float]:
    """Return the first items of these slots with their scores, the best first; of equals, the older one."""
    items, scores = passages.items[slots], passages.codes.similarities(slots, vector)
    order = numpy.lexsort((items, -scores))
    best_of: dict[int, float] = {}
    for item, score in zip(items[order].tolist(), scores[order].tolist(), strict=True):
        if item != NOBODY:
            best_of.setdefault(item, score)
        if len(best_of) == most:
            break
    return best_of
