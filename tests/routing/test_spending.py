"""What the router knows of the limits on what tasks may spend."""

from datetime import datetime, timedelta

from situations import NOON, task

from nearfar.orchestrator.budgets import BudgetBook, BudgetScope, Caps, Claim, Reservation, Units
from nearfar.orchestrator.budgets.storage import MemoryStorage
from nearfar.orchestrator.routing.eligibility import Spending


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def spend(book: BudgetBook, *scopes: BudgetScope, dollars: float, is_unpriced: bool = False) -> None:
    amount = Units(dollars=round(dollars * 1e9))
    reservation = book.reserve([Claim(scope, Caps()) for scope in scopes], least=amount, most=amount, is_unpriced=is_unpriced)
    assert isinstance(reservation, Reservation)
    book.settle(reservation, amount, is_unpriced=is_unpriced)


def test_a_new_day_begins_with_a_full_purse() -> None:
    clock = Clock()
    book, asked = BudgetBook(MemoryStorage(), clock), task(policy={"limits": {"day": {"dollars": 1}}})
    spend(book, BudgetScope("day"), dollars=0.75)
    assert Spending(book).share_left(asked) == 0.25
    clock.now += timedelta(days=1)
    assert Spending(book).share_left(asked) == 1.0


def test_an_expense_of_unknown_price_leaves_nothing_of_a_dollar_limit_unless_the_policy_allows_it() -> None:
    book = BudgetBook(MemoryStorage())
    spend(book, BudgetScope("day"), dollars=0, is_unpriced=True)
    assert Spending(book).share_left(task(policy={"limits": {"day": {"dollars": 1}}})) == 0.0
    assert Spending(book).share_left(task(policy={"limits": {"day": {"dollars": 1}, "unknown_price": "allow"}})) == 1.0


def test_the_least_that_is_left_counts_of_session_user_and_day() -> None:
    book = BudgetBook(MemoryStorage())
    spend(book, BudgetScope("user", "ana"), BudgetScope("day"), dollars=0.5)
    limits = {"user": {"dollars": 1}, "day": {"dollars": 10}, "session": {"dollars": 1}}
    assert Spending(book).share_left(task(policy={"limits": limits}, user="ana")) == 0.5
    assert Spending(book).share_left(task(policy={"limits": limits}, user="ben")) == 0.95
    assert Spending(book).share_left(task(policy={"limits": {}})) is None
