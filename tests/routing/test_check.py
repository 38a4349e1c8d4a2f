"""What `nearfar policy check` finds."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nearfar.orchestrator.routing.drafts import DEFAULT_CARD, bind
from nearfar.orchestrator.routing.escalation import Escalation, read_card
from nearfar.orchestrator.routing.policy_check import findings, require_usable
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError, Side

AGENTS = {"near": Side.NEAR, "far": Side.FAR}


def found(policy: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding.kind, str(finding)) for finding in findings(Policy.model_validate(policy), AGENTS)]


def rule(**content: object) -> dict[str, Any]:
    return {"name": "r", **content}


def test_the_default_policy_has_nothing_wrong_with_it() -> None:
    assert found({}) == []


@pytest.mark.parametrize(
    ("policy", "kind", "problem"),
    [
        ({"strategy": "cloud", "mode": "only_on_device"}, "error", "contradicts"),
        ({"strategy": "device", "mode": "only_in_cloud", "sensitivity": "public"}, "error", "contradicts"),
        ({"strategy": "cloud", "rules": [rule(mode="only_on_device", when={"tags": ["a"]})]}, "warning", "refuses all its tasks"),
        ({"strategy": "cloud", "rules": [rule(mode="only_on_device")]}, "error", "contradicts"),
        ({"mode": "only_in_cloud"}, "warning", "refuses every task"),
        ({"rules": [rule(agent="nobody")]}, "error", "there is no agent 'nobody'"),
        ({"fallback": {"order": ["nobody"]}}, "error", "there is no agent 'nobody'"),
        ({"rules": [rule(mode="only_on_device", agent="far")]}, "error", "keeps out far"),
        ({"rules": [rule(mode="only_in_cloud", when={"sensitivity": "private"})]}, "error", "refuses all of them"),
        ({"rules": [rule(mode="prefer_in_cloud", when={"sensitivity": "private"})]}, "warning", "can never have an effect"),
        ({"rules": [rule(mode="prefer_in_cloud", when={"battery": {"at_least": 20}})]}, "warning", "can never match: battery"),
        ({"rules": [rule(mode="prefer_in_cloud", when={"battery": {"below": 20}})]}, "warning", "always below 20"),
        ({"rules": [rule(mode="prefer_on_device", when={"budget_left": {"below": 0.1}})]}, "warning", "can never match: budget_left"),
        ({"rules": [rule(mode="only_on_device", when={"budget_left": {"below": 0.1}})]}, "warning", "so it always does"),
        ({"rules": [rule(mode="prefer_in_cloud", when={"tokens": {"below": 0}})]}, "warning", "can never match: no prompt"),
        ({"rules": [rule(mode="only_in_cloud", when={"offline": True})]}, "warning", "nothing in the cloud"),
        ({"rules": [rule(mode="auto"), rule(name="s", mode="prefer_in_cloud", when={"tags": ["a"]})]}, "warning", "rule 'r' before it"),
        ({"rules": [rule(deny="no"), rule(name="s", agent="far")]}, "warning", "rule 'r' before it"),
        ({"rules": [rule(mode="auto"), rule(agent="far")]}, "warning", "the same name"),
        ({"rules": [rule(mode="only_on_device"), rule(name="s", mode="only_in_cloud")]}, "error", "it is refused"),
        (
            {"rules": [rule(mode="only_on_device", when={"tags": ["a"]}), rule(name="s", mode="only_in_cloud", when={"tags": ["b"]})]},
            "warning",
            "it is refused",
        ),
        ({"strategy": "minions", "router": {"far_share": 0.3}}, "warning", "a budget only steers strategies"),
        ({"strategy": "eva", "router": {"threshold": 0.3}}, "warning", "only steers strategies route and cascade"),
        ({"router": {"explore_share": 0.3}}, "warning", "only strategy route explores"),
        ({"strategy": "route", "mode": "prefer_in_cloud", "router": {"threshold": 0.3}}, "warning", "only steer mode auto"),
        ({"strategy": "route", "router": {"threshold": 0.3, "far_share": 0.3}}, "warning", "it has no effect"),
        ({"objective": {"quality": 0}}, "warning", "the cheapest agent always serves"),
        ({"fallback": {"triggers": ["timeout"]}}, "warning", "never doubts a draft"),
        ({"limits": {"call": {"dollars": 2}, "day": {"dollars": 1}}}, "warning", "may not even have 1"),
    ],
)
def test_a_strange_policy_is_remarked_on(policy: dict[str, Any], kind: str, problem: str) -> None:
    assert any(kind == seen and problem in text for seen, text in found(policy)), found(policy)


@pytest.mark.parametrize(
    "rules",
    [
        [rule(mode="auto", when={"tags": ["a"]}), rule(name="s", mode="prefer_in_cloud")],
        [rule(agent="far"), rule(name="s", mode="prefer_in_cloud")],
        [rule(mode="prefer_in_cloud"), rule(name="s", mode="only_on_device", when={"tags": ["a"]})],
        [rule(mode="auto", when={"tokens": {"below": 10}}), rule(name="s", mode="prefer_in_cloud", when={"tokens": {"below": 20}})],
        [
            rule(mode="only_on_device", when={"tokens": {"below": 10}}),
            rule(name="s", mode="only_in_cloud", when={"tokens": {"at_least": 10}}),
        ],
        [
            rule(mode="only_on_device", when={"power_source": "mains"}),
            rule(name="s", mode="only_in_cloud", when={"power_source": "battery"}),
        ],
    ],
)
def test_rules_that_have_their_place_are_not_remarked_on(rules: list[dict[str, Any]]) -> None:
    assert found({"rules": rules}) == []


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"objective": {"quality": 0, "dollars": 0}}, "all weights are zero"),
        ({"objective": {"seconds": -1}}, "greater than or equal to 0"),
        ({"limits": {"day": {"dollars": -1}}}, "greater than or equal to 0"),
        ({"limits": {"call": {"tokens": 0}}}, "greater than 0"),
        ({"limits": {"week": {"dollars": 1}}}, "Extra inputs"),
        ({"router": {"far_share": 1.5}}, "less than 1"),
        ({"router": {"far_share": 0.5, "dollars_per_hour": 1}}, "give one of them"),
        ({"router": {"threshold": float("nan")}}, "finite"),
        ({"rules": [rule(mode="sometimes")]}, "only_on_device"),
        ({"fallback": {"triggers": ["boredom"]}}, "unavailable"),
    ],
)
def test_values_without_a_meaning_are_refused(policy: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Policy.model_validate(policy)


def test_a_card_of_other_agents_is_an_error_before_any_task(tmp_path: Path) -> None:
    Escalation(bind(read_card(DEFAULT_CARD), draft="qwen", far="far", opinions=[])).save(tmp_path / "card.json")
    policy = Policy.model_validate({"evidence": {"escalation": tmp_path / "card.json"}})
    with pytest.raises(ConfigError, match="there is no such agent: qwen"):
        require_usable(policy, AGENTS)
    require_usable(policy, {**AGENTS, "qwen": Side.NEAR})
    require_usable(policy, {"near": Side.NEAR})


@pytest.mark.parametrize("strategy", ["pevr", "eva", "minions", "cloud"])
def test_a_strategy_that_needs_a_far_agent_is_an_error_without_one(strategy: str) -> None:
    policies = [{"strategy": strategy}, {"rules": [rule(strategy=strategy)]}, {"strategy": "subtasks", "subtasks": {"strategy": strategy}}]
    for policy in policies[: 2 if strategy == "minions" else None]:
        with pytest.raises(ConfigError, match="no far agent is configured"):
            require_usable(Policy.model_validate(policy), {"near": Side.NEAR})
        require_usable(Policy.model_validate(policy), AGENTS)


@pytest.mark.parametrize("strategy", ["pevr", "eva", "minions", "device"])
def test_a_strategy_that_needs_a_near_agent_is_an_error_without_one(strategy: str) -> None:
    with pytest.raises(ConfigError, match="no near agent is configured"):
        require_usable(Policy(strategy=Strategy(strategy)), {"far": Side.FAR})


@pytest.mark.parametrize(
    ("policy", "unasked"),
    [
        ({"mode": "only_on_device"}, "far"),
        ({"strategy": "device"}, "far"),
        ({"mode": "only_in_cloud", "sensitivity": "public"}, "near"),
    ],
)
def test_an_agent_that_can_never_be_asked_is_named(policy: dict[str, Any], unasked: str) -> None:
    assert [text for _, text in found(policy) if "can never be asked" in text and unasked in text]
    asking = {**policy, "rules": [rule(strategy="route", mode="auto", when={"tags": ["a"]})]}
    assert not [text for _, text in found(asking) if "can never be asked" in text]


@pytest.mark.parametrize("effect", [{"deny": "no"}, {"mode": "only_on_device"}])
def test_a_rule_that_protects_a_class_says_that_tasks_without_one_are_not_covered(effect: dict[str, str]) -> None:
    assert [kind for kind, text in found({"rules": [rule(when={"task_class": ["a"]}, **effect)]}) if "states no class" in text] == [
        "warning"
    ]
    assert found({"rules": [rule(when={"task_class": ["a"]}, mode="prefer_in_cloud")]}) == []


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([rule(mode="prefer_in_cloud", when={"tags": ["a"]}), rule(name="s", mode="only_on_device")], "rule 's' says only_on_device"),
        ([rule(mode="only_on_device", when={"tags": ["a"]}), rule(name="s", deny="no")], "rule 's' denies all its tasks"),
        (
            [rule(mode="auto", when={"task_class": ["a"]}), rule(name="s", mode="prefer_in_cloud", when={"task_class": ["a/b"]})],
            "rule 'r' before it",
        ),
    ],
)
def test_a_rule_that_others_overrule_in_all_its_cases_is_named(rules: list[dict[str, Any]], problem: str) -> None:
    assert any(kind == "warning" and problem in text for kind, text in found({"rules": rules})), found({"rules": rules})


def test_rules_for_classes_apart_do_not_contradict_each_other() -> None:
    near, far = ({"mode": f"only_{mode}", "when": {"task_class": [name]}} for mode, name in (("on_device", "a"), ("in_cloud", "ab/c")))
    assert not [text for _, text in found({"rules": [rule(**near), rule(**{**far, "name": "s"})]}) if "it is refused" in text]


def test_a_policy_with_an_error_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        require_usable(Policy.model_validate({"rules": [rule(agent="nobody")]}), AGENTS)
    require_usable(Policy.model_validate({"router": {"far_share": 0.3}}), AGENTS)
