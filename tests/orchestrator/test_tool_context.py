"""The `Context` of a tool call: what a tool is given besides the model's arguments, and where that never appears."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nearfar import (
    ApprovalNeeded,
    ConfigError,
    Context,
    Hybrid,
    InvalidRequest,
    Message,
    Policy,
    Role,
    ScriptedAgent,
    StepRequest,
    Task,
    Tool,
    ToolCall,
    effect_key,
    tool,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

SECRET = "hunter2-of-the-database"


@dataclass
class Shop:
    """The app's own objects."""

    sold: list[tuple[str, ...]]
    password: str = SECRET


def sell_call(number: int = 1) -> ToolCall:
    return ToolCall(id=f"call-{number}", name="sell", arguments={"item": "lamp"})


def note(context: Context[Shop], item: str) -> str:
    session = "" if context.session is None else context.session
    context.dependencies.sold.append((item, context.user, session, context.task, context.call_id, context.effect_key))
    return "sold"


@tool
def sell(context: Context[Shop], item: str) -> str:
    """Sell an item."""
    assert context.effect_key == effect_key()
    return note(context, item)


@tool(name="sell")
async def sell_async(item: str, context: Context[Shop]) -> str:
    """Sell an item."""
    assert context.effect_key == effect_key()
    return note(context, item)


class Till:
    def sell(self, item: str, context: Context[Shop]) -> str:
        """Sell an item."""
        return note(context, item)


TOOLS = [pytest.param(sell, id="thread"), pytest.param(sell_async, id="async"), pytest.param(tool(Till().sell), id="method")]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("seller", TOOLS)
async def test_a_tool_is_given_the_context_of_its_call(seller: Tool, durable: bool, tmp_path: Path) -> None:
    shop, agent = Shop([]), ScriptedAgent([sell_call(), "done"])
    async with Hybrid(near=agent, tools=[seller], records=tmp_path if durable else None) as hybrid:
        options: dict[str, Any] = {"user": "ana", "session": "s", "idempotency_key": "one"}
        await hybrid.run("Sell a lamp.", dependencies=shop, **options)
    ((item, user, session, task, call, key),) = shop.sold
    assert (item, user, session, task, call) == ("lamp", "ana", "s", "one", "call-1")
    assert key


@pytest.mark.parametrize("seller", TOOLS)
async def test_the_model_does_not_see_the_parameter_and_cannot_fill_it(seller: Tool) -> None:
    forged = ToolCall(id="1", name="sell", arguments={"item": "lamp", "context": {"dependencies": {"sold": []}}})
    shop, agent = Shop([]), ScriptedAgent(lambda request: forged if len(request.messages) == 1 else "done")
    assert [*seller.spec.parameters["properties"]] == ["item"]
    assert seller.declared.sinks == {"item"}
    result = await seller.run(forged)
    assert (result.is_error, "context" in result.content) == (True, True)
    assert (shop.sold, agent.requests) == ([], [])


@pytest.mark.parametrize("place", ["role", "session"])
async def test_tools_of_roles_and_sessions_have_it_too(place: str) -> None:
    shop, agent = Shop([]), ScriptedAgent([sell_call(), "done"])
    async with Hybrid(near=agent, tools=[sell], agents={"seller": Role(instructions="You sell.", tools=(sell,))}) as hybrid:
        if place == "role":
            await hybrid.run("Sell a lamp.", role="seller", dependencies=shop, idempotency_key="one")
        else:
            await hybrid.session("s", dependencies=shop).send("Sell a lamp.", idempotency_key="one")
    assert [sold[3] for sold in shop.sold] == ["one"]


async def test_two_tasks_side_by_side_have_their_own() -> None:
    shops = [Shop([]), Shop([])]
    async with Hybrid(near=ScriptedAgent(lambda request: sell_call() if len(request.messages) == 1 else "done"), tools=[sell]) as hybrid:
        for shop in shops:
            await hybrid.run("Sell a lamp.", dependencies=shop)
    assert [len(shop.sold) for shop in shops] == [1, 1]
    assert shops[0].sold[0][-1] != shops[1].sold[0][-1]


async def test_parts_of_a_task_have_the_context_of_the_whole() -> None:
    plan = '{"subtasks": [{"id": "a", "task": "Sell one.", "needs": []}, {"id": "b", "task": "Sell another.", "needs": []}]}'

    def reply(request: StepRequest) -> Reply:
        if request.messages[0].text.startswith("Cut the task"):
            return plan
        return sell_call() if request.messages[-1].tool_result is None and "another" in request.messages[-1].text else "done"

    shop = Shop([])
    async with Hybrid(near=ScriptedAgent(reply), tools=[sell], policy=Policy.model_validate({"strategy": "subtasks"})) as hybrid:
        await hybrid.run("Sell two.", dependencies=shop, idempotency_key="whole")
    assert {sold[3] for sold in shop.sold} == {"whole"}


