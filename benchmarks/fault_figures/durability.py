"""Runs that outlive their process: with the clock set back or forward, many at once, and on disks in trouble."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Checkpointer

from nearfar.orchestrator.runs import EPOCH, KeptTask, digest
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Message

_WORKER: Final = Path(__file__).with_name("durability_worker.py")
_CLOCKS: Final = {"minus_1_h": -3600.0, "plus_1_y": 365 * 86_400.0}
_EACH_ONCE: Final = [1, 2, 3, 4, 5, 6]
_NODES: Final = ("plan", "act", "check", "answer")
_REPLY: Final = {"role": "assistant", "text": "x" * 200}
_SECONDS: Final = 120


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`backward_clock`: whether each node ran once and the state is right; `runs_per_s`: durable runs of four nodes, all at once."""
    told = _worked()
    return {**_clocks(told), **told["trouble"], **asyncio.run(_many(200 if quick else 1000, stock=40 if quick else 1000))}


def _clocks(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, seconds in _CLOCKS.items():
        ours, stock = told[f"runs {seconds}"], told[f"stock {seconds}"]
        found[f"backward_clock_{name}"] = ours == {"state": _EACH_ONCE, "ran": _EACH_ONCE}
        found[f"backward_clock_{name}_repeated"] = len(ours["ran"]) - len(_EACH_ONCE)
        found[f"backward_clock_{name}_repeated_stock"] = len(stock["ran"]) - len(_EACH_ONCE)
    return found


def _worked() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # Who may not write into a folder must be able to come to it.
        Path(folder).chmod(0o755)
        command = [sys.executable, str(_WORKER), folder, *map(str, _CLOCKS.values())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


class _Conversation(TypedDict):
    messages: list[dict[str, str]]


def _graph(saver: Checkpointer) -> CompiledStateGraph[_Conversation, None, _Conversation, _Conversation]:
    async def node(state: _Conversation) -> _Conversation:
        return {"messages": [*state["messages"], _REPLY]}

    builder: StateGraph[_Conversation, None, _Conversation, _Conversation] = StateGraph(_Conversation)
    for name in _NODES:
        builder.add_node(name, node)
    for before, behind in zip((START, *_NODES), (*_NODES, END), strict=True):
        builder.add_edge(before, behind)
    return builder.compile(checkpointer=saver)


async def _many(runs: int, *, stock: int) -> dict[str, Any]:
    """Runs per second, begun and ended in the store too, compared with LangGraph's own saver, and with none at all."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    with tempfile.TemporaryDirectory() as folder:
        with closing(RunStore.open(RunsConfig(folder=Path(folder)))) as store:
            ours, errors = await _timed(_durable(store), runs)
        unsaved, _ = await _timed(_stock(None), stock)
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder, "stock.db"))) as saver:
            theirs, their_errors = await _timed(_stock(saver), stock)
    return {
        "runs_per_s": round(ours, 1),
        "runs_per_s_errors": errors,
        "runs_per_s_runs": runs,
        "runs_per_s_unsaved": round(unsaved, 1),
        "runs_per_s_stock": round(theirs, 1),
        "runs_per_s_stock_errors": their_errors,
    }


def _durable(store: RunStore) -> Callable[[int], Awaitable[int]]:
    graph = _graph(store.checkpointer)

    async def run(number: int) -> int:
        task = Task(messages=(Message.user("What is the emblem of East Calder?"),), idempotency_key=f"run {number}")
        lease = await store.begin(KeptTask.of(task, tools=(), agents=("near",)), digest(task))
        place = {"configurable": {"thread_id": lease.run, EPOCH: lease.epoch}}
        state = await graph.ainvoke({"messages": []}, place, durability="sync")  # type: ignore[call-overload]  # a config
        await store.finish(lease, json.dumps(state["messages"]))
        return len(state["messages"])

    return run


def _stock(saver: Checkpointer) -> Callable[[int], Awaitable[int]]:
    graph = _graph(saver)

    async def run(number: int) -> int:
        place = {"configurable": {"thread_id": f"run {number}"}}
        durability = None if saver is None else "sync"
        state = await graph.ainvoke({"messages": []}, place, durability=durability)  # type: ignore[call-overload]  # a config
        return len(state["messages"])

    return run


async def _timed(run: Callable[[int], Awaitable[int]], runs: int) -> tuple[float, int]:
    """Runs per second, and how many failed."""
    started = time.perf_counter()
    outcomes = await asyncio.gather(*(run(number) for number in range(runs)), return_exceptions=True)
    return runs / (time.perf_counter() - started), sum(outcome != len(_NODES) for outcome in outcomes)
