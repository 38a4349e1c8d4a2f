"""Insert many rows into a table."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from ...storage.sqlite.connections import Connection

_ROWS: Final = 32
"""Rows per statement: running one costs as much as inserting a small row, and blocks all other threads when it begins and ends."""


def insert(connection: Connection, columns: str, rows: Sequence[Sequence[int | float | str | bytearray | None]]) -> None:
    """Insert rows with these columns, given as `table (column, ...)`, into a table.

    For every `bytes`, `bool`, `None` or member of an enumeration the driver searches for an adapter, which takes longer than writing the
    value. Therefore blobs come as `bytearray`, and columns that are NULL in all rows are best left out.
    """
    many = len(rows) - len(rows) % _ROWS
    for start in range(0, many, _ROWS):
        connection.execute(_statement(columns, _ROWS), tuple(chain.from_iterable(rows[start : start + _ROWS])))
    if many < len(rows):
        connection.executemany(_statement(columns, 1), rows[many:])


@lru_cache(maxsize=16)
def _statement(columns: str, rows: int) -> str:
    row = f"({', '.join('?' * (columns.count(',') + 1))})"
    return f"INSERT INTO {columns} VALUES {', '.join([row] * rows)}"
