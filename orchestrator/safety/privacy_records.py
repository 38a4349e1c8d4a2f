"""The privacy records of runs on this device: the outbound log, without content, and placeholders, encrypted with a key per run."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ...protocols.items import Tier
from ...protocols.steps import Value
from ..memory.operation import Dot, OwnedSubject
from ..memory.sync.keys import SubjectKeys, tag_of
from ..storage import Tables
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..task.labels import Label
from .placeholders import Placeholder

Outcome = Literal["left", "held", "cached"]
"""`left`: sent. `held`: held back. `cached`: not sent, since a cache had the answer."""


class OutboundRecord(Value):
    """A message that was about to leave: to a far agent, or to a near agent in another process, perhaps on another device."""

    at: float
    """Seconds since the epoch, by this device's clock; the order is that of the records."""
    agent: str
    role: str
    """The role in which the agent was asked."""
    outcome: Outcome
    reason: str
    """The reason why it was allowed, or not."""
    bytes: int
    """Size of the message on the wire, in bytes."""
    digest: str
    """SHA-256 of these bytes, by which it can be told from others."""
    tier: Tier
    """Privacy tier of the content; `shared` for a message that left for a far agent."""
    origins: tuple[str, ...]
    """Origins that made the content more private or less trusted."""
    placeholders: tuple[str, ...] = ()
    """Names of the placeholders in the message."""
    findings: Mapping[str, int] = {}
    """Number of findings of each type before placeholders replaced them."""


_NAMING: Final = Naming("privacy record", recovery="remove the file: runs that use placeholders then cannot be resumed")
_TABLES: Final = Tables(
    "privacy",
    1,
    "CREATE TABLE departures (number INTEGER PRIMARY KEY, run TEXT NOT NULL, departure TEXT NOT NULL);\n"
    "CREATE INDEX departures_of_run ON departures (run, number);\n"
    "CREATE TABLE spills (run TEXT PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID;\n"
    "CREATE TABLE placeholders (run TEXT NOT NULL, number INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID",
)


class PrivacyRecords:
    """The privacy records in a folder. Any thread and several processes may use it. Raises `StoreUnavailable` and `StoreCorrupt`."""

    def __init__(self, folder: Path, *, keep: int = 10_000) -> None:
        """Open the records in `folder`. Only the newest `keep` runs are kept."""
        with ExitStack() as failing:
            self.database = failing.enter_context(closing(SqliteDatabase(folder / "privacy.db", _NAMING)))
            self.database.require(_TABLES)
            self.keys = failing.enter_context(closing(SubjectKeys(folder / "privacy.keys")))
            for run in self._older_than(keep):
                self.forget(run)
            failing.pop_all()

    def of(self, run: str) -> "RunRecords":
        """Return the records of one `run`."""
        return RunRecords(self, run)

    def ids(self, prefix: str = "", *, limit: int = 10_000) -> list[str]:
        """Return the ids of runs that begin with `prefix`, the newest first, `limit` at most."""
        query = "SELECT run FROM departures WHERE substr(run, 1, ?) = ? GROUP BY run ORDER BY max(number) DESC LIMIT ?"
        with self.database.reading() as connection:
            return [run for (run,) in connection.execute(query, (len(prefix), prefix, limit)).fetchall()]

    def outbound_log(self, run: str) -> list[OutboundRecord]:
        """Return the outbound log of a `run`: messages sent and held back, in order."""
        with self.database.reading() as connection:
            rows = connection.execute("SELECT departure FROM departures WHERE run = ? ORDER BY number", (run,)).fetchall()
        return [OutboundRecord.model_validate_json(row) for (row,) in rows]

    def forget(self, run: str) -> None:
        """Remove all that is kept of a `run`."""
        self.of(run).end()
        with self.database.writing() as connection:
            connection.execute("DELETE FROM departures WHERE run = ?", (run,))

    def _older_than(self, keep: int) -> list[str]:
        with self.database.reading() as connection:
            newest_first = "SELECT run FROM departures GROUP BY run ORDER BY max(number) DESC LIMIT -1 OFFSET ?"
            return [run for (run,) in connection.execute(newest_first, (keep,))]

    def close(self) -> None:
        self.database.close()
        self.keys.close()


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The privacy records of one run."""

    kept: PrivacyRecords
    run: str

    def log(self, record: OutboundRecord) -> int:
        """Log a message before it is sent; return its number."""
        with self.kept.database.writing() as connection:
            row = (self.run, record.model_dump_json())
            number = connection.execute("INSERT INTO departures (run, departure) VALUES (?, ?)", row).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def has_held_findings(self) -> bool:
        """Return whether a message was held back because of a detector's finding."""
        return any(record.outcome == "held" and record.findings for record in self.kept.outbound_log(self.run))

    def log_cached(self, number: int) -> None:
        """Log that a message was not sent, because a cache had the answer."""
        with self.kept.database.writing() as connection:
            (text,) = connection.execute("SELECT departure FROM departures WHERE number = ?", (number,)).fetchone()
            record = OutboundRecord.model_validate_json(text).model_copy(update={"outcome": "cached"})
            connection.execute("UPDATE departures SET departure = ? WHERE number = ?", (record.model_dump_json(), number))

    def spill(self, label: Label) -> None:
        """Record that private data with this label have gone into a tool that changes something."""
        with self.kept.database.writing() as connection:
            row = (self.run, label.model_dump_json())
            connection.execute("INSERT INTO spills VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET label = excluded.label", row)

    def spilled(self) -> Label:
        """Return the label of all private data that went into such tools."""
        with self.kept.database.reading() as connection:
            row = connection.execute("SELECT label FROM spills WHERE run = ?", (self.run,)).fetchone()
        return Label() if row is None else Label.model_validate_json(row[0])

    def keep(self, placeholders: Sequence[Placeholder]) -> None:
        """Keep placeholders, encrypted."""
        with self.kept.database.writing() as connection:
            (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM placeholders WHERE run = ?", (self.run,)).fetchone()
            rows = ((self.run, number, self._seal(placeholder, number)) for number, placeholder in enumerate(placeholders, last + 1))
            connection.executemany("INSERT INTO placeholders VALUES (?, ?, ?)", rows)

    def _seal(self, placeholder: Placeholder, number: int) -> bytes:
        return self.kept.keys.seal(_dot(self.run, number), {_subject(self.run)}, placeholder.model_dump_json().encode())

    def end(self) -> None:
        """End the run: remove all but its outbound log, and destroy its key, without which no copy of a placeholder can be read."""
        with self.kept.database.writing() as connection:
            for table in ("placeholders", "spills"):
                connection.execute(f"DELETE FROM {table} WHERE run = ?", (self.run,))
        self.kept.keys.destroy(self.kept.keys.retire(tag_of(_subject(self.run).name), None))

    def placeholders(self) -> list[Placeholder]:
        """Return the placeholders of the run so far. One whose key is gone is left out, and so refused as unknown."""
        with self.kept.database.reading() as connection:
            rows = connection.execute("SELECT number, sealed FROM placeholders WHERE run = ? ORDER BY number", (self.run,)).fetchall()
        opened = (self.kept.keys.unseal(_dot(self.run, number), sealed) for number, sealed in rows)
        return [Placeholder.model_validate_json(payload) for payload in opened if payload is not None]


def _subject(run: str) -> OwnedSubject:
    return OwnedSubject(user="", name=f"run {run}")


def _dot(run: str, number: int) -> Dot:
    """Return the position that a sealed placeholder is bound to: it cannot be read in the place of another one."""
    return Dot(f"run {run}", number)
