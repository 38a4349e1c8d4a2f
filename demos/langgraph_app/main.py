"""A LangGraph app: a strategy as a subgraph, a task in a node, a person's approval as an interrupt, and the memory as the store.

The far model plans (subgraph), you approve the plan (interrupt), the near model carries it out on this device (node), and the outcome
is remembered (store).
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from nearfar import Hybrid, MemoryStore, Message, Policy, Task, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the two small models that ship with nearfar, or yours
FAR = os.environ.get("NEARFAR_FAR", "far")
PLAN = (
    "Plan the task: one numbered step per line, each a call of one tool, the last one the answer. "
    "Write <...> for what an earlier step will show. Do not carry it out."
)
passages = {
    "Port Elster": {"mayor": "Tomas Holm", "airline": "Orbix Foods"},
    "Orbix Foods": {"city": "Port Elster", "accountant": "Mira Holm"},
    "Mira Holm": {"neighbour": "Leo Olsen", "birthplace": "New Oslen"},
    "Leo Olsen": {"birthplace": "New Galen", "neighbour": "Mira Holm"},
}


class State(TypedDict, total=False):
    """The state of this app. `task` and `messages` are shared with the subgraph."""

    question: str
    task: dict[str, Any]
    messages: list[dict[str, Any]]
    answer: str


@tool(effect="read", source="internal_tool")
def open(title: str, section: str) -> str:
    """A section of the passage with this exact title."""
    return passages[title].get(section, "not stated")


def ask_for_plan(state: State) -> State:
    """Put the planner's task where the subgraph looks for it."""
    messages = (Message.system(PLAN), Message.user(state["question"]))
    task = Task(messages=messages, policy=Policy(strategy="cloud", sensitivity="public"))
    return {"task": task.model_dump(mode="json")}


def approve(state: State) -> Command[Any]:
    """Stop the graph until a person has read the plan."""
    said = interrupt({"plan": state["messages"][-1]["text"]})
    return Command(goto="work" if said == "yes" else END)


def build(hybrid: Hybrid) -> StateGraph:
    """Return the graph, to be compiled."""

    async def work(state: State, runtime: Runtime) -> State:
        prompt = f"{state['question']}\n\nPlan:\n{state['messages'][-1]['text']}"
        result = await hybrid.run(prompt, tools=[open])  # private, as tasks are by default: the near model works alone
        for call in result.tool_calls:
            print(f"  {result.agent}: {call.call.name}({', '.join(map(str, call.call.arguments.values()))}) -> {call.result}")
        print(f"  far was asked {result.far.steps} times: the passages never left this device")
        await runtime.store.aput(("answers",), state["question"], {"text": result.text})
        return {"answer": result.text}

    graph = StateGraph(State)
    graph.add_node("ask_for_plan", ask_for_plan)
    graph.add_node("plan", hybrid.graph_of("cloud"))
    graph.add_node("approve", approve, destinations=("work", END))
    graph.add_node("work", work)
    for start, end in (START, "ask_for_plan"), ("ask_for_plan", "plan"), ("plan", "approve"), ("work", END):
        graph.add_edge(start, end)
    return graph


@asynccontextmanager
async def served() -> AsyncIterator[CompiledStateGraph]:
    """Lend the graph to `langgraph dev`, which has a checkpointer and a store of its own."""
    async with Hybrid(near=NEAR, far=FAR) as hybrid:
        yield build(hybrid).compile()


async def main() -> None:
    question = "What is the birthplace of the neighbour of the accountant of Port Elster's airline?"
    with MemoryStore.open(":memory:", embedder=None) as store:
        async with Hybrid(near=NEAR, far=FAR) as hybrid:
            app = build(hybrid).compile(checkpointer=InMemorySaver(), store=store)
            thread = {"configurable": {"thread_id": "ana"}}
            print("question:", question)
            stopped = await app.ainvoke({"question": question}, thread)
            print("interrupt: the far model proposes", *stopped["__interrupt__"][0].value["plan"].splitlines(), sep="\n  ")
            print("you: yes")
            print("answer:", (await app.ainvoke(Command(resume="yes"), thread))["answer"])
        print("remembered:", *(item.value["text"] for item in store.search(("answers",))))


if __name__ == "__main__":
    asyncio.run(main())
