"""What tasks recall of the memory, what that makes of them, and what they leave in it."""

import json
from contextlib import aclosing
from pathlib import Path

import pytest
from in_memory_engine import InMemoryEngine
from pydantic import JsonValue

from nearfar import Hybrid, ItemAddress, MemoryStore, Records, Result, Source, Tier, tool
from nearfar.orchestrator.compose.hub import AttachedConfig
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.memory.agent_memory import WorkingMemory
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.in_tasks import NOTES, SCOPE, TaskMemory, memory_tools
from nearfar.orchestrator.memory.ranking import Granularity, episodic
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.stores import CacheConfig, MemoryConfig, RecallConfig
from nearfar.protocols import PrivacyViolation, ScriptedAgent, Side, StepRequest, StoreUnavailable, ToolCall
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.items import TRUST
from nearfar.protocols.server import serve

pytestmark = pytest.mark.anyio

PROMPT = "What milk does Ana drink?"
FACT = "Ana drinks oat milk."
MILK = ItemAddress(("people", "ana"), "milk")
TURNS = episodic(SCOPE, Granularity.TURN)


def store_with(tier: Tier, *, store_tier: Tier = Tier.DEVICE, engine: Engine | None = None) -> MemoryStore:
    """One that knows a fact which may go so far. It searches by words, so that no test depends on a model."""
    store = MemoryStore(engine or InMemoryEngine(), tier=store_tier)
    store.bound(source=Source.USER).put(MILK.namespace, MILK.key, {"text": FACT}, tier=tier)
    return store


def near(*script: str | ToolCall) -> ScriptedAgent:
    return ScriptedAgent(list(script) or ["Oat milk."], name="near")


def far(*script: str) -> ScriptedAgent:
    return ScriptedAgent(list(script) or ["Oat milk."], name="far", side=Side.FAR)


def shown(agent: ScriptedAgent) -> str:
    """The prompt of the agent's first step."""
    return agent.requests[0].messages[-1].text


def turns_of(store: MemoryStore) -> dict[str, tuple[str, Source, str, Tier, tuple[ItemAddress, ...]]]:
    """By what they say, the turns that were written down."""
    kept = store.search(TURNS, limit=100)
    return {item.value["text"]: (item.value["speaker"], item.source, item.agent, item.tier, item.lineage) for item in kept}


async def test_what_is_known_stands_behind_the_prompt_as_quoted_data() -> None:
    agent = near()
    async with Hybrid(near=agent, memory=store_with(Tier.DEVICE)) as hybrid:
        result = await hybrid.run(PROMPT)
    prompt, _, quote_data = shown(agent).partition("\n\n")
    assert prompt == PROMPT
    assert f' user 1.0 "{FACT}"\n</memory ' in quote_data
    (recalled,) = result.recalled
    assert (recalled.namespace, recalled.key, recalled.tier, recalled.source) == (*MILK, Tier.DEVICE, Source.USER)
    assert recalled.version


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.USER])
async def test_public_task_that_recalls_what_may_not_leave_the_device_is_private_and_says_so(tier: Tier) -> None:
    cloud = far()
    async with Hybrid(near=near(), far=cloud, memory=store_with(tier)) as hybrid:
        result = await hybrid.run(PROMPT, sensitivity="public", mode="prefer_in_cloud", strategy="route")
    assert (result.served_on_device, cloud.requests) == (True, [])
    assert f"private: 1 item of the memory that it recalls may not leave the device (tier {tier})" in result.reasons


async def test_conversation_that_holds_what_may_not_leave_the_device_stays_there() -> None:
    cloud = far("Hallo.")
    async with Hybrid(near=near("Oat milk.", "Hafermilch."), far=cloud, memory=store_with(Tier.DEVICE)) as hybrid:
        options: TaskOptions = {"sensitivity": "public", "mode": "prefer_in_cloud", "strategy": "route", "session": "chat"}
        await hybrid.run(PROMPT, **options)
        result = await hybrid.run("Say that in German.", **options)
        assert cloud.requests == []
        assert any("an earlier task of its session read data that may not leave the device" in reason for reason in result.reasons)
        elsewhere: TaskOptions = {**options, "session": "other"}
        other = await hybrid.run("Say hello in German.", **elsewhere)
    assert other.side is Side.FAR


async def test_the_far_side_does_not_step_in_for_a_task_that_recalls_what_is_private() -> None:
    async with Hybrid(near=near("Perhaps?"), far=far(), memory=store_with(Tier.DEVICE)) as hybrid:
        decision = hybrid.explain_route(PROMPT, sensitivity="public")
    assert decision.candidates == ("near",)
    assert any(reason.startswith("private: 1 item") for reason in decision.reasons)


