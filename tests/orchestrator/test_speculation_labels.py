"""Labels in the strategy `speculate`: what near has looked up ahead is as private, and as little trusted, as if far had looked it up."""

from pathlib import Path

import pytest

from nearfar import ApprovalNeeded, Hybrid, MemoryStore, ScriptedAgent, Side, StepRequest, TaskMemory, ToolCall, tool
from nearfar.orchestrator.memory.in_tasks import memory_tools
from nearfar.orchestrator.task.labels import Integrity
from nearfar.protocols.fakes import Reply
from nearfar.protocols.items import Source, Tier

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("strategy", ["cloud", "speculate"])
async def test_untrusted_memory_that_near_recalls_ahead_is_not_acted_upon(strategy: str, tmp_path: Path) -> None:
    paid: list[str] = []

    @tool(effect="at_most_once")
    def pay(person: str) -> str:
        """Pay a person."""
        paid.append(person)
        return "paid"

    recall = ToolCall(id="r", name="recall", arguments={"query": "gardener"})

    def far_step(request: StepRequest) -> Reply:
        results = sum(message.role == "tool" for message in request.messages)
        replies: list[Reply] = [recall, ToolCall(id="p", name="pay", arguments={"person": "Eve Moss"}), "Done."]
        return replies[results]

    far, near = ScriptedAgent(far_step, name="far", side=Side.FAR, pace=0.1), ScriptedAgent([recall] * 9, name="near")
    with MemoryStore.open(tmp_path / "memory.db") as store:
        item = {"text": "The gardener is Eve Moss."}
        store.bound(source=Source.EXTERNAL_TOOL).put(("notes",), "garden", item, tier=Tier.SHARED)
        memory = TaskMemory(store, recall=None, tools=memory_tools(store))
        async with Hybrid(near=near, far=far, tools=[pay], memory=memory) as hybrid:
            result = await hybrid.run("Pay the gardener.", strategy=strategy, sensitivity="public")
    assert paid == []
    assert result.label.integrity is Integrity.UNTRUSTED
    assert [item.key for item in result.recalled] == ["garden"]


async def test_what_is_held_back_ahead_does_not_keep_a_resumed_run_on_the_device(tmp_path: Path) -> None:
    @tool(effect="read", source="internal_tool")
    def look(at: int) -> str:
        """Look at a place."""
        return "mira.falk@example.org" if at == 9 else f"{at}"

    @tool(approval=True, source="internal_tool")
    def put(at: int) -> str:
        """Put something."""
        return "done"

    def far_step(request: StepRequest) -> Reply:
        results = sum(message.role == "tool" for message in request.messages)
        name = "put" if results == 1 else "look"
        return "Done." if results == 3 else ToolCall(id=f"f{results}", name=name, arguments={"at": results})

    def served() -> Hybrid:
        far = ScriptedAgent(far_step, name="far", side=Side.FAR, pace=0.1)
        near = ScriptedAgent([ToolCall(id="n", name="look", arguments={"at": 9})] * 99, name="near")
        policy = {"strategy": "speculate", "sensitivity": "public", "speculate": {"thrift": 0.0}}
        return Hybrid(near=near, far=far, tools=[look, put], policy=policy, records=tmp_path)

    async with served() as hybrid:
        with pytest.raises(ApprovalNeeded) as stopped:
            await hybrid.run("Put.", idempotency_key="the run")
    async with served() as hybrid:
        result = await hybrid.resume("the run", approvals={stopped.value.requests[0].id: True})
    assert (result.text, result.agent, result.label.tier) == ("Done.", "far", Tier.SHARED)
