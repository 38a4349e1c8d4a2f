"""Closing a `Hybrid`: twice, at the same time, and interrupted; whatever comes, nothing that it opened stays open."""

import asyncio
import gc
from pathlib import Path

import psutil
import pytest

from nearfar import Hybrid, Records
from nearfar.orchestrator.task.sections.memory import MemoryConfig
from nearfar.protocols import ScriptedAgent

pytestmark = pytest.mark.anyio


def open_files(folder: Path) -> list[str]:
    gc.collect()
    return [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(folder)]


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
    closing = asyncio.create_task(hybrid.aclose())
    asyncio.get_running_loop().call_soon(closing.cancel)
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert open_files(tmp_path) == []