async def test_what_is_shared_goes_to_the_cloud_with_a_public_task() -> None:
    cloud = far()
    async with Hybrid(near=near(), far=cloud, memory=store_with(Tier.SHARED)) as hybrid:
        result = await hybrid.run(PROMPT, sensitivity="public", mode="prefer_in_cloud", strategy="route")
    assert (result.side, FACT in shown(cloud), len(result.recalled)) == (Side.FAR, True, 1)


async def test_policy_may_let_what_is_the_users_go_to_the_cloud_but_never_what_is_the_devices() -> None:
    recall = RecallConfig(may_leave="user")
    for tier, side in ((Tier.USER, Side.FAR), (Tier.DEVICE, Side.NEAR)):
        async with Hybrid(near=near(), far=far(), memory=TaskMemory(store_with(tier), recall=recall)) as hybrid:
            assert (await hybrid.run(PROMPT, sensitivity="public", mode="prefer_in_cloud", strategy="route")).side is side


@pytest.mark.parametrize("options", [{"strategy": "cloud"}, {"mode": "only_in_cloud"}])
async def test_task_that_only_the_cloud_can_serve_is_told_nothing_private(options: dict[str, str]) -> None:
    cloud = far()
    async with Hybrid(near=near(), far=cloud, memory=store_with(Tier.DEVICE)) as hybrid:
        result = await hybrid.run(PROMPT, sensitivity="public", **options)  # type: ignore[arg-type]  # names of enum members are taken, too
    assert (shown(cloud), result.recalled) == (PROMPT, ())
    assert any("1 item left out" in reason for reason in result.reasons)


@pytest.mark.parametrize(("tier", "is_told"), [(Tier.DEVICE, False), (Tier.USER, True)])
async def test_where_a_near_agent_is_on_another_device_it_hears_nothing_that_is_for_this_one_alone(tier: Tier, is_told: bool) -> None:
    store = store_with(tier)
    memory = TaskMemory(store, tools=memory_tools(store))
    phone = AttachedConfig(socket=Path("hub.sock"), worker="phone", side=Side.NEAR)
    agent = near(calls("recall", query=PROMPT), "Oat milk.")
    async with Hybrid(near=agent, agents={"phone": phone}, memory=memory) as hybrid:
        result = await hybrid.run(PROMPT, strategy="device")
    told = agent.requests[1].messages[-1].tool_result
    assert told is not None
    assert [FACT in shown(agent), FACT in told.content, bool(result.recalled)] == [is_told] * 3
    assert any("1 item left out" in reason for reason in result.reasons) is not is_told


async def test_near_agent_behind_an_address_counts_as_one_on_another_device() -> None:
    agent = near()
    async with (
        serve(agent, "localhost:0") as server,
        aclosing(await RemoteAgent.connect(server.address)) as remote,
        Hybrid(near=remote, memory=store_with(Tier.DEVICE)) as hybrid,
    ):
        assert (await hybrid.run(PROMPT)).recalled == ()
    assert shown(agent) == PROMPT


async def test_without_a_near_side_nothing_private_is_recalled_for_a_public_task() -> None:
    cloud = far()
    async with Hybrid(far=cloud, memory=store_with(Tier.DEVICE)) as hybrid:
        assert (await hybrid.run(PROMPT, sensitivity="public")).side is Side.FAR
        with pytest.raises(PrivacyViolation):
            await hybrid.run(PROMPT)
    assert shown(cloud) == PROMPT


async def test_prompt_that_has_nothing_to_do_with_the_memory_recalls_nothing_and_stays_public() -> None:
    cloud = far()
    async with Hybrid(near=near(), far=cloud, memory=store_with(Tier.DEVICE)) as hybrid:
        result = await hybrid.run("Summarise RFC 2119.", sensitivity="public", mode="prefer_in_cloud", strategy="route")
    assert (result.side, result.recalled, shown(cloud)) == (Side.FAR, (), "Summarise RFC 2119.")


