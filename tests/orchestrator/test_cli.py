"""The `nearfar` command, with the shipped models."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import anyio
import keyring
import psutil
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked
from llama_engine import HAS_LLAMA
from typer.testing import CliRunner, Result

from nearfar import Config, Hybrid, Message
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.options import AgentChoice
from nearfar.orchestrator.cli.selection import DEMO_SEED, chosen_config
from nearfar.orchestrator.compose import EMBEDDED_CONFIDENCE
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.protocols import NearfarError, ScriptedAgent
from nearfar.protocols.client import RemoteAgent

pytestmark = pytest.mark.timeout(180)

WORLD = SearchWorld()
TOKEN = "0123456789abcdef"
TASK = next(task for task in WORLD.tasks(25, DEMO_SEED) if len(WORLD.question(task).program.steps) == 1)
ANSWER = WORLD.question(TASK).answer
NEAR = ["--near", "near", "--strategy", "device"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands look for ./nearfar.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nearfar(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def error_of(result: Result) -> dict[str, str]:
    assert result.exception is None or isinstance(result.exception, SystemExit)
    error: dict[str, str] = json.loads(result.stdout)["error"]
    return error


def test_run_prints_the_answer_and_nothing_else_on_standard_output() -> None:
    result = nearfar("run", TASK.prompt, *NEAR)
    assert result.exit_code == 0
    assert result.stdout.strip() == ANSWER
    assert "on this device" in result.stderr


def test_a_long_answer_reaches_a_pipe_as_it_is(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "[bold]not markup[/bold], :warning: not a picture, and " + "a line that no terminal is wide enough for " * 10

    def scripted(selection: AgentChoice, config: Config) -> Hybrid:
        return Hybrid(near=ScriptedAgent([answer]))

    monkeypatch.setattr(import_module("nearfar.orchestrator.cli.run"), "open_hybrid", scripted)
    assert nearfar("run", "Hello?", *NEAR).stdout == f"{answer}\n"


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize("place", ["line", "file"])
def test_instructions_come_from_the_line_or_a_file(command: str, place: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ScriptedAgent(["hi"])
    monkeypatch.setattr(import_module("nearfar.orchestrator.cli.run"), "open_hybrid", lambda *_: Hybrid(near=agent))
    (empty_folder / "house.txt").write_text("You work for Orbix Labs.")
    given = "@house.txt" if place == "file" else "You work for Orbix Labs."
    prompt = ["Hello?"] if command == "run" else []
    assert nearfar(command, *prompt, *NEAR, "--instructions", given, text="Hello?\nexit\n").exit_code == 0
    assert agent.requests[0].messages == (Message.system("You work for Orbix Labs."), Message.user("Hello?"))


def test_instructions_in_a_file_that_cannot_be_read_are_an_error() -> None:
    error = error_of(nearfar("run", "Hello?", *NEAR, "--instructions", "@nowhere.txt", "--json"))
    assert (error["type"], "'nowhere.txt' cannot be read" in error["message"]) == ("ConfigError", True)


def test_run_as_json_tells_who_answered_and_what_it_cost() -> None:
    result = nearfar("run", TASK.prompt, *NEAR, "--json")
    answer = json.loads(result.stdout)
    assert answer["text"].strip() == ANSWER
    assert answer["served_on_device"] is True
    assert answer["near"]["dollars"] == "0"


def test_run_reads_the_task_from_standard_input() -> None:
    assert nearfar("run", "-", *NEAR, text=TASK.prompt).stdout.strip() == ANSWER


def test_a_prompt_outside_the_world_of_the_shipped_models_is_warned_about() -> None:
    result = nearfar("run", "Write a poem.", *NEAR, "--timeout", "60")
    assert "know only the worlds" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--near", "missing.gguf"], "ModelNotFound", "missing.gguf"),
        (["--far", "openia:gpt-4o"], "ConfigError", "openia"),
        ([*NEAR[:2], "--strategy", "clever"], "ConfigError", "cascade"),
        ([*NEAR[:2], "--strategy", "cloud"], "ConfigError", "far"),
        (["--config", "missing.toml"], "ConfigError", "missing.toml"),
        ([*NEAR, "--tools", "missing.py"], "ConfigError", "missing.py"),
        ([*NEAR, "--schema", "missing.json"], "ConfigError", "missing.json"),
    ],
)
def test_a_wrong_option_is_an_error_with_advice(arguments: list[str], kind: str, words: str) -> None:
    result = nearfar("run", "Hello?", "--json", *arguments)
    error = error_of(result)
    assert error["type"] == kind
    assert words in error["message"] + error["hint"]
    assert result.exit_code in (1, 2)


def test_an_empty_prompt_is_an_error() -> None:
    result = nearfar("run", " ", *NEAR, "--json")
    assert error_of(result)["type"] == "InvalidRequest"
    assert result.exit_code == 2


def test_an_error_without_json_goes_to_standard_error() -> None:
    result = nearfar("run", "Hello?", "--near", "missing.gguf")
    assert result.stdout == ""
    assert "error: there is no" in result.stderr


def test_a_mistake_in_the_configuration_is_named_with_its_line(empty_folder: Path) -> None:
    (empty_folder / "nearfar.toml").write_text('[policy]\nmod = "auto"\n', encoding="utf-8")
    error = error_of(nearfar("run", "Hello?", "--json"))
    assert "line 2" in error["message"]
    assert "'mode'" in error["message"]


def test_tools_come_from_a_python_file(empty_folder: Path) -> None:
    program = f'from nearfar import tool\n@tool\ndef open(title: str, section: str) -> str:\n    """Open."""\n    return "{ANSWER}"\n'
    (empty_folder / "tools.py").write_text(program, encoding="utf-8")
    assert nearfar("run", TASK.prompt, *NEAR, "--tools", "tools.py").stdout.strip() == ANSWER


def test_a_tools_file_that_fails_is_reported(empty_folder: Path) -> None:
    (empty_folder / "tools.py").write_text("1 / 0\n", encoding="utf-8")
    assert "ZeroDivisionError" in error_of(nearfar("run", "Hello?", *NEAR, "--tools", "tools.py", "--json"))["message"]


def test_chat_keeps_talking_after_a_turn_and_ends_with_the_input() -> None:
    result = nearfar("chat", *NEAR, text=f"{TASK.prompt}\n\n{TASK.prompt}\n")
    assert result.exit_code == 0
    assert result.stdout.count(ANSWER) >= 2


@pytest.mark.parametrize(("lines", "code"), [("/nonsense\n{prompt}\n", 2), ("{prompt}\n/help\n", 0)])
def test_chat_from_a_pipe_reads_every_line_and_fails_if_one_failed(lines: str, code: int) -> None:
    result = nearfar("chat", *NEAR, "--json", text=lines.format(prompt=TASK.prompt))
    assert [list(json.loads(line))[0] for line in result.stdout.splitlines()] == (["error", "id"] if code else ["id", "commands"])
    assert result.exit_code == code


def test_doctor_finds_the_shipped_models_working() -> None:
    report = json.loads(nearfar("doctor", "--json").stdout)
    assert report["healthy"] is True
    agents = {finding["name"]: finding for finding in report["findings"] if finding["area"] == "agents"}
    assert agents["near"]["status"] == agents["far"]["status"] == "ok"
    assert "answered" in agents["near"]["detail"]
    assert f"on cpu ({'llama.cpp' if HAS_LLAMA else 'onnxruntime-genai'})" in agents["near"]["detail"]
    assert report["hardware"]["cpu"]["presence"] == "present"
    assert {engine["name"] for engine in report["hardware"]["engines"]} == {"llama.cpp", "onnxruntime"}


def test_doctor_shows_the_hardware_before_everything_else() -> None:
    lines = nearfar("doctor").stdout.splitlines()
    assert lines[0].split()[:3] == ["machine", "cpu", "present"]
    assert any(line.split()[:2] == ["engines", "llama.cpp"] for line in lines)


def test_doctor_says_what_is_broken_and_fails(empty_folder: Path) -> None:
    (empty_folder / "nearfar.toml").write_text('[near]\nmodel = "missing.gguf"\n', encoding="utf-8")
    result = nearfar("doctor", "--json")
    assert result.exit_code == 1
    broken = [finding for finding in json.loads(result.stdout)["findings"] if finding["status"] == "broken"]
    assert [finding["name"] for finding in broken] == ["near"]
    assert broken[0]["advice"]


def test_the_demo_compares_strategies_in_both_worlds_and_writes_its_report(empty_folder: Path) -> None:
    result = nearfar("demo", "--tasks", "4", "--json", "--report", "out.html")
    assert result.exit_code == 0
    outcome = json.loads(result.stdout)
    rows = {(row["world"], row["configuration"].partition(":")[0]): row for row in outcome["configurations"]}
    assert {world for world, _ in rows} == {"search", "apps"}
    assert {name for _, name in rows} == {"device", "cloud", "cascade", "pevr/inf", "pevr/events", "eva/events"}
    assert rows["search", "device"]["far_calls"]["value"] == 0
    assert rows["search", "cloud"]["far_calls"]["value"] > 1
    assert rows["apps", "pevr/inf"]["far_calls"]["value"] >= 1
    assert set(outcome["findings"]) == {
        "far_minus_near_points",
        "cascade_score_share",
        "cascade_far_token_share",
        "plan_score_share",
        "plan_far_token_share",
    }
    runs = outcome["story"]["runs"]
    assert [run["configuration"] for run in runs] == ["device", "cloud", "pevr/inf"]
    assert [run["answer"] == outcome["story"]["right_answer"] for run in runs] == [run["success"] for run in runs] == [False, True, True]
    assert runs[0]["far_calls"] == runs[0]["dollars"] == 0 < runs[2]["dollars"] < runs[1]["dollars"]
    page = (empty_folder / "out.html").read_text(encoding="utf-8")
    parts = ("Near and far together reach", "One task, three ways", "<h3>Near alone", "<h3>Far alone", "<h3>Together", "<svg")
    assert sorted(map(page.index, parts)) == [page.index(part) for part in parts]
    assert not re.search(r'\b(src|href)="(?!data:|#)', page.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)", page)


def test_the_demo_shows_one_task_step_by_step_first_and_names_three_demos_last(empty_folder: Path) -> None:
    result = nearfar("demo", "--tasks", "1")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert lines[0].startswith("one task, three ways: ")
    ways = [lines.index(title) for title in ("near alone", "far alone", "together: far plans, near does the work")]
    assert ways == sorted(ways)
    answers = [line for line in lines if " answers: " in line]
    assert ["wrong" in answer for answer in answers] == [True, False, False]
    assert any("together they found the same answer at " in line for line in lines)
    named = re.findall(r"demos/\w+/main\.py", lines[-1])
    assert len(named) == 3
    assert all((Path(__file__).parents[2] / name).is_file() for name in named)


def test_the_demo_refuses_a_report_in_a_folder_that_does_not_exist() -> None:
    assert "folder" in error_of(nearfar("demo", "--json", "--report", "missing/out.html"))["hint"]


def test_the_demo_overwrites_its_own_report_alone(empty_folder: Path) -> None:
    mine = empty_folder / "report.html"
    mine.write_text("<title>Taxes</title>", encoding="utf-8")
    assert "no report of this demo" in error_of(nearfar("demo", "--json"))["message"]
    assert mine.read_text(encoding="utf-8") == "<title>Taxes</title>"
    mine.write_text("<title>Nearfar demo</title>", encoding="utf-8")
    assert nearfar("demo", "--tasks", "1", "--json").exit_code == 0
    assert len(mine.read_text(encoding="utf-8")) > 1000


def test_the_demo_refuses_a_folder_as_its_report_before_it_starts(empty_folder: Path) -> None:
    assert "folder" in error_of(nearfar("demo", "--json", "--report", str(empty_folder)))["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "Hello?", "--no-such-option"],
        ["run"],
        ["no-such-command"],
        ["demo", "--tasks", "0"],
        ["run", "Hello?", "--timeout", "0"],
        ["serve", "token", "add", "laptop", "--tokens", "missing/tokens.toml"],
    ],
)
def test_a_mistake_on_the_command_line_is_json_too_where_a_script_asks_for_it(arguments: list[str]) -> None:
    result = nearfar(*arguments, "--json")
    assert error_of(result)["type"] == "ConfigError"
    assert result.exit_code == 2


def test_an_interrupted_chat_ends_at_once_although_it_waits_for_input() -> None:
    command = [sys.executable, "-m", "nearfar", "chat", *NEAR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as chat:
        assert chat.stdout is not None
        assert chat.stdout.read(1) == b">"
        # A signal between the prompt and the system call that waits would be seen only after the next line of input.
        while psutil.Process(chat.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0)
        chat.send_signal(signal.SIGINT)
        assert chat.wait(timeout=60) == 130


def test_a_tool_that_hangs_does_not_keep_the_command_from_ending(empty_folder: Path) -> None:
    program = (
        "import threading\n"
        "from nearfar import tool\n"
        "@tool(time_limit=0.05)\n"
        "def open(title: str, section: str) -> str:\n"
        '    """Open."""\n'
        "    threading.Event().wait()\n"
        '    return ""\n'
    )
    (empty_folder / "tools.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "nearfar", "run", TASK.prompt, *NEAR, "--tools", "tools.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["gateway", "agent"])
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_server_says_where_it_listens_and_stops_on_a_signal(kind: str, stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "nearfar", "serve", kind, "--address", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "NEARFAR_GATEWAY_TOKENS": f"laptop={TOKEN}"}
    ) as server:
        assert server.stdout is not None
        announced = json.loads(server.stdout.readline())
        try:
            assert announced["address"].startswith("127.0.0.1:")
            assert announced["token"] is True
            wrong = nearfar("run", TASK.prompt, "--far", f"gateway:{announced['address']}", "--public", "-s", "cloud", "--json")
            assert error_of(wrong)["type"] == "Unauthenticated"
        finally:
            server.send_signal(stop)
            assert server.wait(30) == 0


def test_a_gateway_serves_another_process_that_has_its_token(monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
    token = json.loads(nearfar("serve", "token", "add", "laptop", "--json").stdout)["token"]
    monkeypatch.setenv("NEARFAR_TOKEN", token)
    (empty_folder / "tools.py").write_text(
        f'from nearfar import tool\n@tool\ndef open(title: str, section: str) -> str:\n    """Open."""\n    return "{ANSWER}"\n',
        encoding="utf-8",
    )
    listening = ["--far", "far", "--address", "127.0.0.1:0", "--tokens", "tokens.toml", "--json"]
    command = [sys.executable, "-m", "nearfar", "serve", "gateway", *listening]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        try:
            result = nearfar("run", TASK.prompt, "--far", f"gateway:{address}", "--public", "-s", "cloud", "--tools", "tools.py", "--json")
            answer = json.loads(result.stdout)
            assert answer["side"] == "far"
            assert answer["text"].strip() == ANSWER
            assert nearfar("serve", "token", "revoke", "laptop").exit_code == 0
            assert "Unauthenticated" in _refusal(address)
        finally:
            server.terminate()
            assert server.wait(30) == 0


def _refusal(address: str) -> str:
    """The error that a gateway ends up with where its only token was revoked; it looks at the file once a second."""

    async def ask() -> str:
        with anyio.fail_after(30):
            while True:
                try:
                    client = await RemoteAgent.connect(address, token=os.environ["NEARFAR_TOKEN"])
                except NearfarError as error:
                    return type(error).__name__
                await client.aclose()

    return anyio.run(ask)


def test_insecure_serving_off_loopback_is_refused() -> None:
    error = error_of(nearfar("serve", "gateway", "--far", "far", "--address", "0.0.0.0:0", "--insecure", "--json"))
    assert error["type"] == "ConfigError"
    assert "TLS" in error["hint"]


def test_a_token_file_that_others_may_read_is_refused(empty_folder: Path) -> None:
    path = empty_folder / "tokens.toml"
    path.write_text(f'laptop = "{TOKEN}"\n', encoding="utf-8")
    path.chmod(0o644)
    error = error_of(nearfar("serve", "gateway", "--far", "far", "--address", "127.0.0.1:0", "--tokens", str(path), "--json"))
    assert "chmod 600" in error["hint"]


def test_the_demo_stops_everything_it_started_on_ctrl_c(empty_folder: Path) -> None:
    command = [sys.executable, "-m", "nearfar", "demo", "--tasks", "5000"]
    with subprocess.Popen(command, cwd=empty_folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        try:
            assert "starting" in demo.stderr.readline()
            started = _descendants(demo.pid, at_least=3)
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert demo.returncode == 130
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
    assert list(empty_folder.iterdir()) == []


def test_a_command_that_a_script_runs_in_the_background_ends_on_sigterm() -> None:
    program = """
