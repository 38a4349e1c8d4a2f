"""`nearfar init`: what it finds, asks and writes."""

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nearfar import Policy, Preset, load_config
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.config import USUAL_MODELS
from nearfar.orchestrator.compose import far_handle

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in an empty folder, and the keys and servers of this machine are nothing to the tests."""
    monkeypatch.chdir(tmp_path)
    for name in (*KEYS, "OLLAMA_HOST", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")

    async def no_servers() -> list[object]:
        return []

    monkeypatch.setattr("nearfar.orchestrator.cli.config.find_servers", no_servers)
    return tmp_path


def nearfar(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def written(file: str = "nearfar.toml") -> dict[str, object]:
    return tomllib.loads(Path(file).read_text(encoding="utf-8"))


def at_a_terminal(answers: bytes, folder: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run `nearfar init` in a process of its own whose terminal gets these answers, and ends."""
    ours, theirs = pty.openpty()
    os.write(ours, answers)
    variables = {name: value for name, value in os.environ.items() if name not in KEYS}
    try:
        return subprocess.run(
            [sys.executable, "-m", "nearfar", "init"],
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=variables,
            timeout=60,
        )
    finally:
        os.close(theirs)
        os.close(ours)


def test_init_writes_what_is_given_and_says_where_the_other_keys_are() -> None:
    made = nearfar("init", "--near", 'a "b".gguf', "--far", "openai:no-known-price", "--preset", "private")
    assert made.exit_code == 0, made.output
    near, far = {"model": 'a "b".gguf'}, {"provider": "openai", "model": "no-known-price"}
    assert written() == {"near": near, "far": far, "policy": {"preset": "private", "sensitivity": "private"}}
    assert 'docs/configuration.md describes all others, under "Advanced"' in Path("nearfar.toml").read_text(encoding="utf-8")
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert "\n## Advanced\n" in page
    assert load_config("nearfar.toml").policy == Policy(preset=Preset.PRIVATE)


def test_a_model_whose_price_is_known_gets_a_daily_limit() -> None:
    assert nearfar("init", "--far", "anthropic:claude-sonnet-5-5").exit_code == 0
    assert load_config("nearfar.toml").policy.limits.day.dollars == 5


@pytest.mark.parametrize("preset", list(Preset))
def test_the_limit_of_the_preset_stands_unless_another_is_given(preset: Preset) -> None:
    assert nearfar("init", "--far", "anthropic:claude-sonnet-5-5", "--preset", preset, "--daily-dollars", "0").exit_code == 0
    assert load_config("nearfar.toml").policy.limits.day.dollars == (1 if preset is Preset.CHEAPEST else None)


def test_a_key_in_the_environment_chooses_the_far_model_and_stays_out_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "a-secret-of-mine")
    made = nearfar("init", "--yes")
    assert written()["far"] == {"provider": "gemini", "model": USUAL_MODELS["gemini"]}
    assert "a-secret-of-mine" not in Path("nearfar.toml").read_text(encoding="utf-8") + made.output


def test_the_price_of_each_proposed_model_is_known() -> None:
    handles = [far_handle(f"{provider}:{model}") for provider, model in USUAL_MODELS.items()]
    assert [handle is not None and handle.is_unpriced for handle in handles] == [False] * 3


def test_a_model_of_this_folder_comes_before_the_shipped_one() -> None:
    Path("small.gguf").write_bytes(b"GGUF")
    assert nearfar("init", "--yes").exit_code == 0
    assert written()["near"] == {"model": "small.gguf"}
    assert "far" not in written()


def test_a_side_may_be_left_out_but_not_both() -> None:
    assert nearfar("init", "--far", "none").exit_code == 0
    assert "far" not in written()
    refused = nearfar("init", "other.toml", "--near", "none", "--far", "none")
    assert (refused.exit_code, Path("other.toml").exists()) == (2, False)


def test_a_near_server_is_written_as_one() -> None:
    assert nearfar("init", "--near", "ollama:qwen3:4b", "--far", "none").exit_code == 0
    assert written()["near"] == {"provider": "ollama", "model": "qwen3:4b"}


