"""A process that has imported everything, and forks one for each run that is to be killed.

    python killed_runs.py < orders

An order is a line of JSON, an `Order`; the answer to it is a line of JSON, an `Outcome`.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from nearfar import Hybrid, Records, Tool, effect_key, effect_transaction, tool
from nearfar.orchestrator.runs.effects import EffectRecords
from nearfar.orchestrator.strategies.state import TaskState
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Message, ScriptedAgent, StepRequest, ToolCall

Step = Literal["meant", "acted", "returned", "recorded"]
"""Where a process dies: in the tool before it acts, or behind that; when it has returned, before the result is kept, or in the middle of
keeping it."""
STEPS: Final[Sequence[Step]] = ("meant", "acted", "returned", "recorded")
PROMPT: Final = "Write everything down"
TEXTS: Final = ("one", "two", "two", "three")
"""Of the calls of each tool, one after the other: an equal one is a second effect."""
UNKNOWN: Final = "it is not known"


class Order(NamedTuple):
    """One start of a run, which goes on where an earlier one of the same name was killed."""

    folder: str
    run: str
    is_durable: bool
    """By nearfar; else by LangGraph's own checkpointer."""
    seconds: float | None = None
    """After which it is killed."""
    step: Step | None = None
    """At which it kills itself."""
    call: int = 0
    """At how many calls of tools it has been at the step by then."""


class Outcome(NamedTuple):
    """What became of a start."""

    is_finished: bool
    seconds: float


class Killer:
    """Ends this process at a step of a call."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._calls = 0

    def reach(self, step: Step) -> None:
        self._calls += step == self._order.step
        if self._calls and self._calls == self._order.call:
            os.kill(os.getpid(), signal.SIGKILL)


def tools_of(order: Order, killer: Killer) -> list[Tool]:
    """Three ways of writing a line, each into a file of its own."""
    folder = Path(order.folder)

    @tool(effect="idempotent")
    def append(text: str) -> str:
        """Append a line, unless the line of this very effect is there."""
        killer.reach("meant")
        file = folder / "append.txt"
        if not any(line.startswith(effect_key()) for line in _lines(file)):
            _append(file, f"{effect_key()} {order.run} {text}")
        killer.reach("acted")
        return "appended"

    @tool(effect="transactional")
    def insert(text: str) -> str:
        """Insert a row together with the record of this effect."""
        killer.reach("meant")
        effect_transaction(folder / "insert.db").execute("INSERT INTO entries VALUES (?, ?)", (order.run, text))
        killer.reach("acted")
        return "inserted"

    @tool(effect="at_most_once")
    def send(text: str) -> str:
        """Append a line, as what cannot be looked up."""
        killer.reach("meant")
        _append(folder / "send.txt", f"- {order.run} {text}")
        killer.reach("acted")
        return "sent"

    return [append, insert, send]


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write(f"{line}\n")


def reply(request: StepRequest) -> str | list[ToolCall]:
    """The next turn of an agent that calls each tool once a turn, and in the end says what it was told."""
    results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
    turn = len(results) // 3
    if turn == len(TEXTS):
        return f"{sum(UNKNOWN in result for result in results)} unknown"
    return [ToolCall(id=f"{turn}-{name}", name=name, arguments={"text": TEXTS[turn]}) for name in ("append", "insert", "send")]


async def serve(order: Order) -> None:
    """Begin the run, or go on with it, to its end, which is written into `finished.txt`."""
    killer = Killer(order)
    folder = Path(order.folder)
    near, tools = ScriptedAgent(reply), tools_of(order, killer)
    if order.is_durable:
        _reach_around_records(killer)
        async with Hybrid(near=near, tools=tools, records=RunsConfig(folder=folder / "runs")) as hybrid:
            said = (await hybrid.run(PROMPT, idempotency_key=order.run)).text
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
            said = await _served_plainly(near, tools, saver, order.run)
    _append(folder / "finished.txt", f"- {order.run} {said}")


async def _served_plainly(near: ScriptedAgent, tools: list[Tool], saver: AsyncSqliteSaver, run: str) -> str:
    """The same graph under LangGraph's checkpointer at its safest: each step is kept before the next one begins."""
    async with Hybrid(near=near, tools=tools, records=Records(checkpointer=saver)) as hybrid:
        graph = hybrid.graph_of("device")
        config: RunnableConfig = {"configurable": {"thread_id": run}}
        known = await graph.aget_state(config)
        if known.values and not known.tasks:  # it was killed behind its end
            return str(known.values["messages"][-1]["text"])
        task = Task(messages=(Message.user(PROMPT),), idempotency_key=run)
        given: TaskState | None = None if known.values else {"task": task.model_dump(mode="json")}
        state = await graph.ainvoke(given, config, durability="sync")
        return str(state["messages"][-1]["text"])


def _reach_around_records(killer: Killer) -> None:
    """Have the ledger reach the steps around its record."""
    finish = EffectRecords.finish

    def reaching(self: EffectRecords, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - handed on as they are
        killer.reach("returned")
        finish(self, *arguments, **options)
        killer.reach("recorded")

    setattr(EffectRecords, "finish", reaching)  # noqa: B010 - mypy takes an assignment for a mistake


def forked(order: Order) -> Outcome:
    """What became of a process of its own."""
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        _run_as_child(order)
    if order.seconds is not None:
        time.sleep(order.seconds)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"the run {order.run} failed; its error is above")
    return Outcome(os.WIFEXITED(status), time.monotonic() - started)


def _run_as_child(order: Order) -> None:
    code = 1
    try:
        asyncio.run(serve(order))
        code = 0
    except BaseException:  # the boundary of a process
        traceback.print_exc()
    finally:
        os._exit(code)


def prepared(folder: Path) -> None:
    """Make the tables that the tools write into."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "insert.db")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS entries (run TEXT, text TEXT)")


def warm_up() -> None:
    """Serve a run of each kind here, so that no process has to import anything."""
    with tempfile.TemporaryDirectory() as name:
        prepared(Path(name))
        for is_durable in (True, False):
            asyncio.run(serve(Order(name, f"warm-{is_durable}", is_durable)))


def main() -> None:
    """Carry orders out until there are no more."""
    warm_up()
    for line in sys.stdin:
        order = Order(**json.loads(line))
        prepared(Path(order.folder))
        print(json.dumps(forked(order)._asdict()), flush=True)


if __name__ == "__main__":
    main()