async def test_recall_keeps_to_namespaces_trust_and_budget() -> None:
    store = store_with(Tier.SHARED)
    store.bound(source=Source.EXTERNAL_TOOL).put(("web",), "1", {"text": "Ana drinks cow milk."}, tier=Tier.SHARED)
    for number in range(50):
        store.put(("people", "bob"), str(number), {"text": f"Ana drinks oat milk number {number}. {'So it goes. ' * 20}"})
    for recall, expected in (
        (RecallConfig(namespaces=("people/ana",)), {("people", "ana")}),
        (RecallConfig(namespaces=("web", "people/ana"), minimum_trust=0.5), {("people", "ana")}),
        (RecallConfig(namespaces=("web",), minimum_trust=0.5), set()),
    ):
        async with Hybrid(near=near(), memory=TaskMemory(store, recall=recall)) as hybrid:
            assert {item.namespace for item in (await hybrid.run(PROMPT)).recalled} == expected
    agent = near()
    async with Hybrid(near=agent, memory=TaskMemory(store, recall=RecallConfig(tokens=400))) as hybrid:
        assert len((await hybrid.run(PROMPT)).recalled) > 2
    assert len(shown(agent)) <= len(PROMPT) + 2 + 4 * 400


def in_every_role(request: StepRequest) -> str:
    """Whatever a strategy asks for."""
    match sorted((request.output_schema or {}).get("properties", {})):
        case ["subtasks"]:
            return json.dumps({"subtasks": [{"id": "a", "task": "Who?", "needs": []}, {"id": "b", "task": "What?", "needs": ["a"]}]})
        case ["answer", "jobs", "scratchpad"]:
            return json.dumps({"answer": "Oat milk.", "scratchpad": "", "jobs": []})
        case ["jobs"]:
            return json.dumps({"jobs": [{"instruction": "Find milk.", "advice": ""}]})
        case ["answer", "citation", "explanation"]:
            return json.dumps({"answer": "oat", "citation": "oat", "explanation": "it says so"})
        case _:
            return "Oat milk."


@pytest.mark.parametrize("strategy", [one for one in Strategy if one is not Strategy.AUTO])
async def test_every_strategy_works_with_what_is_recalled(strategy: Strategy) -> None:
    agents = [ScriptedAgent(in_every_role, name=side.value, side=side) for side in Side]
    options = {"context": "Some oat and more. " * 20} if strategy is Strategy.MINIONS else {}
    async with Hybrid(near=agents[0], far=agents[1], memory=store_with(Tier.SHARED)) as hybrid:
        result = await hybrid.run(PROMPT, strategy=strategy, sensitivity="public", **options)  # type: ignore[arg-type]  # none but context
    assert result.recalled
    requests = [request for agent in agents for request in agent.requests]
    readers = [request for request in requests if "jobs" not in str(request.output_schema) and strategy is Strategy.MINIONS]
    told = [request for request in requests if request not in readers]
    assert told
    assert all(any(FACT in message.text for message in request.messages) for request in told)


@pytest.mark.parametrize("is_cached", [True, False])
async def test_answer_that_memory_went_into_is_kept_in_no_cache(is_cached: bool, tmp_path: Path) -> None:
    store = MemoryStore(InMemoryEngine()) if is_cached else store_with(Tier.DEVICE)
    agent = near("Oat milk.", "Oat milk.")
    cache = CacheConfig(path=tmp_path / "cache.db", sides=(Side.NEAR,), semantic=False)
    async with Hybrid(near=agent, memory=store, records=Records(cache=cache)) as hybrid:
        for _ in range(2):
            await hybrid.run(PROMPT)
    assert len(agent.requests) == (1 if is_cached else 2)


async def test_no_cache_keeps_what_follows_in_a_conversation_that_memory_went_into(tmp_path: Path) -> None:
    agent = near("Oat milk.", "Hafermilch.", "Hafermilch.")
    cache = CacheConfig(path=tmp_path / "cache.db", sides=(Side.NEAR,), semantic=False)
    async with Hybrid(near=agent, memory=store_with(Tier.DEVICE), records=Records(cache=cache)) as hybrid:
        for prompt in (PROMPT, "Say that in German.", "Say that in German."):
            await hybrid.run(prompt, session="chat")
    assert len(agent.requests) == 3


async def test_task_that_cannot_be_written_down_is_served_and_says_so() -> None:
    memory = TaskMemory(MemoryStore(InMemoryEngine(), maximum_bytes=500), remember=True)
    async with Hybrid(near=near("x" * 1000), memory=memory) as hybrid:
        result = await hybrid.run(PROMPT)
    assert len(result.text) == 1000
    assert any(reason.startswith("memory: the task was not written down") for reason in result.reasons)


