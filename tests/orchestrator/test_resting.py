"""A `Hybrid` puts its memory in order while it serves no task."""

import threading
from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from in_memory_engine import InMemoryEngine

from nearfar import Hybrid, MemoryStore, Records, Source
from nearfar.orchestrator.memory.agent_memory import AgentMemory
from nearfar.orchestrator.memory.engine import ItemSelection
from nearfar.orchestrator.memory.episodic import MemoryTurn
from nearfar.orchestrator.memory.in_tasks import TaskMemory
from nearfar.orchestrator.memory.ranking import Granularity, episodic
from nearfar.orchestrator.task.stores import CacheConfig, ConsolidationConfig
from nearfar.protocols import DeviceState, DeviceStateSource, PowerSource, ScriptedAgent, Side, StoreUnavailable
from nearfar.protocols.items import Namespace

pytestmark = pytest.mark.anyio

AT_ONCE = ConsolidationConfig(idle_seconds=0, settled_seconds=0)
SUMMARIES = episodic((), Granularity.SUMMARY)
SUMMARY = "Ann was in Rome."


def store_with_a_session() -> MemoryStore:
    """One that searches by words, so that no test depends on a model."""
    store = MemoryStore(InMemoryEngine())
    memory = AgentMemory(store)
    for day in range(4):
        text = f"On day {day} Ann went to Rome with Tom and paid {day * 10 + 7} euros for a museum."
        memory.remember(MemoryTurn(speaker="Ann", text=text, source=Source.USER), "trip")
    memory.episodes.close("trip")
    return store


def charged() -> DeviceState:
    return DeviceState(power_source=PowerSource.MAINS)


async def summed_up(store: MemoryStore) -> str:
    """The first summary, as soon as there is one."""
    with anyio.fail_after(20):
        async with aclosing(store.watch(SUMMARIES, since=0)) as changes:
            async for change in changes:
                assert change.item is not None
                return str(change.item.value["text"])
    raise AssertionError("the watch has ended")


class Hanging:
    """The pace of a model that does not go on until it is stopped, and tells when it has begun."""

    def __init__(self) -> None:
        self.begun = anyio.Event()

    async def __call__(self) -> None:
        if not self.begun.is_set():
            self.begun.set()
            await anyio.sleep_forever()


def watching(source: DeviceStateSource, hybrid: Hybrid) -> Hybrid:
    """Let a `Hybrid` read the state of the device from this source."""
    hybrid.device_state = source
    return hybrid


async def test_memory_is_consolidated_by_the_near_model_while_no_task_is_served() -> None:
    store, near = store_with_a_session(), ScriptedAgent(lambda _: SUMMARY)
    far = ScriptedAgent([], name="far", side=Side.FAR)
    async with watching(charged, Hybrid(near=near, far=far, memory=TaskMemory(store, sleep=AT_ONCE))):
        assert await summed_up(store) == SUMMARY
    assert near.live_steps == 0
    assert far.requests == []


async def test_nothing_is_consolidated_unless_the_app_asks_for_it() -> None:
    near = ScriptedAgent(["Hello."])
    async with watching(charged, Hybrid(near=near, memory=store_with_a_session())) as hybrid:
        await hybrid.run("Say hello.")
    assert len(near.requests) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_task_stops_it_in_mid_sentence_and_it_goes_on_behind_the_task(*, is_streamed: bool) -> None:
    store, pace = store_with_a_session(), Hanging()
    near = ScriptedAgent(lambda request: "Hello." if "Say hello." in request.messages[-1].text else SUMMARY, pace=pace)
    async with watching(charged, Hybrid(near=near, memory=TaskMemory(store, recall=None, sleep=AT_ONCE))) as hybrid:
        with anyio.fail_after(20):
            await pace.begun.wait()
            if is_streamed:
                events = [event async for event in hybrid.stream("Say hello.")]
                assert events
            else:
                assert (await hybrid.run("Say hello.")).text == "Hello."
        assert near.cancelled_steps == 1
        assert await summed_up(store) == SUMMARY


