"""`nearfar runs`, and `nearfar run` where runs are durable."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner, Result

from nearfar import Hybrid, Policy, Strategy, Tool, tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.runs import KeptTask, RunFailure, digest
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ApprovalNeeded, Message, ScriptedAgent, StepRequest, ToolCall
from nearfar.protocols.fakes import Script


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "nearfar.toml"
    path.write_text('[near]\nmodel = "near"\n[runs]\nfolder = "runs"\n', encoding="utf-8")
    return path


def nearfar(configuration: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["runs", *arguments, "--config", str(configuration)])


def told(configuration: Path, *arguments: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    done = nearfar(configuration, *arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def leave(configuration: Path, run: str, *, tools: Sequence[str] = (), user: str = "", failure: RunFailure | None = None) -> None:
    """A run that was begun, and that nobody works on."""
    store = RunStore.open(RunsConfig(folder=configuration.parent / "runs"))
    task = Task(messages=(Message.user("What is near?\x1b[2J"),), idempotency_key=run, user=user)

    async def work() -> None:
        lease = await store.begin(KeptTask.of(task, tools=tuple(tools), agents=("near",)), digest(task))
        if failure is not None:
            await store.finish(lease, failure)

    anyio.run(work)
    store.close()


def serve(configuration: Path, run: str, script: Script, *tools: Tool) -> None:
    async def work() -> None:
        near, policy = ScriptedAgent(script, name="near"), Policy(strategy=Strategy.DEVICE)
        async with Hybrid(near=near, tools=tools, policy=policy, records=RunsConfig(folder=configuration.parent / "runs")) as hybrid:
            await hybrid.run("What is near?", idempotency_key=run)

    anyio.run(work)


def test_runs_are_listed_by_state_and_user(configuration: Path) -> None:
    serve(configuration, "done", ["Here."])
    leave(configuration, "left", user="ann")
    leave(configuration, "failed", failure=RunFailure(error="Unavailable", message="gone"))
    assert [run["id"] for run in told(configuration, "list")["runs"]] == ["failed", "left", "done"]
    assert [run["id"] for run in told(configuration, "list", "--state", "done")["runs"]] == ["done"]
    assert [run["id"] for run in told(configuration, "list", "--user", "ann")["runs"]] == ["left"]
    assert [run["id"] for run in told(configuration, "list", "--limit", "1")["runs"]] == ["failed"]
    shown = nearfar(configuration, "list").output
    assert "interrupted" in shown
    assert "\x1b[2J" not in shown
    assert told(configuration, "list", "--state", "lost", code=2)["error"]["type"] == "ConfigError"


def test_a_run_is_shown_with_what_was_tried_and_why_it_failed(configuration: Path) -> None:
    serve(configuration, "done", ["Here."])
    leave(configuration, "failed", failure=RunFailure(error="Unavailable", message="nobody is there"))
    done = told(configuration, "show", "done")
    assert (done["answer"], done["run"]["state"], done["calls"]) == ("Here.", "done", 1)
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["accepted"]
    assert "nobody is there" in nearfar(configuration, "show", "failed").output
    assert told(configuration, "show", "unknown", code=2)["error"]["type"] == "NotFound"


def test_a_run_that_is_done_is_not_run_again(configuration: Path) -> None:
    serve(configuration, "done", ["Here."])
    assert told(configuration, "resume", "done")["text"] == "Here."
    assert told(configuration, "resume", "unknown", code=2)["error"]["type"] == "NotFound"


def test_all_that_were_interrupted_are_tried_and_what_fails_is_told(configuration: Path) -> None:
    leave(configuration, "first", tools=["missing"])
    leave(configuration, "second", tools=["missing"], user="ann")
    ended = told(configuration, "resume", "--all", code=1)["runs"]
    assert [each["run"] for each in ended] == ["first", "second"]
    assert all("tool 'missing'" in each["error"] for each in ended)
    assert told(configuration, "resume", code=2)["error"]["type"] == "ConfigError"
    assert told(configuration, "resume", "first", "--all", code=2)["error"]["type"] == "ConfigError"


def test_nothing_of_a_run_that_is_forgotten_is_in_any_file(configuration: Path) -> None:
    @tool(effect="at_most_once")
    def look() -> str:
        """Look."""
        return "canary-result"

    def near(request: StepRequest) -> ToolCall | str:
        return "canary-answer" if request.messages[-1].role == "tool" else ToolCall(id="1", name="look", arguments={})

    limited = Policy(strategy=Strategy.DEVICE, limits=LimitsConfig(task=AmountsConfig(tokens=10_000)))
    folder = configuration.parent / "runs"

    def found() -> set[str]:
        return {path.name for path in folder.rglob("*") if path.is_file() and b"canary" in path.read_bytes()}

    async def work() -> None:
        async with Hybrid(near=ScriptedAgent(near, name="near"), tools=[look], policy=limited, records=RunsConfig(folder=folder)) as hybrid:
            await hybrid.run("canary-prompt", idempotency_key="canary-name")

    anyio.run(work)
    assert found() >= {"runs.db", "traces.db", "budgets.db"}
    assert told(configuration, "forget", "canary-name") == {"run": "canary-name", "state": "forgotten"}
    assert found() == set()
    for file in ("runs.db", "traces.db", "budgets.db"):  # where SQLite leaves copies of what was deleted
        with closing(sqlite3.connect(folder / file)) as database:
            assert database.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert told(configuration, "list") == {"runs": []}
    assert told(configuration, "forget", "canary-name", code=2)["error"]["type"] == "NotFound"


def test_an_idle_run_is_cancelled_at_once(configuration: Path) -> None:
    leave(configuration, "left")
    assert told(configuration, "cancel", "left") == {"run": "left", "state": "cancelled"}
    assert told(configuration, "resume", "left", code=1)["error"]["type"] == "Cancelled"


def test_what_a_run_waits_for_is_shown(configuration: Path) -> None:
    @tool(approval=True)
    def send(to: str) -> str:
        """Send it."""
        raise NotImplementedError

    with pytest.raises(ApprovalNeeded) as needed:
        serve(configuration, "k", [[ToolCall(id="1", name="send", arguments={"to": "ann\x1b[2J"})]], send)
    request = told(configuration, "show", "k")["waits_for"][0]["id"]
    assert request in str(needed.value)
    shown = nearfar(configuration, "show", "k").output
    assert request in shown
    assert "\x1b[2J" not in shown
    assert told(configuration, "show", "k")["waits_for"][0]["call"]["arguments"] == {"to": "ann\x1b[2J"}
    both = told(configuration, "resume", "k", "--approve", request, "--deny", request, code=2)
    assert both["error"]["type"] == "InvalidRequest"


@contextmanager
def heeded(sent: signal.Signals) -> Iterator[None]:
    """Processes that are started here are not told to ignore the signal, as they are where the tests were started with `nohup`."""
    before = signal.signal(sent, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(sent, before)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_ends_in_order_and_says_how_to_go_on(tmp_path: Path, stop: signal.Signals) -> None:
    with heeded(stop), socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        configuration = tmp_path / "nearfar.toml"
        lines = ["[far]", 'provider = "gateway"', f'address = "{address}"', "[runs]", 'folder = "runs"']
        configuration.write_text("\n".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "nearfar", "run", "Hi", "--public", "--config", str(configuration)]
        environment = {**os.environ, "NEARFAR_TOKEN": "t" * 40}
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as running:
            silent.settimeout(60)
            connection, _ = silent.accept()
            running.send_signal(stop)
            _, notes = running.communicate(timeout=30)
            connection.close()
    assert running.returncode == 130
    [run] = told(configuration, "list")["runs"]
    assert f"nearfar runs resume {run['id']}" in notes
    assert run["is_orphaned"]


@pytest.mark.parametrize("listing", ["runs", "trace"])
def test_where_there_is_nothing_to_list_it_says_so(configuration: Path, listing: str) -> None:
    shown = CliRunner().invoke(app, [listing, "list", "--config", str(configuration)])
    assert shown.exit_code == 0
    assert "with [runs] in nearfar.toml" in shown.output
