"""`nearfar policy train`, `nearfar policy simulate` and `nearfar policy calibrate`, on traces of two kinds of tasks."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="training needs the extra 'train'")

from nearfar import Hybrid
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.lab.report import SIMULATION_REPORT, SIMULATION_SUMMARY
from nearfar.protocols import ScriptedAgent, Side

NAMES = ("Ines", "Mira", "Tom", "Ada", "Noor", "Ben", "Lea", "Sam")


def traces(number: int = 160) -> list[dict[str, Any]]:
    """Sums, which both agents can do, and proofs, at which the near one mostly fails; far costs a tenth of a cent."""
    random = Random(7)
    made = []
    for index in range(number):
        is_proof = random.random() < 0.5
        name, count = random.choice(NAMES), random.randint(2, 99)
        prompt = f"Prove the theorem of {name} for {count} points." if is_proof else f"{name} has {count} apples and buys 3. How many?"
        near, far = (float(random.random() < chance) for chance in ((0.15, 0.9) if is_proof else (0.95, 0.95)))
        right, wrong = f"{index}", f"not {index}"
        outcomes = {
            "near": {"score": near, "dollars": 0, "seconds": 1.0, "answer": right if near else wrong},
            "second": {"score": near, "dollars": 0, "seconds": 1.0, "answer": right if near else f"nor {index}"},
            "far": {"score": far, "dollars": 0.001, "seconds": 3.0, "answer": right if far else wrong},
        }
        made.append({"prompt": prompt, "task_class": "proofs" if is_proof else "sums", "outcomes": outcomes})
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands look for ./nearfar.toml."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, traces())
    return tmp_path


def write(folder: Path, made: list[dict[str, Any]]) -> None:
    (folder / "traces.jsonl").write_text("".join(json.dumps(trace) + "\n" for trace in made), encoding="utf-8")


def nearfar(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--traces", "traces.jsonl", "--words-only"])


def in_json(*arguments: str) -> dict[str, Any]:
    result = nearfar(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def error_of(*arguments: str) -> str:
    result = nearfar(*arguments, "--json")
    assert result.exit_code == 2, result.output
    return str(json.loads(result.stdout)["error"])


@pytest.mark.anyio
async def test_a_head_that_was_trained_here_routes_here(folder: Path) -> None:
    trained = in_json("policy", "train", "--near-agent", "near", "--near-agent", "second", "--far-agent", "far")
    assert {agent["agent"] for agent in trained["report"]["agents"]} == {"near", "second", "far"}
    pair = next(each for each in trained["report"]["pairs"] if (each["near"], each["far"]) == ("near", "far"))
    assert pair["recovered"]["low"] > 0.6
    assert Path(trained["escalation"]).is_file()
    policy = f'[policy]\nstrategy = "route"\nsensitivity = "public"\n[policy.router]\nhead = "{trained["head"]}"\nthreshold = 0.2\n'
    (folder / "nearfar.toml").write_text(f'[near]\nmodel = "near"\n[far]\nprovider = "llama"\nmodel = "far"\n{policy}', encoding="utf-8")
    async with Hybrid.from_config("nearfar.toml") as hybrid:
        assert hybrid.explain_route("Prove the theorem of Ada for 12 points.").candidates[0] == "far"
        assert hybrid.explain_route("Tom has 7 apples and buys 3. How many?").candidates[0] == "near"
    checked = CliRunner().invoke(app, ["policy", "check"])
    assert checked.exit_code == 0, checked.output


def test_training_prints_a_held_out_report_and_what_to_put_into_the_file() -> None:
    result = nearfar("policy", "train", "--near-agent", "near", "--far-agent", "far")
    assert result.exit_code == 0, result.output
    assert "gap recovered" in result.stdout
    assert '[policy.router]\nhead = "head"' in result.stdout
    assert 'escalation = "head/escalation.json"' in result.stdout


def test_a_head_of_other_agents_is_refused(folder: Path) -> None:
    in_json("policy", "train", "--near-agent", "second", "--far-agent", "far")
    (folder / "nearfar.toml").write_text(
        '[near]\nmodel = "near"\n[far]\nprovider = "llama"\nmodel = "far"\n[policy.router]\nhead = "head"\n', encoding="utf-8"
    )
    checked = CliRunner().invoke(app, ["policy", "check"])
    assert checked.exit_code == 2
    assert "was not trained for near" in checked.stderr


def test_a_simulation_draws_what_the_policy_would_have_come_to(folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'study'")
    found = in_json("policy", "simulate", "--near-agent", "near", "--far-agent", "far", "--out", "simulated")
    assert found["tasks"] == 160
    assert found["figures"]["recovered"]["low"] > 0.6
    near = next(way for way in found["singles"] if way["name"] == "near")
    assert near["score"]["value"] < found["policy"]["score"]["value"] <= found["oracle"]["score"]["value"]
    assert (folder / "simulated" / SIMULATION_REPORT).is_file()
    assert json.loads((folder / "simulated" / SIMULATION_SUMMARY).read_text(encoding="utf-8"))["tasks"] == 160


def test_a_budget_gives_a_threshold_that_keeps_to_it() -> None:
    found = in_json("policy", "calibrate", "--near-agent", "near", "--far-agent", "far", "--budget", "40%")
    assert found["expected"]["far_share"]["value"] == pytest.approx(0.4, abs=0.1)
    assert "[policy.router]" in found["toml"]
    assert f"threshold = {found['threshold']}" in found["toml"]


def test_a_quality_gives_a_threshold_that_keeps_it_with_fewer_far_tasks() -> None:
    found = in_json("policy", "calibrate", "--near-agent", "near", "--far-agent", "far", "--quality", "95%")
    assert found["expected"]["far_share"]["value"] < 0.75
    assert found["expected"]["score"]["value"] > 0.8


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--far-agent", "far", "--near-agent", "nobody", "--budget", "0.3"), "the traces have no agent 'nobody'"),
        (("--far-agent", "near", "--budget", "0.3"), "no near agent that is known"),
        (("--near-agent", "near", "--quality", "95%", "--confidence", "95"), "a confidence lies between 0 and 1"),
        (("--near-agent", "near", "--far-agent", "far"), "give one of --budget and --quality"),
        (("--near-agent", "near", "--far-agent", "far", "--budget", "much"), "is not a budget"),
        (("--near-agent", "near", "--far-agent", "far", "--quality", "2"), "no quality"),
    ],
)
def test_a_calibration_that_cannot_be_made_says_why(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in error_of("policy", "calibrate", *arguments)


def test_traces_without_outcomes_are_refused(folder: Path) -> None:
    made = traces()
    for trace in made:
        trace["outcomes"]["far"]["score"] = None
    write(folder, made)
    for command in (("policy", "train"), ("policy", "calibrate", "--budget", "0.3")):
        assert "far" in error_of(*command, "--near-agent", "near", "--far-agent", "far")


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it_and_infinite_dollars_are_refused(folder: Path) -> None:
    lines = "".join(json.dumps(trace) + "\n" for trace in traces())
    (folder / "traces.jsonl").write_text(lines, encoding="utf-8-sig")
    assert in_json("policy", "calibrate", "--near-agent", "near", "--budget", "40%")["target"]["amount"] == pytest.approx(0.4)
    outcomes = {"near": {"score": 1}, "far": {"score": 1, "dollars": float("inf")}}
    write(folder, [*traces(), {"prompt": "dear", "outcomes": outcomes}])
    assert "outcomes.far.dollars: Input should be a finite number" in error_of("policy", "calibrate", "--budget", "40%")


def test_traces_that_lack_some_outcomes_can_be_learned_from(folder: Path) -> None:
    made = traces()
    for trace in made[::4]:
        trace["outcomes"]["far"]["score"] = None
    write(folder, made)
    trained = in_json("policy", "train", "--near-agent", "near", "--far-agent", "far")
    far = next(agent for agent in trained["report"]["agents"] if agent["agent"] == "far")
    assert far["missing"] == pytest.approx(0.25, abs=0.01)


@pytest.mark.anyio
async def test_a_prompt_is_routed_by_the_pair_that_it_was_trained_for(folder: Path) -> None:
    in_json("policy", "train", "--near-agent", "near", "--far-agent", "far")
    policy: dict[str, Any] = {"strategy": "route", "sensitivity": "public", "router": {"head": folder / "head"}}
    near, far = ScriptedAgent(["a"], name="near"), ScriptedAgent(["b"], name="far", side=Side.FAR)
    from nearfar import Policy

    async with Hybrid(near=near, far=far, policy=Policy.model_validate(policy)) as hybrid:
        result = await hybrid.run("Prove the theorem of Noor for 5 points.")
    assert (result.text, result.decision.considered[0].estimate is not None) == ("b", True)
