"""The presets of a policy: what each lets happen, and that keys which are given win."""

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nearfar import Hybrid, Policy, Preset, Prices, ScriptedAgent, Sensitivity, Side, ToolCall, Unavailable, tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.routing.policy_check import findings
from nearfar.orchestrator.task.policy import PRESETS
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

SIDES = {"near": Side.NEAR, "far": Side.FAR}


def near_agent(*replies: Reply, confidence: float = 0.9) -> ScriptedAgent:
    return ScriptedAgent(replies, name="near", confidence=confidence)


def far_agent(*replies: str, dollars_per_million: int = 1) -> ScriptedAgent:
    price = Decimal(dollars_per_million)
    prices = Prices(input=price, output=price, source="a test", as_of=date(2026, 11, 26))
    return ScriptedAgent(replies, name="far", side=Side.FAR, prices=prices)


@tool
def pay(name: str) -> str:
    """Pay a person."""
    return f"paid {name}"


async def test_private_keeps_a_task_here_even_if_no_near_agent_can_serve_it() -> None:
    far = far_agent("never asked")
    async with Hybrid(near=near_agent(Unavailable("gone")), far=far, policy=Policy(preset=Preset.PRIVATE)) as hybrid:
        with pytest.raises(Unavailable):
            await hybrid.run("Is this patient ill?")
    assert far.requests == []


async def test_private_lets_a_task_leave_that_is_declared_public_after_the_near_agent_has_tried() -> None:
    near, far = near_agent("maybe", confidence=0.1), far_agent("certainly")
    async with Hybrid(near=near, far=far, policy=Policy(preset=Preset.PRIVATE)) as hybrid:
        result = await hybrid.run("Is the sky blue?", sensitivity=Sensitivity.PUBLIC)
    assert [attempt.agent for attempt in result.attempts] == ["near", "far"]
    assert result.text == "certainly"


@pytest.mark.parametrize(("preset", "answered_by"), [(Preset.PRIVATE, "near"), (Preset.BALANCED, "far")])
async def test_private_keeps_here_whatever_looks_private_and_not_just_the_usual(preset: Preset, answered_by: str) -> None:
    near, far = near_agent("here", "here", confidence=0.1), far_agent("there")
    async with Hybrid(near=near, far=far, policy=Policy(preset=preset)) as hybrid:
        result = await hybrid.run("Sum up https://example.org/team/plans", sensitivity=Sensitivity.PUBLIC)
    assert result.agent == answered_by


async def test_balanced_is_the_default_and_chooses_nothing_for_the_user() -> None:
    assert Policy(preset=Preset.BALANCED) == Policy()
    near, far = near_agent(ToolCall(id="1", name="pay", arguments={"name": "Mira"}), "Paid.", "Yes."), far_agent("1. pay", "CONTINUE")
    async with Hybrid(near=near, far=far, policy=Policy(preset=Preset.BALANCED, sensitivity=Sensitivity.PUBLIC), tools=[pay]) as hybrid:
        result = await hybrid.run("Please pay Mira.")
    assert result.selection is not None  # no strategy was chosen, so `auto` chose one for a tool that changes something


async def test_cheapest_asks_the_far_agent_only_if_the_evidence_speaks_against_the_draft() -> None:
    near, far = near_agent("sure"), far_agent("never asked")
    async with Hybrid(near=near, far=far, policy=Policy(preset=Preset.CHEAPEST, sensitivity=Sensitivity.PUBLIC)) as hybrid:
        assert (await hybrid.run("Is the sky blue?")).text == "sure"
    assert far.requests == []
    near, far = near_agent("maybe", confidence=0.1), far_agent("certainly")
    async with Hybrid(near=near, far=far, policy=Policy(preset=Preset.CHEAPEST, sensitivity=Sensitivity.PUBLIC)) as hybrid:
        assert (await hybrid.run("Is the sky blue?")).text == "certainly"


async def test_cheapest_stays_a_cascade_with_tools_that_change_something() -> None:
    near, far = near_agent(ToolCall(id="1", name="pay", arguments={"name": "Mira"}), "Paid Mira."), far_agent("never asked")
    async with Hybrid(near=near, far=far, policy=Policy(preset=Preset.CHEAPEST, sensitivity=Sensitivity.PUBLIC), tools=[pay]) as hybrid:
        result = await hybrid.run("Please pay Mira.")
    assert (result.text, result.selection, far.requests) == ("Paid Mira.", None, [])


