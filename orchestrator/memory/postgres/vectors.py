"""Vectors of passages in pgvector: a table for each embedder, since vectors of different embedders cannot be compared.

The index is HNSW (Malkov and Yashunin, arXiv 1603.09320), which finds nearly all of the nearest ones. A small selection is searched
without it, and so exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from ....protocols import ConfigError, InvalidRequest
from ..engine import Hit
from ..selection import Selection
from .selecting import Where, is_small

if TYPE_CHECKING:
    from ...storage.postgres import Connection
    from ..engine import Vector

_INDEXED_AS_FLOAT: Final = 2000
_INDEXED_AT_ALL: Final = 4000
"""The widest vectors that pgvector's index takes, in single and in half precision."""
_SMALL: Final = 1_000
"""Items of a selection that is searched without the index."""
SETTINGS: Final = {
    # The index continues until the selection has let enough through. Results out of order are sorted afterwards.
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.ef_search": "100",
}
"""Settings of each connection."""

_EXACT: Final = """
SELECT number, coalesce(max(1 - nullif(vector <=> %s::{type}, 'NaN')), 0) AS score FROM {table} JOIN items ON item = number
WHERE {where} GROUP BY number ORDER BY score DESC, number LIMIT %s
"""
# `OFFSET 0` has the selection look at each candidate by itself: the planner takes it for far narrower than it is, and would otherwise
# compare the vectors of everything that it lets through.
_INDEXED: Final = """
SELECT item, 1 - min(distance) AS score, sum(count) FROM (
  SELECT item, vector <=> %s::{type} AS distance, 1 AS count
  FROM {table} CROSS JOIN LATERAL (SELECT FROM items WHERE number = item AND {where} OFFSET 0) AS selected
  ORDER BY vector <=> %s::{type} LIMIT %s
) AS passages GROUP BY item ORDER BY score DESC, item
"""


@dataclass(frozen=True, slots=True)
class VectorTable:
    """The table of an embedder's vectors."""

    number: int
    """The embedder's number."""
    embedder: str
    width: int

    @property
    def name(self) -> str:
        return f"vectors_{self.number}"

    @property
    def type(self) -> str:
        return f"vector({self.width})" if self.width <= _INDEXED_AS_FLOAT else f"halfvec({self.width})"

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that create the table."""
        columns = f"item bigint NOT NULL REFERENCES items ON DELETE CASCADE, passage integer NOT NULL, vector {self.type} NOT NULL"
        table = f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY (item, passage))"
        if self.width > _INDEXED_AT_ALL:
            return (table,)
        kind = self.type.partition("(")[0]
        return table, f"CREATE INDEX {self.name}_nearest ON {self.name} USING hnsw (vector {kind}_cosine_ops)"

    def check(self, vectors: "Iterable[Vector]") -> None:
        """Raise `InvalidRequest` if a vector is not of the embedder's width."""
        for vector in vectors:
            if vector.shape != (self.width,):
                message = f"a vector of shape {vector.shape} is not from embedder {self.embedder}, whose vectors have width {self.width}"
                raise InvalidRequest(message, hint="give every embedder, and every version of one, a name of its own")

    def insert(self, connection: "Connection", rows: "Iterable[tuple[int, Sequence[Vector]]]") -> None:
        """Insert the vectors of all passages of items."""
        # They may exist already, if the engine had another embedder in between.
        statement = f"INSERT INTO {self.name} (item, passage, vector) VALUES (%s, %s, %s::{self.type}) ON CONFLICT DO NOTHING"
        passages = [(item, passage, written(vector)) for item, vectors in rows for passage, vector in enumerate(vectors)]
        with connection.cursor() as cursor:
            cursor.executemany(statement, passages)

    def add(self, connection: "Connection", made: "Mapping[int, Sequence[Vector]]") -> None:
        """Add vectors to those items that still exist and that no other transaction has locked."""
        statement = "SELECT number FROM items WHERE number = ANY(%s) AND embedder IS DISTINCT FROM %s FOR UPDATE SKIP LOCKED"
        there = [number for (number,) in connection.execute(statement, [list(made), self.number])]
        self.insert(connection, ((number, made[number]) for number in there))
        connection.execute("UPDATE items SET embedder = %s, claimed_by = NULL WHERE number = ANY(%s)", [self.number, there])

    def count(self, connection: "Connection") -> int:
        (count,) = connection.execute(f"SELECT count(*) FROM {self.name}").fetchone() or (0,)
        return int(count)

    def nearest(self, connection: "Connection", vector: "Vector", selection: Selection, limit: int) -> list[Hit]:
        """Return the nearest items. Raises `InvalidRequest` if the vector is of another width."""
        self.check([vector])
        where = Where(selection)
        hits = None if is_small(connection, where, _SMALL) else self._by_index(connection, where, written(vector), limit)
        return hits if hits is not None else self._exactly(connection, where, written(vector), limit)

    def _exactly(self, connection: "Connection", where: Where, vector: str, limit: int) -> list[Hit]:
        statement = _EXACT.format(type=self.type, table=self.name, where=where.sql)
        return [Hit(*row) for row in connection.execute(statement, [vector, *where.parameters, limit])]

    def _by_index(self, connection: "Connection", where: Where, vector: str, limit: int) -> list[Hit] | None:
        """Search by the index; return None if it has given up before it found enough."""
        statement = _INDEXED.format(type=self.type, table=self.name, where=where.sql)
        candidates = limit
        while True:
            rows = connection.execute(statement, [vector, *where.parameters, vector, candidates]).fetchall()
            if len(rows) >= limit:
                return [Hit(number, score) for number, score, _ in rows[:limit]]
            if sum(passages for _, _, passages in rows) < candidates:
                return None
            candidates *= 2  # several passages are of the same item


