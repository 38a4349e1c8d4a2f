"""A book of budgets, in a process, in a file and in Postgres: the same behaviour."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from nearfar.orchestrator.budgets import Balance, BudgetBook, BudgetScope, Caps, Claim, Reservation, Shortage, Units, open_budgets
from nearfar.orchestrator.budgets.storage import MemoryStorage
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import StoreUnavailable

NOON = datetime(2026, 11, 18, 12)
DAY = Claim(BudgetScope("day"), Caps(tokens=100))
Opening = Callable[[], BudgetBook]

WORK = """
import sys
from nearfar.orchestrator.budgets import Caps, Units
from nearfar.orchestrator.budgets import Claim, BudgetScope
from nearfar.orchestrator.budgets import open_budgets
from nearfar.orchestrator.task.stores import RunsConfig

book = open_budgets(RunsConfig.model_validate_json(sys.argv[1]))
claims = [Claim(BudgetScope("user", "ana"), Caps(tokens=100))]
book.settle(book.reserve(claims, least=Units(tokens=30), most=Units(tokens=30)), Units(tokens=10))
book.reserve(claims, least=Units(tokens=30), most=Units(tokens=30))
print("reserved", flush=True)
sys.stdin.read()
"""

SPEND = """
import sys
from nearfar.orchestrator.budgets import Caps, Units
from nearfar.orchestrator.budgets import Claim, Reservation, BudgetScope
from nearfar.orchestrator.budgets import open_budgets
from nearfar.orchestrator.task.stores import RunsConfig

book = open_budgets(RunsConfig.model_validate_json(sys.argv[1]))
claims, amount, granted = [Claim(BudgetScope("user", "ana"), Caps(tokens=300))], Units(tokens=5), 0
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    found = book.reserve(claims, least=amount, most=amount)
    if isinstance(found, Reservation):
        granted += 1
        book.settle(found, amount)
