"""Disks that are full or cannot be written, rows that are damaged: one run's trouble is not the others'."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from nearfar import Hybrid, Policy, Strategy, tool
from nearfar.orchestrator.runs import KeptTask, RunState, digest
from nearfar.orchestrator.runs.leases import read_details
from nearfar.orchestrator.runs.ledger import pending_requests
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ApprovalNeeded, Message, ScriptedAgent, StepRequest, StoreCorrupt, StoreUnavailable, ToolCall, Unavailable

pytestmark = pytest.mark.anyio

LARGE = 3_000_000
"""Characters."""


@pytest.fixture
def config(tmp_path: Path) -> RunsConfig:
    return RunsConfig(folder=tmp_path / "runs")


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process grows beyond, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def begin(store: RunStore, run: str, text: str = "Hi") -> None:
    task = Task(messages=(Message.user(text),), idempotency_key=run)
    await store.begin(KeptTask.of(task, tools=(), agents=()), digest(task))


async def test_what_does_not_fit_on_the_disk_fails_alone_and_what_was_acknowledged_is_kept(config: RunsConfig) -> None:
    with closing(RunStore.open(config)) as store:
        told: dict[str, str] = {}

        async def ask(run: str, text: str) -> None:
            try:
                await begin(store, run, text)
                told[run] = "kept"
            except StoreUnavailable as error:
                told[run] = error.hint

        with files_end_at(1_000_000):
            async with anyio.create_task_group() as asking:
                for number in range(8):
                    asking.start_soon(ask, f"run {number}", "x" * (LARGE if number in (2, 5) else 10))
        refused = {run for run, outcome in told.items() if outcome != "kept"}
        assert refused == {"run 2", "run 5"}
        assert "acknowledged writes are kept" in told["run 2"]
        await begin(store, "run 2", "x" * LARGE)  # there is room again
    with closing(RunStore.open(config)) as again:
        assert {run.id for run in again.list()} == {f"run {number}" for number in range(8)} - {"run 5"}


async def test_a_task_whose_state_does_not_fit_goes_on_when_there_is_room(config: RunsConfig) -> None:
    def script(request: StepRequest) -> str:
        return "x" * LARGE if "long" in request.messages[0].text else "short"

    policy = Policy(strategy=Strategy.DEVICE)
    async with Hybrid(near=ScriptedAgent(script, name="near"), records=config, policy=policy) as hybrid:
        with files_end_at(1_000_000):
            with pytest.raises(StoreUnavailable):
                await hybrid.run("A long one", idempotency_key="long")
            assert (await hybrid.run("A short one", idempotency_key="short")).text == "short"
        assert len((await hybrid.resume("long")).text) == LARGE


async def test_a_run_whose_checkpoint_is_damaged_fails_and_others_go_on(config: RunsConfig) -> None:
    fails = [Unavailable("gone")] * 2
    async with Hybrid(
        near=ScriptedAgent([*fails, "Here."], name="near"), records=config, policy=Policy(strategy=Strategy.DEVICE)
    ) as hybrid:
        for run in ("damaged", "sound"):
            with pytest.raises(Unavailable):
                await hybrid.run("Where?", idempotency_key=run)
        with hybrid.runs.database.writing() as session:
            session.execute("UPDATE checkpoints SET content = ? WHERE run = ?", (b"\x81\xa1", "damaged"))
        with pytest.raises(StoreCorrupt, match="damaged"):
            await hybrid.resume("damaged")
        assert (await hybrid.resume("sound")).text == "Here."
        assert hybrid.runs.show("damaged").state is RunState.RUNNING  # nobody has lost more of it


def as_nobody(work: Callable[[], None]) -> bool:
    """Whether another user of this machine is refused."""
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            work()
        except StoreUnavailable as error:
            os._exit(0 if error.hint else 1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert as_nobody(lambda: RunStore.open(RunsConfig(folder=closed / "runs")).close())
    RunStore.open(RunsConfig(folder=tmp_path / "mine")).close()
    (tmp_path / "mine").chmod(0o500)
    assert as_nobody(lambda: RunStore.open(RunsConfig(folder=tmp_path / "mine")).close())
    (tmp_path / "mine").chmod(0o700)


DAMAGED = [
    ("runs", "state"),
    ("runs", "began"),
    ("tasks", "content"),
    ("checkpoints", "content"),
    ("checkpoints", "metadata"),
    ("checkpoints", "version"),
    ("pending", "channel"),
    ("effects", "state"),
    ("effects", "request"),
]


@pytest.mark.parametrize(("table", "column"), DAMAGED)
async def test_whatever_is_damaged_of_a_run_is_an_error_of_this_run_alone(config: RunsConfig, table: str, column: str) -> None:
    @tool(approval=True)
    def send() -> str:
        """Send it."""
        return "sent"

    def script(request: StepRequest) -> ToolCall | str:
        return "It is sent." if request.messages[-1].role == "tool" else ToolCall(id="1", name="send", arguments={})

    async with Hybrid(near=ScriptedAgent(script), tools=[send], records=config) as hybrid:
        for run in ("damaged", "sound"):
            with pytest.raises(ApprovalNeeded):
                await hybrid.run("Send it", idempotency_key=run)
        sound = pending_requests(hybrid.runs.database, "sound")[0].id
        with hybrid.runs.database.writing() as session:
            session.execute(f"UPDATE {table} SET {column} = 'garbage' WHERE run = 'damaged'")
        with pytest.raises(StoreCorrupt, match="damaged"):
            read_details(hybrid.runs, "damaged") if column == "request" else await hybrid.resume("damaged")
        assert "sound" in {run.id for run in hybrid.runs.list()}
        assert (await hybrid.resume("sound", approvals={sound: True})).text == "It is sent."
