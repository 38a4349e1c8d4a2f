"""The store's engine on SQLite: a file on the device."""

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from ....protocols.items import ItemAddress, Namespace
from ...storage import sqlite_files
from ...storage.sqlite import Connection, SqliteConnections
from ..engine import Forgotten, Hit, ItemRow, ItemSelection, Logged, Position, Unembedded
from ..operation import Dot, Operation, Sealer, VersionVector
from .search import KeywordSearch, WhereClause, add_functions
from .tables import (
    APPLICATION,
    STORE,
    check,
    create,
    decode_address,
    decode_row,
    decode_texts,
    encode_namespace,
    forget_removals,
    has_many_removals,
    is_due,
    is_new,
    namespace_range,
    scrub,
)
from .transaction import OperationTable, PassageTable, SqliteTransaction, read_forgotten

if TYPE_CHECKING:
    from ..engine import Vector
    from .nearest import VectorCache

IN_MEMORY: Final = ":memory:"
MOST_CHECKED: Final = 1 << 24
"""Bytes that are checked in about 50 ms when the file is opened. In a larger file, damage is noticed when the damaged part is read."""
_ROW: Final = "namespace, key, content, expires_at"
_ROWS: Final = "items JOIN contents USING (item)"
_IN_ORDER: Final = "ORDER BY updated_at DESC, namespace, key"
_NEWEST: Final = 8
"""Factor for the number of newest items that are read first, before the selection narrows the search itself."""
_OPERATIONS: Final = (
    "SELECT operations.position, namespace, key, operations.device, sequence, payload FROM operations JOIN items USING (item)"
)
_FIRST_UNKNOWN: Final = (
    "WITH known (name, last) AS MATERIALIZED (SELECT key, value FROM json_each(?)) "
    "SELECT position FROM operations LEFT JOIN known ON name = device "
    "WHERE position > ? AND sequence > coalesce(last, 0) ORDER BY position LIMIT 1"
)
_NAMESPACES: Final = (
    "WITH RECURSIVE each_of (name) AS (SELECT min(namespace) FROM items UNION ALL "
    "SELECT (SELECT min(namespace) FROM items WHERE namespace > name) FROM each_of WHERE name IS NOT NULL) "
    "SELECT name FROM each_of WHERE EXISTS (SELECT 1 FROM items WHERE namespace = name AND {where})"
)
"""Steps from each namespace to the next one by the index, however many items are in one."""
_COUNTS: Final = {
    "items": "SELECT count(*) FROM items WHERE NOT is_deleted",
    "deleted": "SELECT count(*) FROM items WHERE is_deleted",
    "operations": "SELECT count(*) FROM operations",
    "conflicts": "SELECT count(*) FROM items WHERE conflicts > 0",
    "vectors": "SELECT count(DISTINCT item) FROM vectors",
}