book.close()
print(granted, flush=True)
"""


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def reserved(book: BudgetBook, *claims: Claim, tokens: int, least: int | None = None) -> Reservation:
    found = book.reserve(claims, least=Units(tokens=tokens if least is None else least), most=Units(tokens=tokens))
    assert isinstance(found, Reservation)
    return found


@pytest.fixture(params=["file", "postgres"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunsConfig:
    if request.param == "file":
        return RunsConfig(folder=tmp_path)
    monkeypatch.setenv("RUNS_DATABASE", request.getfixturevalue("postgres_database"))
    return RunsConfig(postgres_variable="RUNS_DATABASE")


@pytest.fixture
def opened(config: RunsConfig) -> Iterator[Opening]:
    """Opens the book of another process, each time."""
    with ExitStack() as stack:

        def opening() -> BudgetBook:
            book = open_budgets(config, clock=lambda: NOON)
            stack.callback(book.close)
            return book

        yield opening


def test_what_one_process_has_reserved_another_one_cannot_have(opened: Opening) -> None:
    one, other = opened(), opened()
    held = reserved(one, DAY, tokens=70)
    assert reserved(other, DAY, tokens=70, least=1).granted.tokens == 30
    found = other.reserve([DAY], least=Units(tokens=1), most=Units(tokens=1))
    assert isinstance(found, Shortage)
    assert (found.kind, found.measure, found.cap, found.is_temporary) == ("day", "tokens", 100, True)
    one.settle(held, Units(tokens=5))
    assert reserved(other, DAY, tokens=65).granted.tokens == 65


def test_all_scopes_are_charged_or_none(opened: Opening) -> None:
    book = opened()
    narrow = Claim(BudgetScope("task", "a"), Caps(tokens=10))
    assert isinstance(book.reserve([DAY, narrow], least=Units(tokens=11), most=Units(tokens=11)), Shortage)
    assert not any(any(balance.reserved) for balance in book.balances().values())


def test_what_a_task_has_spent_is_forgotten_with_its_parts_and_still_counts_for_its_day(opened: Opening) -> None:
    book = opened()
    tasks = ["a", f"a/{uuid4().hex}", "a/b", "ab"]
    for task in tasks:
        book.settle(reserved(book, DAY, Claim(BudgetScope("task", task), Caps()), tokens=10), Units(tokens=10))
    book.forget_tasks(["a", "unknown"])
    assert [scope.name for scope in book.balances() if scope.kind == "task"] == ["a/b", "ab"]
    assert book.balance(BudgetScope("day")).spent.tokens == 40


def test_every_process_knows_what_all_of_them_were_billed_in_the_last_hour(config: RunsConfig) -> None:
    moment = [NOON]
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(open_budgets(config, clock=lambda: moment[0]))) for _ in range(2))
        for minutes, dollars, known in ((0, 1, 1.0), (50, 2, 3.0), (20, 0, 2.0), (90, 4, 4.0)):
            moment[0] += timedelta(minutes=minutes)
            found = one.reserve([Claim(BudgetScope("minute"))], least=Units(), most=Units(dollars=5 * 10**9))
            assert isinstance(found, Reservation)
            one.settle(found, Units(dollars=dollars * 10**9))
            assert other.dollars_of_last(60) == known


def test_what_was_spent_is_known_when_the_book_is_opened_again(opened: Opening) -> None:
    book = opened()
    book.settle(reserved(book, DAY, tokens=70), Units(tokens=64))
    book.close()
    assert opened().balance(BudgetScope("day")) == Balance(spent=Units(tokens=64))


def test_what_a_process_had_reserved_that_was_closed_counts_as_spent(opened: Opening) -> None:
    book = opened()
    held = reserved(book, DAY, tokens=70)
    book.close()
    again = opened()
    assert again.balance(BudgetScope("day")) == Balance(spent=Units(tokens=70))
    again.settle(held, Units(tokens=75))  # it was not as dead as it seemed, and took more
    assert again.balance(BudgetScope("day")) == Balance(spent=Units(tokens=75))


def test_what_a_process_had_reserved_that_was_killed_counts_as_spent_and_what_it_had_settled_stays(config: RunsConfig) -> None:
    command = [sys.executable, "-c", WORK, config.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "reserved\n"
        book = open_budgets(config)
        assert book.balance(BudgetScope("user", "ana")) == Balance(spent=Units(tokens=10), reserved=Units(tokens=30))
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(timeout=30)
    claim = Claim(BudgetScope("user", "ana"), Caps(tokens=100))
    assert isinstance(book.reserve([claim], least=Units(tokens=61), most=Units(tokens=61)), Shortage)
    while book.balance(claim.scope).spent.tokens < 40:  # a server takes a moment to notice
        book.release_dead()
    assert not any(book.balance(claim.scope).reserved)
    assert reserved(book, claim, tokens=60).granted.tokens == 60
    book.close()


def test_a_process_that_the_server_has_lost_goes_on_and_what_it_had_reserved_counts(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setenv("RUNS_DATABASE", postgres_database)
    book = open_budgets(RunsConfig(postgres_variable="RUNS_DATABASE"), clock=lambda: NOON)
    held = reserved(book, DAY, tokens=30)
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        found = (
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert connection.execute(found).fetchall()
    again = reserved(book, DAY, tokens=50)
    assert book.release_dead() == 1
    assert book.balance(BudgetScope("day")) == Balance(spent=Units(tokens=30), reserved=Units(tokens=50))
    book.settle(again, Units(tokens=20))
    book.settle(held, Units(tokens=10))  # it counts as the most already
    assert book.balance(BudgetScope("day")) == Balance(spent=Units(tokens=50))
    book.close()


def test_processes_that_spend_at_the_same_time_get_to_the_cap_and_no_further(config: RunsConfig) -> None:
    command = [sys.executable, "-c", SPEND, config.model_dump_json()]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        workers = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)) for _ in range(4)]
        assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["ready\n"] * 4
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        granted = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert sum(granted) == 60
    book = open_budgets(config)
    assert book.balance(BudgetScope("user", "ana")) == Balance(spent=Units(tokens=300))
    book.close()


def test_a_clock_that_is_set_back_gives_nothing_back_and_a_reset_forgives_one_that_was_ahead() -> None:
    clock = Clock()
    book = BudgetBook(MemoryStorage(), clock)
    book.settle(reserved(book, DAY, tokens=100), Units(tokens=100))
    clock.now -= timedelta(days=1)
    assert book.today() == BudgetScope("day", "2026-11-18")
    assert isinstance(book.reserve([DAY], least=Units(tokens=1), most=Units(tokens=1)), Shortage)
    clock.now += timedelta(days=366)
    book.settle(reserved(book, DAY, tokens=100), Units(tokens=100))
    clock.now -= timedelta(days=365)
    assert isinstance(book.reserve([DAY], least=Units(tokens=1), most=Units(tokens=1)), Shortage)
    book.reset(BudgetScope("day"))
    assert book.today() == BudgetScope("day", "2026-11-18")
    assert reserved(book, DAY, tokens=100).granted.tokens == 100


def test_a_call_counts_for_the_day_on_which_it_began() -> None:
    clock = Clock()
    book = BudgetBook(MemoryStorage(), clock)
    held = reserved(book, DAY, tokens=70)
    clock.now += timedelta(days=1)
    book.settle(held, Units(tokens=60))
    assert book.balance(BudgetScope("day", "2026-11-18")).spent.tokens == 60
    assert reserved(book, DAY, tokens=100).granted.tokens == 100


def test_the_tasks_that_were_used_last_are_kept_and_users_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.orchestrator.budgets._KEPT", 3)
    monkeypatch.setattr("nearfar.orchestrator.budgets._FORGOTTEN_EVERY", 10)
    book = BudgetBook(MemoryStorage())
    under_way = reserved(book, Claim(BudgetScope("task", "under way")), tokens=1)
    for number in range(10):
        claims = [Claim(BudgetScope("task", str(number))), Claim(BudgetScope("user", str(number)))]
        book.settle(reserved(book, *claims, tokens=1), Units(tokens=1))
    kept = list(book.balances())
    assert [scope.name for scope in kept if scope.kind == "task"] == ["under way", "7", "8", "9"]
    assert len([scope for scope in kept if scope.kind == "user"]) == 10
    book.settle(under_way, Units(tokens=1))


def test_more_than_was_reserved_is_counted_all_the_same() -> None:
    book = BudgetBook(MemoryStorage())
    book.settle(reserved(book, DAY, tokens=70), Units(tokens=110))
    assert book.balance(BudgetScope("day")).spent.tokens == 110
    found = book.reserve([DAY], least=Units(tokens=1), most=Units(tokens=1))
    assert isinstance(found, Shortage)
    assert not found.is_temporary


def test_a_folder_that_cannot_be_written_is_an_error_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    with pytest.raises(StoreUnavailable):
        open_budgets(RunsConfig(folder=tmp_path / "runs"))
