"""Conversations on record: across processes, in either database, erased with what they were told, and on the command line."""

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from run_stores import Opener
from typer.testing import CliRunner

from nearfar import Hybrid, MemoryStore, Policy, Records, ScriptedAgent, tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.memory.in_tasks import TaskMemory
from nearfar.orchestrator.runs.sessions import SessionStore
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task.stores import RecallConfig, RunsConfig
from nearfar.protocols import ApprovalNeeded, Message, NotFound, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wide_terminal")]

PUBLIC = Policy.model_validate({"strategy": "device", "sensitivity": "public"})
CANARY = "canary7f3a"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    (tmp_path / "nearfar.toml").write_text(
        '[near]\nmodel = "near"\n[memory]\nembed = false\n[runs]\nfolder = "home/runs"\n', encoding="utf-8"
    )
    return tmp_path / "home"


def saying(request: StepRequest) -> Reply:
    return f"answer {sum(message.role == 'user' for message in request.messages)}"


def hybrid(records: Any, reply: Any = saying, **options: Any) -> Hybrid:  # noqa: ANN401 - as `Hybrid` takes them
    return Hybrid(near=ScriptedAgent(reply, name="near"), policy=PUBLIC, records=records, **options)


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


def nearfar(*arguments: str, text: str = "") -> Any:  # noqa: ANN401 - whatever the command prints
    return CliRunner().invoke(app, list(arguments), input=text)


async def test_another_process_continues_the_conversation_in_either_database(opened: Opener) -> None:
    one, other = opened(), opened()
    async with hybrid(Records(runs=one)) as first:
        await first.session("ana").send("hello")
    async with hybrid(Records(runs=other)) as second:
        session = second.session("ana")
        assert texts(session.messages) == ["hello", "answer 1"]
        await session.send("more")
        async with hybrid(Records(runs=one)) as again:  # which has the first turn in its memory
            assert texts(again.session("ana").messages)[2:] == ["more", "answer 2"]
        await session.reset()
        assert SessionStore(one).list() == []
        assert len(one.list()) == 2  # the runs stay on record


