"""`nearfar mcp`: what a user sees before a server is started, and decides about its tools."""

import json
import sys
from pathlib import Path

import pytest
from mcp_stubs import STUB
from typer.testing import CliRunner

from nearfar import load_config
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli import mcp as command
from nearfar.orchestrator.mcp import read_pins

pytest.importorskip("mcp", reason="MCP is an extra: pip install 'nearfar[mcp]'")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a configuration with the stub server."""
    monkeypatch.chdir(tmp_path)
    text = f'[near]\nmodel = "near"\n[mcp.stub]\ncommand = "{sys.executable}"\nargs = ["{STUB}"]\n'
    (tmp_path / "nearfar.toml").write_text(text)
    return tmp_path


def answer_with(monkeypatch: pytest.MonkeyPatch, *answers: bool) -> list[str]:
    """Answer the questions in order; return the list in which they are kept."""
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr(command, "confirm", confirm)
    return asked


def approved(folder: Path) -> set[str]:
    """Return the tools that are approved."""
    pins = read_pins(load_config(folder / "nearfar.toml").mcp["stub"])
    return set() if pins is None else set(pins.by_name)


def test_the_exact_command_is_shown_before_a_server_is_started_first(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, False)
    result = CliRunner().invoke(app, ["mcp", "review"])
    assert f"stub: {sys.executable} {STUB}" in result.stderr.replace("\n", "")
    assert asked == ["start this program?"]
    assert not approved(configured)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ('command = "a"\nenv = {LD_PRELOAD = "x y.so"}\nvariables = ["HOME_KEY"]', ["LD_PRELOAD=x y.so", "gets the values of: HOME_KEY"]),
        ('url = "https://eve.example/mcp"\ntoken_variable = "OPENAI_API_KEY"', ["gets the values of: OPENAI_API_KEY"]),
    ],
)
def test_a_user_sees_what_a_server_is_given_before_it_is_started_first(
    section: str, told: list[str], configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configured / "nearfar.toml").write_text(f'[near]\nmodel = "near"\n[mcp.stub]\n{section}\n')
    answer_with(monkeypatch, False)
    shown = CliRunner().invoke(app, ["mcp", "review"]).stderr
    assert all(line in shown for line in told)


def test_each_tool_is_asked_about_and_only_those_with_a_yes_are_approved(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, True, True, False)
    result = CliRunner().invoke(app, ["mcp", "review", "stub"])
    assert result.exit_code == 0
    assert asked[:3] == ["start this program?", "may agents call add?", "may agents call note?"]
    assert "Keep a note." in result.stderr
    assert approved(configured) == {"add"}
    assert "stub: 1 of" in result.stdout


def test_what_is_approved_is_not_asked_again_unless_the_user_wants_to(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, ["mcp", "review", "--yes", "--json"]).exit_code == 0
    before = approved(configured)
    asked = answer_with(monkeypatch, False)
    CliRunner().invoke(app, ["mcp", "review"])
    assert (asked, approved(configured)) == ([], before)
    CliRunner().invoke(app, ["mcp", "review", "--again"])
    assert len(asked) == len(before)
    assert not approved(configured)


def test_the_list_shows_what_is_approved_and_starts_nothing(configured: Path) -> None:
    listed = json.loads(CliRunner().invoke(app, ["mcp", "list", "--json"]).stdout)
    assert listed == {"servers": {"stub": {"command": [sys.executable, str(STUB)], "approved": {}}}}
    CliRunner().invoke(app, ["mcp", "review", "--yes"])
    listed = json.loads(CliRunner().invoke(app, ["mcp", "list", "--json"]).stdout)
    assert set(listed["servers"]["stub"]["approved"]) == approved(configured)
    assert "stub__add" in CliRunner().invoke(app, ["mcp", "list"], env={"COLUMNS": "200"}).stdout


def test_a_script_cannot_be_asked(configured: Path) -> None:
    result = CliRunner().invoke(app, ["mcp", "review", "--json"])
    assert result.exit_code == 2
    assert "ConfigError" in result.stdout
    assert not approved(configured)


def test_a_configuration_without_servers_is_an_error_that_says_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["mcp", "list"])
    assert result.exit_code == 2
    assert "[mcp.NAME]" in result.stderr