class Broken(InMemoryEngine):
    """An engine whose database cannot be reached while `is_away`."""

    is_away = False

    def __getattribute__(self, name: str) -> object:
        if name in ("keyword", "transaction") and object.__getattribute__(self, "is_away"):
            raise StoreUnavailable("the database is away", hint="bring it back")
        return super().__getattribute__(name)


async def test_task_is_served_without_a_memory_that_fails_and_says_so() -> None:
    engine = Broken()
    store = store_with(Tier.DEVICE, engine=engine)
    engine.is_away = True
    async with Hybrid(near=near(), memory=TaskMemory(store, remember=True)) as hybrid:
        result = await hybrid.run(PROMPT)
    assert (result.text, result.recalled) == ("Oat milk.", ())
    assert "memory: nothing could be recalled: the database is away" in result.reasons
    assert "memory: the task was not written down: the database is away" in result.reasons


@tool(source="internal_tool")
def look(place: str) -> str:
    """Look into a place."""
    return f"In the {place} there is oat milk."


async def test_task_is_written_down_verbatim_each_part_on_the_word_of_who_said_it() -> None:
    store = store_with(Tier.DEVICE, store_tier=Tier.USER)
    call = ToolCall(id="1", name="look", arguments={"place": "fridge"})
    async with Hybrid(near=near(call, "Oat milk."), tools=[look], memory=TaskMemory(store, remember=True)) as hybrid:
        await hybrid.run(PROMPT)
    assert turns_of(store) == {
        PROMPT: ("user", Source.USER, "", Tier.DEVICE, ()),
        'look({"place": "fridge"})': ("near", Source.MODEL, "near", Tier.DEVICE, (MILK,)),
        "In the fridge there is oat milk.": ("look", Source.EXTERNAL_TOOL, "near", Tier.DEVICE, (MILK,)),
        "Oat milk.": ("near", Source.MODEL, "near", Tier.DEVICE, (MILK,)),
    }


async def test_public_task_is_written_down_as_far_as_the_store_lets_it_go_and_recalled_later() -> None:
    store = MemoryStore(InMemoryEngine(), tier=Tier.SHARED)
    agent, cloud = near("Noted."), far("It is Thursday.")
    async with Hybrid(near=agent, far=cloud, memory=TaskMemory(store, remember=True)) as hybrid:
        await hybrid.run("My dentist appointment is on Thursday.", sensitivity="public")
        later = await hybrid.run("When is my dentist appointment?", sensitivity="public", mode="prefer_in_cloud", strategy="route")
    assert turns_of(store)["My dentist appointment is on Thursday."][3] is Tier.SHARED
    assert later.side is Side.FAR
    assert '"user: My dentist appointment is on Thursday."' in shown(cloud)


async def test_answer_is_recalled_beside_the_question_that_it_was_given_to_and_not_the_same_question_again() -> None:
    agent = near("Tuesday at nine.", "Leaves fall.", "It is Tuesday.", "Leaves fall.")
    store = MemoryStore(InMemoryEngine())
    async with Hybrid(near=agent, memory=TaskMemory(store, remember=True)) as hybrid:
        for prompt in ("When shall I go to the dentist?", "Write a haiku about autumn."):
            await hybrid.run(prompt)
        recalled = (await hybrid.run("When was I to go to the dentist again?")).recalled
        again = (await hybrid.run("Write a haiku about autumn.")).recalled
    said = {item.key: item.value["text"] for item in store.search(TURNS, limit=100)}
    assert {said[item.key] for item in recalled} == {"When shall I go to the dentist?", "Tuesday at nine."}
    assert {said[item.key] for item in again} == {"Leaves fall."}


async def test_notes_of_other_runs_are_theirs() -> None:
    store = MemoryStore(InMemoryEngine())
    WorkingMemory(store, "run-1").note("plan", {"text": FACT})
    async with Hybrid(near=near(), memory=store) as hybrid:
        assert (await hybrid.run(PROMPT)).recalled == ()


async def test_store_alone_is_only_read() -> None:
    store = store_with(Tier.DEVICE)
    async with Hybrid(near=near(), memory=store) as hybrid:
        await hybrid.run(PROMPT)
    assert turns_of(store) == {}


def calls(name: str, **arguments: str) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=dict[str, JsonValue](arguments))


async def with_tools(store: MemoryStore, call: ToolCall, *, sensitivity: str) -> tuple[Result, str]:
    """What a task comes to whose agent makes one call, and what the call returned."""
    agent = near(call, "Done.")
    memory = TaskMemory(store, recall=None, tools=memory_tools(store))
    async with Hybrid(near=agent, far=far(), memory=memory) as hybrid:
        result = await hybrid.run("Do it.", sensitivity=sensitivity, strategy="device")
    returned = agent.requests[1].messages[-1].tool_result
    assert returned is not None
    return result, returned.content


