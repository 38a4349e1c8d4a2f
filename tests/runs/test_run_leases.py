"""Who may work on a run when its owner hangs or dies: on several machines known by heartbeats, on one by the kernel."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nearfar import Hybrid
from nearfar.orchestrator.runs import KeptTask, Lease, digest
from nearfar.orchestrator.runs.leases import SharedOwners
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.storage.postgres import PostgresDatabase
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Message, RunBusy, ScriptedAgent, StoreUnavailable

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("part", ["runs", "privacy"])
def test_whoever_could_not_open_everything_is_not_taken_for_alive(part: str, tmp_path: Path) -> None:
    config = RunsConfig(folder=tmp_path)
    near = ScriptedAgent(["Hello."])
    anyio.run(Hybrid(near=near, records=config).aclose)
    with closing(sqlite3.connect(tmp_path / f"{part}.db")) as database:
        database.execute("UPDATE parts SET version = 99 WHERE part = ?", (part,))
        database.commit()
    with pytest.raises(StoreUnavailable, match="newer"):
        Hybrid(near=near, records=config)
    assert list((tmp_path / "owners").iterdir()) == []


OTHER = """
import sys, anyio
from pathlib import Path
from nearfar.orchestrator.runs import KeptTask, digest
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task import Task
from nearfar.protocols import Message
store = RunStore.open(RunsConfig(folder=Path(sys.argv[1])))
task = Task(messages=(Message.user("Hi"),), idempotency_key="k")
anyio.run(store.begin, KeptTask.of(task, tools=(), agents=()), digest(task))
print("begun", flush=True)
sys.stdin.read()
"""


@contextmanager
def shared(address: str, *, dead_seconds: float = 0.5) -> Iterator[tuple[RunStore, SharedOwners]]:
    """A store of an orchestrator that counts as dead soon."""
    database = PostgresDatabase(address, what="runs")
    owners = SharedOwners(database, "process 1 on a test", beat_seconds=0.05, dead_seconds=dead_seconds)
    with closing(RunStore(database, owners)) as store:
        yield store, owners


async def begin(store: RunStore, run: str = "k") -> Lease:
    task = Task(messages=(Message.user("Hi"),), idempotency_key=run)
    return await store.begin(KeptTask.of(task, tools=(), agents=()), digest(task))


async def taken_over(store: RunStore) -> Lease:
    """The run, as soon as its owner counts as dead."""
    with anyio.fail_after(30):
        while True:
            try:
                return await store.claim("k")
            except RunBusy:
                await anyio.lowlevel.checkpoint()


async def test_a_run_whose_owner_sends_no_heartbeat_is_taken_over_and_the_old_owner_is_shut_out(postgres_database: str) -> None:
    with shared(postgres_database) as (first, owners), shared(postgres_database) as (second, _):
        lease = await begin(first)
        with pytest.raises(RunBusy, match="process 1 on a test"):
            await second.claim("k")
        owners.stop()  # it hangs
        taken = await taken_over(second)
        assert taken.epoch == lease.epoch + 1
        with pytest.raises(RunBusy, match="taken over"):
            await first.finish(lease, "{}")
        await second.finish(taken, "{}")


async def test_of_many_who_take_over_at_once_one_gets_the_run(postgres_database: str) -> None:
    with shared(postgres_database) as (first, _):
        await first.release(await begin(first))
        won: list[Lease] = []

        async def claim(store: RunStore) -> None:
            with suppress(RunBusy):
                won.append(await store.claim("k"))

        with shared(postgres_database) as (second, _), shared(postgres_database) as (third, _):
            async with anyio.create_task_group() as claiming:
                for store in (first, second, third):
                    claiming.start_soon(claim, store)
        assert len(won) == 1


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_of_a_process_that_was_killed_is_free_at_once_and_of_a_stopped_one_never(end: signal.Signals, tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other, closing(RunStore.open(RunsConfig(folder=tmp_path))) as store:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        os.kill(other.pid, signal.SIGSTOP)
        with pytest.raises(RunBusy, match=f"process {other.pid} works on run k"):
            anyio.run(store.claim, "k")
        os.kill(other.pid, signal.SIGCONT)
        os.kill(other.pid, end)
        other.wait(10)
        assert [run.id for run in store.orphans()] == ["k"]
        assert anyio.run(store.claim, "k").epoch == 2