async def test_a_turn_that_waited_for_approval_joins_the_conversation_when_it_is_answered(opened: Opener) -> None:
    @tool(effect="at_most_once", approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def reply(request: StepRequest) -> Reply:
        last = request.messages[-1]
        return ToolCall(id="1", name="pay", arguments={"amount": 5}) if last.text == "pay" else saying(request)

    async with hybrid(Records(runs=opened()), reply, tools=[pay]) as served:
        session = served.session("ana", user="ana")
        with pytest.raises(ApprovalNeeded) as needed:
            await session.send("pay")
        await session.send("hello")
        assert texts(session.messages) == ["hello", "answer 1"]
        (request,) = needed.value.requests
        waiting = needed.value.run
        await served.resume(waiting, user="ana", approvals={request.id: True})
        assert texts(session.messages) == ["hello", "answer 1", "pay", "", "", "answer 1"]


async def test_a_turn_is_kept_without_the_turns_before_it(opened: Opener) -> None:
    store = opened()
    async with hybrid(Records(runs=store)) as served:
        session = served.session("ana")
        for number in range(3):
            await session.send(f"prompt {number}")
    kept = [store.task(run).task.messages for run in SessionStore(store).ended("ana", "")]
    assert [texts(messages) for messages in kept] == [[f"prompt {number}"] for number in range(3)]
    assert CANARY not in str(kept)


async def test_forgetting_a_run_forgets_the_turn_and_the_last_turn_its_session(opened: Opener) -> None:
    store = opened()
    async with hybrid(Records(runs=store)) as served:
        session = served.session("ana")
        first = await session.send("one")
        second = await session.send("two")
        store.forget(first.id)
        assert texts(session.messages) == ["two", "answer 2"]
        store.forget(second.id)
        assert session.messages == ()
        await session.send("three")
        assert texts(session.messages) == ["three", "answer 1"]


async def test_a_damaged_turn_is_named(opened: Opener) -> None:
    store = opened()
    async with hybrid(Records(runs=store)) as served:
        turn = await served.session("ana").send("one")
        with store.database.writing() as writing:
            writing.execute("UPDATE outcomes SET content = '{' WHERE run = ?", (turn.id,))
    async with hybrid(Records(runs=opened())) as again:
        with pytest.raises(Exception, match=f"record of run {turn.id} is damaged"):
            await again.session("ana").send("two")


def hits(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes())


async def test_what_is_erased_from_the_memory_is_in_no_turn_that_was_told_it_or_came_after(home: Path) -> None:
    with closing(MemoryStore.open(home / "memory" / "memory.db", embedder=None)) as store:
        store.put(("facts",), "carl", {"text": f"The number of Carl is {CANARY}."}, subject="Carl")
        memory = TaskMemory(store, recall=RecallConfig())

        def reply(request: StepRequest) -> Reply:
            return request.messages[-1].text if len(request.messages) == 3 else "well"

        near = ScriptedAgent(reply, name="near")
        private = Policy.model_validate({"strategy": "device", "sensitivity": "private"})
        async with Hybrid(near=near, policy=private, memory=memory, records=RunsConfig(folder=home / "runs")) as served:
            session = served.session("chat")
            for prompt in ("hello", "What is the number of Carl?", "thank you"):
                await session.send(prompt)
            assert CANARY in session.messages[3].text
            other = await served.session("other").send("good morning")
    assert "runs.db" in hits(home / "runs")
    erased = json.loads(nearfar("memory", "erase", "--subject", "Carl", "--yes", "--json").stdout)
    assert "error" not in erased
    assert hits(home) == []
    with closing(RunStore.open(RunsConfig(folder=home / "runs"))) as runs:
        sessions = SessionStore(runs)
        assert [sessions.turn(run).messages[0].text for run in sessions.ended("chat", "")] == ["hello"]  # type: ignore[union-attr]  # it is there
        assert sessions.ended("other", "") == [other.id]


async def test_an_erasure_on_another_device_takes_the_turns_that_came_after_with_it(home: Path) -> None:
    with closing(MemoryStore.open(home / "memory" / "memory.db", embedder=None)) as store:
        store.put(("facts",), "carl", {"text": "Carl lives in Lima."})
        memory = TaskMemory(store, recall=RecallConfig())
        private = Policy.model_validate({"strategy": "device", "sensitivity": "private"})
        async with Hybrid(near=ScriptedAgent(saying), policy=private, memory=memory, records=home / "runs") as served:
            session = served.session("chat")
            for prompt in ("hello", "Where does Carl live: Lima?", "thank you"):
                await session.send(prompt)
            store.erase(prefix=("facts",))
            assert texts(session.messages) == ["hello", "answer 1"]


def test_the_command_line_continues_lists_and_forgets_conversations(home: Path) -> None:
    first = nearfar("chat", "--session", "ana", text="Find the capital of Sorra Kingdom.\n/cost\n/why\nexit\n")
    assert first.exit_code == 0, first.output
    assert "Lower Galen" in first.output
    assert "tokens written" in first.output
    assert "near accepted" in first.output
    assert "nearfar chat --session ana" in first.output
    nearfar("chat", "--session", "ana", "--user", "ben", text="Find the capital of Sorra Kingdom.\n")
    listed = json.loads(nearfar("chat", "--list", "--json").stdout)["sessions"]
    assert [(each["name"], each["user"], each["turns"]) for each in listed] == [("ana", "ben", 1), ("ana", "", 1)]
    again = nearfar("chat", "--session", "ana", text="/why\n")
    assert "1 prompt so far" in again.output
    assert "near accepted" in again.output
    forgotten = nearfar("chat", "--forget", "ana", "--json")
    assert json.loads(forgotten.stdout) == {"session": "ana", "turns": 1}
    assert [each["user"] for each in json.loads(nearfar("chat", "--list", "--json").stdout)["sessions"]] == ["ben"]
    assert "ben" in nearfar("chat", "--list").stdout
    missing = nearfar("chat", "--forget", "ana", "--json")
    assert (missing.exit_code, json.loads(missing.stdout)["error"]["type"]) == (2, NotFound.__name__)


def test_commands_are_answered_and_never_sent_to_a_model(home: Path) -> None:
    talk = nearfar("chat", text="/help\n/hlep me\n/why\n/cost\n/reset\n/RESET\n")
    assert talk.exit_code == 2
    assert "/reset" in talk.output
    assert "there is no command /hlep" in talk.output
    assert "nothing was answered yet" in talk.output
    assert "there is no command /RESET" in talk.output
    assert json.loads(nearfar("runs", "list", "--json").stdout) == {"runs": []}


def test_a_script_reads_each_answer_as_a_line_of_json(home: Path) -> None:
    talk = nearfar("chat", "--json", text="Find the capital of Sorra Kingdom.\n/nothing\n/cost\n/reset\n")
    answer, mistake, cost, reset = map(json.loads, talk.stdout.splitlines())
    assert "Lower Galen" in answer["text"]
    assert mistake["error"]["type"] == "InvalidRequest"
    assert cost["near"]["steps"] == answer["near"]["steps"]
    assert reset["state"] == "empty"


@pytest.mark.parametrize("arguments", [["--list", "--forget", "a"], ["--session", "a", "--list"], ["--session", ""]])
def test_options_that_make_no_sense_are_refused(home: Path, arguments: list[str]) -> None:
    refused = nearfar("chat", *arguments, "--json")
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["error"]["message"]


def test_a_chat_that_is_killed_in_a_turn_finishes_the_turn_when_it_is_continued(home: Path) -> None:
    program = (
        "import os, signal\nfrom nearfar import tool\n"
        "@tool(effect='read', source='internal_tool')\ndef open(title: str, section: str) -> str:\n    '''Open.'''\n"
        "    if not os.path.exists('died'):\n        os.mkdir('died')\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 'Sorra Kingdom: the capital is Lower Galen.'\n"
    )
    Path("tools.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "nearfar", "chat", "--session", "ana", "--tools", "tools.py"]
    dead = subprocess.run(command, input="Find the capital of Sorra Kingdom.\n", capture_output=True, text=True, timeout=100, check=False)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    again = subprocess.run(command, input="/why\n", capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 0, again.stderr
    assert "the turn that was interrupted is finished" in again.stderr
    assert "Lower Galen" in again.stdout
    assert json.loads(nearfar("chat", "--list", "--json").stdout)["sessions"][0]["turns"] == 1