@pytest.mark.parametrize(("given", "text"), [({}, "maybe"), ({"limits": {"task": {"dollars": 100}, "day": {"dollars": 100}}}, "certainly")])
async def test_cheapest_refuses_what_is_dear_unless_the_limits_are_given(given: Mapping[str, Any], text: str) -> None:
    near, far = near_agent("maybe", confidence=0.1), far_agent("certainly", dollars_per_million=100_000)
    policy = Policy.model_validate({"preset": "cheapest", "sensitivity": "public", **given})
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        result = await hybrid.run("Is the sky blue on a clear day in the middle of June?")
    assert result.text == text
    assert any("0.02" in reason for reason in result.reasons) is not bool(given), result.reasons


async def test_cheapest_does_not_make_a_task_public() -> None:
    near, far = near_agent("maybe", confidence=0.1), far_agent("never asked")
    async with Hybrid(near=near, far=far, policy=Policy(preset=Preset.CHEAPEST)) as hybrid:
        assert (await hybrid.run("Is this patient ill?")).text == "maybe"
    assert far.requests == []


@pytest.mark.parametrize("preset", Preset)
def test_keys_that_are_given_win_in_a_file_and_in_python(preset: Preset) -> None:
    text = f'[policy]\npreset = "{preset}"\nmode = "auto"\n[policy.limits.day]\ndollars = 7.0\n[policy.privacy]\ndetect = ["email"]\n'
    read = parse_config(text, "a test").policy
    sections = {"limits": {"day": {"dollars": 7.0}}, "privacy": {"detect": ("email",)}}
    assert read == Policy.model_validate({"preset": preset, "mode": "auto", **sections})
    assert (read.mode, read.limits.day.dollars, read.privacy.detect) == ("auto", 7.0, ("email",))
    expected = PRESETS[preset].get("limits", {}).get("task", {}).get("dollars")
    assert read.limits.task.dollars == expected  # a section of which one key is given keeps the preset's others


@pytest.mark.parametrize("preset", Preset)
def test_a_preset_is_a_valid_policy_without_findings(preset: Preset) -> None:
    policy = Policy(preset=preset)
    assert Policy.model_validate(policy.model_dump()) == policy
    assert Policy.model_validate_json(policy.model_dump_json()) == policy
    assert findings(policy, SIDES) == []


@pytest.mark.parametrize(
    "given",
    [
        {"sensitivity": "public"},
        {"mode": "auto"},
        {"strategy": "cloud"},
        {"privacy": {"findings": "allow"}},
        {"privacy": {"detect": ["email"]}},
        {"privacy": {"placeholders": True}},
        {"guard": {"tools": "allow"}},
        {"guard": {"arguments": "allow"}},
    ],
    ids=str,
)
def test_a_key_that_takes_back_the_promise_of_private_is_a_warning(given: Mapping[str, Any]) -> None:
    (finding, *_) = findings(Policy.model_validate({"preset": "private", **given}), SIDES)
    assert finding.kind == "warning"
    assert "preset private" in finding.problem
    others = findings(Policy.model_validate({**given, "preset": "balanced"}), SIDES)
    assert not any("promises" in other.problem for other in others)


def test_the_commands_about_policies_know_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nearfar.toml").write_text('[near]\nmodel = "near"\n[policy]\npreset = "cheapest"\n', encoding="utf-8")
    run = CliRunner().invoke
    assert "preset cheapest, strategy cascade, mode prefer_on_device" in run(app, ["policy", "check"]).stdout
    assert "preset cheapest" in run(app, ["policy", "explain", "Why?"]).output
    assert json.loads(run(app, ["policy", "explain", "Why?", "--json"]).stdout)["preset"] == "cheapest"
    schema = json.loads(run(app, ["policy", "schema"]).stdout)
    assert schema["$defs"]["Preset"]["enum"] == list(Preset)
    Path("nearfar.toml").write_text('[policy]\npreset = "cheap"\n', encoding="utf-8")
    refused = run(app, ["policy", "check"])
    assert refused.exit_code == 2
    assert "policy.preset" in refused.output
