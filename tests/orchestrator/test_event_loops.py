"""One `Hybrid` and several event loops: it works in one after the other, and says at once where there are two."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from nearfar import Hybrid
from nearfar.orchestrator.compose import NearConfig, open_local
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.memory.changes import Watchers
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.stores import MemoryConfig, RunsConfig
from nearfar.orchestrator.util.runtime import shielded
from nearfar.protocols import Agent, ConfigError, NotFound, ScriptedAgent, Sensitivity, Side

pytestmark = pytest.mark.timeout(120)

T = TypeVar("T")
WORLD = SearchWorld()
QUESTION = next(task for task in WORLD.tasks(30, seed=7) if len(WORLD.question(task).program.steps) == 1)
TOOLS = WORLD.reset(QUESTION).tools
PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def served(hybrid: Hybrid, strategy: str) -> str:
    return (await hybrid.run(QUESTION.prompt, strategy=strategy)).text


async def streamed(hybrid: Hybrid) -> int:
    return len([event async for event in hybrid.stream("Greet me.")])


@pytest.mark.parametrize("strategy", ["device", "cloud"])
def test_tasks_are_served_in_one_loop_after_the_other_and_no_process_outlives_its_loop(strategy: str) -> None:
    hybrid = Hybrid(near="near", far="far", tools=TOOLS, policy=PUBLIC)
    before = children()
    answers = []
    for _ in range(2):
        answers.append(asyncio.run(served(hybrid, strategy)))
        assert children() == before
    asyncio.run(hybrid.aclose())
    assert answers[0] == answers[1] != ""


def test_a_hybrid_entered_in_a_loop_that_is_closed_serves_in_the_next_one(tmp_path: Path) -> None:
    hybrid = Hybrid(near=ScriptedAgent(["hello"] * 9), memory=MemoryConfig(path=tmp_path / "memory.db", embed=False))
    asyncio.run(hybrid.__aenter__())
    assert asyncio.run(streamed(hybrid))
    assert asyncio.run(hybrid.run("Greet me.")).text == "hello"
    asyncio.run(hybrid.aclose())


def test_runs_are_resumed_and_cancelled_in_any_loop(tmp_path: Path) -> None:
    hybrid = Hybrid(near=ScriptedAgent(["hello"] * 9), records=RunsConfig(folder=tmp_path))
    result = asyncio.run(hybrid.run("Greet me.", idempotency_key="one"))
    assert asyncio.run(hybrid.resume("one")).text == result.text
    assert asyncio.run(hybrid.run("Greet me.", idempotency_key="two")).text == "hello"
    with pytest.raises(NotFound):
        asyncio.run(hybrid.cancel("three"))
    asyncio.run(hybrid.aclose())


class LoopInThread:
    """An event loop that runs in a thread until the block ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def __enter__(self) -> "LoopInThread":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda hybrid: hybrid.run("Greet me."),
        streamed,
        lambda hybrid: hybrid.resume("one"),
        lambda hybrid: hybrid.aclose(),
        lambda hybrid: hybrid.__aenter__(),
    ],
)
def test_a_second_loop_beside_the_first_is_refused_at_once(use: Callable[[Hybrid], Awaitable[object]], tmp_path: Path) -> None:
    hybrid = Hybrid(near=ScriptedAgent(["hello"] * 9), records=RunsConfig(folder=tmp_path))

    async def used() -> None:
        with pytest.raises(ConfigError, match="belongs to another event loop") as refused:
            await use(hybrid)
        assert "one per loop" in refused.value.hint

    with LoopInThread() as other:
        assert other.run(hybrid.run("Greet me.", idempotency_key="one")).text == "hello"
        asyncio.run(used())
        assert other.run(hybrid.run("Greet me.")).text == "hello"
    assert asyncio.run(hybrid.run("Greet me.")).text == "hello"
    asyncio.run(hybrid.aclose())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio's, of that loop
def test_a_loop_that_is_closed_without_shutting_down_leaves_no_process_behind() -> None:
    hybrid = Hybrid(near=ScriptedAgent(["hello"]), far="far", tools=TOOLS, policy=PUBLIC)
    before = children()

    loop = asyncio.new_event_loop()
    first = loop.run_until_complete(served(hybrid, "cloud"))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert asyncio.run(served(hybrid, "cloud")) == first
    asyncio.run(hybrid.aclose())
    del loop, hybrid
    gc.collect()  # so that asyncio says here what it has to say of the loop
    assert children() == before


def test_a_write_to_the_memory_succeeds_where_a_watcher_was_left_in_a_closed_loop() -> None:
    watchers = Watchers()
    looks = watchers.looks(60)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(looks))
    loop.close()
    assert watchers.count == 1
    watchers.notify()


def test_an_error_behind_a_shield_is_not_reported_as_lost_where_its_caller_has_left() -> None:
    heard: list[object] = []

    async def lived() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(context))
        future: asyncio.Future[None] = loop.create_future()
        waiting = asyncio.ensure_future(shielded(future))
        waiting.cancel()
        await asyncio.wait([waiting])
        future.set_exception(NotFound("nobody asks for it any more"))
        await asyncio.sleep(0)
        del future
        gc.collect()

    asyncio.run(lived())
    assert heard == []


READERS: list[Callable[[Hybrid], AsyncGenerator[Any, None]]] = [
    lambda hybrid: hybrid.stream("Greet me."),
    lambda hybrid: hybrid.stream_turn("Greet me."),
    lambda hybrid: hybrid.follow_turn("Greet me."),
    lambda hybrid: hybrid.session("ana").stream("Greet me."),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_stream_that_is_open_when_its_loop_ends_is_closed_in_silence(
    read: Callable[[Hybrid], AsyncGenerator[Any, None]], is_durable: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = []

    async def leave(hybrid: Hybrid, events: int) -> None:
        stream = read(hybrid)
        left.append(stream)
        for _ in range(events):
            await anext(stream)

    for events in [1, 2] * 4:  # asyncio closes the generators of a loop in another order each time
        hybrid = Hybrid(near=ScriptedAgent(["hello"] * 9), records=tmp_path if is_durable else None)
        asyncio.run(leave(hybrid, events))
        assert hybrid.run_sync("Greet me.").text == "hello"
        hybrid.close()
    assert caplog.messages == []


@pytest.mark.anyio
async def test_a_stream_that_is_dropped_in_a_cycle_is_closed_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async with Hybrid(near=ScriptedAgent(["hello"] * 9)) as hybrid:
        stream = hybrid.stream("Greet me.")
        cycle: list[object] = [stream]
        cycle.append(cycle)
        await anext(stream)
        del stream, cycle
        gc.collect()
        assert (await hybrid.run("Greet me.")).text == "hello"
    assert caplog.messages == []


def test_an_agent_that_was_opened_in_another_loop_is_refused_at_once() -> None:
    async def load() -> Agent:
        return await open_local(NearConfig(threads=1), name="near", side=Side.NEAR)

    with LoopInThread() as other:
        agent = other.run(load())
        hybrid = Hybrid(near=agent, tools=TOOLS)
        with pytest.raises(ConfigError, match="belongs to another event loop"):
            asyncio.run(served(hybrid, "device"))
        other.run(agent.aclose())
    asyncio.run(hybrid.aclose())
