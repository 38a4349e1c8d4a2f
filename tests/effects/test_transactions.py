"""`effect_transaction`: what a tool writes is kept together with its result, or not at all."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from ledgers import Run, made

from nearfar import tool
from nearfar.orchestrator.runs import effects as transactions
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.runs.tool_calls import Overdue, RunningCall, effect_key, effect_transaction, run_unrecorded
from nearfar.orchestrator.storage import DatabaseSession
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.task.tools import Tool
from nearfar.protocols import InvalidRequest, ToolCall

pytestmark = pytest.mark.anyio


class Seats:
    """A table of seats. `file`: the database of the app's own that it is in; None: that of the runs."""

    def __init__(self, file: Path | None, open_store: Callable[[], RunStore]) -> None:
        self.file = file
        self._open_store = open_store
        with self._session() as session:
            session.execute("CREATE TABLE seats (seat TEXT PRIMARY KEY)")

    @property
    def booked(self) -> list[str]:
        with self._session() as session:
            return [seat for (seat,) in session.execute("SELECT seat FROM seats").fetchall()]

    @contextmanager
    def _session(self) -> Iterator[DatabaseSession]:
        if self.file is not None:
            with closing(sqlite3.connect(self.file)) as connection:
                yield connection
        else:
            with closing(self._open_store()) as store, store.database.writing() as session:
                yield session


@pytest.fixture(params=["the runs' own", "the app's"])
def seats(request: pytest.FixtureRequest, address: str | None, tmp_path: Path) -> Seats:
    file = None if request.param == "the runs' own" else tmp_path / "app.db"
    return Seats(file, lambda: RunStore.open(RunsConfig(folder=tmp_path / "runs"), address=address))


def booking(file: Path | None, *, fails: bool = False) -> Tool:
    @tool(effect="transactional")
    def book(seat: str) -> str:
        """Book a seat."""
        effect_transaction(file).execute("INSERT INTO seats VALUES (?)", (seat,))
        if fails:
            raise ValueError("no seat is left")
        return "booked"

    return book


async def test_what_a_tool_writes_is_there_when_it_has_returned(run: Run, seats: Seats) -> None:
    async with run.owner() as ledger:
        assert (await made(ledger, booking(seats.file), seat="1a")).content == "booked"
    async with run.owner() as ledger:
        assert (await made(ledger, booking(seats.file), seat="1a")).content == "booked"
    assert seats.booked == ["1a"]


async def test_nothing_of_what_a_tool_that_fails_has_written_is_there(run: Run, seats: Seats) -> None:
    async with run.owner() as ledger:
        assert (await made(ledger, booking(seats.file, fails=True), seat="1a")).is_error
    assert seats.booked == []


