"""The book of what was spent: balances of tasks, sessions, users and days, in amounts whose sums are exact."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from ..storage import DatabaseSession
from ..storage.owners import Owner
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..task.stores import RunsConfig
from .storage import MemoryStorage, ServerOwner, SharedStorage

MEASURES: Final = ("dollars", "tokens", "seconds", "joules")
_UNITS: Final = (10**9, 1, 10**6, 10**6)
"""Whole units in one of each measure: nanodollars, tokens, microseconds and microjoules."""
_MOST: Final = 2**60
"""No amount is larger, so that sums of several fit 64 bits: about a billion dollars."""


_KEPT: Final = 10_000
"""Tasks and sessions, each; of more, those are forgotten that spent nothing for the longest time."""
_FORGOTTEN_EVERY: Final = 500
"""Calls after which it is seen to that no more are kept."""
_NO_CAP: Final = 2**62
_PART_NAME: Final = 32
"""Characters behind the name of a task, and a slash, in the name of its part."""
_KEPT_MINUTES: Final = 25 * 60
"""A day, which is the longest period over which dollars are held, and one hour for clocks that differ."""
_COLUMNS: Final = "dollars, tokens, seconds, joules, reserved_dollars, reserved_tokens, reserved_seconds, reserved_joules, unpriced"
_LATER: Final = "(SELECT coalesce(max(used), 0) + 1 FROM budgets)"
_ENTER: Final = f"""
INSERT INTO budgets (kind, name, used) VALUES (?, ?, {_LATER}) ON CONFLICT (kind, name) DO UPDATE SET used = excluded.used
RETURNING {_COLUMNS}
"""
_RESERVE: Final = f"""
UPDATE budgets SET {", ".join(f"reserved_{measure} = reserved_{measure} + ?" for measure in MEASURES)}
WHERE kind = ? AND name = ? AND {" AND ".join(f"{measure} + reserved_{measure} + ? <= ?" for measure in MEASURES)}
"""
_SETTLE: Final = f"""
INSERT INTO budgets (kind, name, used, dollars, tokens, seconds, joules, unpriced) VALUES (?, ?, {_LATER}, ?, ?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET used = excluded.used,
{", ".join(f"{measure} = budgets.{measure} + ?" for measure in MEASURES)},
{", ".join(f"reserved_{measure} = budgets.reserved_{measure} - ?" for measure in MEASURES)},
unpriced = budgets.unpriced + ?
"""
_LEFT: Final = "SELECT id, scopes, unpriced, dollars, tokens, seconds, joules FROM budget_reservations WHERE owner = ?"
_EMPTIED: Final = "dollars = 0, tokens = 0, seconds = 0, joules = 0, unpriced = 0"
_UNRESERVED: Final = " AND ".join(f"reserved_{measure} = 0" for measure in MEASURES)
_FORGET: Final = f"""
DELETE FROM budgets WHERE kind = ? AND {_UNRESERVED}
AND used < (SELECT min(used) FROM (SELECT used FROM budgets WHERE kind = ? ORDER BY used DESC LIMIT ?) AS kept)
"""
_OF_MINUTES: Final = "SELECT coalesce(sum(dollars), 0) FROM budgets WHERE kind = 'minute' AND name >= ? AND name <= ?"
_FORGET_MINUTES: Final = f"DELETE FROM budgets WHERE kind = 'minute' AND name < ? AND {_UNRESERVED}"
_NAMING: Final = Naming("budget book", "remove the file: what was spent is forgotten with it")


@dataclass(frozen=True, slots=True)
class Spent:
    """The amounts that a call, a task or several have spent. None means unknown, which is not zero.

    In a sum, `joules` holds the known ones only: unmeasured energy is not held against a limit.
    """

    dollars: float | None = 0.0
    tokens: int = 0
    seconds: float = 0.0
    joules: float | None = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            dollars=None if self.dollars is None or other.dollars is None else self.dollars + other.dollars,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            joules=None if self.joules is None and other.joules is None else (self.joules or 0.0) + (other.joules or 0.0),
        )

    @property
    def units(self) -> "Units":
        """Rounded up; what is unknown counts as nothing here."""
        dollars, tokens, seconds, joules = _UNITS
        return Units(
            _rounded_up(self.dollars, dollars),
            _rounded_up(self.tokens, tokens),
            _rounded_up(self.seconds, seconds),
            _rounded_up(self.joules, joules),
        )


class Units(NamedTuple):
    """An amount of each measure, in whole units."""

    dollars: int = 0
    tokens: int = 0
    seconds: int = 0
    joules: int = 0

    def plus(self, other: "Units") -> "Units":
        return Units(*(one + another for one, another in zip(self, other, strict=True)))

    def beyond(self, other: "Units") -> "Units":
        """Return the excess of this amount over another one, for each measure; at least 0."""
        return Units(*(max(one - another, 0) for one, another in zip(self, other, strict=True)))

    def within(self, other: "Units") -> "Units":
        """Return the smaller amount of each measure."""
        return Units(*map(min, self, other))

    def of(self, measure: str) -> float:
        """Return one measure in the user's units."""
        place = MEASURES.index(measure)
        return self[place] / _UNITS[place]

    @property
    def spent(self) -> Spent:
        return Spent(self.of("dollars"), self.tokens, self.of("seconds"), self.of("joules"))


class Caps(NamedTuple):
    """The limit of each measure, in whole units; None: unlimited."""

    dollars: int | None = None
    tokens: int | None = None
    seconds: int | None = None
    joules: int | None = None

    @classmethod
    def of(cls, *, dollars: float | None, tokens: int | None, seconds: float | None, joules: float | None) -> "Caps":
        given = (dollars, tokens, seconds, joules)
        return cls(*(None if cap is None else min(round(cap * unit), _MOST) for cap, unit in zip(given, _UNITS, strict=True)))


def _rounded_up(amount: float | None, unit: int) -> int:
    """Beyond a thousandth of a unit, which is what binary fractions may be off."""
    return 0 if not amount else min(math.ceil(round(amount * unit, 3)), _MOST)


@dataclass(frozen=True, slots=True)
class Commitment:
    """Dollars set aside for one task until its bill comes."""

    dollars: float
    """The most that it is expected to cost."""
    went_far: bool
    is_guess: bool = False
    """The cost was unknown when the task was routed."""
    expected: float = 0.0
    """The highest estimate when it was placed, before corrections by the cost of other tasks; 0: no estimate."""


class BudgetScope(NamedTuple):
    """The thing that a limit holds for."""

    kind: str
    """`task`, `session`, `user`, `day` or `minute`."""
    name: str = ""
    """The task's or session's own name; of a day the date, of a minute its number, and empty for the one that it is now."""

    @classmethod
    def of_session(cls, session: str, user: str) -> "BudgetScope":
        """Return the scope of a user's session: two users may give their sessions one name."""
        return cls("session", f"{user}/{session}" if user else session)


class Claim(NamedTuple):
    """A scope that a call belongs to, and what may be spent in it."""

    scope: BudgetScope
    caps: Caps = Caps()
    allows_unpriced: bool = False
    """Calls of unknown price are left out of the sum; else nothing more may be paid for where there was one."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The amounts spent in a scope, and those reserved for calls under way."""

    spent: Units = Units()
    reserved: Units = Units()
    unpriced: int = 0
    """Calls of unknown price, whose dollars are in no sum."""


class Reservation(NamedTuple):
    """The amounts that a call may spend."""

    id: str
    scopes: tuple[BudgetScope, ...]
    granted: Units
    is_unpriced: bool = False
    """The call's price is unknown, so no dollars are reserved for it."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why nothing was reserved."""

    kind: str
    """The kind of the scope whose cap is exceeded."""
    measure: str
    cap: int
    balance: Balance
    least: Units
    """The amounts that were asked for."""
    is_unknown: bool = False
    """The spent amount is unknown."""

    @property
    def is_temporary(self) -> bool:
        """It would fit if the calls under way gave back all that is reserved for them."""
        place = MEASURES.index(self.measure)
        fits = self.balance.spent[place] + self.least[place] <= self.cap
        return fits and bool(self.balance.reserved[place]) and not self.is_unknown


class BudgetBook:
    """The balances of all scopes, in a storage. Calls may come from any thread.

    What a process has reserved and not settled when it dies is counted as spent, to the last cent: its calls may have cost that.
    A day is the latest local date that the book has ever seen, so that a clock that is set back gives nothing back.

    Raises `StoreUnavailable` where the storage cannot be used, and `StoreCorrupt` where it is damaged.
    """

    def __init__(self, storage: MemoryStorage | SharedStorage, clock: Callable[[], datetime] = datetime.now) -> None:
        self._storage = storage
        self._clock = clock
        self._settled = 0
        self._counting = Lock()
        self._counted: dict[BudgetScope, tuple[Units, int]] = {}
        """Amounts that are counted and not written yet: for each scope the sum, and the number of calls without a price."""

    @property
    def is_shared(self) -> bool:
        """Other processes use it too, so that it may have to be waited for."""
        return self._storage.is_shared

    def reserve(self, claims: Sequence[Claim], *, least: Units, most: Units, is_unpriced: bool = False) -> Reservation | Shortage:
        """Set aside as much of each measure as there is, between `least` and `most`, in all scopes or in none.

        A measure of which the call takes nothing is not held against any cap: what is free may follow when all is spent.
        """
        found = self._reserve(claims, least, most, is_unpriced=is_unpriced)
        if isinstance(found, Shortage) and found.is_temporary and self.release_dead():
            return self._reserve(claims, least, most, is_unpriced=is_unpriced)
        return found

    def settle(self, reservation: Reservation, spent: Units, *, is_unpriced: bool = False) -> None:
        """Count what a call has really taken, in place of what was reserved for it. A second time, it has no effect.

        Where this process was taken for dead meanwhile, what was reserved counts already, and only what goes beyond is added.
        """
        with self._writing() as session:
            known = session.execute("DELETE FROM budget_reservations WHERE id = ?", (reservation.id,)).rowcount == 1
            reserved = reservation.granted if known else Units()
            added = spent if known else spent.beyond(reservation.granted)
            _move(session, reservation.scopes, reserved=reserved, spent=added, unpriced=int(is_unpriced and known))
        self._settled += 1
        if self._settled % _FORGOTTEN_EVERY == 0:
            self._forget()

    def count(self, scopes: Sequence[BudgetScope], spent: Units, *, is_unpriced: bool = False) -> None:
        """Count a call for which nothing was reserved, in a book that no other process uses.

        The amounts are written when the book is next read, so that a task without limits spends no time on it.
        """
        assert not self.is_shared, "other processes would not know of it"
        today = self._clock().date().isoformat()
        with self._counting:
            for scope in scopes:
                dated = BudgetScope("day", today) if scope == BudgetScope("day") else scope
                before, unpriced = self._counted.get(dated, (Units(), 0))
                self._counted[dated] = (before.plus(spent), unpriced + is_unpriced)

    def balance(self, scope: BudgetScope) -> Balance:
        """Return the balance of one scope; zero for an unknown one."""
        with self._reading() as session:
            return _balance(session, self._dated(session, scope))

    def balances(self) -> dict[BudgetScope, Balance]:
        """Return the balances of all scopes, the latest used last."""
        with self._reading() as session:
            rows = session.execute(f"SELECT kind, name, {_COLUMNS} FROM budgets ORDER BY used").fetchall()
        return {BudgetScope(kind, name): _read(row) for kind, name, *row in rows}

    def dollars_of_last(self, minutes: int) -> float:
        """Dollars of the calls that were made for the scope `minute` in the last `minutes`, by whatever process."""
        now = self._minute()
        with self._reading() as session:
            row = session.execute(_OF_MINUTES, (_minute_named(now - minutes), _minute_named(now + minutes))).fetchone()
        return Units(int(row[0]), 0, 0, 0).spent.dollars or 0.0

    def today(self) -> BudgetScope:
        """Return the day that calls are counted for now."""
        with self._reading() as session:
            return self._dated(session, BudgetScope("day"))

    def reset(self, scope: BudgetScope) -> None:
        """Forget what was spent in a scope. For the day, also that the clock was ever ahead of what it says now."""
        with self._writing() as session:
            name = self._clock().date().isoformat() if scope == BudgetScope("day") else scope.name
            condition = "kind = ? AND name >= ?" if scope == BudgetScope("day") else "kind = ? AND name = ?"
            session.execute(f"UPDATE budgets SET {_EMPTIED} WHERE {condition}", (scope.kind, name))
            if scope == BudgetScope("day"):
                session.execute("UPDATE budget_day SET latest = ?", (name,))

    def forget_tasks(self, tasks: Sequence[str]) -> None:
        """Remove what `tasks`, named by their ids, and their parts have spent. It still counts for their sessions, users and days."""
        with self._writing() as session:
            for task in tasks:
                parts = f"{task}/"
                condition = "kind = 'task' AND (name = ? OR (substr(name, 1, ?) = ? AND length(name) = ?))"
                session.execute(f"DELETE FROM budgets WHERE {condition}", (task, len(parts), parts, len(parts) + _PART_NAME))
        self._storage.scrub()

    def release_dead(self) -> int:
        """Count as spent what processes had reserved that have died; returns how many reservations that were."""
        released = 0
        with self._reading() as session:
            owners = [str(owner) for (owner,) in session.execute("SELECT DISTINCT owner FROM budget_reservations").fetchall()]
        for owner in owners:
            if self._storage.is_alive(owner):
                continue
            with self._reading() as session:
                rows = session.execute(_LEFT, (owner,)).fetchall()
            released += sum(self._is_released(*row) for row in rows)
        return released

    def close(self) -> None:
        self._storage.close()

    def _reserve(self, claims: Sequence[Claim], least: Units, most: Units, *, is_unpriced: bool) -> Reservation | Shortage:
        owner = self._storage.owner()
        with self._writing() as session:
            # In the order of their scopes, in which every process locks them, so that none waits for one that waits for it.
            dated = sorted((claim._replace(scope=self._dated(session, claim.scope)) for claim in claims), key=lambda claim: claim.scope)
            amounts = grant([(claim, _entered(session, claim.scope)) for claim in dated], least, most)
            if isinstance(amounts, Shortage):
                return amounts
            reservation = Reservation(uuid4().hex, tuple(claim.scope for claim in dated), amounts, is_unpriced)
            for claim in dated:
                _take(session, claim, amounts)
            row = (reservation.id, owner, json.dumps(reservation.scopes), *amounts, int(is_unpriced))
            session.execute("INSERT INTO budget_reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            return reservation

    def _is_released(self, identifier: str, scopes: str, unpriced: int, *granted: int) -> bool:
        """Return whether this process counted the reservation of a dead process, rather than another one at the same moment."""
        most = Units(*granted)
        with self._writing() as session:
            if not session.execute("DELETE FROM budget_reservations WHERE id = ?", (identifier,)).rowcount:
                return False
            _move(session, [BudgetScope(*scope) for scope in json.loads(scopes)], reserved=most, spent=most, unpriced=unpriced)
        return True

    @contextmanager
    def _writing(self) -> Iterator[DatabaseSession]:
        if self._counted:
            with self._storage.writing() as session:
                self._write_down(session)
        with self._storage.writing() as session:
            yield session

    def _reading(self) -> AbstractContextManager[DatabaseSession]:
        return self._writing() if self._counted else self._storage.reading()

    def _write_down(self, session: DatabaseSession) -> None:
        with self._counting:
            counted, self._counted = self._counted, {}
        for scope, (spent, unpriced) in sorted(counted.items()):
            dated = BudgetScope("day", max(scope.name, self._latest_day(session))) if scope.kind == "day" else scope
            _note_day(session, dated)
            _move(session, [dated], reserved=Units(), spent=spent, unpriced=unpriced)

    def _forget(self) -> None:
        """Delete the tasks and sessions that were not used for longest, except for those in use."""
        for kind in ("task", "session"):
            with self._writing() as session:
                session.execute(_FORGET, (kind, kind, _KEPT))
        with self._writing() as session:
            session.execute(_FORGET_MINUTES, (_minute_named(self._minute() - _KEPT_MINUTES),))

    def _dated(self, session: DatabaseSession, scope: BudgetScope) -> BudgetScope:
        """Return the scope itself, or the day or the minute that it is now."""
        if scope == BudgetScope("minute"):
            return BudgetScope("minute", _minute_named(self._minute()))
        if scope != BudgetScope("day"):
            return scope
        return BudgetScope("day", max(self._clock().date().isoformat(), self._latest_day(session)))

    def _minute(self) -> int:
        return int(self._clock().timestamp() // 60)

    def _latest_day(self, session: DatabaseSession) -> str:
        row = session.execute("SELECT latest FROM budget_day").fetchone()
        return "" if row is None else str(row[0])


def _minute_named(number: int) -> str:
    """Return the number with a fixed count of digits, so that names compare as text."""
    return f"{number:010d}"


def _entered(session: DatabaseSession, scope: BudgetScope) -> Balance:
    """Return the scope's balance, and lock it until the end of the transaction."""
    _note_day(session, scope)
    [row] = session.execute(_ENTER, scope).fetchall()
    return _read(row)


def _note_day(session: DatabaseSession, scope: BudgetScope) -> None:
    """Record the latest day seen: a day is never before it."""
    if scope.kind == "day":
        session.execute("UPDATE budget_day SET latest = ? WHERE latest < ?", (scope.name, scope.name))


def _take(session: DatabaseSession, claim: Claim, amounts: Units) -> None:
    """Reserve in one statement, which changes nothing where it would go beyond a cap."""
    caps = (_NO_CAP if cap is None or not amount else cap for cap, amount in zip(claim.caps, amounts, strict=True))
    guards = [part for pair in zip(amounts, caps, strict=True) for part in pair]
    taken = session.execute(_RESERVE, (*amounts, *claim.scope, *guards))
    assert taken.rowcount == 1, "the balance was read in the same transaction"


def _move(session: DatabaseSession, scopes: Iterable[BudgetScope], *, reserved: Units, spent: Units, unpriced: int) -> None:
    """Move amounts from reserved to spent."""
    for scope in scopes:
        session.execute(_SETTLE, (*scope, *spent, unpriced, *spent, *reserved, unpriced))


def grant(found: Sequence[tuple[Claim, Balance]], least: Units, most: Units) -> Units | Shortage:
    """Return the amounts that every scope has left, up to `most`. If a scope has less than `least`, return its shortage, a lasting one
    first."""
    amounts, short = list(most), list[Shortage]()
    for claim, balance in found:
        for place, cap in enumerate(claim.caps):
            if cap is None or not most[place]:
                continue
            left = cap - balance.spent[place] - balance.reserved[place]
            amounts[place] = min(amounts[place], left)
            is_unknown = MEASURES[place] == "dollars" and bool(balance.unpriced) and not claim.allows_unpriced
            if left < least[place] or is_unknown:
                short.append(Shortage(claim.scope.kind, MEASURES[place], cap, balance, least, is_unknown))
    return min(short, key=lambda shortage: shortage.is_temporary) if short else Units(*amounts)


def _balance(session: DatabaseSession, scope: BudgetScope) -> Balance:
    row = session.execute(f"SELECT {_COLUMNS} FROM budgets WHERE kind = ? AND name = ?", scope).fetchone()
    return Balance() if row is None else _read(row)


def _read(row: Sequence[int]) -> Balance:
    return Balance(Units(*row[:4]), Units(*row[4:8]), row[8])


def open_budgets(config: RunsConfig, *, clock: Callable[[], datetime] = datetime.now) -> BudgetBook:
    """Open the book that is shared by all processes which name the same folder or database.

    Reservations of dead processes are counted as spent. Raises `StoreUnavailable` or `StoreCorrupt`, and `ConfigError` if the address of
    a database is not set.
    """
    with ExitStack() as failing:
        book = BudgetBook(failing.enter_context(closing(_storage(config))), clock)
        book.release_dead()
        failing.pop_all()
    return book


def _storage(config: RunsConfig) -> SharedStorage:
    with ExitStack() as failing:
        if config.postgres_variable is None:
            owner = failing.enter_context(closing(Owner(config.folder / "owners")))
            owner.sweep()
            storage = SharedStorage(failing.enter_context(closing(SqliteDatabase(config.folder / "budgets.db", _NAMING))), owner)
        else:
            from ...protocols.secrets import secret
            from ..storage.postgres import PostgresDatabase

            database = failing.enter_context(closing(PostgresDatabase(secret(config.postgres_variable), what="budget book")))
            storage = SharedStorage(database, ServerOwner(database))
        failing.pop_all()
    return storage