class SqliteEngine:
    """One replica in the file at `path`, which is created if it is missing, readable by its owner alone; or, for `":memory:"`, in this
    process's memory, until it is closed.

    `embedder` names the embedder of the vectors, with its version; vectors of others are left alone. With a `key`, the file is encrypted
    by SQLCipher; the callable is called at each connection. With a `sealer`, each operation about a subject is encrypted by the
    subject's own key. A new replica is named `device`, or at random.

    Raises `StoreCorrupt` if the file is damaged, is no memory store, or the key is wrong, `SyncRefused` if a newer nearfar made it, and
    `StoreUnavailable` if it cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        embedder: str | None = None,
        key: Callable[[], str] | None = None,
        sealer: Sealer | None = None,
        device: str | None = None,
    ) -> None:
        is_file = path != IN_MEMORY
        self._path = os.path.abspath(path) if is_file else f"file:/{secrets.token_hex(8)}?vfs=memdb"
        if is_file:
            sqlite_files.prepare(self._path, STORE)
        self._operations = OperationTable(sealer)
        self._vectors = PassageTable(embedder)
        self._keyword = KeywordSearch()
        self._cache: VectorCache | None = None
        self._cache_lock = threading.Lock()
        self._connections = (SqliteConnections if is_file else _InMemory)(
            self._path, sqlite_files.driver_for(key, APPLICATION), STORE, add_functions
        )
        try:
            with self._connections.writing() as connection:
                if is_new(connection):
                    create(connection, device or secrets.token_hex(8))
                if is_file and sqlite_files.size(self._path) <= MOST_CHECKED:
                    check(connection)
                (self.device,) = connection.execute("SELECT device FROM replica").fetchone()
            self._tidy()
        except BaseException:
            self._connections.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        with self._connections.writing() as connection:
            transaction = SqliteTransaction(connection, self._operations, self._vectors)
            yield transaction
            transaction.finish()

    def rows(self, addresses: Sequence[ItemAddress], selection: ItemSelection) -> dict[ItemAddress, ItemRow]:
        where = WhereClause(selection)
        query = f"SELECT {_ROW} FROM {_ROWS} WHERE namespace = ? AND key = ? AND {where.sql}"
        found = {}
        with self._connections.reading() as connection, where.active():
            for address in addresses:
                row = connection.execute(query, (encode_namespace(address.namespace), address.key, *where.parameters)).fetchone()
                if row is not None:
                    found[address] = decode_row(*row)
        return found

    def numbered(self, numbers: Sequence[int]) -> dict[int, ItemRow]:
        query = f"SELECT item, {_ROW} FROM {_ROWS} WHERE item IN (SELECT value FROM json_each(?))"
        with self._connections.reading() as connection:
            return {item: decode_row(*columns) for item, *columns in connection.execute(query, (orjson.dumps(list(numbers)),))}

    def select(self, selection: ItemSelection, *, limit: int, offset: int) -> list[ItemRow]:
        where = WhereClause(selection)
        with self._connections.reading() as connection, where.active():
            few = _NEWEST * (offset + limit)
            newest = f"(SELECT * FROM items INDEXED BY items_in_order WHERE NOT is_deleted {_IN_ORDER} LIMIT {few})"
            query = f"SELECT {_ROW} FROM {{}} AS items JOIN contents USING (item) WHERE {where.sql} {_IN_ORDER} LIMIT ? OFFSET ?"
            parameters = (*where.parameters, limit, offset)
            found = connection.execute(query.format(newest), parameters).fetchall()
            if len(found) < limit:
                found = connection.execute(query.format("items"), parameters).fetchall()
            return [decode_row(*columns) for columns in found]

    def keyword(self, query: str, selection: ItemSelection, *, limit: int) -> list[Hit]:
        where = WhereClause(selection)
        with self._connections.reading() as connection, where.active():
            return self._keyword.best(connection, query, where, limit) if limit > 0 else []

    def nearest(self, vector: "Vector", selection: ItemSelection, *, limit: int) -> list[Hit]:
        from .nearest import best  # numpy, which a store without vectors does not need

        where = WhereClause(selection)
        with self._connections.reading() as connection, where.active():
            registered = self._vectors.registered(connection)
            if registered is None or limit < 1:
                return []
            embedder, width = registered
            self._vectors.check(vector, width)
            passages = self._vector_cache(width).passages(connection, embedder)
            passing, selected = partial(_passing, connection, where), partial(_selected, connection, where)
            return best(passages, vector, limit, passing=passing, selected=selected)

    def namespaces(self, selection: ItemSelection) -> list[Namespace]:
        where = WhereClause(selection)
        with self._connections.reading() as connection, where.active():
            found = connection.execute(_NAMESPACES.format(where=where.sql), where.parameters)
            return [decode_address(namespace, "").namespace for (namespace,) in found]

    def refresh(self, addresses: Sequence[ItemAddress], now: float) -> None:
        update = "UPDATE items SET expires_at = ? + ttl WHERE namespace = ? AND key = ? AND ttl IS NOT NULL"
        with self._connections.writing() as connection:
            connection.executemany(update, ((now, encode_namespace(address.namespace), address.key) for address in addresses))

    def expired(self, now: float, *, limit: int) -> list[ItemAddress]:
        query = "SELECT namespace, key FROM items WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
        return self._addresses(query, (now, limit))

    def changes(self, after: int, *, limit: int) -> list[Position]:
        query = "SELECT position, namespace, key, is_deleted FROM items WHERE position > ? ORDER BY position LIMIT ?"
        with self._connections.reading() as connection:
            found = connection.execute(query, (after, limit))
            return [Position(position, decode_address(*address), bool(is_deleted)) for position, *address, is_deleted in found]

    def forgotten(self, after: int, *, limit: int) -> list[Forgotten]:
        with self._connections.reading() as connection:
            return read_forgotten(connection, after, limit)

    def position(self) -> int:
        with self._connections.reading() as connection:
            (position,) = connection.execute("SELECT position FROM replica").fetchone()
        return int(position)

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        query = f"{_OPERATIONS} WHERE operations.position > ? ORDER BY operations.position LIMIT ?"
        with self._connections.reading() as connection:
            while found := connection.execute(query, (after, limit)).fetchall():
                heads = [head for columns in found if (head := self._logged(*columns)) is not None]
                if heads:
                    return heads
                after = found[-1][0]  # all of these were erased; an empty answer would mean that there are no more
        return []

    def first_unknown(self, after: int, known: VersionVector) -> int | None:
        with self._connections.reading() as connection:
            found = connection.execute(_FIRST_UNKNOWN, (orjson.dumps(dict(known)).decode(), after)).fetchone()
        return found[0] if found else None

    def unembedded(self, *, limit: int) -> list[Unembedded]:
        query = (
            f"SELECT item, texts, {_ROW} FROM {_ROWS} WHERE texts IS NOT NULL AND NOT EXISTS "
            "(SELECT 1 FROM vectors WHERE vectors.item = items.item AND embedder = ?) ORDER BY item LIMIT ?"
        )
        if not self._vectors.is_named:
            return []
        with self._connections.reading() as connection:
            embedder, _ = self._vectors.registered(connection) or (None, 0)
            found = connection.execute(query, (embedder, limit))
            rows = (
                (item, texts, content, decode_row(namespace, key, content, expires_at))
                for item, texts, namespace, key, content, expires_at in found
            )
            return [Unembedded(item, row.version, decode_texts(row.address, texts, content)) for item, texts, content, row in rows]

    def embed(self, rows: "Sequence[tuple[Unembedded, Sequence[Vector]]]") -> None:
        with self.transaction() as transaction:
            for row, vectors in rows:
                transaction.embed(row, vectors)

    def conflicts(self, *, limit: int, offset: int) -> list[ItemAddress]:
        query = "SELECT namespace, key FROM items WHERE conflicts > 0 ORDER BY namespace, key LIMIT ? OFFSET ?"
        return self._addresses(query, (limit, offset))

    def traces(
        self, *, prefix: Namespace | None = None, subject: str | None = None, derived_from: Sequence[ItemAddress] = ()
    ) -> list[ItemAddress]:
        found = set(self._below(prefix)) if prefix is not None else set()
        if subject is not None or derived_from:
            found.update(self._about(subject, frozenset(derived_from)))
        return sorted(found)

    def scrub(self) -> None:
        with self._connections.outside() as connection:
            scrub(connection)

    def statistics(self) -> dict[str, int]:
        with self._connections.reading() as connection:
            counts = {name: connection.execute(query).fetchone()[0] for name, query in _COUNTS.items()}
            (in_memory,) = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
        return {**counts, "bytes": sqlite_files.size(self._path) or in_memory}

    def close(self) -> None:
        self._connections.close()

    def _tidy(self) -> None:
        """Finish the work of a process that died in the middle of it."""
        with self._connections.outside() as connection:
            if is_due(connection):
                scrub(connection)
            elif has_many_removals(connection):
                forget_removals(connection)

    def _addresses(self, query: str, parameters: Sequence[object]) -> list[ItemAddress]:
        with self._connections.reading() as connection:
            return [decode_address(*columns) for columns in connection.execute(query, parameters)]

    def _below(self, prefix: Namespace) -> list[ItemAddress]:
        if not prefix:
            return self._addresses("SELECT namespace, key FROM items", ())
        return self._addresses("SELECT namespace, key FROM items WHERE namespace >= ? AND namespace < ?", namespace_range(prefix))

    def _about(self, subject: str | None, derived_from: frozenset[ItemAddress]) -> Iterator[ItemAddress]:
        """Yield items about the subject or derived from the items, reading all operations: such erasures are rare, and an index of
        subjects would have to be erased as well."""
        with self._connections.reading() as connection:
            for columns in connection.execute(_OPERATIONS):
                logged = self._logged(*columns)
                if logged is not None and _is_about(logged.operation, subject, derived_from):
                    yield logged.operation.address

    def _logged(self, position: int, namespace: str, key: str, device: str, sequence: int, packed: bytes) -> Logged | None:
        return self._operations.logged(decode_address(namespace, key), Dot(device, sequence), position, packed)

    def _vector_cache(self, width: int) -> "VectorCache":
        from .nearest import VectorCache  # numpy, which a store without vectors does not need

        with self._cache_lock:
            if self._cache is None:
                self._cache = VectorCache(width)
            return self._cache


class _InMemory(SqliteConnections):
    """Connections to a database in memory, of which SQLite lets none read while one writes: a thread that writes reads by the same one."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 - those of `SqliteConnections`
        super().__init__(*arguments)
        self._own = threading.local()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with super().writing() as connection:
            self._own.connection = connection
            try:
                yield connection
            finally:
                del self._own.connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        own: Connection | None = getattr(self._own, "connection", None)
        if own is not None:
            yield own
            return
        with super().reading() as connection:
            yield connection


def _is_about(operation: Operation, subject: str | None, derived_from: frozenset[ItemAddress]) -> bool:
    metas = [write.meta for write in operation.writes]
    return any((subject is not None and subject in meta.subjects) or not derived_from.isdisjoint(meta.lineage) for meta in metas)


def _passing(connection: Connection, where: WhereClause, items: Sequence[int]) -> set[int]:
    """Return those of the items that the selection lets through."""
    query = f"SELECT item FROM (SELECT value AS number FROM json_each(?)) CROSS JOIN items ON item = number WHERE {where.sql}"
    return {item for (item,) in connection.execute(query, (orjson.dumps(items), *where.parameters))}


def _selected(connection: Connection, where: WhereClause) -> list[int]:
    """Return all items that the selection lets through."""
    return [item for (item,) in connection.execute(f"SELECT item FROM items WHERE {where.sql}", where.parameters)]
