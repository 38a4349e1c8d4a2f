"""The strategy `speculate` where the near side, its model or its tools are slow, fail, or are stopped."""

import anyio
import pytest

from nearfar import Hybrid, NearfarError, RateLimited, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, tool
from nearfar.protocols import Limits, ModelError
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio


@tool(effect="read", source="internal_tool")
async def look(at: int) -> str:
    """Look at a place."""
    return f"{at}"


def looked(request: StepRequest) -> Reply:
    number = sum(message.role == "tool" for message in request.messages)
    return "Done." if number == 4 else ToolCall(id=f"c{number}", name="look", arguments={"at": number})


async def test_a_near_model_that_loads_longer_than_a_step_of_far_takes_is_loaded_once() -> None:
    begun, loaded = list[str](), anyio.Event()
    near = ScriptedAgent(looked, name="near")

    async def load() -> ScriptedAgent:
        begun.append("loading")
        await loaded.wait()
        return near

    def far_step(request: StepRequest) -> Reply:
        if sum(message.role == "tool" for message in request.messages) == 2:
            loaded.set()
        return looked(request)

    far = ScriptedAgent(far_step, name="far", side=Side.FAR, pace=0.05)
    async with Hybrid(near="near", far=far, tools=[look]) as hybrid:
        hybrid.pool["near"].open_by(load)
        result = await hybrid.run("Look.", strategy="speculate", sensitivity="public")
    assert (result.text, begun) == ("Done.", ["loading"])
    assert result.speculation is not None
    assert result.speculation.proposed > 0


async def test_a_near_model_that_still_loads_at_the_end_is_given_up_with_the_hybrid() -> None:
    ended = list[str]()

    async def load() -> ScriptedAgent:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("given up")
        raise AssertionError("it loads for ever")

    far = ScriptedAgent(looked, name="far", side=Side.FAR, pace=0.01)
    async with Hybrid(near="near", far=far, tools=[look]) as hybrid:
        hybrid.pool["near"].open_by(load)
        result = await hybrid.run("Look.", strategy="speculate", sensitivity="public")
        assert (result.text, ended) == ("Done.", [])
    assert ended == ["given up"]


async def test_a_near_model_that_cannot_be_loaded_leaves_the_task_to_far() -> None:
    async def load() -> ScriptedAgent:
        raise ModelError("it is damaged")

    far = ScriptedAgent(looked, name="far", side=Side.FAR, pace=0.01)
    async with Hybrid(near="near", far=far, tools=[look]) as hybrid:
        hybrid.pool["near"].open_by(load)
        results = [await hybrid.run("Look.", strategy="speculate", sensitivity="public") for _ in range(2)]
    assert [result.text for result in results] == ["Done."] * 2


@pytest.mark.parametrize("error", [RateLimited("busy", retry_after=60), Unavailable("busy")])
async def test_a_near_side_that_fails_ahead_can_still_stand_in_for_far(error: NearfarError) -> None:
    is_far_gone = False

    def far_step(request: StepRequest) -> Reply:
        nonlocal is_far_gone
        is_far_gone = is_far_gone or sum(message.role == "tool" for message in request.messages) == 3
        return Unavailable("gone") if is_far_gone else looked(request)

    far = ScriptedAgent(far_step, name="far", side=Side.FAR, pace=0.01)
    near = ScriptedAgent(lambda request: looked(request) if is_far_gone else error, name="near")
    async with Hybrid(near=near, far=far, tools=[look]) as hybrid:
        result = await hybrid.run("Look.", strategy="speculate", sensitivity="public")
    assert (result.agent, result.text) == ("near", "Done.")
    assert sum(call.role == "speculate" for call in result.calls) == 1, "a near side that is away is not asked ahead again"


async def test_near_does_not_run_ahead_of_a_conversation_that_is_shortened_for_far() -> None:
    @tool(effect="read", source="internal_tool")
    async def read(page: int) -> str:
        """Read a page."""
        return f"page {page} " + "word " * 390

    def step(request: StepRequest) -> Reply:
        pages = [int(str(call.arguments["page"])) for message in request.messages for call in message.tool_calls]
        page = max(pages, default=0) + 1
        return "Done." if page > 6 else ToolCall(id=f"c{page}", name="read", arguments={"page": page})

    limits = Limits(concurrency=64, context_tokens=1600)
    far = ScriptedAgent(step, name="far", side=Side.FAR, pace=0.03, limits=limits)
    policy = {"sensitivity": "public", "speculate": {"thrift": 0.0}, "compression": {"use": "always"}}
    async with Hybrid(near=ScriptedAgent(step, name="near"), far=far, tools=[read], policy=policy) as hybrid:
        result = await hybrid.run("Read.", strategy="speculate")
    assert (result.agent, result.text) == ("far", "Done.")
    assert result.speculation is not None
    assert len(result.speculation.judged) < 6, "it ends where the first message is left out"
