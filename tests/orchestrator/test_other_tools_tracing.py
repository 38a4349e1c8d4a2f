"""What a task says goes to no tracing service, whatever other tools have set in the environment."""

import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, TypedDict, cast

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_debug
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook
from langgraph.graph import StateGraph
from typer.testing import CliRunner

from nearfar import Hybrid, tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.task import Task
from nearfar.protocols import ConfigError, Message, ScriptedAgent, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

_TASK = """
import asyncio, sys
from pathlib import Path
from langchain_core.tracers.langchain import wait_for_all_tracers
from nearfar import Hybrid
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ScriptedAgent

async def main(way: str) -> None:
    runs = RunsConfig(folder=Path("runs")) if way == "durable" else None
    async with Hybrid(near=ScriptedAgent(["Nobody hears this."]), records=runs) as hybrid:
        if way == "stream":
            async for _ in hybrid.stream("My secret is 4711."):
                pass
        else:
            await hybrid.run("My secret is 4711.")
    wait_for_all_tracers()

asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def _service(heard: list[str]) -> Iterator[str]:
    """Serve whatever a tracing client asks, and note it."""

    class Handler(BaseHTTPRequestHandler):
        def _note(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            heard.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PATCH = _note

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("switch", "way"), [("LANGSMITH_TRACING", "run"), ("LANGCHAIN_TRACING_V2", "stream"), ("LANGSMITH_TRACING", "durable")]
)
def test_nothing_of_a_task_goes_to_langsmith_where_the_environment_turns_its_tracing_on(switch: str, way: str, tmp_path: Path) -> None:
    heard: list[str] = []
    with _service(heard) as address:
        given = {switch: "true", "LANGSMITH_API_KEY": "key", "LANGSMITH_ENDPOINT": address}
        command = [sys.executable, "-c", _TASK, way]
        ended = subprocess.run(command, env={**os.environ, **given}, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert heard == []


class Overhearing(BaseCallbackHandler):
    """Notes whatever graphs tell it."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **also: Any) -> None:  # noqa: ANN401 - as LangChain has it
        self.heard.append(str(inputs))

    def on_chain_end(self, outputs: Any, **also: Any) -> None:  # noqa: ANN401 - as LangChain has it
        self.heard.append(str(outputs))

    def on_chain_error(self, error: BaseException, **also: Any) -> None:  # noqa: ANN401 - as LangChain has it
        self.heard.append(str(error))


_REGISTERED: ContextVar[Overhearing | None] = ContextVar("registered", default=None)
"""As packages of callbacks have one for the whole process."""
register_configure_hook(_REGISTERED, inheritable=True)


class SwitchedOn(BaseCallbackHandler):
    """What LangChain makes by itself where a variable says so. Notes whatever graphs tell it."""

    heard: ClassVar[list[str]] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **also: Any) -> None:  # noqa: ANN401 - as LangChain has it
        self.heard.append(str(inputs))


_SWITCHED_ON: ContextVar[SwitchedOn | None] = ContextVar("switched_on", default=None)
register_configure_hook(_SWITCHED_ON, inheritable=True, handle_class=SwitchedOn, env_var="A_TRACER_OF_SOMEBODY")
_SECRET = "My secret is 4711."
STATE: Any = {"task": Task(messages=(Message.user(_SECRET),)).model_dump(mode="json")}


class Outer(TypedDict):
    said: str


@pytest.fixture
async def hybrid() -> AsyncIterator[Hybrid]:
    async with Hybrid(near=ScriptedAgent(lambda _: "It is 4711.")) as opened:
        yield opened