async def test_note_of_a_model_is_stamped_as_its_word_and_goes_no_further_than_its_task() -> None:
    for sensitivity, tier in (("private", Tier.DEVICE), ("public", Tier.SHARED)):
        store = MemoryStore(InMemoryEngine(), tier=Tier.SHARED, user="ana")
        await with_tools(store, calls("remember", text="Ana moved to Oslo."), sensitivity=sensitivity)
        (note,) = store.search(NOTES)
        assert (note.value, note.user, note.agent) == ({"text": "Ana moved to Oslo."}, "ana", "near")
        assert (note.source, note.trust, note.tier) == (Source.MODEL, TRUST[Source.MODEL], tier)


@pytest.mark.parametrize("name", ["tier", "user", "subject", "source", "trust"])
async def test_model_has_no_say_in_what_is_stamped_on_its_note(name: str) -> None:
    store = MemoryStore(InMemoryEngine())
    remember, _ = memory_tools(store)
    result = await remember.run(calls("remember", text="x", **{name: "shared"}))
    assert (result.is_error, store.search(())) == (True, [])


async def test_note_of_what_the_user_said_does_not_take_the_place_of_their_word() -> None:
    store = MemoryStore(InMemoryEngine())
    await with_tools(store, calls("remember", text="Ana moved."), sensitivity="private")
    (note,) = store.search(NOTES)
    store.bound(source=Source.USER).put(NOTES, note.key, {"text": "Ana moved."})
    await with_tools(store, calls("remember", text="Ana moved."), sensitivity="private")
    assert [item.source for item in store.search(NOTES)] == [Source.USER]


async def test_private_task_may_look_up_everything_and_the_result_tells_what() -> None:
    result, answer = await with_tools(store_with(Tier.DEVICE), calls("recall", query=PROMPT), sensitivity="private")
    assert FACT in answer
    assert [item.key for item in result.recalled] == [MILK.key]


async def test_public_task_may_look_up_only_what_may_leave_the_device() -> None:
    result, answer = await with_tools(store_with(Tier.DEVICE), calls("recall", query=PROMPT), sensitivity="public")
    assert FACT not in answer
    assert "1 more may not leave the device" in answer
    assert result.recalled == ()
    shared, answer = await with_tools(store_with(Tier.SHARED), calls("recall", query=PROMPT), sensitivity="public")
    assert (FACT in answer, len(shared.recalled)) == (True, 1)


def test_outside_of_a_task_the_tool_tells_only_what_may_leave_the_device() -> None:
    _, recall = memory_tools(store_with(Tier.DEVICE))
    assert FACT not in recall(PROMPT)


async def test_note_is_derived_from_all_that_the_task_has_looked_up() -> None:
    store = store_with(Tier.DEVICE, store_tier=Tier.SHARED)
    store.bound(source=Source.EXTERNAL_TOOL).put(("web",), "1", {"text": "Cats drink milk."}, tier=Tier.SHARED)
    first, second = calls("recall", query="Do cats drink milk?"), calls("remember", text="Cats drink milk, it seems.")
    memory = TaskMemory(store, recall=None, tools=memory_tools(store))
    async with Hybrid(near=near(first, second, "Done."), memory=memory) as hybrid:
        await hybrid.run("Do it.", sensitivity="public")
    (note,) = store.search(NOTES)
    assert note.lineage == (ItemAddress(("web",), "1"),)
    assert note.trust == TRUST[Source.EXTERNAL_TOOL]


async def test_what_a_tool_writes_in_a_private_task_stays_on_the_device_and_knows_what_it_is_derived_from() -> None:
    store = store_with(Tier.DEVICE, store_tier=Tier.SHARED)

    @tool
    def save(text: str) -> str:
        """Save."""
        store.put(("saved",), "1", {"text": text}, tier=Tier.SHARED)
        return "saved"

    async with Hybrid(near=near(calls("save", text="oat"), "Done."), tools=[save], memory=store) as hybrid:
        await hybrid.run(PROMPT)
    (saved,) = store.search(("saved",))
    assert (saved.tier, saved.agent, saved.source, saved.lineage) == (Tier.DEVICE, "near", Source.INTERNAL_TOOL, (MILK,))