async def test_while_a_task_is_served_nothing_begins() -> None:
    store, pace = store_with_a_session(), Hanging()
    near = ScriptedAgent(["Hello."], pace=pace)
    hybrid = watching(charged, Hybrid(near=near, memory=TaskMemory(store, recall=None, sleep=AT_ONCE)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hybrid.run, "Say hello.")
        with anyio.fail_after(20):
            await pace.begun.wait()
        async with hybrid:
            await anyio.wait_all_tasks_blocked()
            assert len(near.requests) == 1
            tasks.cancel_scope.cancel()


async def test_on_battery_it_looks_again_until_the_device_is_charged() -> None:
    store, near = store_with_a_session(), ScriptedAgent(lambda _: SUMMARY)
    states = [DeviceState(power_source=PowerSource.BATTERY, battery=0.3)] * 3

    def state() -> DeviceState:
        return states.pop() if states else charged()

    async with watching(state, Hybrid(near=near, memory=TaskMemory(store, sleep=AT_ONCE))):
        assert await summed_up(store) == SUMMARY
    assert states == []


async def test_no_cache_keeps_what_the_model_says_of_the_memory(tmp_path: Path) -> None:
    store, near = store_with_a_session(), ScriptedAgent(lambda _: SUMMARY)
    path = tmp_path / "cache.db"
    memory = TaskMemory(store, sleep=AT_ONCE)
    async with watching(charged, Hybrid(near=near, memory=memory, records=Records(cache=CacheConfig(path=path)))):
        assert await summed_up(store) == SUMMARY
    assert not any(b"Rome" in file.read_bytes() for file in tmp_path.iterdir())


class Counting(InMemoryEngine):
    """An engine that counts how often it is asked for everything."""

    asked = 0

    def namespaces(self, selection: ItemSelection) -> list[Namespace]:
        self.asked += 1
        return super().namespaces(selection)


class Nights:
    """A charged device that counts how often it was looked at, which is once before each consolidation."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> DeviceState:
        self.looks += 1
        return charged()

    async def pass_by(self, count: int) -> None:
        wanted = self.looks + count
        with anyio.fail_after(20):
            while self.looks < wanted:
                await anyio.lowlevel.checkpoint()


async def test_a_store_in_which_nothing_is_new_is_not_read_again() -> None:
    engine, nights = Counting(), Nights()
    store = MemoryStore(engine)
    async with watching(nights, Hybrid(near=ScriptedAgent([]), memory=TaskMemory(store, recall=None, sleep=AT_ONCE))):
        await nights.pass_by(5)
        asked = engine.asked
        await nights.pass_by(20)
        assert engine.asked == asked
        store.put(("notes",), "new", {})
        await nights.pass_by(5)
        assert engine.asked > asked


async def test_what_had_to_settle_is_consolidated_though_nothing_is_new() -> None:
    store, nights = store_with_a_session(), Nights()
    memory = TaskMemory(store, recall=None, sleep=ConsolidationConfig(idle_seconds=0, settled_seconds=0.2))
    async with watching(nights, Hybrid(near=ScriptedAgent(lambda _: SUMMARY), memory=memory)):
        assert await summed_up(store) == SUMMARY


class Broken(InMemoryEngine):
    """An engine whose database cannot be reached, which says when somebody has tried."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = threading.Event()

    def namespaces(self, selection: ItemSelection) -> list[Namespace]:
        self.tried.set()
        raise StoreUnavailable("the database is away", hint="bring it back")


async def test_a_memory_that_fails_keeps_no_task_from_being_served(caplog: pytest.LogCaptureFixture) -> None:
    engine = Broken()
    memory = TaskMemory(MemoryStore(engine), recall=None, sleep=AT_ONCE)
    async with watching(charged, Hybrid(near=ScriptedAgent(["Hello."]), memory=memory)) as hybrid:
        await anyio.to_thread.run_sync(engine.tried.wait, 20)
        assert (await hybrid.run("Say hello.")).text == "Hello."
    assert "could not be consolidated" in caplog.text
