"""Similarities from vectors of one byte a number, with a bound on their error: few vectors then need an exact look, in less memory."""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy

try:
    import numkong
except ImportError:  # it only makes searches faster; whoever brings an embedder of their own need not have it
    numkong = None  # type: ignore[assignment]  # there is no other name for what is not there

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..engine import Vector

IS_AVAILABLE: Final = numkong is not None
BLOCK: Final = 2048
"""Vectors that are arranged at a time; the last ones, which are fewer, are left as they are."""
_LEVELS: Final = 127
_ROUNDING: Final = 1e-5
"""At most, of exact similarities of unit vectors in float32."""


class Codes(NamedTuple):
    """Vectors as `codes * scales`, nearly."""

    codes: "NDArray[numpy.int8]"
    """Of shape (vectors, width)."""
    scales: "NDArray[numpy.float32]"
    error: float
    """The length of the largest difference to a vector."""
    length: float
    """Of the longest vector."""
    blocks: "tuple[numkong.PackedMatrix, ...]" = ()
    """The first codes once more, in the order in which the processor compares them three times as fast."""

    def arranged(self, count: int) -> "Codes":
        """With blocks of as many of the first `count` codes as fill some."""
        starts = range(len(self.blocks) * BLOCK, count - BLOCK + 1, BLOCK) if IS_AVAILABLE else ()
        return self._replace(blocks=(*self.blocks, *(numkong.dots_pack(self.codes[start : start + BLOCK]) for start in starts)))


def coded(vectors: "NDArray[numpy.float32]") -> Codes:
    """Of at least one vector. Each fills the range of a byte by itself."""
    scales = numpy.abs(vectors).max(axis=1, initial=0.0) / _LEVELS
    rounded = numpy.rint(vectors / numpy.where(scales > 0, scales, 1.0)[:, None])
    errors = numpy.linalg.norm(vectors - rounded * scales[:, None], axis=1)
    lengths = numpy.linalg.norm(vectors, axis=1)
    return Codes(rounded.astype(numpy.int8), scales, float(errors.max()), float(lengths.max()))


def promising(
    stored: Codes, vector: "Vector", count: int, exact: "Callable[[NDArray[numpy.intp]], NDArray[numpy.float32]]"
) -> "NDArray[numpy.intp]":
    """The numbers of the stored vectors that may be among the `count` most similar ones: those surely are among them.

    A similarity x·y is off by at most |x - x'| |y| + |x'| |y - y'|, so that what is estimated to be further than that below the least of
    any `count` exact ones is not above it. `exact` are the similarities of vectors of these numbers.
    """
    query = coded(vector[None])
    estimates = _dots(query, stored) * (stored.scales * query.scales[0])
    bound = stored.error * query.length + (stored.length + stored.error) * query.error + _ROUNDING
    least = exact(numpy.argpartition(estimates, -count)[-count:]).min()
    found: NDArray[numpy.intp] = numpy.flatnonzero(estimates >= least - bound)
    return found


def _dots(query: Codes, stored: Codes) -> "NDArray[numpy.float64]":
    dots = [numpy.asarray(numkong.dots_packed(query.codes, block)) for block in stored.blocks]
    others = stored.codes[len(stored.blocks) * BLOCK :]
    if len(others):
        dots.append(numpy.asarray(numkong.cdist(query.codes, others, "dot")))
    joined: NDArray[numpy.float64] = numpy.concatenate(dots, axis=1, dtype=numpy.float64)[0]
    return joined