@pytest.fixture
def configured(tmp_path: Path) -> MemoryConfig:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, embedder=None) as store:
        store.put(MILK.namespace, MILK.key, {"text": FACT})
    return MemoryConfig(path=path, embed=False, recall=RecallConfig(), tools=True)


async def test_configured_memory_is_opened_and_closed_with_the_hybrid(configured: MemoryConfig) -> None:
    agent = near()
    async with Hybrid(near=agent, memory=configured) as hybrid:
        assert [item.key for item in (await hybrid.run(PROMPT)).recalled] == [MILK.key]
        assert {spec.name for spec in agent.requests[0].tools} == {"remember", "recall"}
        assert isinstance(hybrid.graph.store, MemoryStore)
        assert hybrid.graph.store.get(*MILK) is not None


PIN = "My code for the garden gate is 4711."
ASKED = "What is the code for the garden gate?"


async def test_what_one_user_said_is_recalled_for_that_user_alone() -> None:
    store = MemoryStore(InMemoryEngine())
    agent = near("Noted.", "I do not know.", "4711.")
    async with Hybrid(near=agent, memory=TaskMemory(store, remember=True)) as hybrid:
        await hybrid.run(PIN, user="ada", session="chat")
        await hybrid.run(ASKED, user="bob", session="chat")
        mine = await hybrid.run(ASKED, user="ada", session="another")
    prompts = [request.messages[-1].text for request in agent.requests]
    assert "4711" not in prompts[1]
    assert "4711" in prompts[2]
    assert not any("not written down" in reason for reason in mine.reasons)
    writers = {item.value["text"]: item.user for item in store.search(TURNS, limit=100)}
    assert (writers[PIN], writers["I do not know."]) == ("ada", "bob")


async def test_the_tools_remember_and_recall_for_the_tasks_user() -> None:
    store = MemoryStore(InMemoryEngine())
    note, ask = ToolCall(id="1", name="remember", arguments={"text": PIN}), ToolCall(id="2", name="recall", arguments={"query": ASKED})
    agent = near(note, "Noted.", ask, "I do not know.", note, "Noted.", ask, "4711.")
    async with Hybrid(near=agent, memory=TaskMemory(store, recall=None, tools=memory_tools(store))) as hybrid:
        await hybrid.run("Remember it.", user="ada")
        await hybrid.run("Look it up.", user="bob")
        heard_by_bob = agent.requests[-1].messages[-1]
        await hybrid.run("Remember it, too.", user="bob")
        await hybrid.run("Look it up.", user="bob")
        heard_then = agent.requests[-1].messages[-1]
    assert "4711" not in str(heard_by_bob)
    assert "4711" in str(heard_then)
    assert sorted(item.user for item in store.search(NOTES)) == ["ada", "bob"]


async def test_a_user_is_told_what_is_shared_and_nothing_that_the_stores_own_user_keeps() -> None:
    for tier, is_told in ((Tier.SHARED, True), (Tier.USER, False), (Tier.DEVICE, False)):
        agent = near()
        async with Hybrid(near=agent, memory=store_with(tier)) as hybrid:
            await hybrid.run(PROMPT, user="bob")
        assert (FACT in shown(agent)) is is_told


@pytest.mark.parametrize("is_on_record", [False, True])
async def test_a_session_drops_the_turns_that_were_told_an_item_once_the_memory_erases_it(is_on_record: bool, tmp_path: Path) -> None:
    records = tmp_path / "records" if is_on_record else None
    store = store_with(Tier.DEVICE)
    async with Hybrid(near=near("Hello.", "Oat milk.", "Yes, oat milk.", "I cannot say."), memory=store, records=records) as hybrid:
        session = hybrid.session("ana")
        await session.send("Good morning!")
        assert (await session.send(PROMPT)).recalled
        await session.send("Are you sure?")
        store.erase(prefix=MILK.namespace)
        assert [message.text for message in session.messages] == ["Good morning!", "Hello."]
        assert (await session.send("Are you still sure?")).text == "I cannot say."
        assert len(session.messages) == 4


async def test_a_turn_is_no_part_of_the_conversation_if_what_it_was_told_is_erased_meanwhile() -> None:
    store = store_with(Tier.DEVICE)

    def erasing(request: StepRequest) -> str:
        store.erase(prefix=MILK.namespace)
        return "Oat milk."

    async with Hybrid(near=ScriptedAgent(erasing, name="near"), memory=store) as hybrid:
        session = hybrid.session("ana")
        assert (await session.send(PROMPT)).recalled
        assert session.messages == ()
        assert session.last_result is None
