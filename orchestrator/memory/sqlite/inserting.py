"""Putting many rows into a table."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from ...storage.sqlite.connections import Connection

_ROWS: Final = 32
"""That one statement puts in: to run one costs as much as to insert a small row, and holds up all other threads when it begins and ends."""


def insert(connection: Connection, columns: str, rows: Sequence[Sequence[int | float | str | bytearray | None]]) -> None:
    """Put rows with these columns, given as `table (column, ...)`, into a table.

    The driver looks for somebody's adapter for every `bytes`, `bool`, `None` or member of an enumeration that it is given, which takes
    longer than to write it. So blobs come as `bytearray`, and what is NULL in all rows is best left out.
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
