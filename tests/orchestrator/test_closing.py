"""Closing a `Hybrid`: twice, at the same time, and interrupted; whatever comes, nothing that it opened stays open."""

import asyncio
import gc
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from nearfar import ApprovalRequest, Hybrid, Records, ToolCall, tool
from nearfar.orchestrator.task.stores import MemoryConfig
from nearfar.protocols import ScriptedAgent, StoreUnavailable, Unavailable

pytestmark = pytest.mark.anyio


def open_files(folder: Path) -> list[str]:
    gc.collect()
    return [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(folder)]


def of_a_newer_nearfar(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE parts SET version = 99")


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def hybrid_in(folder: Path) -> Hybrid:
    memory = MemoryConfig(path=folder / "memory.db", embed=False)
    return Hybrid(near=ScriptedAgent(["hi"]), records=Records(folder, cache=folder / "cache.db"), memory=memory)


async def test_several_may_close_a_hybrid_at_the_same_time(tmp_path: Path) -> None:
    hybrid = hybrid_in(tmp_path)
    await hybrid.run("Greet me.")
    await asyncio.gather(*(hybrid.aclose() for _ in range(3)))
    assert open_files(tmp_path) == []


async def test_closing_goes_on_where_it_is_interrupted(tmp_path: Path) -> None:
    hybrid = hybrid_in(tmp_path)
    await hybrid.run("Greet me.")
    ending = asyncio.create_task(hybrid.aclose())
    asyncio.get_running_loop().call_soon(ending.cancel)
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("file", ["budgets.db", "privacy.db", "traces.db", "runs.db"])
@pytest.mark.parametrize("spoil", [of_a_newer_nearfar, replaced_by_a_folder])
async def test_records_of_which_one_cannot_be_opened_leave_no_file_open(tmp_path: Path, file: str, spoil: Callable[[Path], None]) -> None:
    async with hybrid_in(tmp_path) as hybrid:
        await hybrid.run("Greet me.")
    spoil(tmp_path / file)
    with suppress(StoreUnavailable):  # a task is served without its trace
        await hybrid_in(tmp_path).aclose()
    assert open_files(tmp_path) == []


async def test_a_closed_hybrid_says_so_whatever_is_asked_of_it(tmp_path: Path) -> None:
    async with hybrid_in(tmp_path) as hybrid:
        result = await hybrid.run("Greet me.")
    for asked in (hybrid.run("Greet me."), anext(hybrid.stream("Greet me.")), hybrid.resume(result.id), hybrid.__aenter__()):
        with pytest.raises(Unavailable, match="this Hybrid is closed"):
            await asked


class HangingApprover:
    """Is asked, and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __call__(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        self.asked.set()
        await asyncio.Event().wait()
        return {}


async def yes(requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
    return {request.id: True for request in requests}


@tool(approval=True)
def pay(cents: int) -> str:
    """Pay an amount."""
    return f"paid {cents}"


def paying(records: Path | None) -> Hybrid:
    return Hybrid(near=ScriptedAgent([ToolCall(id="1", name="pay", arguments={"cents": 5}), "It is paid."]), tools=[pay], records=records)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_closing_ends_a_task_that_waits_for_its_approver(tmp_path: Path, is_durable: bool) -> None:
    approver = HangingApprover()
    async with paying(tmp_path if is_durable else None) as hybrid:
        task = asyncio.create_task(hybrid.run("Pay.", approver=approver))
        await approver.asked.wait()
    with pytest.raises(Unavailable, match="its Hybrid was closed"):
        await task


async def test_a_run_that_closing_ended_is_resumed_by_another_hybrid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    approver = HangingApprover()
    async with paying(tmp_path) as hybrid:
        task = asyncio.create_task(hybrid.run("Pay.", approver=approver, idempotency_key="rent"))
        await approver.asked.wait()
    with pytest.raises(Unavailable):
        await task
    assert caplog.messages == []
    async with Hybrid(near=ScriptedAgent(["It is paid."]), tools=[pay], records=tmp_path) as another:
        result = await another.resume("rent", approver=yes)
    assert (result.text, result.tool_calls[0].result) == ("It is paid.", "paid 5")


async def test_closing_ends_a_stream_whose_task_waits_for_its_approver() -> None:
    approver = HangingApprover()
    hybrid = paying(None)

    async def read() -> None:
        async for _ in hybrid.stream("Pay.", approver=approver):
            pass

    reading = asyncio.create_task(read())
    await approver.asked.wait()
    await hybrid.aclose()
    with pytest.raises(Unavailable, match="its Hybrid was closed"):
        await reading


async def test_a_stream_that_is_not_read_on_does_not_keep_its_hybrid_open(tmp_path: Path) -> None:
    hybrid = paying(tmp_path)
    events = hybrid.stream("Pay.", approver=HangingApprover())
    await anext(events)
    await hybrid.aclose()
    with pytest.raises(Unavailable, match="its Hybrid was closed"):
        async for _ in events:
            pass


async def test_an_approver_that_closes_the_hybrid_is_not_waited_for() -> None:
    hybrid = paying(None)

    async def close(requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        await hybrid.aclose()
        return {}

    with pytest.raises(Unavailable, match="closed with its Hybrid"):
        await hybrid.run("Pay.", approver=close)


async def test_a_caller_that_is_cancelled_while_its_hybrid_closes_stays_cancelled() -> None:
    approver = HangingApprover()
    hybrid = paying(None)
    task = asyncio.create_task(hybrid.run("Pay.", approver=approver))
    await approver.asked.wait()
    task.cancel()
    await hybrid.aclose()
    with pytest.raises(asyncio.CancelledError):
        await task