async def test_a_death_between_the_writes_and_the_ledger_repeats_nothing(run: Run, seats: Seats, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = RunningCall.run

    async def run_and_die(self: RunningCall, call: ToolCall) -> object:
        await plain(self, call)
        raise KeyboardInterrupt  # as the process ends: no handler of ours is in its way

    async with run.owner() as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(RunningCall, "run", run_and_die)
            with pytest.raises(KeyboardInterrupt):
                await made(ledger, booking(seats.file), seat="1a")
    assert seats.booked == ["1a"]
    async with run.owner() as ledger:
        assert (await made(ledger, booking(seats.file), seat="1a")).content == "booked"
    assert seats.booked == ["1a"]


@pytest.mark.parametrize("statement", ["COMMIT", " rollback", "end", "BEGIN", "START TRANSACTION"])
async def test_a_tool_cannot_end_the_transaction_itself(run: Run, seats: Seats, statement: str) -> None:
    @tool(effect="transactional")
    def meddle() -> str:
        """End the transaction early."""
        effect_transaction(seats.file).execute("INSERT INTO seats VALUES ('1a')")
        effect_transaction(seats.file).execute(statement)
        raise NotImplementedError

    async with run.owner() as ledger:
        assert "ended for the tool" in (await made(ledger, meddle)).content
    assert seats.booked == []


@pytest.mark.parametrize("statement", ["/* now */ COMMIT", "ATTACH 'x.db' AS x", "SAVEPOINT x; ROLLBACK"])
async def test_nor_by_a_statement_that_hides_it_from_sight(run: Run, tmp_path: Path, statement: str) -> None:
    @tool(effect="transactional")
    def meddle() -> str:
        """End the transaction early."""
        effect_transaction(tmp_path / "app.db").execute("CREATE TABLE seats (seat TEXT)")
        effect_transaction(tmp_path / "app.db").execute(statement)
        raise NotImplementedError

    async with run.owner() as ledger:
        assert (await made(ledger, meddle)).is_error
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []


@pytest.mark.parametrize("is_caught", [False, True])
async def test_after_a_rollback_by_sqlite_itself_nothing_is_kept(run: Run, tmp_path: Path, is_caught: bool) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE seats (seat TEXT PRIMARY KEY)")
        connection.execute("CREATE TRIGGER limits BEFORE INSERT ON seats WHEN NEW.seat = '13' BEGIN SELECT RAISE(ROLLBACK, 'none'); END")

    @tool(effect="transactional")
    def book() -> str:
        """Book seats, and take no notice of one that there is none of."""
        seats = effect_transaction(tmp_path / "app.db")
        seats.execute("INSERT INTO seats VALUES ('12')")
        with suppress(sqlite3.IntegrityError):
            seats.execute("INSERT INTO seats VALUES ('13')")
        with suppress(InvalidRequest) if is_caught else nullcontext():
            seats.execute("INSERT INTO seats VALUES ('14')")
        return "booked"

    async with run.owner() as ledger:
        result = await made(ledger, book)
    assert result.is_error
    assert "rolled its transaction back" in result.content
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute("SELECT * FROM seats").fetchall() == []


async def test_a_tool_that_ran_out_of_time_writes_nothing_afterwards(run: Run, seats: Seats) -> None:
    has_begun, may_take_over, has_ended = threading.Event(), threading.Event(), threading.Event()
    late: list[Exception] = []

    @tool(effect="transactional", time_limit=0.2)
    def book(seat: str) -> str:
        """Book a seat, too late."""
        connection = effect_transaction(seats.file)
        has_begun.set()
        may_take_over.wait(10)
        try:
            connection.execute("INSERT INTO seats VALUES (?)", (seat,))
        except InvalidRequest as error:
            late.append(error)
        finally:
            has_ended.set()
        return "booked"

    async with run.owner() as ledger:
        assert "longer than its limit" in (await made(ledger, book, seat="1a")).content
        may_take_over.set()
        assert has_ended.wait(10)
    assert has_begun.is_set()
    assert len(late) == 1
    assert seats.booked == []


async def test_a_tool_that_ran_out_of_time_begins_no_transaction_afterwards(run: Run, seats: Seats) -> None:
    may_take_over, has_ended = threading.Event(), threading.Event()
    late: list[Exception] = []

    @tool(effect="transactional", time_limit=0.05)
    def book(seat: str) -> str:
        """Book a seat, too late."""
        may_take_over.wait(10)
        try:
            effect_transaction(seats.file).execute("INSERT INTO seats VALUES (?)", (seat,))
        except InvalidRequest as error:
            late.append(error)
        finally:
            has_ended.set()
        return "booked"

    async with run.owner() as ledger:
        assert "longer than its limit" in (await made(ledger, book, seat="1a")).content
        may_take_over.set()
        assert has_ended.wait(10)
        assert len(late) == 1


async def test_a_transaction_that_stays_open_is_dropped_for_the_sake_of_others(
    run: Run, seats: Seats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "LONGEST", 0.2)

    @tool(effect="transactional")
    def book(seat: str, *, notices: bool) -> str:
        """Book a seat, and dawdle."""
        connection = effect_transaction(seats.file)
        connection.execute("INSERT INTO seats VALUES (?)", (seat,))
        with suppress(InvalidRequest):
            while True:
                connection.execute("SELECT 1")
        if notices:
            raise ValueError("too late")
        return "booked"

    async with run.owner() as ledger:
        assert "too late" in (await made(ledger, book, seat="1a", notices=True)).content
        result = await made(ledger, book, seat="1b", notices=False)
        assert result.is_error
        assert "open for more than" in result.content
    assert seats.booked == []


async def test_an_event_loop_is_not_made_to_wait_for_a_transaction(run: Run, seats: Seats) -> None:
    @tool(effect="transactional")
    async def hasty(seat: str) -> str:
        """Book a seat."""
        effect_transaction(seats.file)
        return seat

    @tool(effect="transactional")
    async def patient(seat: str) -> str:
        """Book a seat."""
        connection = await asyncio.to_thread(effect_transaction, seats.file)
        await asyncio.to_thread(connection.execute, "INSERT INTO seats VALUES (?)", (seat,))
        return seat

    async with run.owner() as ledger, anyio.create_task_group() as calling:
        assert "to_thread" in (await made(ledger, hasty, seat="1a")).content
        for seat in ("1b", "1c", "1d"):
            calling.start_soon(partial(made, ledger, patient, seat=seat))
    assert sorted(seats.booked) == ["1b", "1c", "1d"]


async def test_what_breaks_the_databases_rules_is_the_tools_failure(run: Run, seats: Seats) -> None:
    async with run.owner() as ledger:
        assert (await made(ledger, booking(seats.file), seat="1a")).content == "booked"
        assert "unique" in (await made(ledger, booking(seats.file), seat="1a", times=2)).content.casefold()
    assert seats.booked == ["1a"]


async def test_writes_that_cannot_be_kept_in_the_end_are_the_tools_failure_too(run: Run, tmp_path: Path) -> None:
    app = tmp_path / "app.db"
    with closing(sqlite3.connect(app)) as connection:
        connection.execute("CREATE TABLE marks (seat TEXT)")

    @tool(effect="transactional")
    def book(seat: str) -> str:
        """Book a seat, and break the table in which the result is kept."""
        effect_transaction(app).execute("INSERT INTO marks VALUES (?)", (seat,))
        effect_transaction(app).execute("DROP TABLE nearfar_effects")
        return "booked"

    async with run.owner() as ledger:
        assert "the tool's writes were dropped" in (await made(ledger, book, seat="1a")).content
    with closing(sqlite3.connect(app)) as connection:
        assert connection.execute("SELECT * FROM marks").fetchall() == []


async def test_a_call_writes_into_one_database(run: Run, tmp_path: Path) -> None:
    @tool(effect="transactional")
    def both() -> str:
        """Write into two files."""
        effect_transaction(tmp_path / "one.db")
        effect_transaction(tmp_path / "other.db")
        raise NotImplementedError

    async with run.owner() as ledger:
        assert "one database" in (await made(ledger, both)).content


async def test_only_a_transactional_tool_gets_a_transaction(run: Run) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        effect_transaction()
        raise NotImplementedError

    async with run.owner() as ledger:
        assert "not declared" in (await made(ledger, pay)).content


async def test_without_a_durable_run_a_file_of_the_apps_own_serves(tmp_path: Path) -> None:
    @tool(effect="transactional")
    def note(text: str) -> str:
        """Write a note."""
        effect_transaction(tmp_path / "app.db").execute("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        effect_transaction(tmp_path / "app.db").execute("INSERT INTO notes VALUES (?)", (text,))
        return "written"

    call = ToolCall(id="1", name="note", arguments={"text": "hi"})
    for ordinal in range(2):
        assert (await run_unrecorded(call, note, action="note", key=str(ordinal), overdue=Overdue())).content == "written"
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("hi",), ("hi",)]
    call = ToolCall(id="1", name="book", arguments={"seat": "1a"})
    refused = await run_unrecorded(call, booking(None), action="book", key="3", overdue=Overdue())
    assert "no durable run" in refused.content


def test_outside_of_a_tool_there_is_neither_key_nor_transaction() -> None:
    for ask in (effect_key, effect_transaction):
        with pytest.raises(InvalidRequest, match="outside of a tool"):
            ask()
