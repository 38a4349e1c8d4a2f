"""What a new user tries on the command line."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nearfar import Config, Hybrid
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.options import AgentChoice
from nearfar.orchestrator.cli.running import HarmlessConsole
from nearfar.orchestrator.cli.selection import load_tools
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Agent, ConfigError, ScriptedAgent, Side, Unavailable


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands look for ./nearfar.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nearfar(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def use(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Hybrid]) -> None:
    def scripted(selection: AgentChoice, config: Config) -> Hybrid:
        return make()

    monkeypatch.setattr(import_module("nearfar.orchestrator.cli.run"), "open_hybrid", scripted)


def test_the_version_is_told() -> None:
    result = nearfar("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "nearfar")


@pytest.mark.parametrize("word", ["exit", "quit", " Exit ", "/quit", ":q", "exit()"])
def test_a_chat_ends_with_a_word_that_no_model_is_asked(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    near = ScriptedAgent(["hi"])
    use(monkeypatch, lambda: Hybrid(near=near))
    result = nearfar("chat", text=f"\n   \nHello?\n{word}\nHello?\n")
    assert result.exit_code == 0
    assert len(near.requests) == 1


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_a_tool_prints_is_no_part_of_the_answer(options: list[str], empty_folder: Path) -> None:
    pytest.importorskip("llama_cpp", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")
    tools = "from nearfar import tool\nprint('loading')\n@tool\ndef open(title: str, section: str) -> str:\n"
    tools += "    'Open a section of a passage about a person, company, city or country.'\n    print('called')\n    return 'Orbix Labs'\n"
    (empty_folder / "loud.py").write_text(tools, encoding="utf-8")
    result = nearfar("run", "What is the employer of Ines Falk?", "--tools", "loud.py", "--near", "near", *options)
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["text"] if options else result.stdout.strip()) == "Orbix Labs"
    assert {"loading", "called"} <= set(result.stderr.split())


def test_a_file_of_tools_that_is_missing_is_called_missing() -> None:
    refused = nearfar("run", "Hi", "--tools", "tols.py", "--json")
    assert json.loads(refused.stdout)["error"]["message"] == "there is no tols.py"


def test_tools_import_what_stands_beside_them(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = empty_folder / "sub"
    folder.mkdir()
    (folder / "beside_the_tools.py").write_text("WORD = 'here'\n", encoding="utf-8")
    code = "from beside_the_tools import WORD\nfrom nearfar import tool\n\n\n@tool\ndef look(at: str) -> str:\n    return WORD\n"
    (folder / "t.py").write_text(code, encoding="utf-8")
    assert [each.name for each in load_tools(Path("sub/t.py"))] == ["look"]


def test_a_file_of_tools_that_ends_python_is_named(empty_folder: Path) -> None:
    (empty_folder / "t.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"t\.py fails while it is loaded: SystemExit: 3"):
        load_tools(Path("t.py"))


def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Let both consoles write to one terminal."""
    screen = StringIO()
    console = HarmlessConsole(file=screen, force_terminal=True, color_system=None, width=200, markup=False, highlight=False)
    run = import_module("nearfar.orchestrator.cli.run")
    for module in (run, import_module("nearfar.orchestrator.cli.running")):
        monkeypatch.setattr(module, "output", console)
        monkeypatch.setattr(module, "notes", console)
    return screen


def test_an_answer_stands_once_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    use(monkeypatch, lambda: Hybrid(near=ScriptedAgent(["the only answer"])))
    assert nearfar("run", "Hello?").exit_code == 0
    assert screen.getvalue().count("the only answer") == 1


def test_an_answer_stands_once_where_both_streams_go_into_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda: Hybrid(near=ScriptedAgent(["the only answer"])))
    result = nearfar("run", "Hello?")
    assert result.stdout == "the only answer\n"
    assert result.output.count("the only answer") == 1


def failing(name: str, side: Side) -> Agent:
    return ScriptedAgent([Unavailable(f"{name} is down", hint=f"start {name}")], name=name, side=side)


@pytest.mark.parametrize("reads_along", [True, False])
def test_each_error_stands_once(monkeypatch: pytest.MonkeyPatch, reads_along: bool) -> None:
    screen = terminal(monkeypatch) if reads_along else None
    policy = {"strategy": "cascade", "sensitivity": "public"}
    use(monkeypatch, lambda: Hybrid(near=failing("one", Side.NEAR), far=failing("two", Side.FAR), policy=policy))
    result = nearfar("run", "Hello?")
    shown = result.stderr if screen is None else screen.getvalue()
    assert result.exit_code == 1
    assert (shown.count("one is down"), shown.count("two is down"), shown.count("start two")) == (1, 1, 1)


