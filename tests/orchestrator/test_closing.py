"""Closing a `Hybrid`: twice, at the same time, and interrupted; whatever comes, nothing that it opened stays open."""

import asyncio
import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from nearfar import Hybrid, Records
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
