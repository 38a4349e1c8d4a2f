"""Vectors of one byte per number, and the search for the most similar ones among many.

Up to `FEW` vectors are all compared. Of more, an outline is compared first: the directions in which the vectors differ most (principal
components), for texts in a sixth or a third of the bytes. Only the best by that are compared as a whole.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy

try:
    import numkong
except ImportError:  # it only makes searches faster, and an app with its own embedder need not install it
    numkong = None  # type: ignore[assignment]  # there is no other name for what is not there

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Vector

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

    def coded(self, vectors: "NDArray[numpy.float32]") -> "NDArray[numpy.int8]":
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
        new = [numkong.dots_pack(outline.coded(self.vectors(slice(start, start + _OUTLINE_BLOCK)))) for start in starts]
        return self._replace(blocks=(), outline=outline._replace(blocks=(*outline.blocks, *new)))


def _learned(sample: "NDArray[numpy.float32]") -> Outline:
    """Return the fewest directions that keep most of the similarities of vectors such as these."""
    squares, directions = numpy.linalg.eigh(sample.T @ sample)
    kept = numpy.cumsum(squares[::-1])
    needed = int(numpy.searchsorted(kept, _KEPT * kept[-1])) + 1
    count = min(len(squares), -(-needed // _DIRECTIONS) * _DIRECTIONS)
    chosen = numpy.ascontiguousarray(directions[:, -count:], dtype=numpy.float32)
    return Outline(chosen, float(numpy.abs(sample @ chosen).max()) / _LEVELS or 1.0)


def coded(vectors: "NDArray[numpy.float32]") -> Codes:
    """Return the codes of at least one vector. Each vector fills the range of a byte by itself, and is scaled for the least remainder."""
    largest = numpy.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    rounded = numpy.rint(vectors * (_LEVELS / numpy.where(largest > 0, largest, 1.0)))
    squares = numpy.einsum("ij,ij->i", rounded, rounded)
    scales = numpy.einsum("ij,ij->i", vectors, rounded) / numpy.where(squares > 0, squares, 1.0)
    length = float((numpy.sqrt(squares) * scales).max())
    return Codes(rounded.astype(numpy.int8), scales.astype(numpy.float32), length)


def promising(stored: Codes, vector: "Vector", count: int) -> "NDArray[numpy.intp]":
    """Return the slots of the stored vectors that may be among the `count` most similar ones. Up to `FEW` vectors, those surely are
    among them.

    The error of a similarity x·y is at most |x| |y - y'|. So a vector is not among the best if its estimate is further than that below
    the least of any `count` exact ones.
    """
    query = coded(vector[None])
    slots = None if stored.outline is None else _candidates(stored, stored.outline, vector)
    few = stored if slots is None else Codes(stored.codes[slots], stored.scales[slots], stored.length)
    estimates = _dots(query, few) * (few.scales * query.scales[0])
    bound = stored.length * float(numpy.linalg.norm(vector - query.vectors(slice(None))[0])) + _ROUNDING
    best = numpy.argpartition(estimates, -count)[-count:]
    found: NDArray[numpy.intp] = numpy.flatnonzero(estimates >= few.similarities(best, vector).min() - bound)
    return found if slots is None else slots[found]


def _candidates(stored: Codes, outline: Outline, vector: "Vector") -> "NDArray[numpy.intp]":
    """Return the best slots by the outline, and those that are in no block of it yet."""
    part = coded((vector @ outline.directions)[None])
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
