"""What is kept on this device of how private runs were: an audit without a word of them, and placeholders, each run's under its own key."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..memory.encoding import Subject
from ..memory.operation import Dot
from ..memory.sync.keys import SubjectKeys, tag_of
from ..sqlite.database import Database
from ..sqlite.errors import Naming
from ..tables import Tables
from .audit import Departure
from .placeholders import Placeholder

_NAMING: Final = Naming("record of runs' privacy", recovery="remove the file: runs that use placeholders then cannot be resumed")
_TABLES: Final = Tables(
    "privacy",
    1,
    "CREATE TABLE departures (number INTEGER PRIMARY KEY, run TEXT NOT NULL, departure TEXT NOT NULL);\n"
    "CREATE INDEX departures_of_run ON departures (run, number);\n"
    "CREATE TABLE placeholders (run TEXT NOT NULL, number INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID",
)


class PrivacyRecords:
    """Those in a folder. Any thread and several processes may use it. Raises `StoreUnavailable` and `StoreCorrupt`."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(folder / "privacy.db", _NAMING)
        self.database.require(_TABLES)
        self.keys = SubjectKeys(folder / "privacy.keys")

    def of(self, run: str) -> "RunRecords":
        return RunRecords(self, run)

    def departures(self, run: str) -> list[Departure]:
        """What left for a run, and what was held back, in order."""
        with self.database.reading() as connection:
            rows = connection.execute("SELECT departure FROM departures WHERE run = ? ORDER BY number", (run,)).fetchall()
        return [Departure.model_validate_json(row) for (row,) in rows]

    def forget(self, runs: Sequence[str]) -> None:
        """Remove all that is kept of runs; copies of their placeholders can be read nowhere any more."""
        with self.database.writing() as connection:
            for table in ("departures", "placeholders"):
                connection.executemany(f"DELETE FROM {table} WHERE run = ?", [(run,) for run in runs])
        for run in runs:
            self.keys.destroy(self.keys.retire(tag_of(_subject(run).name), None))

    def close(self) -> None:
        self.database.close()
        self.keys.close()


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Those of one run."""

    kept: PrivacyRecords
    run: str

    def note(self, departure: Departure) -> int:
        """Write a departure down, before it takes place; returns its number."""
        with self.kept.database.writing() as connection:
            row = (self.run, departure.model_dump_json())
            number = connection.execute("INSERT INTO departures (run, departure) VALUES (?, ?)", row).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def was_cached(self, number: int) -> None:
        """A departure has not taken place: the answer was there already."""
        with self.kept.database.writing() as connection:
            (text,) = connection.execute("SELECT departure FROM departures WHERE number = ?", (number,)).fetchone()
            departure = Departure.model_validate_json(text).model_copy(update={"outcome": "cached"})
            connection.execute("UPDATE departures SET departure = ? WHERE number = ?", (departure.model_dump_json(), number))

    def keep(self, placeholder: Placeholder) -> None:
        """Keep a placeholder, encrypted."""
        payload = placeholder.model_dump_json().encode()
        with self.kept.database.writing() as connection:
            (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM placeholders WHERE run = ?", (self.run,)).fetchone()
            sealed = self.kept.keys.seal(_dot(self.run, last + 1), {_subject(self.run)}, payload)
            connection.execute("INSERT INTO placeholders VALUES (?, ?, ?)", (self.run, last + 1, sealed))

    def placeholders(self) -> list[Placeholder]:
        """Those of the run so far. One whose key is gone is left out: what it stood for is unknown, and so it is refused."""
        with self.kept.database.reading() as connection:
            rows = connection.execute("SELECT number, sealed FROM placeholders WHERE run = ? ORDER BY number", (self.run,)).fetchall()
        opened = (self.kept.keys.unseal(_dot(self.run, number), sealed) for number, sealed in rows)
        return [Placeholder.model_validate_json(payload) for payload in opened if payload is not None]


def _subject(run: str) -> Subject:
    return Subject(user="", name=f"run {run}")


def _dot(run: str, number: int) -> Dot:
    """What a placeholder is bound to: it cannot be read in the place of another one."""
    return Dot(f"run {run}", number)
