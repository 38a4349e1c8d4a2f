"""The tables in Postgres, and what their columns hold."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson

from ....protocols import ConfigError, StoreCorrupt, SyncRefused
from ....protocols.items import ItemAddress, Namespace
from ..engine import Change, ItemRow
from ..operation import Dot, Operation, decode, meta_fields, read_meta, subjects_of

if TYPE_CHECKING:
    from ...storage.postgres import Connection
    from .search import Vectors


def digest(address: ItemAddress) -> bytes:
    """Return a digest of an address of any length."""
    return hashlib.sha256(orjson.dumps((address.namespace, address.key))).digest()


def number_of(prefix: Namespace) -> int:
    """Return the number of a namespace in an index; two namespaces may rarely share one."""
    return int.from_bytes(hashlib.sha256(orjson.dumps(prefix)).digest()[:8], "big", signed=True)


def numbers_above(namespace: Namespace) -> list[int]:
    """Return the numbers of the namespace and of all namespaces above it, without the root."""
    return [number_of(namespace[:depth]) for depth in range(1, len(namespace) + 1)]


def encode_row(row: ItemRow) -> bytes:
    """Encode a row without its address, and without its expiry, which has a column of its own."""
    return orjson.dumps((row.value, meta_fields(row.meta), row.version, row.device, row.updated_at, row.conflicts))


def decode_row(address: ItemAddress, content: bytes, expires_at: float | None) -> ItemRow:
    try:
        value, meta, version, device, updated_at, conflicts = orjson.loads(content)
        return ItemRow(address, value, read_meta(meta), version, device, updated_at, expires_at, conflicts)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt("an item of the memory store is damaged", hint="restore the database from a backup") from error


def as_json(value: object) -> str | None:
    """Return a value as JSON; None if it is no JSON, so that no stored value is equal to it."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return None


def read_operation(dot: Dot, payload: bytes) -> Operation:
    """Return a stored operation. Raises `StoreCorrupt`."""
    try:
        return decode(dot, payload)
    except ValueError as error:
        raise StoreCorrupt(f"the memory store in Postgres is damaged: {error}", hint="restore the database from a backup") from error


ROW: Final = "namespace, key, content, expires_at"
"""The columns that `read` takes."""

INSERT: Final = """
INSERT INTO items (number, address, namespace, key, prefixes, conflicts, subjects, origins,
  content, fields, owner, device, tier, trust, valid_from, invalid_from, updated_at, ttl, expires_at,
  texts, words, length, embedder)
VALUES (%s, %s, %s::text[], %s, %s::bigint[], %s, %s::text[], %s::bytea[],
  %s, %s::jsonb, %s, %s, %s, %s, %s, %s, %s, %s, %s,
  %s, to_tsvector('words', %s), %s, %s)
"""


def read(columns: Sequence[Any]) -> ItemRow:
    namespace, key, content, expires_at = columns
    return decode_row(address(namespace, key), content, expires_at)


def address(namespace: Sequence[str], key: str) -> ItemAddress:
    return ItemAddress(tuple(namespace), key)


def columns(number: int, change: Change, words: Sequence[str], embedder: int | None) -> tuple[object, ...]:
    """Return the parameters of `INSERT`."""
    namespace, key = change.address
    metas = [write.meta for head in change.heads for write in head.writes]
    subjects = sorted({subject.name for head in change.heads for subject in subjects_of(head)})
    origins = sorted({digest(origin) for meta in metas for origin in meta.lineage})
    place = number, digest(change.address), list(namespace), key, numbers_above(namespace)
    texts = orjson.dumps(change.texts) if change.texts else None
    searched = texts, " ".join(words) if words else None, len(words), embedder
    return *place, change.conflicts, subjects or None, origins or None, *_visible(change.row), *searched


def _visible(row: ItemRow | None) -> tuple[object, ...]:
    if row is None:
        return (None,) * 11
    meta = row.meta
    who = meta.user, row.device, meta.tier, meta.trust
    return (
        encode_row(row),
        orjson.dumps(row.value).decode(),
        *who,
        meta.valid_from,
        meta.invalid_from,
        row.updated_at,
        meta.ttl,
        row.expires_at,
    )


VERSION: Final = 3
"""Version of the tables, and of how texts are cut into words."""
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")

