"""The tables of runs. Columns that change with each step are separate from large ones."""

from typing import Final

from ..storage.tables import Tables

TABLES: Final = Tables(
    part="runs",
    version=1,
    sql="""
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE, user_name TEXT NOT NULL, state TEXT NOT NULL,
    strategy TEXT NOT NULL, title TEXT NOT NULL, digest TEXT NOT NULL, version INTEGER NOT NULL, began REAL NOT NULL,
    owner TEXT, epoch INTEGER NOT NULL, steps INTEGER NOT NULL, is_cancelled INTEGER NOT NULL, ended INTEGER, ended_at REAL
);
CREATE INDEX runs_by_state ON runs (state, number);
CREATE INDEX runs_by_user ON runs (user_name, number);
CREATE INDEX runs_by_user_and_state ON runs (user_name, state, number);
CREATE INDEX runs_by_end ON runs (ended) WHERE ended IS NOT NULL;
CREATE TABLE tasks (run TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE outcomes (run TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE checkpoints (
    run TEXT NOT NULL, namespace TEXT NOT NULL, sequence INTEGER NOT NULL, checkpoint TEXT NOT NULL, parent TEXT,
    version INTEGER NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL, checksum INTEGER NOT NULL, metadata TEXT NOT NULL,
    PRIMARY KEY (run, namespace)
);
CREATE TABLE pending (
    run TEXT NOT NULL, namespace TEXT NOT NULL, checkpoint TEXT NOT NULL, task TEXT NOT NULL, place INTEGER NOT NULL,
    path TEXT NOT NULL, channel TEXT NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (run, namespace, task, place)
);
""",
)
"""`sequence` numbers a run's checkpoints, of which each graph's last is kept; `pending` is what tasks of the step behind it have written.

`ended` numbers the runs in the order in which they ended.
"""
