"""Test files, guarantees, figures of a cascade and the order of agents, on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="training needs the extra 'train'")

from test_cli_traces import traces

from nearfar.orchestrator.cli import app

PAIR = ("--near-agent", "near", "--far-agent", "far")
THREE = ("--near-agent", "near", "--near-agent", "second", "--far-agent", "far")
CASCADE = """
[near]
model = "near"

[other_near.second]
model = "second"

[far]
provider = "llama"
model = "far"

[policy]
strategy = "cascade"
sensitivity = "public"

[policy.evidence]
second_opinion = "second"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Traces to learn from, others for the test, and a configuration whose strategy is the cascade."""
    monkeypatch.chdir(tmp_path)
    made = traces(900)
    for name, part in (("traces.jsonl", made[:200]), ("test.jsonl", made[200:])):
        (tmp_path / name).write_text("".join(json.dumps(trace) + "\n" for trace in part), encoding="utf-8")
    (tmp_path / "cascade.toml").write_text(CASCADE, encoding="utf-8")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments, "--traces", "traces.jsonl", "--words-only", "--json"])


def in_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_test_file_gives_the_figures_and_is_not_learned_from() -> None:
    found = in_json("train", *THREE, "--test", "test.jsonl")
    assert (found["report"]["prompts"] > 200, found["report"]["folds"]) == (True, 0)
    assert found["evidence"]["tasks"] == 700
    head = json.loads((Path(found["head"]) / "head.json").read_text(encoding="utf-8"))
    assert head["prompts"] <= 200


def test_training_tells_what_the_evidence_recovers_and_what_disagreement_does_without_labels() -> None:
    evidence = in_json("train", *THREE)["evidence"]
    assert (evidence["draft"], evidence["opinions"]) == ("near", ["second"])
    assert evidence["evidence"]["recovered"]["low"] > 0.6
    assert evidence["disagreement"]["recovered"]["value"] > 0.5
    shares = [way["far_share"]["value"] for way in evidence["front"]]
    assert shares == sorted(shares)
    printed = CliRunner().invoke(app, ["policy", "train", *THREE, "--traces", "traces.jsonl", "--words-only"])
    assert "disagreement" in printed.stdout


def test_the_first_agent_that_is_named_drafts() -> None:
    evidence = in_json("train", "--near-agent", "second", "--near-agent", "near", "--far-agent", "far")["evidence"]
    assert (evidence["draft"], evidence["opinions"]) == ("second", ["near"])


def test_a_quality_is_guaranteed_on_tasks_kept_apart() -> None:
    found = in_json("calibrate", *PAIR, "--quality", "90%", "--confidence", "0.9", "--test", "test.jsonl")
    assert found["guarantee"]["tasks"] == 700
    assert found["guarantee"]["p_value"] <= 0.1
    assert found["expected"]["score"]["value"] >= found["wanted"]
    assert found["expected"]["far_share"]["value"] < 1


def test_a_cascade_is_calibrated_over_its_evidence() -> None:
    found = in_json("calibrate", *THREE, "--config", "cascade.toml", "--quality", "95%", "--confidence", "0.9", "--test", "test.jsonl")
    assert "strategy" not in found["toml"]
    assert found["figures"]["recovered"]["value"] > 0.6
    plain = in_json("calibrate", *THREE, "--config", "cascade.toml", "--budget", "20%")
    assert plain["expected"]["far_share"]["value"] == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--quality", "95%", "--confidence", "0.95"), "learned from the tasks"),
        (("--budget", "30%", "--confidence", "0.95", "--test", "test.jsonl"), "a confidence belongs to a quality"),
        (("--quality", "99.9%", "--confidence", "0.99", "--test", "test.jsonl"), "cannot be guaranteed"),
    ],
)
def test_a_guarantee_that_cannot_be_given_says_why(arguments: tuple[str, ...], problem: str) -> None:
    result = run("calibrate", *PAIR, *arguments)
    assert result.exit_code == 2, result.output
    assert problem in str(json.loads(result.stdout)["error"])


def test_a_simulated_cascade_counts_its_escalations() -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'study'")
    found = in_json("simulate", *THREE, "--config", "cascade.toml", "--far-share", "0.2", "--out", "simulated")
    assert found["online"]["far_share"] == pytest.approx(0.2, abs=0.03)
    assert found["figures"]["recovered"]["low"] > 0.6
    assert not any("counts the first agent alone" in warning for warning in found["warnings"])


def test_a_gap_within_noise_is_warned_about(folder: Path) -> None:
    made = traces(60)
    for place, trace in enumerate(made):
        trace["outcomes"]["near"]["score"] = float(place % 2)
        trace["outcomes"]["far"]["score"] = float(place % 2 if place % 20 else 1 - place % 2)
    (folder / "traces.jsonl").write_text("".join(json.dumps(trace) + "\n" for trace in made), encoding="utf-8")
    found = in_json("calibrate", *PAIR, "--budget", "50%")
    assert any("within noise" in warning for warning in found["warnings"])
