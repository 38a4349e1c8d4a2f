"""`effect_transaction`: what a tool writes is kept together with its result, or not at all."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import Run, made

from nearfar.orchestrator import tool
from nearfar.orchestrator.effects import effect_key, effect_transaction
from nearfar.orchestrator.effects.running import RunningCall, run_unrecorded
from nearfar.orchestrator.tools import Tool
from nearfar.protocols import InvalidRequest, ToolCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "runs.db")


@pytest.fixture(params=["the runs' own", "the app's"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "the runs' own" else tmp_path / "app.db"


def booking(file: Path | None, *, fails: bool = False) -> Tool:
    @tool(effect="transactional")
    def book(seat: str) -> str:
        """Book a seat."""
        connection = effect_transaction(file)
        connection.execute("CREATE TABLE IF NOT EXISTS seats (seat TEXT)")
        connection.execute("INSERT INTO seats VALUES (?)", (seat,))
        if fails:
            raise ValueError("no seat is left")
        return "booked"

    return book


def seats(tmp_path: Path, file: Path | None) -> list[str]:
    with closing(sqlite3.connect(file or tmp_path / "runs.db")) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seats'").fetchone():
            return []
        return [seat for (seat,) in connection.execute("SELECT seat FROM seats")]


async def test_what_a_tool_writes_is_there_when_it_has_returned(run: Run, tmp_path: Path, file: Path | None) -> None:
    with run.owner() as ledger:
        assert (await made(ledger, booking(file), seat="1a")).content == "booked"
    with run.owner() as ledger:
        assert (await made(ledger, booking(file), seat="1a")).content == "booked"
    assert seats(tmp_path, file) == ["1a"]


async def test_nothing_of_what_a_tool_that_fails_has_written_is_there(run: Run, tmp_path: Path, file: Path | None) -> None:
    with run.owner() as ledger:
        assert (await made(ledger, booking(file, fails=True), seat="1a")).is_error
    assert seats(tmp_path, file) == []


async def test_a_death_between_the_writes_and_the_ledger_repeats_nothing(
    run: Run, tmp_path: Path, file: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RunningCall.run

    async def run_and_die(self: RunningCall, call: ToolCall) -> object:
        await plain(self, call)
        raise KeyboardInterrupt  # as the process ends: no handler of ours is in its way

    with run.owner() as ledger, monkeypatch.context() as patch:
        patch.setattr(RunningCall, "run", run_and_die)
        with pytest.raises(KeyboardInterrupt):
            await made(ledger, booking(file), seat="1a")
    assert seats(tmp_path, file) == ["1a"]
    with run.owner() as ledger:
        assert (await made(ledger, booking(file), seat="1a")).content == "booked"
    assert seats(tmp_path, file) == ["1a"]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "ATTACH 'x.db' AS x", "BEGIN"])
async def test_a_tool_cannot_end_the_transaction_itself(run: Run, tmp_path: Path, file: Path | None, statement: str) -> None:
    @tool(effect="transactional")
    def meddle() -> str:
        """End the transaction early."""
        effect_transaction(file).execute("CREATE TABLE seats (seat TEXT)")
        effect_transaction(file).execute(statement)
        raise NotImplementedError

    with run.owner() as ledger:
        assert "authorized" in (await made(ledger, meddle)).content
    assert seats(tmp_path, file) == []


async def test_a_tool_that_ran_out_of_time_writes_nothing_afterwards(run: Run, tmp_path: Path, file: Path | None) -> None:
    has_begun, may_go_on, has_ended = threading.Event(), threading.Event(), threading.Event()
    late: list[Exception] = []

    @tool(effect="transactional", time_limit=0.2)
    def book(seat: str) -> str:
        """Book a seat, too late."""
        connection = effect_transaction(file)
        connection.execute("CREATE TABLE IF NOT EXISTS seats (seat TEXT)")
        has_begun.set()
        may_go_on.wait(10)
        try:
            connection.execute("INSERT INTO seats VALUES (?)", (seat,))
        except InvalidRequest as error:
            late.append(error)
        finally:
            has_ended.set()
        return "booked"

    with run.owner() as ledger:
        assert "longer than its limit" in (await made(ledger, book, seat="1a")).content
        may_go_on.set()
        assert has_ended.wait(10)
    assert has_begun.is_set()
    assert len(late) == 1
    assert seats(tmp_path, file) == []


async def test_writes_that_cannot_be_kept_are_the_tools_failure(run: Run, tmp_path: Path) -> None:
    app = tmp_path / "app.db"
    with closing(sqlite3.connect(app)) as connection:
        connection.execute("CREATE TABLE seats (seat TEXT PRIMARY KEY)")
        connection.execute("CREATE TABLE bookings (seat TEXT REFERENCES seats DEFERRABLE INITIALLY DEFERRED)")

    @tool(effect="transactional")
    def book(seat: str) -> str:
        """Book a seat that there is not."""
        effect_transaction(app).execute("INSERT INTO bookings VALUES (?)", (seat,))
        effect_transaction(app).execute("INSERT INTO seats VALUES (?)", (seat,))
        effect_transaction(app).execute("INSERT INTO seats VALUES (?)", (seat,))
        raise NotImplementedError

    with run.owner() as ledger:
        assert "UNIQUE" in (await made(ledger, book, seat="1a")).content
    assert seats(tmp_path, app) == []


async def test_a_call_writes_into_one_database(run: Run, tmp_path: Path) -> None:
    @tool(effect="transactional")
    def both() -> str:
        """Write into two files."""
        effect_transaction(tmp_path / "one.db")
        effect_transaction(tmp_path / "other.db")
        raise NotImplementedError

    with run.owner() as ledger:
        assert "one database" in (await made(ledger, both)).content


async def test_only_a_transactional_tool_gets_a_transaction(run: Run) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        effect_transaction()
        raise NotImplementedError

    with run.owner() as ledger:
        assert "not declared" in (await made(ledger, pay)).content


async def test_without_a_durable_run_a_file_of_the_apps_own_serves(tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    call = ToolCall(id="1", name="book", arguments={"seat": "1a"})
    assert (await run_unrecorded(call, booking(file))).content == "booked"
    assert (await run_unrecorded(call, booking(file))).content == "booked"
    assert seats(tmp_path, file) == ["1a", "1a"]
    assert "no durable run" in (await run_unrecorded(call, booking(None))).content


def test_outside_of_a_tool_there_is_neither_key_nor_transaction() -> None:
    for ask in (effect_key, effect_transaction):
        with pytest.raises(InvalidRequest, match="outside of a tool"):
            ask()
