"""`nearfar run` with strategies that need more than a prompt, with scripted agents."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar import Config, Hybrid, Policy
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.options import AgentChoice
from nearfar.protocols import ScriptedAgent, Side

PLAN = {"subtasks": [{"id": "a", "task": "When?", "needs": []}, {"id": "b", "task": "Where?", "needs": ["a"]}]}
JOBS = {"jobs": [{"instruction": "How high?", "advice": ""}]}
FOUND = {"explanation": "It says so.", "citation": "40 m high", "answer": "40 m"}
ANSWER = {"answer": "It is 40 m high.", "scratchpad": "", "jobs": []}


def given(monkeypatch: pytest.MonkeyPatch, *, strategy: str, near: list[str], far: list[object]) -> None:
    """Make `nearfar run` use these agents."""
    script = [json.dumps(reply) for reply in far]

    def scripted(selection: AgentChoice, config: Config) -> Hybrid:
        policy = Policy.model_validate({"strategy": strategy, "sensitivity": "public"})
        return Hybrid(near=ScriptedAgent(near), far=ScriptedAgent(script, name="far", side=Side.FAR), policy=policy)

    monkeypatch.setattr(import_module("nearfar.orchestrator.cli.run"), "open_hybrid", scripted)


def test_a_context_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, strategy="minions", near=[json.dumps(FOUND)], far=[JOBS, ANSWER])
    file = tmp_path / "tower.txt"
    file.write_text("The tower is 40 m high.", encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "How high is it?", "--context", str(file)])
    assert result.stdout == "It is 40 m high.\n"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_context_that_cannot_be_read_is_an_error_with_its_path(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, strategy="minions", near=[], far=[])
    file = tmp_path / "tower.bin"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(app, ["run", "How high is it?", "--context", str(file), "--json"])
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "ConfigError"
    assert "tower.bin" in error["message"]


def test_the_subtasks_and_their_results_are_shown_beside_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, strategy="subtasks", near=["In 1871.", "In Port Alder."], far=[PLAN])
    result = CliRunner().invoke(app, ["run", "When and where?"])
    assert result.stdout == "In Port Alder.\n"
    assert "b: Where? (after a)" in result.stderr
    assert "a done: In 1871." in result.stderr
