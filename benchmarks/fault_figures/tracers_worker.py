"""Tasks of every strategy, a resumed run and a search for blame, in an environment that turns LangSmith's tracing on.

Says `tasks N` when it has served them; a line on standard input then has it run a graph of LangGraph's own, which is traced.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.langchain import wait_for_all_tracers
from langgraph.graph import StateGraph

from nearfar import Hybrid, Records, tool
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.lab.blame import StrongerAgent, blame
from nearfar.orchestrator.lab.blame_replay import RecordedRun
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import open_traces
from nearfar.protocols import ApprovalNeeded, Message, NearfarError, ScriptedAgent, Side, StepRequest, ToolCall

_PROMPT = "My secret is 4711."


@tool(effect="at_most_once", approval=True)
async def pay(dollars: int) -> str:
    """Pay."""
    return f"paid {dollars}"


def _script(request: StepRequest) -> Any:  # noqa: ANN401 - what a script may say
    is_new = not any(message.tool_result for message in request.messages)
    return ToolCall(id="1", name="pay", arguments={"dollars": 4711}) if is_new and request.tools else "It is 4711."


class _Overhearing(BaseCallbackHandler):
    """Notes whatever a graph tells its callbacks."""

    def __init__(self) -> None:
        self.heard = 0

    def on_chain_start(self, *told: Any, **also: Any) -> None:  # noqa: ANN401 - as LangChain has it
        self.heard += 1


def _agents(**options: Any) -> Hybrid:  # noqa: ANN401 - passed on
    near, far = ScriptedAgent(_script, name="near"), ScriptedAgent(_script, name="far", side=Side.FAR)
    return Hybrid(near=near, far=far, **options)


async def _tasks() -> int:
    """Serve a task by each strategy, alone and by the strategy's graph with a caller's callbacks."""
    count = 0
    async with _agents() as hybrid:
        for strategy in Strategy:
            for sensitivity in ("private", "public"):
                count += await _ends(hybrid.run(_PROMPT, strategy=strategy, sensitivity=sensitivity))
            if strategy is not Strategy.AUTO:
                state: Any = {"task": Task(messages=(Message.user(_PROMPT),)).model_dump(mode="json")}
                overhearing = _Overhearing()
                count += await _ends(hybrid.graph_of(strategy).ainvoke(state, {"callbacks": [overhearing]}))
                assert not overhearing.heard, "the graph told its caller's callbacks"
    return count


async def _ends(task: Any) -> int:  # noqa: ANN401 - anything that can be awaited
    """1; some strategies fail with what the script says, which they have been asked all the same."""
    with suppress(NearfarError):
        await task
    return 1


async def _resumed(folder: Path) -> int:
    async with _agents(records=RunsConfig(folder=folder), tools=[pay]) as hybrid:
        try:
            await hybrid.run(_PROMPT, strategy="device", idempotency_key="run")
        except ApprovalNeeded as needed:
            await hybrid.resume("run", approvals={request.id: True for request in needed.requests})
    return 1


async def _blamed(folder: Path) -> int:
    traces = open_traces(RunsConfig(folder=folder))
    async with _agents(records=Records(traces=traces)) as hybrid:
        await hybrid.run(_PROMPT, strategy="device", idempotency_key="blamed")
    traces.flush()
    run = RecordedRun("blamed", traces.entries("blamed"))
    corrector = StrongerAgent(AgentHandle("far", Side.NEAR, ScriptedAgent(lambda _: "It is 4712.", name="far")), run)
    await blame(run, corrector, lambda answer, _: answer == "It is 4712.", live={})
    traces.close()
    return 1


class _State(TypedDict):
    text: str


def _bare_graph() -> None:
    graph = StateGraph(_State)
    graph.add_node("node", lambda state: {"text": state["text"]})
    graph.add_edge("__start__", "node")
    graph.compile().invoke({"text": "LangGraph by itself"})


def _lines() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        count = asyncio.run(_tasks()) + asyncio.run(_resumed(Path(folder, "runs"))) + asyncio.run(_blamed(Path(folder, "blamed")))
    wait_for_all_tracers()
    yield f"tasks {count}"
    sys.stdin.readline()
    _bare_graph()
    wait_for_all_tracers()
    yield "traced"


if __name__ == "__main__":
    for line in _lines():
        print(line, flush=True)
