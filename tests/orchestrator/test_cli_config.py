"""`nearfar config`, `keys` and `memory add`, shell completion, and an output that cannot be written."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.running import report_errors

keyring = pytest.importorskip("keyring", reason="keys are kept by an extra: pip install 'nearfar[cloud]'")
from keyring.backend import KeyringBackend

SECRET = "hidden-value-1234"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OUR_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class DictKeyring(KeyringBackend):
    """A keyring in memory."""

    priority = 1

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def ring() -> Iterator[DictKeyring]:
    before, ring = keyring.get_keyring(), DictKeyring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


def nearfar(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def effective() -> dict[str, dict[str, object]]:
    shown = nearfar("config", "show", "--json")
    assert shown.exit_code == 0, shown.output
    return {each["key"]: each for each in json.loads(shown.stdout)["keys"]}


def test_each_value_has_its_source() -> None:
    file = '[near]\nmodel = "near"\n\n[policy]\npreset = "cheapest"\nmaximum_turns = 3\nlimits = { day = { dollars = 7 } }\n'
    Path("nearfar.toml").write_text(file, encoding="utf-8")
    found = effective()
    told = {key: (found[key]["value"], found[key]["source"]) for key in found}
    assert told["policy.maximum_turns"] == (3, "nearfar.toml, line 6")
    assert told["policy.limits.day.dollars"] == (7.0, "nearfar.toml, line 7")
    assert told["policy.limits.task.dollars"] == (0.02, "preset cheapest")
    assert told["policy.temperature"] == (None, "default")
    assert "policy.maximum_turns = 3  # nearfar.toml, line 6" in nearfar("config", "show").stdout


def test_without_a_file_the_shipped_pair_is_in_force() -> None:
    found = effective()
    assert (found["near.model"]["value"], found["near.model"]["source"]) == ("near", "shipped")
    assert found["policy.minimum_confidence"]["source"] == "shipped"


def test_a_configuration_that_is_a_broken_link_is_not_passed_over() -> None:
    Path("nearfar.toml").symlink_to("gone.toml")
    for command in (("config", "show"), ("run", "What is the mayor of Port Alder?"), ("policy", "check")):
        refused = nearfar(*command)
        assert (refused.exit_code, "nearfar.toml is a link to gone.toml, which does not exist" in refused.output) == (2, True)


def test_secrets_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch, ring: DictKeyring) -> None:
    file = '[far]\nprovider = "openai"\nmodel = "m"\n\n[other_far.ours]\nprovider = "openai"\nmodel = "m"\n'
    Path("nearfar.toml").write_text(file + 'base_url = "https://ours.example/v1"\nkey_variable = "OUR_KEY"\n', encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    found = effective()
    assert (found["far.key_variable"]["value"], found["far.key_variable"]["secret"]) == ("OPENAI_API_KEY", "environment")
    assert (found["other_far.ours.key_variable"]["value"], found["other_far.ours.key_variable"]["secret"]) == ("OUR_KEY", "not set")
    assert SECRET not in nearfar("config", "show").output + nearfar("keys", "list").output


def test_a_key_is_kept_listed_and_removed(ring: DictKeyring) -> None:
    assert nearfar("keys", "set", "OUR_KEY", text=f"{SECRET}\n").exit_code == 0
    assert ring.kept == {("nearfar", "OUR_KEY"): SECRET}
    listed = nearfar("keys", "list", "OUR_KEY", "--json")
    assert {"name": "OUR_KEY", "place": "keyring"} in json.loads(listed.stdout)["keys"]
    assert SECRET not in listed.output
    assert nearfar("keys", "remove", "OUR_KEY").exit_code == 0
    assert ring.kept == {}
    again = nearfar("keys", "remove", "OUR_KEY")
    assert (again.exit_code, "holds no OUR_KEY" in again.output) == (2, True)


@pytest.mark.parametrize(
    ("name", "typed", "said"),
    [
        ("OUR_KEY", "", "holds no key"),
        ("OUR_KEY", "two\nlines", "cannot carry"),
        ("sk-proj-0123456789abcdef0123456789abcdef", "x", "no name of a variable"),
        ("a b", "x", "no name of a variable"),
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(name: str, typed: str, said: str, ring: DictKeyring) -> None:
    refused = nearfar("keys", "set", name, text=typed)
    assert (refused.exit_code, said in refused.output, ring.kept) == (2, True, {})
    assert "sk-proj" not in refused.output


def test_a_machine_without_a_keyring_says_what_to_do_instead() -> None:
    before = keyring.get_keyring()
    keyring.set_keyring(keyring.backends.fail.Keyring())
    try:
        refused = nearfar("keys", "set", "OUR_KEY", text=SECRET)
    finally:
        keyring.set_keyring(before)
    assert (refused.exit_code, "this machine has no keyring" in refused.output, "export OUR_KEY" in refused.output) == (2, True, True)
    assert SECRET not in refused.output


def test_a_keyring_that_finds_no_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch, ring: DictKeyring) -> None:
    def look(service: str, username: str) -> str:
        return Path("~no-such-user", service, username).expanduser().read_text(encoding="utf-8")

    monkeypatch.setattr(ring, "get_password", look)
    refused = nearfar("keys", "set", "OUR_KEY", text=SECRET)
    assert (refused.exit_code, "the keyring could not be read for OUR_KEY: RuntimeError" in refused.output) == (2, True)


def test_a_note_is_added_once_and_found() -> None:
    store = ("--store", "notes.db")
    first = json.loads(nearfar("memory", "add", "Ana is allergic to nuts.", *store, "--json").stdout)
    again = json.loads(nearfar("memory", "add", "Ana is allergic to nuts.", *store, "--json").stdout)
    assert (first["outcome"], again["outcome"], first["version"]) == ("is added", "is there already", again["version"])
    (item,) = json.loads(nearfar("memory", "search", "nuts", "--mode", "keyword", *store, "--json").stdout)["items"]
    assert (item["value"], item["namespace"], item["source"]) == ({"text": "Ana is allergic to nuts."}, ["notes"], "user")


def test_a_note_replaces_no_other_item() -> None:
    store = ("--store", "notes.db", "--namespace", "people/ana", "--key", "drink")
    assert nearfar("memory", "add", "Ana drinks tea.", *store).exit_code == 0
    refused = nearfar("memory", "add", "Ana drinks coffee.", *store)
    assert (refused.exit_code, "memory edit people/ana drink" in refused.output) == (2, True)
    assert nearfar("memory", "add", "  ", *store).exit_code == 2


def completed(line: str) -> list[str]:
    return subprocess.run([program()], env=completing(line), capture_output=True, text=True, timeout=60, check=True).stdout.split()


def completing(line: str) -> dict[str, str]:
    """Return the variables with which a shell asks what may follow `line`."""
    words = line.split(" ")
    return {**os.environ, "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_NEARFAR_COMPLETE": "complete_bash"}


def program() -> str:
    return str(Path(sys.executable).with_name("nearfar"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("nearfar ru", ["run", "runs"]),
        ("nearfar memory sleep re", ["revert"]),
        ("nearfar run --str", ["--strategy"]),
        ("nearfar run --public hello --ne", ["--near"]),
        ("nearfar serve token add --sc", ["--scope"]),
        ("nearfar no-such-command --", ["--version", "--install-completion", "--show-completion", "--help"]),
    ],
)
def test_commands_and_options_are_completed(line: str, found: list[str]) -> None:
    assert completed(line) == found


def test_completing_loads_no_command() -> None:
    """The slowest group takes more than half a second to load."""
    variables = {**completing("nearfar memory s"), "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([program()], env=variables, capture_output=True, text=True, timeout=60, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "search" in done.stdout
    assert "nearfar.orchestrator.cli" in loaded
    assert not loaded & {"numpy", "httpx", "grpc", "langgraph", "sqlite3", "nearfar.orchestrator.memory", "nearfar.orchestrator.task"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("arguments", [["prices", "show", "--json"], ["prices", "show"], ["policy", "schema"], ["--help"], ["--version"]])
def test_a_full_output_is_one_clear_error(arguments: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([program(), *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written")
    assert "Traceback" not in done.stderr


def test_too_few_open_files_are_named_as_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), report_errors():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert capsys.readouterr().err == "error: Too many open files\n  let the process open more files: ulimit -n 1024\n"


def test_a_python_that_drops_docstrings_runs_commands(tmp_path: Path) -> None:
    call = [sys.executable, "-OO", "-m", "nearfar", "init"]
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*call, "-y"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("wrote nearfar.toml")
    helped = subprocess.run([*call, "-h"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert "write a first nearfar.toml" in " ".join(helped.stdout.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_notes_that_cannot_be_written_cost_no_answer(tmp_path: Path) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [program(), "init", "-y", "a.toml"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, timeout=60, check=False
        )
        refused = subprocess.run([program(), "init", "-y", "a.toml"], cwd=tmp_path, stderr=full, timeout=60, check=False)
    assert (done.returncode, refused.returncode) == (0, 2)
    assert done.stdout.startswith(b"wrote a.toml")


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_input_that_is_no_text_is_a_clear_error(encoding: str, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONIOENCODING": encoding, "NEARFAR_HOME": str(tmp_path)}

    def told(given: bytes, *arguments: str | bytes) -> tuple[int, str]:
        done = subprocess.run([program(), *arguments], input=given, env=variables, capture_output=True, timeout=60, check=False)
        return done.returncode, done.stderr.decode().partition("error: ")[2].partition("\n")[0]

    assert told(b"J\xf6rg\n", "chat") == (2, "the task is not text in UTF-8: it holds half of a surrogate pair")
    assert told(b"\xff\n", "keys", "set", "A_KEY")[1].startswith("the key for A_KEY is empty, or holds characters")
    assert told(b"\xff\n", "worker", "attach", "--pairing-file", "-")[1].startswith("this is not a pairing")
    assert told(b"", "runs", "show", b"\xff") == (2, "'\\udcff' is not text in UTF-8")


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8:strict", "Jörg"), ("ascii:strict", "J\\xf6rg")])
def test_a_terminal_that_lacks_letters_is_shown_them_as_escapes(encoding: str, shown: str, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}

    def printed(*arguments: str | bytes) -> str:
        call = [program(), "init", "-y", *arguments]
        return subprocess.run(call, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, timeout=60, check=True).stdout.decode()

    assert printed("Jörg.toml").startswith(f"wrote {shown}.toml")
    assert printed(b"\xff.toml").startswith("wrote \\udcff.toml")
    assert json.loads(printed("--json", "Jürg.toml"))["config"].endswith("Jürg.toml")


@pytest.mark.parametrize("arguments", [["prices", "show", "--json"], ["policy", "schema"], ["--help"], ["prices", "show"], ["doctor"]])
def test_a_reader_that_leaves_ends_the_command_silently(arguments: list[str]) -> None:
    with subprocess.Popen([program(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == ""
        assert running.wait(timeout=60) == 1
