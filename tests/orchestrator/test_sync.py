"""Synchronous calls: from many threads, inside of loops and notebooks, interrupted, and abandoned."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path

import anyio
import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from pydantic import BaseModel

from nearfar import ApprovalNeeded, ConfigError, Hybrid, Policy, ScriptedAgent, StepRequest, TaskFinished, ToolCall, Unavailable, tool
from nearfar.protocols.fakes import Reply

THREADS, CALLS = 16, 50


def echo(request: StepRequest) -> Reply:
    return request.messages[-1].text


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "nearfar loop"]


def test_many_threads_share_one_hybrid_and_its_one_loop() -> None:
    homes: set[int] = set()

    def note(request: StepRequest) -> Reply:
        homes.add(threading.get_ident())
        return echo(request)

    with Hybrid(near=ScriptedAgent(note)) as hybrid, ThreadPoolExecutor(THREADS) as pool:
        said = [f"{number}" for number in range(THREADS * CALLS)]
        assert [result.text for result in pool.map(hybrid.run_sync, said)] == said
    assert len(homes) == 1
    assert loops() == []


def test_the_loop_is_started_by_the_first_call_alone() -> None:
    hybrid = Hybrid(near=ScriptedAgent(echo))
    assert loops() == []
    assert hybrid.run_sync("one").text == "one"
    assert len(loops()) == 1
    hybrid.close()
    assert loops() == []


@pytest.mark.anyio
async def test_calls_inside_of_a_running_loop_work() -> None:
    with Hybrid(near=ScriptedAgent(echo)) as hybrid:
        assert [hybrid.run_sync(f"{number}").text for number in range(CALLS)] == [f"{number}" for number in range(CALLS)]
        assert [event.type for event in hybrid.stream_sync("one")][-1] == "task_finished"


@pytest.mark.anyio
async def test_threads_of_an_app_whose_loop_has_the_hybrid_use_that_loop() -> None:
    """A web framework: the app enters the `Hybrid` in its loop, and serves synchronous handlers in threads."""
    async with Hybrid(near=ScriptedAgent(echo)) as hybrid:
        assert (await anyio.to_thread.run_sync(hybrid.run_sync, "one")).text == "one"
        assert (await hybrid.run("two")).text == "two"
        last = (await anyio.to_thread.run_sync(lambda: [*hybrid.stream_sync("three")]))[-1]
        assert isinstance(last, TaskFinished)
        assert last.result.text == "three"
        with pytest.raises(ConfigError, match="would stop the event loop") as refused:
            hybrid.run_sync("four")
        assert "await hybrid.run" in refused.value.hint
    assert loops() == []


def test_a_conversation_is_held_from_threads_one_turn_after_the_other() -> None:
    agent = ScriptedAgent(lambda request: f"{len(request.messages)}")
    with Hybrid(near=agent) as hybrid, ThreadPoolExecutor(4) as pool:
        chat = hybrid.session("ana")
        said = {result.text for result in pool.map(chat.send_sync, ["Hello?"] * 4)}
        last = [*chat.stream_sync("Bye?")][-1]
    assert said == {"1", "3", "5", "7"}
    assert isinstance(last, TaskFinished)
    assert last.result.text == "9"


def test_a_stream_yields_the_events_as_they_come() -> None:
    gate = threading.Event()
    waits = iter([lambda: True, lambda: gate.wait(30)])

    async def pace() -> None:
        assert await anyio.to_thread.run_sync(next(waits))

    with Hybrid(near=ScriptedAgent([["one", "two"]], pace=pace)) as hybrid:
        seen: list[str] = []
        for event in hybrid.stream_sync("Say it."):
            seen.append(event.type)
            if event.type == "text":
                gate.set()  # the second piece waits for the first one to have been seen
    assert seen.count("text") == 2
    assert seen[-1] == "task_finished"


class Town(BaseModel):
    name: str


def test_options_errors_and_context_variables_pass_through(tmp_path: Path) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return tenant.get()

    agent = ScriptedAgent(['{"name": "Lima"}', ToolCall(id="1", name="pay", arguments={}), "paid"])
    with Hybrid(near=agent, tools=[pay], records=tmp_path) as hybrid:
        assert hybrid.run_sync("Which town?", output=Town).output == Town(name="Lima")
        with pytest.raises(ApprovalNeeded) as waiting:
            hybrid.run_sync("Pay.", idempotency_key="one")
        tenant.set("acme")
        paid = hybrid.resume_sync("one", approvals={request.id: True for request in waiting.value.requests})
    assert paid.tool_calls[0].result == "acme"


@pytest.mark.parametrize("leave", ["break", "close", "cycle"])
def test_a_stream_that_is_abandoned_cancels_its_task(leave: str) -> None:
    stopped = threading.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    with Hybrid(near=ScriptedAgent(lambda _: ToolCall(id="1", name="wait", arguments={})), tools=[wait]) as hybrid:
        events = hybrid.stream_sync("Wait.")
        while next(events).type != "tool_started":
            pass
        if leave == "close":
            with closing(events):
                pass
        elif leave == "cycle":
            cycle: list[object] = [events]
            cycle.append(cycle)
            del cycle
        del events
        gc.collect()
        assert stopped.wait(30)


def test_a_stream_that_is_never_begun_runs_nothing() -> None:
    agent = ScriptedAgent([])
    with Hybrid(near=agent) as hybrid:
        hybrid.stream_sync("Never.")
    assert agent.requests == []


def test_a_plain_tool_may_ask_its_own_hybrid_and_an_async_one_is_told_why_not() -> None:
    @tool
    def ask() -> str:
        """Ask again."""
        return hybrid.run_sync("inner").text

    @tool
    async def ask_in_the_loop() -> str:
        """Ask again."""
        return hybrid.run_sync("inner").text

    def reply(request: StepRequest) -> Reply:
        said = request.messages[-1]
        if said.tool_result is not None:
            return said.tool_result.content
        return "answered" if said.text == "inner" else ToolCall(id="1", name=said.text, arguments={})

    with Hybrid(near=ScriptedAgent(reply), tools=[ask, ask_in_the_loop]) as hybrid:
        assert hybrid.run_sync("ask").text == "answered"
        assert "would stop the event loop" in hybrid.run_sync("ask_in_the_loop").text


def test_one_that_is_closed_says_so_and_may_be_closed_again() -> None:
    hybrid = Hybrid(near=ScriptedAgent(echo))
    hybrid.close()
    hybrid.close()
    uses: tuple[Callable[[], object], ...] = (
        lambda: hybrid.run_sync("one"),
        lambda: [*hybrid.stream_sync("one")],
        lambda: hybrid.__enter__(),
        lambda: asyncio.run(hybrid.run("one")),
    )
    for use in uses:
        with pytest.raises(Unavailable, match="this Hybrid is closed"):
            use()


def test_closing_cancels_the_calls_of_other_threads_and_they_are_told() -> None:
    begun = threading.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    hybrid = Hybrid(near=ScriptedAgent(lambda _: ToolCall(id="1", name="wait", arguments={})), tools=[wait])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hybrid.run_sync, "Wait.")
        assert begun.wait(30)
        hybrid.close()
        with pytest.raises(Unavailable, match="its Hybrid was closed"):
            waiting.result(30)


def test_async_use_of_one_that_belongs_to_synchronous_calls_is_refused_with_the_way_out() -> None:
    async def served() -> None:
        with pytest.raises(ConfigError, match="event loop of its synchronous calls") as refused:
            await hybrid.run("two")
        assert "run_sync" in refused.value.hint

    with Hybrid(near=ScriptedAgent(echo)) as hybrid:
        asyncio.run(served())
        assert hybrid.run_sync("three").text == "three"


def test_one_whose_loop_has_ended_is_taken_over_and_one_whose_loop_stands_still_is_refused() -> None:
    again = Hybrid(near=ScriptedAgent(echo))
    assert asyncio.run(again.run("one")).text == "one"
    assert again.run_sync("two").text == "two"
    again.close()
    still = Hybrid(near=ScriptedAgent(echo))
    with asyncio.Runner() as runner:
        runner.run(still.run("one"))
        with pytest.raises(ConfigError, match="stands still"):
            still.run_sync("two")
        runner.run(still.aclose())


def test_aclose_closes_what_synchronous_calls_have_opened() -> None:
    hybrid = Hybrid(near=ScriptedAgent(echo))
    assert hybrid.run_sync("one").text == "one"
    asyncio.run(hybrid.aclose())
    assert loops() == []


def test_one_that_is_dropped_without_being_closed_ends_its_thread() -> None:
    hybrid = Hybrid(near=ScriptedAgent(echo))
    assert hybrid.run_sync("one").text == "one"
    (thread,) = loops()
    del hybrid
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_one_that_is_dropped_with_all_its_parts_open_ends_its_processes(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    hybrid = Hybrid(near="near", far="far", memory=tmp_path / "memory.db", records=tmp_path)
    assert hybrid.run_sync("What is the employer of Ines Falk?", strategy="cloud", sensitivity="public").text
    hybrid.session("ana").send_sync("What is the employer of Ines Falk?")
    (thread,) = loops()
    assert psutil.Process().children(recursive=True) != before
    del hybrid
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert psutil.Process().children(recursive=True) == before


def test_agents_processes_of_synchronous_calls_end_with_close() -> None:
    before = psutil.Process().children(recursive=True)
    policy = Policy.model_validate({"sensitivity": "public", "strategy": "cloud"})
    with Hybrid(near=ScriptedAgent(echo), far="far", policy=policy) as hybrid:
        assert hybrid.run_sync("What is the employer of Ines Falk?").side == "far"
        assert len(psutil.Process().children(recursive=True)) > len(before)
    assert psutil.Process().children(recursive=True) == before


def test_control_c_between_two_events_waits_for_the_task_too() -> None:
    stopped: list[str] = []

    @tool
    async def linger() -> str:
        """Wait for ever, and take some turns of the loop to stop."""
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(CALLS):
                await asyncio.sleep(0)
            stopped.append("stopped")
        return ""

    with Hybrid(near=ScriptedAgent(lambda request: ToolCall(id="1", name="linger", arguments={})), tools=[linger]) as hybrid:
        events = hybrid.stream_sync("Wait.")
        while next(events).type != "tool_started":
            pass
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt)
        assert stopped == ["stopped"]


def test_a_notebook_calls_it_in_its_cells_and_stays_able_to_await(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):  # nothing of the user's own set-up
        monkeypatch.setenv(variable, str(tmp_path))
    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    cells = [
        "from nearfar import ConfigError, Hybrid, ScriptedAgent\nhybrid = Hybrid(near=ScriptedAgent(lambda request: 'hello'))",
        f"print({{hybrid.run_sync('Greet me.').text for _ in range({CALLS})}})",
        "print([event.type for event in hybrid.stream_sync('Greet me.')][-1])",
        "try:\n    await hybrid.run('Greet me.')\nexcept ConfigError as error:\n    print(error.message)",
        "hybrid.close()",
        "async with Hybrid(near=ScriptedAgent(lambda request: 'hello')) as own:\n    print((await own.run('Greet me.')).text)",
    ]
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    said = ["".join(output.get("text", "") for output in cell.outputs).strip() for cell in notebook.cells]
    assert said == ["", "{'hello'}", "task_finished", "this Hybrid belongs to the event loop of its synchronous calls", "", "hello"]
