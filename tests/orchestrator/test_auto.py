"""The strategy `auto` in a `Hybrid` and on the command line."""

import json
from collections.abc import Iterable
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
import pytest
from measured_runs import APPS_TOOLS, SEARCH_TOOLS, run, runs
from typer.testing import CliRunner

from nearfar import Hybrid, Strategy, load_config, tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.routing.outcome_records import Outcome, RunRecord
from nearfar.orchestrator.routing.traces import read_outcomes
from nearfar.orchestrator.task.policy import AutoConfig, Policy
from nearfar.orchestrator.task.tools import Tool
from nearfar.protocols import ConfigError, InvalidRequest, Message, NotFound, ScriptedAgent, Sensitivity, Side

pytestmark = pytest.mark.anyio

QUESTION = "What is the mentor of the ceo of Orbix Labs?"
ERRAND = "Please pay Mira Falk 20, then delete the note Blue List."


def named(names: Iterable[str]) -> list[Tool]:
    def make(name: str) -> Tool:
        @tool(name=name)
        def act(what: str) -> str:
            """Do it."""
            return what

        return act

    return [make(name) for name in names]


def hybrid(near: list[str], far: list[str], **settings: object) -> Hybrid:
    policy = Policy(strategy=Strategy.AUTO, sensitivity=Sensitivity.PUBLIC, auto=AutoConfig.model_validate(settings))
    return Hybrid(near=ScriptedAgent(near), far=ScriptedAgent(far, name="far", side=Side.FAR), policy=policy)


def write(path: Path, records: Iterable[RunRecord]) -> Path:
    path.write_text("".join(f"{record.model_dump_json()}\n" for record in records), encoding="utf-8")
    return path


async def test_a_stateful_task_is_planned_and_a_search_is_not() -> None:
    async with hybrid(["done.", "Mira Falk"], ["1. pay\n2. done"]) as pair:
        with anyio.fail_after(30):
            errand = await pair.run(ERRAND, tools=named(APPS_TOOLS))
            search = await pair.run(QUESTION, tools=named(SEARCH_TOOLS))
    assert [(call.role, call.side) for call in errand.calls] == [("plan", Side.FAR), ("execute", Side.NEAR)]
    assert [(call.role, call.side) for call in search.calls] == [("execute", Side.NEAR)]
    assert "auto chose pevr: nothing was measured yet, and it is the default for tasks with stateful tools" in errand.reasons
    assert search.selection is not None
    assert search.selection.chosen.strategy is Strategy.EVA


async def test_measured_outcomes_decide_with_their_knobs(tmp_path: Path) -> None:
    best = [
        run(task=f"t{number}", prompt=f"What is fact {number}?", strategy="pevr", label="pevr/1", knobs={"supervision": {"interval": 1}})
        for number in range(40)
    ]
    worst = [record.model_copy(update={"strategy": "eva", "knobs": {}, "score": 0.0}) for record in best]
    async with hybrid(["Mira Falk"], ["1. look"], outcomes=write(tmp_path / "runs.jsonl", best + worst)) as pair:
        result = await pair.run("What is fact 99?", tools=named(SEARCH_TOOLS))
    assert result.selection is not None
    assert result.selection.winner.label == "pevr/1"
    assert result.selection.chosen.knobs == {"supervision": {"interval": 1}}
    assert result.calls[0].role == "plan"


async def test_a_private_task_stays_on_the_device_whatever_was_measured(tmp_path: Path) -> None:
    far = ScriptedAgent([], name="far", side=Side.FAR)
    policy = Policy(strategy=Strategy.AUTO, auto=AutoConfig(outcomes=write(tmp_path / "runs.jsonl", runs(10)), explore_share=1.0))
    async with Hybrid(near=ScriptedAgent(["An answer."] * 10), far=far, policy=policy) as pair:
        for _ in range(10):
            result = await pair.run(ERRAND, tools=named(APPS_TOOLS))
            assert result.served_on_device
    assert far.requests == []


