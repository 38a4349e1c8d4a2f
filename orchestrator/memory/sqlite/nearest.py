"""Search by meaning: all vectors of an embedder in memory, kept in step with the database."""

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate, pairwise, starmap
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy

from ...sqlite.connections import Connection
from ..engine import Hit
from .errors import damaged
from .estimates import IS_AVAILABLE, Codes, coded, promising

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Vector

_Number = TypeVar("_Number", bound=numpy.generic)
_AT_ONCE: Final = 1000
"""Rows."""
NOBODY: Final = 0
"""No item has this number."""
_FEWEST_SLOTS: Final = 1024
_SPARE: Final = 20
"""So many more than are asked for are looked at first."""


class Passages(NamedTuple):
    """All passages at one state of the database."""

    items: "NDArray[numpy.int64]"
    """Whose passage it is; `NOBODY`'s, if it is gone."""
    matrix: "NDArray[numpy.float32]"
    codes: Codes

    def scores(self, slots: "NDArray[numpy.intp]", vector: "Vector") -> "NDArray[numpy.float32]":
        """The similarities of these slots, each the same whichever others there are."""
        found: NDArray[numpy.float32] = numpy.einsum("ij,j->i", self.matrix[slots], vector)
        return found


class VectorCache:
    """Each passage has a slot. Slots are only ever added, so that searches need no lock; a larger array leaves out those of the past."""

    def __init__(self, width: int) -> None:
        self._lock = threading.Lock()
        self._width = width
        self._forget()

    def passages(self, connection: Connection, embedder: int) -> Passages:
        """As of what the connection sees."""
        with self._lock:
            self._follow(connection, embedder)
            used, codes = self._used, self._codes
            codes = codes._replace(codes=codes.codes[:used], scales=codes.scales[:used])
            return Passages(self._items[:used], self._matrix[:used], codes)

    def _forget(self) -> None:
        self._position = 0
        self._generation = -1
        self._used = 0
        self._matrix = numpy.zeros((0, self._width), numpy.float32)
        self._items = numpy.zeros(0, numpy.int64)
        self._codes = Codes(numpy.zeros((0, self._width), numpy.int8), numpy.zeros(0, numpy.float32), 0.0, 0.0)
        self._slots: dict[int, tuple[int, int]] = {}
        """By item, its first slot and the one behind its last."""

    def _follow(self, connection: Connection, embedder: int) -> None:
        """Take over what changed since the last time."""
        position, generation = connection.execute("SELECT position, generation FROM replica").fetchone()
        if generation != self._generation:
            self._forget()
            self._generation = generation
        if position <= self._position:  # a reader that began before another one
            return
        for (item,) in connection.execute("SELECT item FROM removals WHERE position > ?", (self._position,)):
            self._drop(item)
        # Whatever is there was put behind all removals of the same item.
        added = "SELECT item, passages FROM vectors WHERE position > ? AND embedder = ?"
        rows = connection.execute(added, (self._position, embedder))
        while batch := rows.fetchmany(_AT_ONCE):
            self._add(*zip(*batch, strict=True))
        self._position = position

    def _drop(self, item: int) -> None:
        slots = self._slots.pop(item, None)
        if slots is not None:
            self._items[slice(*slots)] = NOBODY
            self._matrix[slice(*slots)] = 0.0
            self._codes.scales[slice(*slots)] = 0.0

    def _add(self, items: Sequence[int], passages: Sequence[bytes]) -> None:
        size = numpy.dtype(numpy.float32).itemsize * self._width
        if any(not isinstance(one, bytes) or len(one) % size for one in passages):
            raise damaged("the size of a vector")
        vectors = numpy.frombuffer(b"".join(passages), "<f4").reshape(-1, self._width)
        if not numpy.isfinite(vectors).all():
            raise damaged("a vector")
        for item in items:
            self._drop(item)
        if self._used + len(vectors) > len(self._items):
            self._grow(self._used + len(vectors))
        first, self._used = self._used, self._used + len(vectors)
        self._matrix[first : self._used] = vectors
        self._code(first, vectors)
        self._items[first : self._used] = numpy.repeat(items, [len(one) // size for one in passages])
        ends = accumulate((len(one) // size for one in passages), initial=first)
        self._slots.update(zip(items, pairwise(ends), strict=True))

    def _code(self, first: int, vectors: "NDArray[numpy.float32]") -> None:
        if not len(vectors):
            return
        new, old = coded(vectors), self._codes
        old.codes[first : first + len(vectors)] = new.codes
        old.scales[first : first + len(vectors)] = new.scales
        self._codes = old._replace(error=max(old.error, new.error), length=max(old.length, new.length)).arranged(self._used)

    def _grow(self, least: int) -> None:
        """Move to larger arrays, leaving out slots that nobody has; searches that run keep the old ones."""
        present = numpy.flatnonzero(self._items[: self._used])
        size = max(_FEWEST_SLOTS, 2 * (len(present) + least - self._used))
        moved = {int(old): new for new, old in enumerate(present)}
        self._slots = {item: (moved[first], moved[first] + end - first) for item, (first, end) in self._slots.items()}
        self._matrix, self._items = _moved(self._matrix, present, size), _moved(self._items, present, size)
        codes, scales = _moved(self._codes.codes, present, size), _moved(self._codes.scales, present, size)
        self._codes, self._used = self._codes._replace(codes=codes, scales=scales, blocks=()), len(present)


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
    """The best items, each by its best passage, of those that pass.

    Most selections let most items through, so the best few of all are tried first. `selected` are all that pass.
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
    """The slots of the `count` best passages, and maybe more."""
    if IS_AVAILABLE:
        return promising(passages.codes, vector, count, partial(passages.scores, vector=vector))
    return numpy.argpartition(passages.matrix @ vector, -count)[-count:]


def _ranked(passages: Passages, slots: "NDArray[numpy.intp]", vector: "Vector", most: int) -> dict[int, float]:
    """The first items of these slots with their scores, the best first; of equals, the older one."""
    items, scores = passages.items[slots], passages.scores(slots, vector)
    order = numpy.lexsort((items, -scores))
    best_of: dict[int, float] = {}
    for item, score in zip(items[order].tolist(), scores[order].tolist(), strict=True):
        if item != NOBODY:
            best_of.setdefault(item, score)
        if len(best_of) == most:
            break
    return best_of
