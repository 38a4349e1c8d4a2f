"""`Engine` on Postgres: a replica that several processes, and so several hubs, share."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson

from ....protocols.namespaces import ItemAddress, Namespace
from ...storage.postgres import PostgresConnections, scrub
from ..encoding import Sealer
from ..engine import Forgotten, Hit, Logged, Position, Row, Transaction, Unembedded
from ..operation import Dot, VersionVector
from ..selection import Selection
from .keyword import best_by_words
from .rows import ROW, address, digest, opened, read
from .schema import check_name, prepare
from .selecting import Where, below
from .transaction import PostgresTransaction, read_forgotten
from .vectors import SETTINGS, Vectors

if TYPE_CHECKING:
    from ...storage.postgres import Connection
    from ..engine import Vector

_CLAIM_SECONDS: Final = 120
"""Seconds for which a process that embeds texts has them to itself; if it dies, another process embeds them then."""

_CLAIM: Final = """
UPDATE items SET claimed_by = %(process)s, claimed_until = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM (
  SELECT number AS waiting FROM items
  WHERE texts IS NOT NULL AND embedder IS DISTINCT FROM %(embedder)s
    AND (claimed_by IS NULL OR claimed_by = %(process)s OR claimed_until < clock_timestamp())
  ORDER BY number LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) AS queue WHERE number = waiting RETURNING namespace, key, content, expires_at, number, texts