class Vectors:
    """The vectors of the engine's embedder; without one, there are none."""

    def __init__(self, embedder: str | None) -> None:
        self.embedder = embedder
        self._table: VectorTable | None = None

    def prepare(self, connection: "Connection") -> None:
        """Install pgvector if it is missing. Raises `ConfigError` if the database has no pgvector."""
        from psycopg.errors import FeatureNotSupported, InsufficientPrivilege, UndefinedFile

        if self.embedder is None or connection.execute("SELECT to_regtype('vector')").fetchone() != (None,):
            return
        hint = "run CREATE EXTENSION vector as a user with that right; or set embed = false in [memory], to search by words alone"
        try:
            connection.execute("CREATE EXTENSION vector SCHEMA public")
        except (FeatureNotSupported, InsufficientPrivilege, UndefinedFile) as error:
            raise ConfigError("this database has no pgvector, but search by meaning needs it", hint=hint) from error

    def table(self, connection: "Connection") -> VectorTable | None:
        """Return the embedder's table; None if it has made no vectors so far. Call it only when no uncommitted data is visible."""
        if self._table is None:
            self._table = self._found(connection)
        return self._table

    def table_for(self, connection: "Connection", batches: "Sequence[tuple[int, Sequence[Vector]]]") -> VectorTable | None:
        """Return the table for these vectors, checked; each batch has a number of texts. The row of `replica` must be locked."""
        for texts, vectors in batches:
            if len(vectors) != texts:
                raise InvalidRequest(f"an item with {texts} texts cannot have {len(vectors)} vectors")
        first = next((vectors[0] for _, vectors in batches if len(vectors)), None)
        if first is None:
            return None
        table = self._table or self._found(connection) or self._made(connection, len(first))
        for _, vectors in batches:
            table.check(vectors)
        return table

    def _found(self, connection: "Connection") -> VectorTable | None:
        row = connection.execute("SELECT number, name, width FROM embedders WHERE name = %s", [self.embedder]).fetchone()
        return None if row is None else VectorTable(*row)

    def _made(self, connection: "Connection", width: int) -> VectorTable:
        if self.embedder is None:
            raise InvalidRequest("vectors need an embedder", hint="name the embedder when the store is opened")
        insert = "INSERT INTO embedders (name, width) VALUES (%s, %s) RETURNING number"
        (number,) = connection.execute(insert, [self.embedder, width]).fetchone() or (0,)
        table = VectorTable(number, self.embedder, width)
        for statement in table.statements:
            connection.execute(statement)
        return table


def written(vector: "Vector") -> str:
    """Return the vector as pgvector reads it."""
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY).decode()
