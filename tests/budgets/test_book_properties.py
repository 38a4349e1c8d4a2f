"""Whatever processes reserve, settle and die in whatever order, and whatever the clock says: no cap is exceeded, no expense is lost."""

import shutil
import tempfile
from datetime import date, datetime, timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from nearfar.orchestrator.budgets import BudgetBook, BudgetScope, Caps, Claim, Reservation, Shortage, Units, open_budgets
from nearfar.orchestrator.task.stores import RunsConfig

CAPS = {"task": Caps(dollars=300, tokens=50), "session": Caps(tokens=120), "user": Caps(seconds=200), "day": Caps(dollars=1000, joules=90)}
AMOUNTS = st.builds(Units, *[st.integers(0, 60)] * 4)
SCOPES = st.lists(
    st.sampled_from([BudgetScope("task", "a"), BudgetScope("task", "b"), BudgetScope("session", "a"), BudgetScope("user", "ana")]),
    unique=True,
)


class Books(RuleBasedStateMachine):
    """Books of several processes over one file, beside a ledger in which nothing is clever."""

    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = datetime(2026, 11, 18, 12)
        self.latest = date.min
        self.processes = [self.started(), self.started()]
        self.spent: dict[BudgetScope, Units] = {}
        self.held: dict[str, tuple[BudgetBook, Reservation]] = {}

    def started(self) -> BudgetBook:
        return open_budgets(RunsConfig(folder=self.folder), clock=lambda: self.now)

    @rule(target=reservations, process=st.integers(0, 1), scopes=SCOPES, least=AMOUNTS, more=AMOUNTS)
    def reserve(self, process: int, scopes: list[BudgetScope], least: Units, more: Units) -> object:
        self.latest = max(self.latest, self.now.date())
        claims = [Claim(scope, CAPS[scope.kind]) for scope in (*scopes, BudgetScope("day"))]
        book, most = self.processes[process], least.plus(more)
        found = book.reserve(claims, least=least, most=most)
        if isinstance(found, Shortage):
            return multiple()
        assert all(low <= given <= high for low, given, high in zip(least, found.granted, most, strict=True))
        assert BudgetScope("day", self.latest.isoformat()) in found.scopes
        self.held[found.id] = (book, found)
        return found.id

    @rule(name=consumes(reservations), shares=st.tuples(*[st.floats(0, 1)] * 4))
    def settle(self, name: str, shares: tuple[float, ...]) -> None:
        if name in self.held:  # else its process is dead
            book, reservation = self.held.pop(name)
            taken = Units(*(int(share * granted) for share, granted in zip(shares, reservation.granted, strict=True)))
            book.settle(reservation, taken)
            book.settle(reservation, taken)  # a second time changes nothing
            self.count(reservation, taken)

    @rule(process=st.integers(0, 1))
    def die(self, process: int) -> None:
        dead = self.processes[process]
        dead.close()  # which counts nothing, as when the process is killed
        for _, reservation in [each for each in self.held.values() if each[0] is dead]:
            del self.held[reservation.id]
            self.count(reservation, reservation.granted)
        self.processes[process] = self.started()

    @rule(days=st.integers(-2, 2))
    def turn_the_clock(self, days: int) -> None:
        self.now += timedelta(days=days)

    @invariant()
    def nothing_is_lost_and_no_cap_exceeded(self) -> None:
        book = self.processes[0]
        book.release_dead()
        balances = book.balances()
        assert {scope: balance.spent for scope, balance in balances.items() if any(balance.spent)} == {
            scope: spent for scope, spent in self.spent.items() if any(spent)
        }
        for scope, balance in balances.items():
            reserved = [reservation.granted for _, reservation in self.held.values() if scope in reservation.scopes]
            assert balance.reserved == Units(*map(sum, zip(*reserved, strict=True))) if reserved else not any(balance.reserved)
            for cap, amount in zip(CAPS[scope.kind], balance.spent.plus(balance.reserved), strict=True):
                assert cap is None or amount <= cap

    def teardown(self) -> None:
        for book in self.processes:
            book.close()
        shutil.rmtree(self.folder)

    def count(self, reservation: Reservation, taken: Units) -> None:
        for scope in reservation.scopes:
            self.spent[scope] = self.spent.get(scope, Units()).plus(taken)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
