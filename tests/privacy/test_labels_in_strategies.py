"""What a run has been told stays with it, on every way by which it could come to a far agent."""

import json
from pathlib import Path

import pytest
from in_memory_engine import InMemoryEngine
from langgraph.checkpoint.memory import InMemorySaver

from nearfar import Hybrid, MemoryStore, Records, Source, Tier, tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.memory.in_tasks import NOTES, TaskMemory, memory_tools
from nearfar.orchestrator.task.labels import Integrity
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import Message, PrivacyViolation, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, ToolResult, Unavailable
from nearfar.protocols.fakes import Reply
from nearfar.protocols.items import TRUST

pytestmark = pytest.mark.anyio

CANARY = "the vault opens at nine"
READ = ToolCall(id="1", name="read_diary", arguments={})
PUBLIC: TaskOptions = {"sensitivity": "public", "mode": "prefer_in_cloud", "strategy": "route"}
IN_A_CHAT: TaskOptions = {**PUBLIC, "session": "chat", "unstick": True}


@tool(returns="device", effect="read", source="internal_tool")
def read_diary() -> str:
    """What was written."""
    return CANARY


@tool(source="external_tool", effect="read")
def read_page() -> str:
    """A page of the web."""
    return "Strangers say that owls are birds."


def public(strategy: Strategy, **options: object) -> Policy:
    return Policy.model_validate({"strategy": strategy, "sensitivity": Sensitivity.PUBLIC, **options})


def near(*script: Reply) -> ScriptedAgent:
    return ScriptedAgent(script, name="near")


def far(*script: Reply) -> ScriptedAgent:
    return ScriptedAgent(script, name="far", side=Side.FAR)


def told(agent: ScriptedAgent) -> str:
    """All that an agent was sent."""
    return "\n".join(request.model_dump_json() for request in agent.requests)


def of_tool(name: str, text: str) -> list[Message]:
    """A conversation in which a tool has returned something."""
    call = ToolCall(id="0", name=name)
    result = ToolResult(call_id="0", name=name, content=text)
    return [Message.user("Go on"), Message.assistant(tool_calls=(call,)), Message.tool(result), Message.user("And now?")]


async def test_conversation_that_begins_with_a_private_result_is_not_told_to_a_far_agent() -> None:
    cloud = far("never reached")
    async with Hybrid(near=near("I see."), far=cloud, tools=[read_diary]) as hybrid:
        result = await hybrid.run(of_tool("read_diary", CANARY), **PUBLIC)
    assert result.side is Side.NEAR
    assert cloud.requests == []
    assert result.label.tier is Tier.DEVICE


async def test_result_says_how_far_its_answer_may_go_and_who_had_a_hand_in_it() -> None:
    page = ToolCall(id="2", name="read_page", arguments={})
    async with Hybrid(near=near("plain", [READ, page], "both", "private"), tools=[read_diary, read_page]) as hybrid:
        plain = await hybrid.run("Hello", sensitivity="public")
        both = await hybrid.run("Read", sensitivity="public")
        private = await hybrid.run("Hello", sensitivity="private")
    assert (plain.label.tier, plain.label.integrity, plain.label.origins) == (Tier.SHARED, Integrity.TRUSTED, ())
    assert (both.label.tier, both.label.integrity, both.label.origins) == (
        Tier.DEVICE,
        Integrity.UNTRUSTED,
        ("tool read_diary", "tool read_page"),
    )
    assert (private.label.tier, private.label.origins) == (Tier.USER, ("the task",))


async def test_context_and_results_of_tools_that_nobody_knows_count_as_the_words_of_strangers() -> None:
    async with Hybrid(near=near("one", "two")) as hybrid:
        with_context = await hybrid.run("Sum up", context="a long text", sensitivity="public")
        with_result = await hybrid.run(of_tool("gone", "text"), sensitivity="public")
    assert with_context.label.integrity is with_result.label.integrity is Integrity.UNTRUSTED
    assert with_context.label.tier is Tier.SHARED


@pytest.mark.parametrize("remembers", [False, True])
async def test_follow_up_in_a_session_that_read_something_private_stays_on_the_device(remembers: bool) -> None:
    cloud = far(READ, "never reached")
    memory = TaskMemory(MemoryStore(InMemoryEngine()), recall=None, remember=True) if remembers else None
    async with Hybrid(near=near(READ, "It opens at nine.", "At nine."), far=cloud, tools=[read_diary], memory=memory) as hybrid:
        await hybrid.run("When does it open?", **IN_A_CHAT)
        follow_up = [Message.user("When does it open?"), Message.assistant(CANARY), Message.user("Say it again")]
        result = await hybrid.run(follow_up, **IN_A_CHAT)
    assert result.side is Side.NEAR
    assert CANARY not in told(cloud)
    assert any("an earlier task of its session" in reason for reason in result.reasons)