_TABLES: Final = (
    # One row, which a writer locks until its commit: so numbers have no gaps, and positions become visible in their order.
    """
    CREATE TABLE replica (
      version integer NOT NULL,
      device text NOT NULL,
      sequence bigint NOT NULL,           -- of this device's last write
      clock bigint NOT NULL,
      position bigint NOT NULL,           -- of the last change
      documents bigint NOT NULL,          -- items that can be found by words
      words bigint NOT NULL               -- of all of them
    ) WITH (fillfactor = 10)
    """,
    "CREATE TABLE known (device text PRIMARY KEY, sequence bigint NOT NULL)",
    # Tags of items, or see `note_forgotten`.
    "CREATE TABLE forgotten (position bigint PRIMARY KEY, tag text NOT NULL UNIQUE)",
    "CREATE TABLE settings (name text PRIMARY KEY, value text NOT NULL)",
    # Labels, keys and devices sort by code point, whatever the database's own order is.
    """
    CREATE TABLE items (
      number bigint PRIMARY KEY,          -- the position of its last change
      address bytea NOT NULL UNIQUE,      -- digest of namespace and key
      namespace text[] COLLATE "C" NOT NULL,
      key text COLLATE "C" NOT NULL,
      prefixes bigint[] NOT NULL,         -- numbers of the namespace and of all above it
      conflicts integer NOT NULL,
      subjects text[],                    -- of any head or sibling; NULL: none
      origins bytea[],                    -- addresses of what any of them was derived from; NULL: nothing
      content bytea,                      -- the row; NULL: deleted. What follows repeats what of it selections look at
      fields jsonb,
      owner text, device text, tier text, trust float8,
      valid_from float8, invalid_from float8,
      updated_at float8, ttl float8, expires_at float8,
      texts bytea,                        -- JSON; NULL: it cannot be searched
      words tsvector,
      length integer NOT NULL,            -- number of words
      embedder integer,                   -- whose vectors it has
      claimed_by text,                    -- the process that is making vectors of the texts
      claimed_until timestamptz
    ) WITH (fillfactor = 85)
    """,
    "CREATE INDEX ON items (updated_at DESC) WHERE content IS NOT NULL",
    "CREATE INDEX ON items (expires_at) WHERE expires_at IS NOT NULL",
    "CREATE INDEX ON items (number) WHERE conflicts > 0",
    "CREATE INDEX ON items (number) WHERE texts IS NOT NULL AND embedder IS NULL",
    "CREATE INDEX ON items USING gin (prefixes) WITH (fastupdate = off)",
    # Searches read the whole pending list, so it must stay short.
    "CREATE INDEX ON items USING gin (fields jsonb_path_ops) WITH (gin_pending_list_limit = 256)",
    "CREATE INDEX ON items USING gin (words) WITH (gin_pending_list_limit = 256)",
    "CREATE INDEX ON items USING gin (subjects) WHERE subjects IS NOT NULL",
    "CREATE INDEX ON items USING gin (origins) WHERE origins IS NOT NULL",
    """
    CREATE TABLE operations (
      position bigint PRIMARY KEY,        -- at which this replica came to know it
      device text COLLATE "C" NOT NULL,
      sequence bigint NOT NULL,
      address bytea NOT NULL,             -- of its item
      payload bytea NOT NULL,
      UNIQUE (device, sequence)
    )
    """,
    "CREATE INDEX ON operations (address)",
    # Each has a table `vectors_NUMBER`.
    "CREATE TABLE embedders (number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE, width integer NOT NULL)",
    # English endings are cut off, and no word is left out.
    "CREATE TEXT SEARCH DICTIONARY stem (TEMPLATE = snowball, Language = porter)",
    "CREATE TEXT SEARCH CONFIGURATION words (PARSER = default)",
    "ALTER TEXT SEARCH CONFIGURATION words ADD MAPPING FOR asciiword, word, numword, int, uint, float, sfloat, version WITH stem",
)
_CONTENT: Final = ("namespace", "key", "subjects", "content", "fields", "texts", "words", "owner", "claimed_by")
"""Columns of which the planner keeps no samples: they would outlive an erasure."""


def check_name(schema: str) -> None:
    if not _NAME.fullmatch(schema):
        raise ConfigError(f"{schema!r} is no valid name of a schema", hint="use small letters, digits and underscores, 41 at most")


def prepare(connection: "Connection", schema: str, vectors: "Vectors") -> str:
    """Create the tables if they are missing. Returns the replica's device.

    Raises `StoreCorrupt` if the schema is another program's, and `SyncRefused` if a newer nearfar made the tables.
    """
    with connection.transaction():
        # Several processes may come first; one of them must create the tables.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('nearfar'))")
        vectors.prepare(connection)
        if connection.execute("SELECT to_regclass(%s)", [f"{schema}.replica"]).fetchone() == (None,):
            _create(connection, schema)
        row = connection.execute("SELECT version, device FROM replica").fetchone()
    if row is None:
        raise StoreCorrupt("the memory store in Postgres is damaged: its table replica is empty", hint="restore the database from a backup")
    version, device = row
    if version > VERSION:
        message = f"the memory store in Postgres has version {version}, but this nearfar knows only version {VERSION}"
        raise SyncRefused(message, hint="update nearfar on this machine")
    return str(device)


def _create(connection: "Connection", schema: str) -> None:
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is None:
        connection.execute(f"CREATE SCHEMA {schema}")
    used = connection.execute("SELECT FROM pg_class WHERE relnamespace = to_regnamespace(%s) LIMIT 1", [schema]).fetchone()
    if used is not None:
        raise StoreCorrupt(f"the schema {schema} belongs to another program", hint="choose another schema for the memory store")
    for statement in _TABLES:
        connection.execute(statement)
    for column in _CONTENT:
        connection.execute(f"ALTER TABLE items ALTER COLUMN {column} SET STATISTICS 0")
    connection.execute("INSERT INTO replica VALUES (%s, %s, 0, 0, 0, 0, 0)", [VERSION, uuid4().hex[:16]])
