"""Making unreadable what was deleted.

`secure_delete` overwrites rows and pages when they are deleted. What remains are words in the index's older segments, and older pages in
the write-ahead log.
"""

from .connections import Connection


def scrub(connection: Connection) -> None:
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("UPDATE replica SET is_dirty = 0")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
