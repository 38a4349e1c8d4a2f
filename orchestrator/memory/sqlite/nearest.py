"""Search by meaning: all vectors of an embedder in memory, as one byte per number, updated from the database.

Up to `FEW` vectors are all compared. Of more, an outline is compared first: the directions in which the vectors differ most (principal
components), for texts in a sixth or a third of the bytes. Only the best by that are compared as a whole.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy

from ...storage.sqlite import Connection
from ..engine import Hit
from .transaction import unpack_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Vector


try:
    import numkong
except ImportError:  # it only makes searches faster, and an app with its own embedder need not install it
    numkong = None  # type: ignore[assignment]  # there is no other name for what is not there


IS_AVAILABLE: Final = numkong is not None
BLOCK: Final = 2048
"""Vectors that are arranged at a time; the last ones, which are fewer, are left in their order."""
FEW: Final = 1 << 16
"""Vectors that are all compared in about 3 ms."""
_OUTLINE_BLOCK: Final = 1 << 14
_DIRECTIONS: Final = 64
"""The number of directions of an outline is a multiple of this, which the processor compares at a time."""
_KEPT: Final = 0.7
"""Share of the squared lengths that an outline keeps, at least: with less, the nearest may not be among the candidates."""
_SAMPLE: Final = 1 << 14
"""Vectors from which the directions are learned."""
_CANDIDATES: Final = 4096
"""Vectors that are compared as a whole, at least."""
_SHARE: Final = 200
"""One in this many vectors of a large store is compared as a whole."""
_EVERY: Final = 64
"""One in this many estimates is used to choose the threshold of the candidates."""
_AT_ONCE: Final = 4096
"""Vectors that are converted to numbers of four bytes at a time."""
_LEVELS: Final = 127
_ROUNDING: Final = 1e-5
"""The greatest rounding error of exact similarities of unit vectors in float32."""


class Outline(NamedTuple):
    """The vectors, projected onto few directions."""

    directions: "NDArray[numpy.float32]"
    """Shape (width, number of directions)."""
    scale: float
    blocks: "tuple[numkong.PackedMatrix, ...]" = ()

    def encode_vectors(self, vectors: "NDArray[numpy.float32]") -> "NDArray[numpy.int8]":
        """Return the projection of vectors onto these directions."""
        rounded = numpy.rint(vectors @ self.directions / self.scale)
        made: NDArray[numpy.int8] = numpy.clip(rounded, -_LEVELS, _LEVELS).astype(numpy.int8)
        return made


class Codes(NamedTuple):
    """Vectors as `codes * scales`."""

    codes: "NDArray[numpy.int8]"
    """Shape (vectors, width)."""
    scales: "NDArray[numpy.float32]"
    length: float
    """Length of the longest vector."""
    blocks: "tuple[numkong.PackedMatrix, ...]" = ()
    """The first codes again, in the order in which the processor compares them three times as fast; empty if there is an outline."""
    outline: Outline | None = None

    def first(self, count: int) -> "Codes":
        """Return the first `count` vectors."""
        return self._replace(codes=self.codes[:count], scales=self.scales[:count])

    def vectors(self, slots: "NDArray[numpy.intp] | slice") -> "NDArray[numpy.float32]":
        """Return the vectors of these slots."""
        return self.codes[slots].astype(numpy.float32) * self.scales[slots][:, None]

    def similarities(self, slots: "NDArray[numpy.intp]", vector: "Vector") -> "NDArray[numpy.float32]":
        """Return the similarities of these slots, each independent of the other slots."""
        parts = [slots[start : start + _AT_ONCE] for start in range(0, len(slots), _AT_ONCE)]
        found = [numpy.einsum("ij,j->i", self.codes[part].astype(numpy.float32), vector) * self.scales[part] for part in parts]
        return numpy.concatenate(found) if found else numpy.zeros(0, numpy.float32)

    def arranged(self, count: int) -> "Codes":
        """Return the codes with blocks of as many of the first `count` codes as fill some."""
        if not IS_AVAILABLE:
            return self
        if count > FEW and self.codes.shape[1] > _DIRECTIONS:
            return self._outlined(count)
        starts = range(len(self.blocks) * BLOCK, count - BLOCK + 1, BLOCK)
        return self._replace(blocks=(*self.blocks, *(numkong.dots_pack(self.codes[start : start + BLOCK]) for start in starts)))

    def _outlined(self, count: int) -> "Codes":
        outline = self.outline or _learned(self.vectors(slice(0, count, max(1, count // _SAMPLE))))
        starts = range(len(outline.blocks) * _OUTLINE_BLOCK, count - _OUTLINE_BLOCK + 1, _OUTLINE_BLOCK)
        new = [numkong.dots_pack(outline.encode_vectors(self.vectors(slice(start, start + _OUTLINE_BLOCK)))) for start in starts]
        return self._replace(blocks=(), outline=outline._replace(blocks=(*outline.blocks, *new)))


def _learned(sample: "NDArray[numpy.float32]") -> Outline:
    """Return the fewest directions that keep most of the similarities of vectors such as these."""
    squares, directions = numpy.linalg.eigh(sample.T @ sample)
    kept = numpy.cumsum(squares[::-1])
    needed = int(numpy.searchsorted(kept, _KEPT * kept[-1])) + 1
    count = min(len(squares), -(-needed // _DIRECTIONS) * _DIRECTIONS)
    chosen = numpy.ascontiguousarray(directions[:, -count:], dtype=numpy.float32)
    return Outline(chosen, float(numpy.abs(sample @ chosen).max()) / _LEVELS or 1.0)


def encode_vectors(vectors: "NDArray[numpy.float32]") -> Codes:
    """Return the codes of at least one vector. Each vector fills the range of a byte by itself, and is scaled for the least remainder."""
    largest = numpy.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    largest[largest == 0] = 1.0
    rounded = numpy.rint(vectors * (_LEVELS / largest))
    squares = numpy.einsum("ij,ij->i", rounded, rounded)
    scales = numpy.einsum("ij,ij->i", vectors, rounded) / numpy.maximum(squares, 1.0)  # a whole number, or 0
    length = float((numpy.sqrt(squares) * scales).max())
    return Codes(rounded.astype(numpy.int8), scales.astype(numpy.float32), length)


def find_promising(stored: Codes, vector: "Vector", count: int) -> "NDArray[numpy.intp]":
    """Return the slots of the stored vectors that may be among the `count` most similar ones. Up to `FEW` vectors, those surely are
    among them.

    The error of a similarity x·y is at most |x| |y - y'|. So a vector is not among the best if its estimate is further than that below
    the least of any `count` exact ones.
    """
    query = encode_vectors(vector[None])
    slots = None if stored.outline is None else _candidates(stored, stored.outline, vector)
    few = stored if slots is None else Codes(stored.codes[slots], stored.scales[slots], stored.length)
    estimates = _dots(query, few) * (few.scales * query.scales[0])
    bound = stored.length * float(numpy.linalg.norm(vector - query.vectors(slice(None))[0])) + _ROUNDING
    best = numpy.argpartition(estimates, -count)[-count:]
    found: NDArray[numpy.intp] = numpy.flatnonzero(estimates >= few.similarities(best, vector).min() - bound)
    return found if slots is None else slots[found]


def _candidates(stored: Codes, outline: Outline, vector: "Vector") -> "NDArray[numpy.intp]":
    """Return the best slots by the outline, and those that are in no block of it yet."""
    part = encode_vectors((vector @ outline.directions)[None])
    dots = numpy.concatenate([numpy.asarray(numkong.dots_packed(part.codes, block))[0] for block in outline.blocks])
    wanted = max(_CANDIDATES, len(dots) // _SHARE) // _EVERY
    sample = dots[::_EVERY]
    best = numpy.flatnonzero(dots >= numpy.partition(sample, -wanted)[-wanted])
    return numpy.concatenate([best, numpy.arange(len(dots), len(stored.codes))])


def _dots(query: Codes, stored: Codes) -> "NDArray[numpy.float64]":
    dots = [numpy.asarray(numkong.dots_packed(query.codes, block)) for block in stored.blocks]
    others = stored.codes[len(stored.blocks) * BLOCK :]
    if len(others):
        dots.append(numpy.asarray(numkong.cdist(query.codes, others, "dot")))
    joined: NDArray[numpy.float64] = numpy.concatenate(dots, axis=1, dtype=numpy.float64)[0]
    return joined


log = logging.getLogger(__name__)

_Number = TypeVar("_Number", bound=numpy.generic)
GONE: Final = 0
"""The number of no item."""
_FEWEST_SLOTS: Final = 1024
_SPARE: Final = 20
"""The number of passages that are ranked first, beyond those that are asked for."""


class Passages(NamedTuple):
    """All passages at one state of the database."""

    items: "NDArray[numpy.int64]"
    """The item of each passage; `GONE` if it is gone."""
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
        self._newest = GONE
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
            self._items[slots] = GONE
            self._codes.codes[slots] = 0
            self._codes.scales[slots] = 0.0

    def _add(self, items: Sequence[int], passages: Sequence[bytes]) -> None:
        new, counts = unpack_vectors(passages, self._width)
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
        return find_promising(passages.codes, vector, count)
    return numpy.argpartition(passages.codes.similarities(numpy.arange(len(passages.items)), vector), -count)[-count:]


def _ranked(passages: Passages, slots: "NDArray[numpy.intp]", vector: "Vector", most: int) -> dict[int, float]:
    """Return the first items of these slots with their scores, the best first; of equals, the older one."""
    items, scores = passages.items[slots], passages.codes.similarities(slots, vector)
    order = numpy.lexsort((items, -scores))
    best_of: dict[int, float] = {}
    for item, score in zip(items[order].tolist(), scores[order].tolist(), strict=True):
        if item != GONE:
            best_of.setdefault(item, score)
        if len(best_of) == most:
            break
    return best_of
