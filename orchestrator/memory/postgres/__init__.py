"""The store's engine on Postgres with pgvector, for hubs; several hubs may share one database."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson

from ....protocols import StoreCorrupt
from ....protocols.items import ItemAddress, Namespace
from ...storage.postgres import PostgresConnections, scrub
from ..engine import MOST_FORGOTTEN, Change, Forgotten, Hit, ItemRow, ItemSelection, Logged, Position, Transaction, Unembedded, check_told
from ..operation import Dot, Operation, VersionVector, address_tag, encode, tick
from .search import SETTINGS, Vectors, VectorTable, Where, below, best_by_words, words_of
from .tables import INSERT, ROW, address, check_name, columns, digest, prepare, read, read_operation

if TYPE_CHECKING:
    from ...storage.postgres import Connection
    from ..engine import Vector

_OLDEST = ""
"""Stands for a tag: the row has the position of the last entry that was dropped."""
_NOTE = "INSERT INTO forgotten VALUES (%s, %s) ON CONFLICT (tag) DO UPDATE SET position = excluded.position"


def note_forgotten(connection: "Connection", items: Sequence[Forgotten]) -> None:
    """Store forgotten items, and drop the oldest beyond `MOST_FORGOTTEN`."""
    if not items:
        return
    with connection.cursor() as cursor:
        cursor.executemany(_NOTE, items)
    query = "SELECT position FROM forgotten WHERE tag <> %s ORDER BY position DESC LIMIT 1 OFFSET %s"
    dropped = connection.execute(query, [_OLDEST, MOST_FORGOTTEN]).fetchone()
    if dropped is not None:
        connection.execute("DELETE FROM forgotten WHERE position <= %s", dropped)
        connection.execute(_NOTE, [*dropped, _OLDEST])


def read_forgotten(connection: "Connection", after: int, limit: int) -> list[Forgotten]:
    """Return forgotten items, as `Engine.forgotten` does."""
    oldest = connection.execute("SELECT position FROM forgotten WHERE tag = %s", [_OLDEST]).fetchone()
    check_told(after, oldest[0] if oldest else 0)
    query = "SELECT position, tag FROM forgotten WHERE position > %s AND tag <> %s ORDER BY position LIMIT %s"
    return [Forgotten(*columns) for columns in connection.execute(query, [after, _OLDEST, limit])]


_LOCK: Final = "SELECT sequence, clock, position, documents, words FROM replica FOR UPDATE"
_SAVE: Final = "UPDATE replica SET sequence = %s, clock = %s, position = %s, documents = %s, words = %s"
_FORGET: Final = "DELETE FROM items WHERE address = ANY(%s) RETURNING length, address"
_REPLACE_HEADS: Final = """
DELETE FROM operations WHERE address = ANY(%s) AND NOT EXISTS (
  SELECT FROM unnest(%s::text[], %s::bigint[]) AS kept (device, sequence)
  WHERE kept.device = operations.device AND kept.sequence = operations.sequence
)
"""
_INSERT_HEAD: Final = """
INSERT INTO operations (position, device, sequence, address, payload) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (device, sequence) DO UPDATE SET payload = excluded.payload
"""
_LEARN: Final = """
INSERT INTO known (device, sequence) VALUES (%s, %s)
ON CONFLICT (device) DO UPDATE SET sequence = greatest(known.sequence, excluded.sequence)
"""


@dataclass(frozen=True, slots=True)
class _Counters:
    """The row of `replica`, see `tables.py`."""

    sequence: int
    clock: int
    position: int
    documents: int
    words: int


class PostgresTransaction:
    """A write transaction, see `Transaction`; call `finish` before the commit."""

    def __init__(self, connection: "Connection", device: str, vectors: Vectors) -> None:
        self._connection = connection
        self._device = device
        self._vectors = vectors
        row = connection.execute(_LOCK).fetchone()
        if row is None:
            raise StoreCorrupt(
                "the memory store in Postgres is damaged: its counters are missing", hint="restore the database from a backup"
            )
        self._counters = self._before = _Counters(*row)

    def finish(self) -> None:
        if self._counters != self._before:
            after = self._counters
            self._connection.execute(_SAVE, [after.sequence, after.clock, after.position, after.documents, after.words])

    def reserve(self, count: int, now: float) -> tuple[int, int]:
        sequence, clock = self._counters.sequence + 1, tick(self._counters.clock, now)
        self._counters = replace(self._counters, sequence=sequence + count - 1, clock=clock + count - 1)
        return sequence, clock

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        wanted = {digest(address): address for address in addresses}
        statement = "SELECT address, device, sequence, payload FROM operations WHERE address = ANY(%s)"
        found: dict[ItemAddress, tuple[Operation, ...]] = {}
        for key, device, sequence, payload in self._connection.execute(statement, [list(wanted)]):
            found[wanted[key]] = (*found.get(wanted[key], ()), read_operation(Dot(device, sequence), payload))
        return found

    def apply(self, changes: Sequence[Change]) -> None:
        kept = [change for change in changes if change.heads]
        table = self._vectors.table_for(self._connection, [(len(one.texts), one.vectors) for one in kept if one.vectors is not None])
        addresses = [digest(change.address) for change in changes]
        dots = [head.dot for change in kept for head in change.heads]
        with self._connection.pipeline():
            removed = self._connection.execute(_FORGET, [addresses])
            self._connection.execute(_REPLACE_HEADS, [addresses, [dot.device for dot in dots], [dot.sequence for dot in dots]])
            self._insert(kept, table)
        gone = {digest(change.address): change.address for change in changes if not change.heads}
        tags: list[str] = []
        for length, key in removed:
            self._count_words(-length)
            tags += [address_tag(gone[key])] if key in gone else []
        note_forgotten(self._connection, [Forgotten(self._next_position(), tag) for tag in sorted(tags)])

    def known(self) -> dict[str, int]:
        known: dict[str, int] = dict(self._connection.execute("SELECT device, sequence FROM known").fetchall())
        return {**known, self._device: self._counters.sequence} if self._counters.sequence else known

    def learn(self, known: VersionVector, clock: int) -> None:
        sequence = max(self._counters.sequence, known.get(self._device, 0))
        self._counters = replace(self._counters, sequence=sequence, clock=max(self._counters.clock, clock))
        others = sorted((device, number) for device, number in known.items() if device != self._device)
        if others:
            with self._connection.cursor() as cursor:
                cursor.executemany(_LEARN, others)

    def setting(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM settings WHERE name = %s", [name]).fetchone()
        return None if row is None else str(row[0])

    def set(self, name: str, value: str | None) -> None:
        self._connection.execute("DELETE FROM settings WHERE name = %s", [name])
        if value is not None:
            self._connection.execute("INSERT INTO settings VALUES (%s, %s)", [name, value])

    def _insert(self, changes: Sequence[Change], table: VectorTable | None) -> None:
        items: list[tuple[object, ...]] = []
        heads: list[tuple[object, ...]] = []
        vectors: list[tuple[int, Sequence[Vector]]] = []
        for change in changes:
            for head in change.heads:
                heads.append((self._next_position(), *head.dot, digest(head.address), change.payload or encode(head)))
            number, words = self._counters.position, words_of("\n".join(change.texts))
            if change.vectors is not None:
                vectors.append((number, change.vectors))
            items.append(columns(number, change, words, table.number if table is not None and change.vectors is not None else None))
            self._count_words(len(words))
        with self._connection.cursor() as cursor:
            cursor.executemany(INSERT, items)
            cursor.executemany(_INSERT_HEAD, heads)
        if table is not None:
            table.insert(self._connection, vectors)

    def _next_position(self) -> int:
        self._counters = replace(self._counters, position=self._counters.position + 1)
        return self._counters.position

    def _count_words(self, length: int) -> None:
        """Count the words of an added item, or of a removed one as a negative number."""
        documents = self._counters.documents + (length > 0) - (length < 0)
        self._counters = replace(self._counters, documents=documents, words=self._counters.words + length)


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
        schema: str = "nearfar",
        connections: int = 8,
        patience: float = 10.0,
        longest: float = 60.0,
    ) -> None:
        check_name(schema)
        self._schema = schema
        self._patience = patience
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
            transaction = PostgresTransaction(connection, self.device, self._vectors)
            self._writing.connection = connection
            try:
                yield transaction
            finally:
                self._writing.connection = None
            transaction.finish()

    def rows(self, addresses: Sequence[ItemAddress], selection: ItemSelection) -> dict[ItemAddress, ItemRow]:
        where = Where(selection)
        statement = f"SELECT {ROW} FROM items WHERE address = ANY(%s) AND {where.sql}"
        found = self._query(statement, [digest(one) for one in addresses], *where.parameters)
        return {one.address: one for one in map(read, found)}

    def numbered(self, numbers: Sequence[int]) -> dict[int, ItemRow]:
        found = self._query(f"SELECT {ROW}, number FROM items WHERE number = ANY(%s) AND content IS NOT NULL", list(numbers))
        return {number: read(columns) for *columns, number in found}

    def select(self, selection: ItemSelection, *, limit: int, offset: int) -> list[ItemRow]:
        where = Where(selection)
        order = "ORDER BY updated_at DESC, namespace, key LIMIT %s OFFSET %s"
        return list(map(read, self._query(f"SELECT {ROW} FROM items WHERE {where.sql} {order}", *where.parameters, limit, offset)))

    def keyword(self, query: str, selection: ItemSelection, *, limit: int) -> list[Hit]:
        """Rank by bm25, see `search.py`."""
        with self._connections.connection() as connection:
            return best_by_words(connection, query, selection, limit)

    def nearest(self, vector: "Vector", selection: ItemSelection, *, limit: int) -> list[Hit]:
        with self._connections.connection() as connection:
            table = self._vectors.table(connection)
            return [] if table is None else table.nearest(connection, vector, selection, limit)

    def namespaces(self, selection: ItemSelection) -> list[Namespace]:
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
        found = self._query(statement, after, limit)
        return [Logged(position, read_operation(Dot(device, sequence), payload)) for position, device, sequence, payload in found]

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
        """Rewrite all tables without deleted data. See `docs/postgres.md` for what Postgres keeps elsewhere.

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
