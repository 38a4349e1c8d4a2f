"""The table of vectors: a few passages of an item in each row, each a scale and one byte per number."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ....protocols import InvalidRequest
from ...storage.sqlite import Connection
from .rows import damaged, insert

if TYPE_CHECKING:
    import numpy

    from ..engine import Vector
    from .estimates import Codes


_ROW_PASSAGES: Final = 2
"""Passages per row: rows of two passages of the shipped embedder fill pages of 4 KiB; longer rows leave up to half of a page empty."""


class Passages(NamedTuple):
    """The vectors of an item with this number of texts."""

    item: int
    texts: int
    vectors: "Sequence[Vector]"


def packed(vectors: "Sequence[Vector]") -> bytes:
    """Return the vectors as they are stored."""
    import numpy

    from .estimates import coded

    made = coded(numpy.stack(vectors))
    kept = numpy.empty(len(made.codes), _passage(made.codes.shape[1]))
    kept["scale"], kept["codes"] = made.scales, made.codes
    return kept.tobytes()


def unpacked(passages: Sequence[bytes], width: int) -> "tuple[Codes, list[int]]":
    """Return the vectors of several rows, and how many each row has. Raises `StoreCorrupt` for bytes that `packed` never makes."""
    import numpy

    from .estimates import Codes

    passage = _passage(width)
    if any(not isinstance(one, bytes) or len(one) % passage.itemsize for one in passages):
        raise damaged("the size of a vector")
    kept = numpy.frombuffer(b"".join(passages), passage)
    scales = kept["scale"].astype(numpy.float32)
    if not (numpy.isfinite(scales).all() and (scales >= 0).all()):
        raise damaged("a vector")
    codes = kept["codes"].reshape(-1, width)
    lengths = numpy.linalg.norm(codes.astype(numpy.float32), axis=1) * scales
    return Codes(codes, scales, float(lengths.max(initial=0.0))), [len(one) // passage.itemsize for one in passages]


@lru_cache(maxsize=4)
def _passage(width: int) -> "numpy.dtype[Any]":
    import numpy

    return numpy.dtype([("scale", "<f4"), ("codes", "i1", (width,))])


class VectorTable:
    """The vectors of one embedder. Without one, there are none."""

    def __init__(self, embedder: str | None) -> None:
        self._name = embedder

    @property
    def is_named(self) -> bool:
        return self._name is not None

    def registered(self, connection: Connection) -> tuple[int, int] | None:
        """Return the embedder's number and the width of its vectors; None if it has made none so far."""
        found: tuple[int, int] | None = connection.execute("SELECT embedder, width FROM embedders WHERE name = ?", (self._name,)).fetchone()
        return found

    def put(self, connection: Connection, rows: Sequence[Passages], next_position: Callable[[], int]) -> None:
        """Add vectors to items that have none of this embedder.

        Raises `InvalidRequest` if they are of another width than those of the same embedder, or not one for each text.
        """
        if not rows:
            return
        embedder, width = self.registered(connection) or self._register(connection, rows[0])
        kept = [(next_position(), row.item, embedder, bytearray(some)) for row in rows for some in self._packed(row, width)]
        insert(connection, "vectors (position, item, embedder, passages)", kept)

    def remove(self, connection: Connection, item: int) -> bool:
        """Remove the vectors of this embedder before others are put, and return whether there were any."""
        delete = "DELETE FROM vectors WHERE item = ? AND embedder = (SELECT embedder FROM embedders WHERE name = ?)"
        return connection.execute(delete, (item, self._name)).rowcount > 0

    def _packed(self, row: Passages, width: int) -> list[bytes]:
        if len(row.vectors) != row.texts:
            raise InvalidRequest(f"an item with {row.texts} texts cannot have {len(row.vectors)} vectors")
        for vector in row.vectors:
            self.check(vector, width)
        return [packed(row.vectors[start : start + _ROW_PASSAGES]) for start in range(0, row.texts, _ROW_PASSAGES)]

    def check(self, vector: "Vector", width: int) -> None:
        """Raise `InvalidRequest` if a vector is not of the embedder's width."""
        if vector.shape != (width,):
            message = f"a vector of shape {vector.shape} is not from embedder {self._name}, whose vectors have width {width}"
            raise InvalidRequest(message, hint="give every embedder, and every version of one, a name of its own")

    def _register(self, connection: Connection, first: Passages) -> tuple[int, int]:
        if self._name is None:
            raise InvalidRequest("vectors need an embedder", hint="name the embedder when the store is opened")
        insert = "INSERT INTO embedders (name, width) VALUES (?, ?) RETURNING embedder, width"
        width = len(first.vectors[0]) if first.vectors else 0
        registered: tuple[int, int] = connection.execute(insert, (self._name, width)).fetchone()
        return registered