@pytest.mark.anyio
async def test_a_graph_around_a_task_shows_its_own_state_to_callbacks_and_nothing_of_the_task(hybrid: Hybrid) -> None:
    async def node(state: Outer) -> Outer:
        result = await hybrid.run(_SECRET)
        await hybrid.graph.ainvoke(STATE)
        return {"said": f"{len(result.text)} characters"}

    graph = StateGraph(Outer)
    graph.add_node("node", node)
    graph.add_edge("__start__", "node")
    overhearing = Overhearing()
    assert (await graph.compile().ainvoke({"said": ""}, {"callbacks": [overhearing]}))["said"] == "11 characters"
    assert len(overhearing.heard) == 4, "the graph and its node, at the beginning and at the end"
    assert "4711" not in str(overhearing.heard)


@pytest.mark.anyio
async def test_a_graph_of_a_strategy_is_not_shown_to_the_callbacks_it_is_invoked_with(hybrid: Hybrid) -> None:
    overhearing = Overhearing()
    assert (await hybrid.graph.ainvoke(STATE, {"callbacks": [overhearing]}))["attempts"]
    assert [part async for part in hybrid.graph.astream(STATE, {"callbacks": [overhearing]}, stream_mode="values")]
    with pytest.raises(TypeError, match="synchronous"):
        hybrid.graph.invoke(STATE, {"callbacks": [overhearing]})
    assert overhearing.heard == []


@pytest.mark.anyio
async def test_a_handler_that_another_package_has_registered_hears_nothing(hybrid: Hybrid) -> None:
    overhearing = Overhearing()
    token = _REGISTERED.set(overhearing)
    await hybrid.run(_SECRET)
    await hybrid.graph.ainvoke(STATE)
    assert overhearing.heard == []
    assert _REGISTERED.get() is overhearing, "it is there again for the caller's own code"
    _REGISTERED.reset(token)


@pytest.mark.anyio
async def test_a_handler_that_a_variable_switches_on_hears_nothing(hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TRACER_OF_SOMEBODY", "true")
    await hybrid.run(_SECRET)
    await hybrid.graph.ainvoke(STATE)
    assert SwitchedOn.heard == []
    await RunnableLambda(str).ainvoke("of the app itself")
    assert SwitchedOn.heard == ["of the app itself"]


@pytest.mark.anyio
async def test_nothing_of_a_task_is_printed_where_an_app_has_langchain_debug_its_own_chains(capsys: pytest.CaptureFixture[str]) -> None:
    @tool(effect="read")
    async def shout(text: str) -> str:
        """Repeat a text louder."""
        return str(await RunnableLambda(str.upper).ainvoke(text))

    def near(request: StepRequest) -> Reply:
        is_done = any(message.tool_result for message in request.messages)
        return "It is 4711." if is_done else ToolCall(id="1", name="shout", arguments={"text": _SECRET})

    set_debug(True)
    try:
        async with Hybrid(near=ScriptedAgent(near), tools=[shout]) as hybrid:
            await hybrid.run(_SECRET)
            await hybrid.graph.ainvoke(STATE)
            assert capsys.readouterr() == ("", "")
            await RunnableLambda(str).ainvoke("of the app itself")
            assert "of the app itself" in capsys.readouterr().out
    finally:
        set_debug(False)


@pytest.mark.anyio
async def test_between_two_parts_of_a_stream_the_callers_own_code_keeps_its_callbacks(hybrid: Hybrid) -> None:
    overhearing = Overhearing()
    token = _REGISTERED.set(overhearing)
    streamed = cast(AsyncGenerator[object, None], hybrid.graph.astream(STATE, stream_mode="values"))
    async with aclosing(streamed) as parts:
        async for _ in parts:
            assert _REGISTERED.get() is overhearing
            assert var_child_runnable_config.get() is None
            break
    _REGISTERED.reset(token)
    assert overhearing.heard == []


@pytest.mark.anyio
async def test_a_variable_with_which_langchain_runs_nothing_is_named(hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGCHAIN_TRACING", "true")
    with pytest.raises(ConfigError, match="LANGCHAIN_TRACING is set"):
        await hybrid.run(_SECRET)


def test_the_doctor_names_the_variables_that_turn_tracing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    assert "nearfar sends nothing about tasks to LangSmith" in CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"}).output
