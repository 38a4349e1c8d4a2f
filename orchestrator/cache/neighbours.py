"""Stored questions by their meaning: the vectors of a partition in memory, kept in step with a file that other processes write too."""

import sqlite3
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vector = NDArray[numpy.float32]

_PARTITIONS: Final = 64
"""Held in memory; those that were not asked for longest are read again from the file."""


class _Partition:
    """The vectors of one partition, in a matrix that grows by doubling."""

    def __init__(self, width: int) -> None:
        import numpy

        self.ids: list[int] = []
        self._rows = numpy.empty((16, width), dtype=numpy.float32)

    @property
    def matrix(self) -> "NDArray[numpy.float32]":
        return self._rows[: len(self.ids)]

    def add(self, identifier: int, vector: "Vector") -> None:
        import numpy

        if len(self.ids) == len(self._rows):
            self._rows = numpy.concatenate([self._rows, numpy.empty_like(self._rows)])
        self._rows[len(self.ids)] = vector
        self.ids.append(identifier)


class Neighbours:
    """Finds the stored questions nearest to one. Not for use from several threads at a time."""

    def __init__(self) -> None:
        self._partitions: OrderedDict[str, _Partition] = OrderedDict()

    def nearest(self, connection: sqlite3.Connection, partition: str, vector: "Vector", *, most: int) -> list[tuple[int, float]]:
        """Ids and cosine similarities of the nearest unit vectors, nearest first. An answer may have been removed since."""
        import numpy

        held = self._refreshed(connection, partition, len(vector))
        similarities = held.matrix @ vector
        if len(similarities) > most:
            places = numpy.argpartition(-similarities, most)[:most]
        else:
            places = numpy.arange(len(similarities))
        ordered = places[numpy.argsort(-similarities[places], kind="stable")]
        return [(held.ids[place], float(similarities[place])) for place in ordered]

    def forget(self) -> None:
        """Drop everything from memory."""
        self._partitions.clear()

    def drop(self, partition: str) -> None:
        """Read a partition again when it is next asked for, since answers of it were removed."""
        self._partitions.pop(partition, None)

    def _refreshed(self, connection: sqlite3.Connection, partition: str, width: int) -> _Partition:
        import numpy

        held = self._partitions.setdefault(partition, _Partition(width))
        self._partitions.move_to_end(partition)
        if len(self._partitions) > _PARTITIONS:
            self._partitions.popitem(last=False)
        last = held.ids[-1] if held.ids else 0
        query = "SELECT id, vector FROM answers WHERE partition = ? AND id > ? AND vector IS NOT NULL ORDER BY id"
        for identifier, blob in connection.execute(query, (partition, last)):
            vector = numpy.frombuffer(blob, dtype=numpy.float32)
            if len(vector) == width:
                held.add(identifier, vector)
        return held
