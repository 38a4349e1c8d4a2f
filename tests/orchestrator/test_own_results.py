"""A look-up of an unchanging tool is made once in a run; an equal one is answered from the first one's result."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from nearfar import Hybrid, Policy, Result, ScriptedAgent, Side, Tool, ToolCall, tool
from nearfar.orchestrator.task.tools import LOOKED_UP
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio
SEARCH = {"query": "Who leads Orbix Labs?"}


def searching() -> tuple[Tool, list[str]]:
    """Return a search, and the queries that it has run."""
    made: list[str] = []

    @tool(name="search", effect="read", source="internal_tool")
    async def search(query: str, most: int = 3) -> str:
        """Search for passages."""
        made.append(query)
        if query == "broken":
            raise ValueError("no index")
        return f"{len(made)}: Mira Falk"

    return search, made


def calls(*asked: Mapping[str, object], name: str = "search") -> list[Reply]:
    return [*(ToolCall.model_validate({"id": f"{at}", "name": name, "arguments": each}) for at, each in enumerate(asked)), "Mira Falk"]


async def run(script: Sequence[Reply], *tools: Tool, unchanging: tuple[str, ...] = ("search",), far: Sequence[Reply] = ()) -> Result:
    policy = Policy.model_validate({"strategy": "cascade" if far else "device", "sensitivity": "public", "unchanging_tools": unchanging})
    near = ScriptedAgent(script, name="near", confidence=0.9)
    successor = ScriptedAgent(far, name="far", side=Side.FAR) if far else None
    async with Hybrid(near=near, far=successor, tools=tools, policy=policy) as hybrid:
        return await hybrid.run("Who leads Orbix Labs?")


@pytest.mark.parametrize(
    "again",
    [SEARCH, {"query": "  who LEADS\nOrbix labs"}, {"query": SEARCH["query"], "most": 3}],
    ids=["the same", "another spelling", "a default spelt out"],
)
async def test_an_equal_look_up_is_answered_from_the_first(again: dict[str, object]) -> None:
    search, made = searching()
    result = await run(calls(SEARCH, again, again), search)
    assert made == [SEARCH["query"]]
    assert [each.result for each in result.tool_calls] == ["1: Mira Falk", *[f"1: Mira Falk\n{LOOKED_UP}"] * 2]
    assert {each.outcome for each in result.tool_calls} == {"done"}


@pytest.mark.parametrize(
    "other", [{"query": "Who leads Orbix Labs"[:-1]}, {"query": "Labs Orbix leads who?"}, {**SEARCH, "most": 4}, {"query": "broken"}]
)
async def test_any_other_look_up_runs(other: dict[str, object]) -> None:
    search, made = searching()
    await run(calls(SEARCH, other, other if other["query"] == "broken" else SEARCH), search)
    assert made == [SEARCH["query"], other["query"], *(["broken"] if other["query"] == "broken" else [])]


async def test_a_tool_that_is_not_named_runs_each_time() -> None:
    search, made = searching()
    await run(calls(SEARCH, SEARCH), search, unchanging=())
    assert len(made) == 2


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_a_tool_that_may_change_something_runs_each_time(effect: str) -> None:
    made: list[int] = []
    options: Callable[..., Callable[..., Tool]] = tool

    @options(name="count", effect=effect, source="internal_tool")
    async def count() -> str:
        """Count up."""
        made.append(1)
        return "counted"

    await run(calls({}, {}, name="count"), count, unchanging=("count",))
    assert len(made) == 2


async def test_the_next_agent_is_answered_from_what_the_last_one_found() -> None:
    search, made = searching()
    result = await run([*calls(SEARCH)[:1], "Nobody."], search, far=calls(SEARCH))
    assert (result.agent, made) == ("far", [SEARCH["query"]])


async def test_another_run_looks_up_for_itself() -> None:
    search, made = searching()
    for _ in range(2):
        await run(calls(SEARCH), search)
    assert len(made) == 2
