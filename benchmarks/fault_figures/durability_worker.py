"""Runs whose process dies and whose clock is set, in children of one program that has loaded LangGraph once.

`python durability_worker.py FOLDER SECONDS...` prints what came of disks in trouble, and for each number of seconds by which the clock
is set, of runs and of LangGraph's own SQLite saver.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Checkpointer

from nearfar.orchestrator.runs import KeptTask, digest
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Message, StoreCorrupt, StoreUnavailable

NODES: Final = 6
DEATHS: Final = (3, 5)
"""Nodes at whose start the process dies, each time by the clock of the next one."""
PLACE: Final = {"configurable": {"thread_id": "run"}}
LARGE: Final = 3_000_000
ROOM: Final = 1_000_000
"""Bytes that no file of the full disk grows beyond."""


class Steps(TypedDict):
    """The nodes that have run, as the state knows them."""

    steps: list[int]


def graph(saver: Checkpointer, log: Path, dies_at: int) -> CompiledStateGraph[Steps, None, Steps, Steps]:
    """Nodes one after the other, each of which leaves its number in a file."""
    builder: StateGraph[Steps, None, Steps, Steps] = StateGraph(Steps)

    def add(number: int) -> None:
        async def node(state: Steps) -> Steps:
            if number == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{number}\n")
            return {"steps": [*state["steps"], number]}

        builder.add_node(f"node {number}", node)

    for number in range(1, NODES + 1):
        add(number)
    names = [START, *(f"node {number}" for number in range(1, NODES + 1)), END]
    for before, behind in zip(names, names[1:], strict=False):
        builder.add_edge(before, behind)
    return builder.compile(checkpointer=saver)


async def go_on(folder: Path, kept: str, dies_at: int) -> None:
    """Go on with the run from whatever checkpoint is taken for the newest one."""
    if kept == "stock":
        async with AsyncSqliteSaver.from_conn_string(str(folder / "stock.db")) as saver:
            await _invoke(saver, folder, dies_at)
        return
    with closing(RunStore.open(RunsConfig(folder=folder))) as store:
        await _invoke(store.checkpointer, folder, dies_at)


async def _invoke(saver: Checkpointer, folder: Path, dies_at: int) -> None:
    compiled = graph(saver, folder / "log", dies_at)
    has_begun = (folder / "log").exists()
    state = await compiled.ainvoke(None if has_begun else {"steps": []}, PLACE, durability="sync")  # type: ignore[call-overload]  # a config
    (folder / "state").write_text(json.dumps(state["steps"]), encoding="utf-8")


def in_child(work: Callable[[], Coroutine[Any, Any, None]], *, clock: float = 0.0) -> None:
    """Do the work in a child whose clock is so many seconds ahead."""
    child = os.fork()
    if child == 0:
        true_nanoseconds, true_seconds = time.time_ns, time.time
        time.time_ns = lambda: true_nanoseconds() + int(clock * 1e9)
        time.time = lambda: true_seconds() + clock
        try:
            asyncio.run(work())
        except BaseException:  # the child's own boundary
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"


def clock(folder: Path, kept: str, seconds: float) -> dict[str, object]:
    """What the run came to, whose process died twice, and whose clock was set after the first time."""
    for dies_at, ahead in zip((*DEATHS, 0), (0.0, seconds, seconds), strict=True):
        in_child(lambda dies_at=dies_at: go_on(folder, kept, dies_at), clock=ahead)  # type: ignore[misc]  # a default binds the loop's value
    ran = [int(line) for line in (folder / "log").read_text(encoding="utf-8").split()]
    return {"state": json.loads((folder / "state").read_text(encoding="utf-8")), "ran": ran}


def trouble(folder: Path) -> dict[str, bool]:
    """Whether a full disk, a disk that cannot be written and a damaged row are clear errors, lose nothing, and leave others alone."""
    return {**asyncio.run(_full_disk(folder / "full")), **asyncio.run(_damaged(folder / "damaged")), **_read_only(folder)}


async def _begin(store: RunStore, run: str, text: str = "Hi") -> str:
    task = Task(messages=(Message.user(text),), idempotency_key=run)
    try:
        await store.begin(KeptTask.of(task, tools=(), agents=()), digest(task))
    except StoreUnavailable as error:
        return error.hint
    return "kept"


async def _full_disk(folder: Path) -> dict[str, bool]:
    with closing(RunStore.open(RunsConfig(folder=folder))) as store:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
        try:
            told = await asyncio.gather(*(_begin(store, f"run {number}", "x" * (LARGE if number % 4 == 2 else 10)) for number in range(20)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    small = {f"run {number}" for number in range(20) if number % 4 != 2}
    acknowledged = {f"run {number}" for number, outcome in enumerate(told) if outcome == "kept"}
    with closing(RunStore.open(RunsConfig(folder=folder))) as again:
        kept = {run.id for run in again.list()}
    return {
        "disk_full_clear_error": all("acknowledged" in told[number] for number in range(2, 20, 4)),
        "disk_full_acknowledged_kept": acknowledged <= kept,
        "disk_full_others_go_on": acknowledged == small,
    }


async def _damaged(folder: Path) -> dict[str, bool]:
    with closing(RunStore.open(RunsConfig(folder=folder))) as store:
        places = [{"configurable": {"thread_id": run, "checkpoint_ns": ""}} for run in ("damaged", "sound")]
        for place in places:
            await graph(store.checkpointer, folder / "log", 0).ainvoke({"steps": []}, place, durability="sync")  # type: ignore[call-overload]  # a config
        with store.database.writing() as session:
            session.execute("UPDATE checkpoints SET content = ? WHERE run = ?", (b"\x81\xa1", "damaged"))
        try:
            await store.checkpointer.aget_tuple(places[0])  # type: ignore[arg-type]  # a config
            is_clear = False
        except StoreCorrupt as error:
            is_clear = "damaged" in error.message
        sound = await store.checkpointer.aget_tuple(places[1])  # type: ignore[arg-type]  # a config
    return {"corrupt_row_clear_error": is_clear, "corrupt_row_others_go_on": sound is not None}


def _read_only(folder: Path) -> dict[str, bool]:
    """As a user who may not write, since the superuser may write everywhere."""
    (folder / "closed").mkdir(mode=0o500)
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            RunStore.open(RunsConfig(folder=folder / "closed" / "runs"))
        except StoreUnavailable as error:
            os._exit(0 if error.hint else 1)
        os._exit(1)
    return {"read_only_clear_error": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0}


def main() -> None:
    folder, *clocks = sys.argv[1:]
    found: dict[str, object] = {"trouble": trouble(Path(folder))}
    for seconds in clocks:
        for kept in ("runs", "stock"):
            place = Path(folder, f"{kept} {seconds}")
            place.mkdir()
            found[f"{kept} {seconds}"] = clock(place, kept, float(seconds))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