import asyncio, signal
from nearfar.orchestrator.cli.running import execute
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell without job control does for what ends in &
async def work():
    try:
        print("ready", flush=True)
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)
execute(work())
"""
    # While a command is at work, standard output is kept for the answer, and what its tools print goes to standard error.
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert process.stderr.readline() == "cleaned up\n"
        finally:
            process.wait(30)


def _descendants(process_id: int, *, at_least: int) -> list[psutil.Process]:
    """The processes that it has started, once there are enough: the gateway, its worker and the near worker."""
    found: list[psutil.Process] = []
    for _ in range(600):
        found = psutil.Process(process_id).children(recursive=True)
        if len(found) >= at_least:
            return found
        time.sleep(0.1)
    raise AssertionError(f"only {found} were started")


def test_doctor_reports_a_locked_keyring_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked(KeyringBackend):
        priority = -1

        def get_password(self, service: str, username: str) -> str | None:
            raise KeyringLocked("locked")

        def set_password(self, service: str, username: str, password: str) -> None:
            raise KeyringLocked("locked")

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = keyring.get_keyring()
    keyring.set_keyring(Locked())  # type: ignore[no-untyped-call]  # keyring is not annotated
    try:
        report = json.loads(nearfar("doctor", "--json").stdout)
    finally:
        keyring.set_keyring(before)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert findings["OPENAI_API_KEY"]["status"] == "broken"
    assert findings["near"]["status"] == "ok"


def test_where_nothing_is_named_the_shipped_pair_runs_with_its_calibrated_threshold() -> None:
    config = chosen_config(AgentChoice(None, None, None, None, None, public=False, tools=None))
    assert config.near is not None
    assert config.far is not None
    assert config.policy.minimum_confidence == EMBEDDED_CONFIDENCE
