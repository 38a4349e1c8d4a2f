"""The tables: create them, check them, and make deleted data in them unreadable.

The number of a row is `items.item`, which is never used for another item.
"""

from typing import Final

from ....protocols import StoreCorrupt, SyncRefused
from ...storage.sqlite import Connection, empty_log
from ...storage.sqlite_files import check_plain
from .rows import STORE, damaged

APPLICATION: Final = 0x4E665253
"""Marks the file as one of this store (`PRAGMA application_id`)."""
VERSION: Final = 5
"""Version of the tables, and of how texts are cut into words (`words.py`), in `PRAGMA user_version`."""

TABLES: Final = """
CREATE TABLE replica (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  device TEXT NOT NULL,
  sequence INTEGER NOT NULL,          -- of this device's last write
  clock INTEGER NOT NULL,
  position INTEGER NOT NULL,          -- of the last change
  generation INTEGER NOT NULL,        -- grows when entries of `removals` are dropped
  is_dirty INTEGER NOT NULL           -- something was forgotten since the last scrub
);
CREATE TABLE known (device TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE items (
  item INTEGER PRIMARY KEY,           -- the position of its first change
  namespace TEXT NOT NULL,            -- see columns.py
  key TEXT NOT NULL,
  position INTEGER NOT NULL,          -- of its last change
  conflicts INTEGER NOT NULL,
  is_deleted INTEGER NOT NULL,        -- readers see no row
  user TEXT, device TEXT, tier TEXT, trust REAL, valid_from REAL, invalid_from REAL, updated_at REAL, ttl REAL,  -- parts of the row
  expires_at REAL
);
CREATE UNIQUE INDEX items_by_address ON items (namespace, key);
CREATE INDEX items_by_position ON items (position);
CREATE INDEX items_in_order ON items (updated_at DESC, namespace, key) WHERE NOT is_deleted;
CREATE INDEX items_by_expiry ON items (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX items_in_conflict ON items (namespace, key) WHERE conflicts > 0;

CREATE TABLE contents (               -- of items that are not deleted: apart from what searches look at, which then is on few pages
  item INTEGER PRIMARY KEY,
  content BLOB NOT NULL,              -- the row, packed
  texts BLOB                          -- packed; NULL: none
);

CREATE TABLE operations (
  position INTEGER PRIMARY KEY,       -- at which this replica came to know it
  item INTEGER NOT NULL,
  device TEXT NOT NULL, sequence INTEGER NOT NULL,
  payload BLOB NOT NULL               -- packed
);
CREATE INDEX operations_by_item ON operations (item);

CREATE TABLE embedders (embedder INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, width INTEGER NOT NULL);
CREATE TABLE vectors (
  position INTEGER PRIMARY KEY,
  item INTEGER NOT NULL,
  embedder INTEGER NOT NULL,
  passages BLOB NOT NULL              -- some of the item's: of each a scale (float32, little-endian) and one byte for each number
);
CREATE INDEX vectors_by_item ON vectors (item, embedder);
CREATE TABLE removals (position INTEGER PRIMARY KEY, item INTEGER NOT NULL  -- that lost its vectors
);

CREATE TABLE forgotten (position INTEGER PRIMARY KEY, tag TEXT NOT NULL UNIQUE  -- of an item, or see forgotten.py
);

CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61 remove_diacritics 2');
-- Searches look into every segment of the index, so that they are merged before there are as many as FTS5 would leave.
INSERT INTO words (words, rank) VALUES ('automerge', 2);
INSERT INTO words (words, rank) VALUES ('crisismerge', 8);
"""


def create(connection: Connection, device: str) -> None:
    """Create the tables of a new replica, within a transaction."""
    for statement in TABLES.split(";\n"):
        connection.execute(statement)
    connection.execute("INSERT INTO replica VALUES (1, ?, 0, 0, 0, 0, 0)", (device,))
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def check(connection: Connection) -> None:
    """Check the whole database. Raises `StoreCorrupt`."""
    (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if finding != "ok":
        raise damaged(finding)


def is_new(connection: Connection) -> bool:
    """Return whether the database is empty.

    Raises `StoreCorrupt` if it is another program's, or has triggers or views, and `SyncRefused` if a newer nearfar made it.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION and version == VERSION:
        check_plain(connection, STORE)
        return False
    if application == APPLICATION and version > VERSION:
        message = f"the memory store has version {version}, but this nearfar knows only version {VERSION}"
        raise SyncRefused(message, hint="update nearfar on this device")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables or application or version:
        raise StoreCorrupt("the file is a database, but not a memory store", hint="choose another path")
    return True


PATIENCE: Final = 30.0
"""Seconds to wait for readers of older states to finish."""
MOST_REMOVALS: Final = 10_000


def scrub(connection: Connection) -> None:
    """Remove the copies of deleted data that `secure_delete` leaves.

    Older segments of the index keep words until segments are merged. Pages keep copies of rows that SQLite has moved, until all pages
    are rewritten. The log keeps earlier pages until it is emptied, which needs all readers to be at the present state: raises
    `StoreUnavailable` if one is not; the next scrub, or the next process that opens the store, continues.
    """
    connection.execute("UPDATE replica SET is_dirty = 1")
    forget_removals(connection)
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("VACUUM")
    empty_log(connection, "memory store", PATIENCE)
    connection.execute("UPDATE replica SET is_dirty = 0")


def is_due(connection: Connection) -> bool:
    """Return whether data was deleted since the last scrub, as when the process died before it."""
    (is_dirty,) = connection.execute("SELECT is_dirty FROM replica").fetchone()
    return bool(is_dirty)


def forget_removals(connection: Connection) -> None:
    """Make all processes that keep vectors in memory read them again, without the removed ones."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM removals")
    connection.execute("UPDATE replica SET generation = generation + 1")
    connection.execute("COMMIT")


def has_many_removals(connection: Connection) -> bool:
    (removals,) = connection.execute("SELECT count(*) FROM removals").fetchone()
    return int(removals) > MOST_REMOVALS