def test_init_names_the_models_that_the_user_means_in_a_file_of_another_folder(bare_machine: Path) -> None:
    Path("app").mkdir()
    assert nearfar("init", "app", "--near", "models/small.gguf", "--far", "models/large.gguf").exit_code == 0
    models = bare_machine / "models"
    near, far = load_config("app/nearfar.toml").near, load_config("app/nearfar.toml").far
    assert (getattr(near, "model", None), getattr(far, "model", None)) == (str(models / "small.gguf"), str(models / "large.gguf"))


@pytest.mark.parametrize("options", [[], ["--far", "gateway:localhost:7443"], ["--far", "anthropic:claude-sonnet-5-5"]])
def test_what_init_writes_is_a_policy_without_findings(options: list[str]) -> None:
    assert nearfar("init", *options).exit_code == 0
    checked = nearfar("policy", "check", "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["findings"]) == (0, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--preset", "cheap"], "private, balanced, cheapest"),
        (["--far", "far:away"], "does not name a far agent"),
        (["--far", "gateway:localhost"], "gateway:HOST:PORT"),
        (["--sensitivity", "secret"], "private, public"),
        (["--daily-dollars", "inf"], "amount of dollars"),
        (["--near", "openai:gpt-5"], "is a far agent"),
        (["nowhere/nearfar.toml"], "cannot be written"),
        (["myapp"], "there is no folder myapp"),
    ],
)
def test_init_refuses_what_makes_no_sense_and_writes_nothing(options: list[str], said: str) -> None:
    refused = nearfar("init", *options)
    assert (refused.exit_code, said in refused.output, list(Path().iterdir())) == (2, True, [])


def test_init_overwrites_nothing() -> None:
    Path("nearfar.toml").write_text("# mine\n", encoding="utf-8")
    refused = nearfar("init", ".")
    assert (refused.exit_code, "exists already" in refused.output) == (2, True)
    assert Path("nearfar.toml").read_text(encoding="utf-8") == "# mine\n"


def test_the_questions_are_asked_again_until_the_answers_make_sense(bare_machine: Path) -> None:
    done = at_a_terminal(b"m.gguf\nopenai\nanthropic:claude-sonnet-5-5\n3\npublic\nmuch\n0.5\n", bare_machine)
    assert done.returncode == 0
    assert written() == {
        "near": {"model": "m.gguf"},
        "far": {"provider": "anthropic", "model": "claude-sonnet-5-5"},
        "policy": {"preset": "cheapest", "sensitivity": "public", "limits": {"day": {"dollars": 0.5}}},
    }


def test_a_number_is_a_place_in_the_list_but_an_amount_is_an_amount(bare_machine: Path) -> None:
    done = at_a_terminal(b"9\n2\n3\n\n\n2\n", bare_machine)
    assert done.returncode == 0
    assert written() == {
        "far": {"provider": "anthropic", "model": "claude-sonnet-5-5"},
        "policy": {"preset": "balanced", "sensitivity": "private", "limits": {"day": {"dollars": 2.0}}},
    }


@pytest.mark.parametrize("end", [b"\x04", b"\x03"], ids=["Ctrl-D", "Ctrl-C"])
def test_who_leaves_in_the_middle_has_no_file(end: bytes, bare_machine: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"\n")
    command = [sys.executable, "-m", "nearfar", "init"]
    with subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=theirs, cwd=bare_machine, start_new_session=True) as running:
        seen = b""
        while b"cloud" not in seen:
            seen += os.read(ours, 1024)
        os.write(ours, end) if end == b"\x04" else running.send_signal(2)
        code = running.wait(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert (code, list(bare_machine.iterdir())) == (130, [])


def test_a_file_that_the_disk_has_no_room_for_is_not_left_half_written(bare_machine: Path) -> None:
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40)); from nearfar.orchestrator.cli import main; main()"
    command = [sys.executable, "-B", "-c", program, "init", "--near", "near", "--yes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=bare_machine, timeout=60)
    assert "cannot be written" in json.loads(done.stdout)["error"]["message"], done.stderr
    assert list(bare_machine.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_report_on_a_full_disk_is_told_to_make_room(bare_machine: Path) -> None:
    (bare_machine / "full.html").symlink_to("/dev/full")
    refused = nearfar("demo", "--tasks", "1", "--report", "full.html", "--json")
    assert "free some space" in json.loads(refused.stdout)["error"]["hint"]