async def test_reports_are_learned_from_and_kept(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    async with hybrid(["Yes."] * 40, ["Yes."] * 40, reports=reports) as pair:
        first = await pair.run("Is it open?")
        for _ in range(30):
            pair.report(first, score=0.0, task_class="shop/hours")
        assert pair.explain("Is it open?").chosen.strategy is not Strategy.CASCADE
    assert len(read_outcomes(reports)) == 30
    async with hybrid([], [], reports=reports) as later:
        decision = later.explain("Is it open?")
    assert (decision.task_class, decision.chosen.strategy is Strategy.CASCADE) == ("shop/hours", False)


async def test_the_words_of_a_private_task_are_not_kept(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    async with hybrid(["Yes."], [], reports=reports) as pair:
        result = await pair.run("Is my secret safe?", sensitivity="private")
        pair.report(result, score=1.0)
    assert "secret" not in reports.read_text(encoding="utf-8")
    (kept,) = read_outcomes(reports)
    assert isinstance(kept, Outcome)
    assert (kept.score, kept.profile.length) == (1.0, "very short")


async def test_auto_learns_only_of_what_it_chose(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    async with hybrid(["Yes.", "Yes."], [], reports=reports) as pair:
        asked_for = await pair.run("Is it open?", strategy="device")
        chosen = await pair.run("Is it open?")
        pair.report(asked_for, score=1.0)
        assert not reports.exists()
        pair.report(chosen, score=1.0)
        assert len(read_outcomes(reports)) == 1


async def test_a_score_lies_between_0_and_1() -> None:
    async with hybrid(["Yes."], []) as pair:
        result = await pair.run("Is it open?")
        for score in (-0.1, 1.1, float("nan")):
            with pytest.raises(InvalidRequest, match="between 0 and 1"):
                pair.report(result, score=score)


async def test_explaining_runs_nothing_and_changes_nothing() -> None:
    async with hybrid(["Yes."], [], explore_share=1.0) as pair:
        talk = [Message.user("Hello."), Message.assistant("Hi."), Message.user("Is it open?")]
        assert pair.explain(talk) == pair.explain("Is it open?")
        assert not any(pair.explain("Is it open?").explored for _ in range(50))


async def test_bad_outcomes_are_refused_before_anything_runs(tmp_path: Path) -> None:
    bad = tmp_path / "runs.jsonl"
    bad.write_text("noise\n", encoding="utf-8")
    unusable = write(tmp_path / "old.jsonl", [run(task=f"t{number}", knobs={"retired_knob": 1}) for number in range(30)])
    for path, problem in ((bad, "line 1"), (unusable, "retired_knob"), (tmp_path / "none.jsonl", "cannot be read")):
        async with hybrid(["Yes."], ["Yes."], outcomes=path) as pair:
            with pytest.raises(ConfigError, match=problem):
                await pair.run(QUESTION, tools=named(SEARCH_TOOLS))


async def test_a_failing_task_leaves_the_choice_in_its_stream() -> None:
    reasons: tuple[str, ...] = ()
    async with hybrid([], []) as pair:
        with suppress(NotFound):
            async with aclosing(pair.stream(QUESTION, tools=named(SEARCH_TOOLS))) as events:
                async for event in events:
                    reasons = event.decision.reasons if event.type == "routed" else reasons
    assert reasons[1].startswith("auto chose eva")


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "nearfar.toml").write_text('[policy.auto]\noutcomes = "runs.jsonl"\nreports = "/var/reports.jsonl"\n', encoding="utf-8")
    auto = load_config(tmp_path / "nearfar.toml").policy.auto
    assert (auto.outcomes, auto.reports) == (tmp_path / "runs.jsonl", Path("/var/reports.jsonl"))


def test_the_command_explains_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(
        "from nearfar import tool\n@tool\ndef search(words: str) -> str:\n    return words\n"
        "@tool\ndef open(title: str) -> str:\n    return title\n",
        encoding="utf-8",
    )
    write(tmp_path / "runs.jsonl", runs(30))
    explain = ["policy", "choose", QUESTION, "--outcomes", "runs.jsonl", "--tools", "tools.py"]
    shown = CliRunner().invoke(app, [*explain, "--public"])
    assert (shown.exit_code, shown.stdout) == (0, "eva\n")
    assert "class search" in shown.stderr
    assert "120" in shown.stderr
    private = json.loads(CliRunner().invoke(app, [*explain, "--json"]).stdout)
    assert private["chosen"]["strategy"] == "device"
    refused = CliRunner().invoke(app, ["policy", "choose", QUESTION, "--outcomes", "none.jsonl", "--json"])
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["error"]["type"] == "ConfigError"
