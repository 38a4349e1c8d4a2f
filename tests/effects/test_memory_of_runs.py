"""A run that goes on knows what it was told, and not only what its conversation says."""

from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from in_memory_engine import InMemoryEngine

from nearfar import Hybrid, MemoryStore, Source, Tier, Tool, tool
from nearfar.orchestrator.memory.in_tasks import memory_tools
from nearfar.orchestrator.task.events import ToolFinished, ToolStarted
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ScriptedAgent, ToolCall
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PROMPT = "What milk does Ana drink?"
RECALL, WAIT = ToolCall(id="1", name="recall", arguments={"query": PROMPT}), ToolCall(id="2", name="wait")
TOGETHER, IN_TURN = [[RECALL, WAIT]], [RECALL, WAIT]


def waiting(*, for_ever: bool) -> Tool:
    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        if for_ever:
            await anyio.sleep_forever()
        return "waited"

    return wait


@pytest.mark.parametrize("turns", [TOGETHER, IN_TURN], ids=["in the message under way", "in one before it"])
async def test_what_a_tool_recalled_before_the_process_died_is_known_to_the_run_that_goes_on(tmp_path: Path, turns: list[Reply]) -> None:
    store = MemoryStore(InMemoryEngine())
    store.bound(source=Source.USER).put(("people", "ana"), "milk", {"text": "Ana drinks oat milk."}, tier=Tier.DEVICE)

    def opened(near: ScriptedAgent, *, for_ever: bool) -> Hybrid:
        return Hybrid(near=near, tools=[*memory_tools(store), waiting(for_ever=for_ever)], records=RunsConfig(folder=tmp_path))

    has_recalled = is_waiting = False
    async with opened(ScriptedAgent(turns), for_ever=True) as hybrid, aclosing(hybrid.stream(PROMPT, idempotency_key="run-1")) as events:
        async for event in events:
            if isinstance(event, ToolFinished):
                has_recalled = True
            if isinstance(event, ToolStarted):
                is_waiting = is_waiting or event.call == WAIT
            if has_recalled and is_waiting:
                break
    near = ScriptedAgent(["Oat milk."])
    async with opened(near, for_ever=False) as hybrid:
        result = await hybrid.resume("run-1")
    assert "oat milk" in near.requests[0].model_dump_json()
    assert [item.key for item in result.recalled] == ["milk"]
    assert result.label.tier is Tier.DEVICE