"""
_STATISTICS: Final = """
SELECT (SELECT count(*) FROM items WHERE content IS NOT NULL),
  (SELECT count(*) FROM items WHERE content IS NULL),
  (SELECT count(*) FROM operations),
  (SELECT count(*) FROM items WHERE conflicts > 0),
  (SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r')
"""


class PostgresEngine:
    """One replica in the schema `schema` of a database. See `Engine` for the methods.

    `address` is a connection string or URL. `embedder` names the embedder of the vectors; without it there is no search by meaning.
    `connections` is the most connections that this process has open; a wait for a connection, or for another process's transaction, ends
    after `patience` seconds, and a statement after `longest` seconds.

    Raises `ConfigError` if the address is invalid or pgvector is missing, `StoreUnavailable` if the server cannot be reached,
    `StoreCorrupt` if the schema is another program's, and `SyncRefused` if a newer nearfar made it.
    """

    def __init__(
        self,
        address: str,
        *,
        embedder: str | None = None,
        sealer: Sealer | None = None,
        schema: str = "nearfar",
        connections: int = 8,
        patience: float = 10.0,
        longest: float = 60.0,
    ) -> None:
        check_name(schema)
        self._schema = schema
        self._patience = patience
        self._sealer = sealer
        self._process = uuid4().hex
        self._writing = threading.local()
        self._vectors = Vectors(embedder)
        settings = SETTINGS if embedder is not None else {}
        self._connections = PostgresConnections(
            address, what="memory store", schema=schema, most=connections, lock_timeout=patience, longest=longest, settings=settings
        )
        try:
            with self._connections.connection() as connection:
                self.device = prepare(connection, schema, self._vectors)
        except BaseException:
            self._connections.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._connections.connection() as connection, connection.transaction():
            transaction = PostgresTransaction(connection, self.device, self._sealer, self._vectors)
            self._writing.connection = connection
            try:
                yield transaction
            finally:
                self._writing.connection = None
            transaction.finish()

    def rows(self, addresses: Sequence[ItemAddress], selection: Selection) -> dict[ItemAddress, Row]:
        where = Where(selection)
        statement = f"SELECT {ROW} FROM items WHERE address = ANY(%s) AND {where.sql}"
        found = self._query(statement, [digest(one) for one in addresses], *where.parameters)
        return {one.address: one for one in map(read, found)}

    def numbered(self, numbers: Sequence[int]) -> dict[int, Row]:
        found = self._query(f"SELECT {ROW}, number FROM items WHERE number = ANY(%s) AND content IS NOT NULL", list(numbers))
        return {number: read(columns) for *columns, number in found}

    def select(self, selection: Selection, *, limit: int, offset: int) -> list[Row]:
        where = Where(selection)
        order = "ORDER BY updated_at DESC, namespace, key LIMIT %s OFFSET %s"
        return list(map(read, self._query(f"SELECT {ROW} FROM items WHERE {where.sql} {order}", *where.parameters, limit, offset)))

    def keyword(self, query: str, selection: Selection, *, limit: int) -> list[Hit]:
        """Rank by bm25, see `keyword.py`."""
        with self._connections.connection() as connection:
            return best_by_words(connection, query, selection, limit)

    def nearest(self, vector: "Vector", selection: Selection, *, limit: int) -> list[Hit]:
        with self._connections.connection() as connection:
            table = self._vectors.table(connection)
            return [] if table is None else table.nearest(connection, vector, selection, limit)

    def namespaces(self, selection: Selection) -> list[Namespace]:
        where = Where(selection)
        found = self._query(f"SELECT DISTINCT namespace FROM items WHERE {where.sql} ORDER BY namespace", *where.parameters)
        return [tuple(namespace) for (namespace,) in found]

    def refresh(self, addresses: Sequence[ItemAddress], now: float) -> None:
        # A write restarts the time to live anyway, so locked rows are skipped: waiting could deadlock.
        wanted = "SELECT number FROM items WHERE address = ANY(%s) AND ttl IS NOT NULL FOR UPDATE SKIP LOCKED"
        statement = f"UPDATE items SET expires_at = %s + ttl WHERE number IN ({wanted})"
        with self._connections.connection() as connection:
            connection.execute(statement, [now, [digest(one) for one in addresses]])

    def expired(self, now: float, *, limit: int) -> list[ItemAddress]:
        found = self._query("SELECT namespace, key FROM items WHERE expires_at <= %s ORDER BY expires_at LIMIT %s", now, limit)
        return [address(*columns) for columns in found]

    def changes(self, after: int, *, limit: int) -> list[Position]:
        statement = "SELECT number, namespace, key, content IS NULL FROM items WHERE number > %s ORDER BY number LIMIT %s"
        found = self._query(statement, after, limit)
        return [Position(number, address(namespace, key), is_deleted) for number, namespace, key, is_deleted in found]

    def forgotten(self, after: int, *, limit: int) -> list[Forgotten]:
        with self._connections.connection() as connection:
            return read_forgotten(connection, after, limit)

    def position(self) -> int:
        ((position,),) = self._query("SELECT position FROM replica")
        return int(position)

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        statement = "SELECT position, device, sequence, payload FROM operations WHERE position > %s ORDER BY position LIMIT %s"
        while found := self._query(statement, after, limit):
            heads = ((position, opened(Dot(device, sequence), payload, self._sealer)) for position, device, sequence, payload in found)
            readable = [Logged(position, head) for position, head in heads if head is not None]
            if readable:
                return readable
            # An empty answer would say that this is the end.
            after = found[-1][0]
        return []

    def first_unknown(self, after: int, known: VersionVector) -> int | None:
        statement = (
            "SELECT position FROM operations LEFT JOIN unnest(%s::text[], %s::bigint[]) AS known (name, last) ON name = device "
            "WHERE position > %s AND sequence > coalesce(last, 0) ORDER BY position LIMIT 1"
        )
        found = self._query(statement, list(known), list(known.values()), after)
        return int(found[0][0]) if found else None

    def unembedded(self, *, limit: int) -> list[Unembedded]:
        """Return rows that wait for their vectors, and reserve them for this process for a while."""
        if self._vectors.embedder is None:
            return []
        with self._connections.connection() as connection:
            table = self._vectors.table(connection)
            wanted = {"process": self._process, "embedder": 0 if table is None else table.number, "seconds": _CLAIM_SECONDS, "limit": limit}
            found = connection.execute(_CLAIM, wanted).fetchall()
        waiting = [Unembedded(number, read(columns).version, tuple(orjson.loads(texts))) for *columns, number, texts in found]
        return sorted(waiting, key=lambda one: one.row)

    def embed(self, rows: "Sequence[tuple[Unembedded, Sequence[Vector]]]") -> None:
        with self._connections.connection() as connection, connection.transaction():
            if self._vectors.table(connection) is None:
                # Several processes may make the first vectors; one of them must create the table.
                connection.execute("SELECT FROM replica FOR UPDATE")
            table = self._vectors.table_for(connection, [(len(one.texts), vectors) for one, vectors in rows])
            if table is not None:
                table.add(connection, {one.row: vectors for one, vectors in rows})

    def conflicts(self, *, limit: int, offset: int) -> list[ItemAddress]:
        statement = "SELECT namespace, key FROM items WHERE conflicts > 0 ORDER BY namespace, key LIMIT %s OFFSET %s"
        return [address(*columns) for columns in self._query(statement, limit, offset)]

    def traces(
        self, *, prefix: Namespace | None = None, subject: str | None = None, derived_from: Sequence[ItemAddress] = ()
    ) -> list[ItemAddress]:
        terms = ["origins && %s::bytea[]"]
        parameters: list[object] = [[digest(one) for one in derived_from]]
        if subject is not None:
            terms.append("subjects @> ARRAY[%s::text]")
            parameters.append(subject)
        if prefix is not None:
            term, places = below([prefix])
            terms.append(term)
            parameters += places
        found = self._query(f"SELECT namespace, key FROM items WHERE {' OR '.join(terms)} ORDER BY namespace, key", *parameters)
        return [address(*columns) for columns in found]

    def scrub(self) -> None:
        """Rewrite all tables without deleted data. See `docs/sync.md` for what Postgres keeps elsewhere.

        Raises `StoreUnavailable` if another session still sees deleted data.
        """
        with self._connections.connection() as connection:
            scrub(connection, self._schema, self._patience)

    def statistics(self) -> dict[str, int]:
        with self._connections.connection() as connection:
            counts = connection.execute(_STATISTICS, [self._schema]).fetchone() or ()
            table = self._vectors.table(connection)
            vectors = 0 if table is None else table.count(connection)
        return {**dict(zip(("items", "deleted", "operations", "conflicts", "bytes"), counts, strict=True)), "vectors": vectors}

    def close(self) -> None:
        self._connections.close()

    def _query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        # A writer must not wait for a second connection: threads that hold the others may wait for the writer.
        writing: Connection | None = getattr(self._writing, "connection", None)
        with self._connections.connection() if writing is None else nullcontext(writing) as connection:
            return connection.execute(statement, parameters).fetchall()
