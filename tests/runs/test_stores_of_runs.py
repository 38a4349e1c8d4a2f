"""What stands beside runs: folders that nobody else looks into, and traces without which tasks go on."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nearfar import Hybrid, MemoryStore, Policy, Records
from nearfar.orchestrator.task.stores import CacheConfig, RunsConfig
from nearfar.orchestrator.tracing import open_traces
from nearfar.protocols import ConfigError, ScriptedAgent, StoreCorrupt, StoreUnavailable

pytestmark = pytest.mark.anyio
DEVICE = Policy.model_validate({"strategy": "device"})


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def near() -> ScriptedAgent:
    return ScriptedAgent(lambda _: "Hello.", name="near")


@pytest.mark.usefixtures("usual_umask")
async def test_all_folders_that_are_made_are_their_owners_alone(tmp_path: Path) -> None:
    runs, cache = RunsConfig(folder=tmp_path / "data" / "app" / "runs"), CacheConfig(path=tmp_path / "cache" / "app" / "answers.db")
    with MemoryStore.open(tmp_path / "memories" / "app" / "memory.db", embedder=None) as memory:
        async with Hybrid(near=near(), policy=DEVICE, records=Records(runs, cache=cache), memory=memory) as hybrid:
            await hybrid.run("Hi")
    modes = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
    assert len(modes) >= 7
    assert {path: oct(mode) for path, mode in modes.items() if mode != 0o700} == {}


@pytest.mark.usefixtures("usual_umask")
async def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    async with Hybrid(near=near(), policy=DEVICE, records=RunsConfig(folder=tmp_path / "runs"), memory=tmp_path / "memory.db"):
        pass
    before = stat.S_IMODE(tmp_path.stat().st_mode)
    (tmp_path / "open").mkdir(mode=0o755)
    MemoryStore.open(tmp_path / "open" / "memory.db", embedder=None).close()
    assert (stat.S_IMODE((tmp_path / "open").stat().st_mode), stat.S_IMODE(tmp_path.stat().st_mode)) == (0o755, before)


def _damage(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 1000)


def _make_newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE parts SET version = 99 WHERE part = 'traces'")
    connection.close()


@pytest.mark.parametrize(("spoil", "error"), [(_damage, StoreCorrupt), (_make_newer, StoreUnavailable)])
async def test_tasks_go_on_without_traces_that_cannot_be_used(
    tmp_path: Path, spoil: Callable[[Path], None], error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    config = RunsConfig(folder=tmp_path / "runs")
    open_traces(config).close()
    spoil(config.folder / "traces.db")
    before = (config.folder / "traces.db").read_bytes()
    async with Hybrid(near=near(), policy=DEVICE, records=config) as hybrid:
        assert (await hybrid.run("Hi", idempotency_key="k")).text == "Hello."
        assert "not traced" in caplog.text
        with pytest.raises(ConfigError, match="no traces"):
            hybrid.traces.ids()
        assert hybrid.runs.show("k").state == "done"
    with pytest.raises(error):
        open_traces(config)
    assert (config.folder / "traces.db").read_bytes() == before
