"""What the task graph costs: our ReAct step with a scripted agent against a bare LangGraph graph of the same number of nodes.

    python benchmarks/graph.py --json [--quick]

Both run the same path: route, then act and tools in turn, then judge. Bare nodes only append to a list, so the ratio is the whole
price of agents, events, validation and tool calls on top of LangGraph itself. Runs alternate, and the medians are compared.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from nearfar import Hybrid, tool
from nearfar.protocols import ScriptedAgent, StepRequest, ToolCall

TURNS = 4
"""Steps of the agent per task: three with a tool call, one with the answer."""
NODES = 2 * TURNS + 1
"""route, TURNS times act, TURNS - 1 times tools, judge."""


class BareState(TypedDict, total=False):
    turn: int
    messages: list[str]


def bare_graph() -> Callable[[], Awaitable[object]]:
    """A graph of the same nodes and edges that does nothing but pass its state on."""

    async def route(state: BareState) -> BareState:
        return {"turn": 0, "messages": ["user"]}

    async def act(state: BareState) -> BareState:
        return {"turn": state["turn"] + 1, "messages": [*state["messages"], "assistant"]}

    async def tools(state: BareState) -> BareState:
        return {"messages": [*state["messages"], "tool"]}

    async def judge(state: BareState) -> BareState:
        return {"messages": [*state["messages"], "judged"]}

    graph: StateGraph[BareState, None, BareState, BareState] = StateGraph(BareState)
    for name, node in (("route", route), ("act", act), ("tools", tools), ("judge", judge)):
        graph.add_node(name, node)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_conditional_edges("act", lambda state: "tools" if state["turn"] < TURNS else "judge", ["tools", "judge"])
    graph.add_edge("tools", "act")
    graph.add_edge("judge", END)
    compiled = graph.compile()

    async def run() -> object:
        return await compiled.ainvoke({})

    return run


def our_graph() -> Callable[[], Awaitable[object]]:
    """A `Hybrid` with a scripted agent that takes the same path."""

    @tool
    async def lookup(entity: str) -> str:
        """Look something up."""
        return "Mira Falk"

    def reply(request: StepRequest) -> str | ToolCall:
        turn = sum(message.role == "assistant" for message in request.messages)
        return "Mira Falk" if turn == TURNS - 1 else ToolCall(id=str(turn), name="lookup", arguments={"entity": "Orbix Labs"})

    hybrid = Hybrid(near=ScriptedAgent(reply, name="near", confidence=0.9), tools=[lookup])

    async def run() -> object:
        return await hybrid.run("Who leads Orbix Labs?", strategy="device")

    return run


async def timed(run: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await run()
    return time.perf_counter() - started


async def measure(rounds: int) -> dict[str, float]:
    """Alternate the two and compare their medians."""
    bare, ours = bare_graph(), our_graph()
    for _ in range(10):
        await bare()
        await ours()
    pairs = [(await timed(bare), await timed(ours)) for _ in range(rounds)]
    bare_median, our_median = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "overhead_ratio": round(our_median / bare_median, 3),
        "our_ms_per_node": round(1000 * our_median / NODES, 4),
        "bare_ms_per_node": round(1000 * bare_median / NODES, 4),
        "nodes": NODES,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    figures = asyncio.run(measure(200 if options.quick else 1000))
    text = json.dumps(figures) if options.json else "\n".join(f"{name:>18}  {value}" for name, value in figures.items())
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
