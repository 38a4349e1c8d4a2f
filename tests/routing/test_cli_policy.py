"""`nearfar policy check`, `explain` and `schema`."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from nearfar.orchestrator.cli import app

POLICY = """
[near]
model = "near"

[far]
provider = "llama"
model = "far"

[policy]
strategy = "route"
sensitivity = "public"
mode = "prefer_in_cloud"

[[policy.rules]]
name = "patients stay here"
when = { tags = ["medical"] }
mode = "only_on_device"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands look for ./nearfar.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nearfar.toml").write_text(POLICY, encoding="utf-8")
    return tmp_path


def nearfar(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments])


def add(folder: Path, text: str) -> None:
    with (folder / "nearfar.toml").open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_good_policy_can_be_used() -> None:
    result = nearfar("check")
    assert result.exit_code == 0
    assert "the policy can be used: preset balanced, strategy route, mode prefer_in_cloud, 1 rule" in result.stdout


def test_a_warning_does_not_stop_a_policy(folder: Path) -> None:
    add(folder, "[policy.router]\nfar_share = 0.3\n")
    result = nearfar("check")
    assert result.exit_code == 0
    assert "only steer mode auto" in result.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[policy.rules]]\nname = "r"\nagent = "nobody"\n', "there is no agent 'nobody'"),
        ("[policy.objective]\nquality = 0\ndollars = 0\n", "all weights are zero"),
        ("[policy.limits.day]\ndollars = -1\n", "greater than or equal to 0"),
        ('[policy.router]\nhead = "nowhere"\n', "holds no head of the router"),
    ],
)
def test_a_policy_that_cannot_be_used_says_why_and_fails(folder: Path, text: str, problem: str) -> None:
    add(folder, text)
    result = nearfar("check")
    assert result.exit_code == 2
    assert problem in result.stderr
    as_json = json.loads(nearfar("check", "--json").stdout)
    assert problem in json.dumps(as_json)


def test_without_a_file_there_is_nothing_to_check(folder: Path) -> None:
    (folder / "nearfar.toml").unlink()
    result = nearfar("check")
    assert result.exit_code == 2
    assert "there is no nearfar.toml" in result.stderr


def test_explain_prints_candidates_objections_and_reasons() -> None:
    result = nearfar("explain", "What is it?")
    assert (result.exit_code, result.stdout.strip()) == (0, "far then near")
    assert "P(success)" in result.stderr
    kept = nearfar("explain", "What is it?", "--tag", "medical")
    assert kept.stdout.strip() == "near"
    assert "rule 'patients stay here': mode only_on_device" in kept.stderr
    assert "left out because" in kept.stderr


def test_explain_as_json_is_a_decision() -> None:
    decision = json.loads(nearfar("explain", "What is it?", "--json").stdout)["decision"]
    assert decision["candidates"] == ["far", "near"]
    assert decision["considered"][0]["estimate"]["success"]["source"] == "prior"


def test_explain_knows_that_a_model_on_this_machine_costs_nothing() -> None:
    decision = json.loads(nearfar("explain", "What is it?", "--json").stdout)["decision"]
    assert [each["estimate"]["dollars"]["value"] for each in decision["considered"]] == [0, 0]


def test_explain_of_a_denied_task_says_which_rule(folder: Path) -> None:
    add(folder, '[[policy.rules]]\nname = "shut"\ndeny = "closed today"\n')
    result = nearfar("explain", "What is it?")
    assert result.exit_code == 0
    assert "denied: rule 'shut': closed today" in result.stdout
    assert all(part in result.stderr for part in ("left out because", "near (near)", "far (far)", "rule 'shut': denied"))
    decision = json.loads(nearfar("explain", "What is it?", "--json").stdout)["decision"]
    assert (decision["candidates"], decision["denied"]) == ([], "rule 'shut': closed today")
    run = nearfar("explain", "What is it?", "--run")
    assert run.exit_code == 2
    assert "closed today" in run.stderr


def test_explain_of_a_task_to_which_rules_leave_no_side_prints_the_table(folder: Path) -> None:
    add(folder, '[[policy.rules]]\nname = "away"\nmode = "only_in_cloud"\nwhen = { tags = ["medical"] }\n')
    result = nearfar("explain", "What is it?", "--tag", "medical")
    assert result.exit_code == 0
    assert "denied: rules leave no side" in result.stdout
    assert "left out because" in result.stderr


def test_explain_can_run_the_task_and_shows_what_really_happened() -> None:
    result = nearfar("explain", "What is it?", "--tag", "medical", "--run")
    assert result.exit_code == 0
    assert "expected" in result.stderr
    assert "accepted" in result.stderr
    really = json.loads(nearfar("explain", "What is it?", "--tag", "medical", "--run", "--json").stdout)["result"]
    assert really["served_on_device"] is True


def test_the_schema_describes_the_file() -> None:
    schema = json.loads(nearfar("schema").stdout)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    good = {"policy": {"mode": "auto", "rules": [{"name": "r", "when": {"tokens": {"below": 9}}, "agent": "far"}]}}
    assert validator.is_valid(good)
    assert not validator.is_valid({"policy": {"mode": "sometimes"}})
    assert not validator.is_valid({"policy": {"rulez": []}})


@pytest.mark.parametrize(("former", "now"), [("router", "nearfar policy train"), ("auto", "nearfar policy choose")])
def test_a_former_command_says_where_it_went(former: str, now: str) -> None:
    refused = CliRunner().invoke(app, [former, "--json"])
    assert refused.exit_code == 2
    assert f"`{now}`" in refused.stdout