async def test_follow_up_of_a_task_that_failed_after_it_had_read_something_private_stays_on_the_device() -> None:
    """Part of its answer may have been shown."""
    near = ScriptedAgent([READ, Unavailable("gone"), "at nine"], name="near")
    far = ScriptedAgent(["never reached"], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, tools=[read_diary]) as hybrid:
        with pytest.raises((Unavailable, PrivacyViolation)):
            await hybrid.run("What does my diary say?", sensitivity="public", strategy="device", session="chat")
        result = await hybrid.run("And?", **IN_A_CHAT)
    assert result.side is Side.NEAR
    assert far.requests == []


async def test_task_that_says_of_itself_that_it_is_private_leaves_later_ones_of_its_session_alone() -> None:
    cloud = far("Hello.")
    async with Hybrid(near=near("Yes."), far=cloud) as hybrid:
        await hybrid.run("Mine", sensitivity="private", session="chat")
        result = await hybrid.run("Hello", **IN_A_CHAT)
    assert result.side is Side.FAR


async def test_part_that_needs_a_private_result_and_the_whole_stay_on_the_device() -> None:
    def on_far(request: StepRequest) -> Reply:
        text = request.messages[-1].text
        if "Cut the task" in request.messages[0].text:
            parts = [
                {"id": "a", "task": "Read the diary", "needs": []},
                {"id": "b", "task": "Say when", "needs": ["a"]},
                {"id": "c", "task": "Greet", "needs": []},
            ]
            return json.dumps({"subtasks": parts})
        return READ if "Read the diary" in text else "Good morning"

    def on_near(request: StepRequest) -> Reply:
        if "Read the diary" in request.messages[-1].text and not request.messages[0].text.startswith("Answer"):
            return READ
        return CANARY

    cloud, device = ScriptedAgent(on_far, name="far", side=Side.FAR), ScriptedAgent(on_near, name="near")
    policy = public(Strategy.SUBTASKS, mode="prefer_in_cloud", subtasks={"strategy": "route", "aggregate": "always"})
    async with Hybrid(near=device, far=cloud, tools=[read_diary], policy=policy) as hybrid:
        result = await hybrid.run("When does it open?")
    assert CANARY not in told(cloud)
    assert "Good morning" in told(device), "the part that needs nothing private was served far away"
    assert result.side is Side.NEAR
    assert result.label.tier is Tier.DEVICE


async def test_part_that_failed_after_it_had_read_something_private_keeps_the_whole_on_the_device() -> None:
    def on_far(request: StepRequest) -> Reply:
        if "Cut the task" in request.messages[0].text:
            parts = [{"id": "a", "task": "Read the diary", "needs": []}, {"id": "b", "task": "Greet", "needs": []}]
            return json.dumps({"subtasks": parts})
        return READ if request.messages[-1].text == "Read the diary" else "Good morning"

    def on_near(request: StepRequest) -> Reply:
        return "There was a failure." if request.messages[0].text.startswith("Answer") else Unavailable("the device is busy")

    cloud, device = ScriptedAgent(on_far, name="far", side=Side.FAR), ScriptedAgent(on_near, name="near")
    policy = public(Strategy.SUBTASKS, mode="prefer_in_cloud", subtasks={"strategy": "route", "aggregate": "always"})
    async with Hybrid(near=device, far=cloud, tools=[read_diary], policy=policy) as hybrid:
        result = await hybrid.run("When does it open?")
    assert result.label.tier is Tier.DEVICE
    assert result.side is Side.NEAR


@pytest.mark.parametrize("strategy", [Strategy.PEVR, Strategy.EVA])
async def test_far_supervisor_is_left_out_with_the_reason_once_something_private_was_read(strategy: Strategy) -> None:
    policy = public(strategy, supervision={"executor": "near", "interval": 1, "triggers": ()})
    cloud = far("1. read_diary()\n2. answer", "never reached", "never reached")
    async with Hybrid(near=near(READ, f"It says: {CANARY}"), far=cloud, tools=[read_diary], policy=policy) as hybrid:
        result = await hybrid.run("When does it open?")
    assert CANARY not in told(cloud)
    assert result.text == f"It says: {CANARY}"
    assert any("goes on alone" in reason and "tool read_diary" in reason for reason in result.reasons)