@pytest.fixture
def runs(empty_folder: Path) -> list[str]:
    """Ids of runs, the oldest first."""
    import asyncio

    (empty_folder / "nearfar.toml").write_text('[runs]\nfolder = "kept"\n', encoding="utf-8")
    ids = ["abc1", "abc2", "xyz", "xyz-2"]

    async def serve() -> None:
        policy = {"strategy": "device"}
        async with Hybrid(near=ScriptedAgent(["hi"] * 4), policy=policy, records=RunsConfig(folder=empty_folder / "kept")) as hybrid:
            for run in ids:
                await hybrid.run(f"Hello {run}?", idempotency_key=run)

    asyncio.run(serve())
    return ids


COMMANDS = [["runs", "show"], ["runs", "cancel"], ["trace", "show"], ["runs", "forget"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("said", "found"), [(["xyz-"], "xyz-2"), (["xyz"], "xyz"), (["abc1"], "abc1"), (["--last"], "xyz-2")])
def test_a_run_is_found_by_the_beginning_of_its_id_or_as_the_last_one(
    command: list[str], said: list[str], found: str, runs: list[str]
) -> None:
    result = nearfar(*command, *said, "--json")
    told = json.loads(result.stdout)
    run = told["run"]
    assert (run if isinstance(run, str) else run["id"]) == found
    assert result.exit_code == 0


@pytest.mark.parametrize("command", [*COMMANDS, ["privacy", "audit"], ["runs", "resume", "--near", "near"]], ids=" ".join)
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["nowhere"], "nowhere"),
        ([], "no run is named"),
        ([""], "no run is named"),
        (["xyz", "--last"], "a run is named, and --last is given"),
    ],
)
def test_a_run_that_is_not_named_well_is_told(command: list[str], said: list[str], words: str, runs: list[str]) -> None:
    result = nearfar(*command, *said, "--json")
    assert result.exit_code == 2
    assert words in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize("command", [*COMMANDS, ["runs", "resume", "--near", "near"]], ids=" ".join)
def test_a_beginning_that_fits_several_runs_lists_them(command: list[str], runs: list[str]) -> None:
    error = json.loads(nearfar(*command, "abc", "--json").stdout)["error"]
    assert error["type"] == "InvalidRequest"
    assert "abc1" in error["message"]
    assert "abc2" in error["message"]


def test_the_last_of_no_runs_is_told(empty_folder: Path) -> None:
    (empty_folder / "nearfar.toml").write_text('[runs]\nfolder = "kept"\n', encoding="utf-8")
    for command in (*COMMANDS, ["privacy", "audit"]):
        result = nearfar(*command, "--last", "--json")
        assert json.loads(result.stdout)["error"]["message"] == "there is no run yet"


def test_a_done_run_is_resumed_by_the_beginning_of_its_id(runs: list[str]) -> None:
    assert json.loads(nearfar("runs", "resume", "abc2", "--near", "near", "--json").stdout)["text"] == "hi"
    assert json.loads(nearfar("runs", "resume", "--last", "--near", "near", "--json").stdout)["id"] == "xyz-2"


def test_a_task_that_is_not_utf_8_is_told() -> None:
    result = CliRunner().invoke(app, ["run", "-", "--json"], input=b"\xff\xfe")
    assert (result.exit_code, json.loads(result.stdout)["error"]["message"]) == (2, "the task is not text in UTF-8")


@pytest.mark.skipif(sys.platform == "win32", reason="it takes a shell of POSIX")
@pytest.mark.parametrize(
    ("arguments", "closed", "said"),
    [
        ("--version", ">&-", ""),
        ("run - --near near", "<&-", "the prompt is empty"),
        ("chat --near near", "<&-", "end with exit"),
    ],
)
def test_a_closed_standard_stream_is_an_empty_one(arguments: str, closed: str, said: str) -> None:
    command = f'"{sys.executable}" -m nearfar {arguments} {closed}'
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert said in done.stderr


@pytest.mark.anyio
async def test_warnings_that_are_errors_of_the_users_program_are_none_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    async with Hybrid(near="near") as hybrid:
        assert (await hybrid.run("Find the product of Umbra Foods.")).side is Side.NEAR


def test_a_chat_goes_on_after_a_line_in_another_encoding() -> None:
    command = [sys.executable, "-m", "nearfar", "chat", "--near", "near", "--mode", "only_on_device"]
    lines = b"Wie hei\xdft sie?\nFind the capital of Sorra Kingdom.\nexit\n"
    done = subprocess.run(command, input=lines, capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"Lower Galen" in done.stdout, b"not text in UTF-8" in done.stderr) == (2, True, True), done.stderr


def test_a_check_of_no_models_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(empty_folder))
    checked = nearfar("models", "verify")
    assert (checked.exit_code, "no model is stored" in checked.stderr) == (0, True)