async def test_a_task_without_the_dependencies_of_its_tools_is_refused_before_an_agent_is_asked() -> None:
    agent = ScriptedAgent([])
    async with Hybrid(near=agent, tools=[sell]) as hybrid:
        with pytest.raises(InvalidRequest, match="tool 'sell' needs dependencies, and none are given") as refused:
            await hybrid.run("Sell a lamp.")
        with pytest.raises(InvalidRequest, match="needs dependencies"):
            await anext(hybrid.stream("Sell a lamp."))
        assert "dependencies=..." in refused.value.hint
        assert hybrid.explain_route("Sell a lamp.").candidates
    assert agent.requests == []


async def test_a_tool_that_a_task_may_not_call_needs_none() -> None:
    async with Hybrid(near=ScriptedAgent(["done"]), tools=[sell]) as hybrid:
        assert (await hybrid.run("Greet me.", allowed_tools=[])).text == "done"


@pytest.mark.parametrize("annotation", [Context, Context[None], Context[Any], Context[Shop | None]])
async def test_a_context_that_may_lack_them_needs_none(annotation: type) -> None:
    def tell(context: Context[Any]) -> str:
        """Tell the user."""
        return f"{context.user} {context.dependencies}"

    tell.__annotations__["context"] = annotation
    agent = ScriptedAgent([ToolCall(id="1", name="tell", arguments={}), "done"])
    async with Hybrid(near=agent, tools=[tool(tell)]) as hybrid:
        result = await hybrid.run("Who am I?", user="ana")
    assert result.tool_calls[0].result == "ana None"


async def test_a_run_is_resumed_with_dependencies_given_again_and_keeps_none(tmp_path: Path) -> None:
    asking = tool(approval=True)(sell.function)
    with logged() as lines:
        shop = Shop([])
        async with Hybrid(near=ScriptedAgent([sell_call()]), tools=[asking], records=tmp_path) as hybrid:
            with pytest.raises(ApprovalNeeded) as waiting:
                await hybrid.run("Sell a lamp.", idempotency_key="one", dependencies=shop)
        approvals = {request.id: True for request in waiting.value.requests}
        async with Hybrid(near=ScriptedAgent(["done"]), tools=[asking], records=tmp_path) as later:
            with pytest.raises(InvalidRequest, match="needs dependencies") as refused:
                await later.resume("one")
            assert "kept nowhere" in refused.value.hint
            assert (await later.resume("one", approvals=approvals, dependencies=shop)).text == "done"
    assert len(shop.sold) == 1
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"sold" in kept  # the tool's result
    assert SECRET.encode() not in kept
    assert SECRET not in "".join(lines)


async def test_neither_its_text_nor_a_tool_that_returns_it_shows_the_dependencies() -> None:
    @tool
    def leak(context: Context[Shop]) -> object:
        """Return everything."""
        return context

    agent = ScriptedAgent([ToolCall(id="1", name="leak", arguments={}), "done"])
    async with Hybrid(near=agent, tools=[leak]) as hybrid:
        result = await hybrid.run("Leak.", dependencies=Shop([]))
    assert "not JSON" in result.tool_calls[0].result
    assert SECRET not in f"{agent.requests} {result} {Context(Shop([]), user='ana')}"


@pytest.mark.parametrize("dependencies", [b"bytes", True, 0, "", []])
async def test_dependencies_are_any_object_but_none(dependencies: object) -> None:
    @tool
    def tell(context: Context[object]) -> str:
        """Tell."""
        return repr(context.dependencies)

    agent = ScriptedAgent([ToolCall(id="1", name="tell", arguments={}), "done"])
    async with Hybrid(near=agent, tools=[tell]) as hybrid:
        result = await hybrid.run("Tell.", dependencies=dependencies)
    assert result.tool_calls[0].result == repr(dependencies)


async def test_a_tool_is_tested_by_hand_with_a_context_of_ones_own() -> None:
    @tool
    def total(context: Context[list[int]], more: int) -> int:
        """Add up."""
        return sum(context.dependencies) + more

    assert total(Context([1, 2]), 3) == 6


def test_two_contexts_and_one_inside_of_another_type_are_refused() -> None:
    def two(one: Context, other: Context[Shop]) -> str:  # type: ignore[type-arg]
        """Take two."""
        raise NotImplementedError

    def inside(context: Context[Shop] | None = None) -> str:
        """Take one perhaps."""
        raise NotImplementedError

    takes: tuple[tuple[Callable[..., str], str], ...] = ((two, "'one' and 'other'"), (inside, "inside of another type"))
    for function, problem in takes:
        with pytest.raises(ConfigError, match=problem):
            tool(function)


async def test_a_graph_that_runs_in_another_app_tells_the_model_that_none_are_given() -> None:
    agent = ScriptedAgent([sell_call(), "done"])
    async with Hybrid(near=agent, tools=[sell]) as hybrid:
        await hybrid.graph.ainvoke({"task": Task(messages=(Message.user("Sell."),)).model_dump(mode="json")})
    result = agent.requests[-1].messages[-1].tool_result
    assert result is not None
    assert (result.is_error, result.content) == (True, "the app has not given the tool its dependencies")


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield the lines that everything logs within the block, in full detail."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.getMessage()} {record.__dict__}")

    root, handler = logging.getLogger(), Lines()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
