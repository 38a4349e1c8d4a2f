"""Where vectors are kept: one row for all passages of an item."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....protocols import InvalidRequest
from .connections import Connection

if TYPE_CHECKING:
    from ..engine import Vector


class VectorTable:
    """The vectors of one embedder. Without one, there are none."""

    def __init__(self, embedder: str | None) -> None:
        self._name = embedder

    @property
    def is_named(self) -> bool:
        return self._name is not None

    def registered(self, connection: Connection) -> tuple[int, int] | None:
        """The embedder's number and the width of its vectors; None: it has made none so far."""
        found: tuple[int, int] | None = connection.execute("SELECT embedder, width FROM embedders WHERE name = ?", (self._name,)).fetchone()
        return found

    def put(self, connection: Connection, position: int, item: int, texts: int, vectors: "Sequence[Vector]") -> None:
        """In the place of those that the item has, one for each of so many texts.

        Raises `InvalidRequest` where they are of another width than those of the same embedder, or not one for each text.
        """
        if len(vectors) != texts:
            raise InvalidRequest(f"an item with {texts} texts cannot have {len(vectors)} vectors")
        embedder, width = self.registered(connection) or self._register(connection, len(vectors[0]))
        for vector in vectors:
            self.check(vector, width)
        passages = b"".join(vector.astype("<f4").tobytes() for vector in vectors)
        connection.execute("DELETE FROM vectors WHERE item = ? AND embedder = ?", (item, embedder))
        connection.execute("INSERT INTO vectors VALUES (?, ?, ?, ?)", (position, item, embedder, passages))

    def check(self, vector: "Vector", width: int) -> None:
        """Raises `InvalidRequest` where a vector is not of the embedder's width."""
        if vector.shape != (width,):
            message = f"a vector of shape {vector.shape} cannot be of {self._name}, whose have width {width}"
            raise InvalidRequest(message, hint="give every embedder, and every version of one, a name of its own")

    def _register(self, connection: Connection, width: int) -> tuple[int, int]:
        if self._name is None:
            raise InvalidRequest("vectors need an embedder", hint="name what made them when the store is opened")
        insert = "INSERT INTO embedders (name, width) VALUES (?, ?) RETURNING embedder, width"
        registered: tuple[int, int] = connection.execute(insert, (self._name, width)).fetchone()
        return registered