async def test_minions_extracts_of_a_private_task_are_put_together_on_the_device() -> None:
    policy = public(Strategy.MINIONS, mode="only_on_device", sensitivity="private")
    device = near(
        json.dumps({"jobs": [{"instruction": "When?", "advice": ""}]}),
        *[_found(), json.dumps({"answer": "nine", "scratchpad": "", "jobs": []})],
    )
    async with Hybrid(near=device, far=far("never reached"), policy=policy) as hybrid:
        result = await hybrid.run("When does it open?", context=f"Today {CANARY}.")
    assert (result.label.tier, result.label.integrity) == (Tier.USER, Integrity.UNTRUSTED)
    assert all(request.sensitivity is Sensitivity.PRIVATE for request in device.requests)


def _found() -> str:
    return json.dumps({"explanation": "it says so", "citation": CANARY, "answer": "nine"})


async def test_answer_that_a_cache_keeps_of_a_private_run_is_not_served_to_a_public_one(tmp_path: Path) -> None:
    cache = CacheConfig(path=tmp_path / "cache.db", sides=(Side.NEAR,), semantic=False)
    async with Hybrid(near=near("It opens at nine.", "I do not know."), records=Records(cache=cache)) as hybrid:
        private = [(await hybrid.run("When does it open?", sensitivity="private", strategy="device")).text for _ in range(2)]
        public = await hybrid.run("When does it open?", sensitivity="public", strategy="device")
    assert private == ["It opens at nine.", "It opens at nine."]
    assert public.text == "I do not know."


async def test_what_a_run_that_read_something_private_writes_stays_on_the_device() -> None:
    store = MemoryStore(InMemoryEngine(), tier=Tier.SHARED)
    note = ToolCall(id="2", name="remember", arguments={"text": CANARY})
    memory = TaskMemory(store, recall=None, remember=True, tools=memory_tools(store))
    async with Hybrid(near=near(READ, note, "Done."), tools=[read_diary], memory=memory) as hybrid:
        await hybrid.run("Note it", sensitivity="public")
    assert {item.tier for item in store.search((), limit=100)} == {Tier.DEVICE}


async def test_what_a_run_that_read_strangers_words_writes_is_believed_no_more_than_those() -> None:
    store = MemoryStore(InMemoryEngine(), tier=Tier.SHARED)
    page = ToolCall(id="1", name="read_page", arguments={})
    note = ToolCall(id="2", name="remember", arguments={"text": "Owls are birds."})
    memory = TaskMemory(store, recall=None, remember=True, tools=memory_tools(store))
    async with Hybrid(near=near(page, note, "Done."), tools=[read_page], memory=memory) as hybrid:
        await hybrid.run("Note it", sensitivity="public")
    (noted,) = store.search(NOTES, limit=10)
    assert noted.trust == TRUST[Source.EXTERNAL_TOOL]
    assert {item.trust for item in store.search(("tasks",), limit=100)} == {TRUST[Source.EXTERNAL_TOOL], TRUST[Source.USER]}


async def test_what_is_looked_up_in_the_memory_in_mid_run_joins_the_label() -> None:
    store = MemoryStore(InMemoryEngine(), tier=Tier.DEVICE)
    store.bound(source=Source.EXTERNAL_TOOL).put(("notes",), "vault", {"text": "vault: the vault opens at nine"})
    look_up = ToolCall(id="1", name="recall", arguments={"query": "vault"})
    memory = TaskMemory(store, recall=None, tools=memory_tools(store))
    async with Hybrid(near=near(look_up, "At nine."), memory=memory) as hybrid:
        result = await hybrid.run("When does it open?")
    assert (result.label.tier, result.label.integrity) == (Tier.DEVICE, Integrity.UNTRUSTED)
    assert "memory notes/vault" in result.label.origins


async def test_label_survives_in_the_checkpoints_of_a_run_that_broke_off() -> None:
    """The tool ran, then the process died: who goes on with the thread in another one is told just as little."""
    saver = InMemorySaver()
    cloud = far(READ, "never reached")
    options: TaskOptions = {**PUBLIC, "strategy": "cloud", "idempotency_key": "one", "thread_id": "one"}
    async with Hybrid(far=cloud, tools=[read_diary], records=Records(checkpointer=saver)) as hybrid:
        with pytest.raises(PrivacyViolation, match="read_diary"):
            await hybrid.run("When does it open?", **options)
    kept = await saver.aget({"configurable": {"thread_id": "one"}})
    assert kept is not None
    assert kept["channel_values"]["label"]["tier"] == "device"
    again = far("never reached")
    async with Hybrid(far=again, tools=[read_diary], records=Records(checkpointer=saver)) as hybrid:
        with pytest.raises(PrivacyViolation, match="read_diary"):
            await hybrid.graph_of("cloud").ainvoke(None, {"configurable": {"thread_id": "one"}})
    assert again.requests == []
