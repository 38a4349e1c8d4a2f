"""The router: who serves a task, and why."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import FAR, NEAR, NOON, Stand, priced, task

from nearfar.orchestrator.budgets import Spent
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.costs import StepTaken
from nearfar.orchestrator.routing.traces import ScoredAnswer
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.decisions import EstimateSource, RouteDecision
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.protocols import BudgetExceeded, DeviceState, NearfarError, PermissionDenied, PrivacyViolation, Side

PAIR = (NEAR, FAR)


def router(device: DeviceState | None = None, *, now: datetime = NOON, seed: int = 0) -> Router:
    return Router(device_state=lambda: device or DeviceState(), now=lambda: now, monotonic=lambda: 0.0, seed=seed)


def learned(*, near: float, far: float, task_class: str = "") -> Router:
    """A router to which a hundred tasks were reported, on which the agents succeeded so often."""
    taught = router()
    for number in range(100):
        asked = task(f"What is the capital of country {number}?", task_class=task_class)
        decision = taught.decide(asked, PAIR)
        for agent, rate in (("near", near), ("far", far)):
            done = (number * 37) % 100 < 100 * rate
            taught.learn(asked, decision, agent, score=float(done))
    return taught


def test_with_nothing_known_the_near_side_goes_first_since_it_is_free() -> None:
    decision = router().decide(task(), PAIR)
    assert decision.candidates == ("near", "far")
    assert {each.estimate.success.source for each in decision.considered if each.estimate} == {EstimateSource.PRIOR}


def test_the_more_useful_agent_goes_first() -> None:
    assert learned(near=0.3, far=0.95).decide(task(), PAIR).candidates == ("far", "near")
    assert learned(near=0.9, far=0.95).decide(task(policy={"objective": {"dollars": 1000}}), PAIR).candidates == ("near", "far")


def test_the_objective_decides_what_is_useful() -> None:
    taught = learned(near=0.6, far=0.8)
    for _ in range(10):
        taught.running.add_step("far", StepTaken(input_tokens=10, output_tokens=5, seconds=30.0))
        taught.running.add_step("near", StepTaken(input_tokens=10, output_tokens=5, seconds=1.0))
    assert taught.decide(task(), PAIR).candidates[0] == "far"
    assert taught.decide(task(policy={"objective": {"seconds": 0.1}}), PAIR).candidates[0] == "near"


def test_utility_is_the_objective_of_what_is_expected() -> None:
    decision = learned(near=0.6, far=0.8).decide(task(policy={"objective": {"quality": 2, "dollars": 3, "seconds": 0.01}}), PAIR)
    for each in decision.considered:
        assert each.estimate is not None
        assert each.estimate.dollars is not None
        expected = 2 * each.estimate.success.value - 3 * each.estimate.dollars.value - 0.01 * each.estimate.seconds.value
        assert each.utility == pytest.approx(expected)


def test_an_unknown_price_is_not_free() -> None:
    unpriced = Stand("far", Side.FAR)
    decision = router().decide(task(), (NEAR, unpriced))
    assert decision.candidates == ("near", "far")
    utilities = {each.agent: each.utility or 0 for each in decision.considered}
    successes = {each.agent: each.estimate.success.value for each in decision.considered if each.estimate}
    assert utilities["far"] < successes["far"]


def test_a_class_of_tasks_has_estimates_of_its_own() -> None:
    taught = learned(near=0.2, far=0.9, task_class="law")
    of_law, of_sport = (taught.decide(task(task_class=name), PAIR).considered[0] for name in ("law", "sport"))
    assert of_law.estimate is not None
    assert of_law.estimate.success.source is EstimateSource.MEASURED
    assert of_sport.estimate is not None
    assert of_sport.estimate.success.source is EstimateSource.LEARNED  # from other classes


def test_the_far_side_has_to_be_ahead_by_the_threshold() -> None:
    taught = learned(near=0.5, far=0.8)
    advantage = taught.decide(task(), PAIR).advantage
    assert advantage is not None
    for threshold, first in ((advantage - 0.01, "far"), (advantage + 0.01, "near")):
        assert taught.decide(task(policy={"router": {"threshold": threshold}}), PAIR).candidates[0] == first


def test_routing_works_among_any_number_of_agents() -> None:
    agents = (NEAR, Stand("small", Side.NEAR, prices=priced(0)), FAR, Stand("huge", Side.FAR, prices=priced(200)))
    taught = learned(near=0.4, far=0.7)
    decision = taught.decide(task(), agents)
    assert set(decision.candidates) == {"near", "small", "far", "huge"}
    assert decision.candidates[0] == "far"


def test_a_cascade_drafts_on_the_near_side_whatever_far_is_worth() -> None:
    decision = learned(near=0.1, far=0.9).decide(task(policy={"strategy": "cascade"}), PAIR)
    assert (decision.candidates, decision.judged) == (("near", "far"), True)


def test_a_mode_that_prefers_a_side_keeps_its_order() -> None:
    assert learned(near=0.1, far=0.9).decide(task(policy={"mode": "prefer_on_device"}), PAIR).candidates == ("near", "far")


def test_a_rule_names_the_agent_that_tries_first() -> None:
    policy = {"rules": [{"name": "law", "when": {"task_class": ["law"]}, "agent": "far"}]}
    decision = router().decide(task(policy=policy, task_class="law/tax"), PAIR)
    assert decision.candidates == ("far", "near")
    assert "rule 'law': agent far" in decision.reasons
    assert decision.is_bound


def test_a_rule_keeps_a_task_on_the_device() -> None:
    policy = {"rules": [{"name": "patients", "when": {"tags": ["medical"]}, "mode": "only_on_device"}]}
    decision = learned(near=0.1, far=0.9).decide(task(policy=policy, tags=("medical",)), PAIR)
    assert decision.candidates == ("near",)
    assert any(each.agent == "far" and each.objection for each in decision.considered)


def test_what_a_rule_restricts_holds_against_the_task_itself() -> None:
    policy = {"mode": "only_in_cloud", "rules": [{"name": "patients", "when": {"tags": ["medical"]}, "mode": "only_on_device"}]}
    asked = task(policy=policy, tags=("medical",), stated=frozenset({"mode"}))
    with pytest.raises(PrivacyViolation, match="patients"):
        router().decide(asked, PAIR)


def test_what_a_rule_prefers_yields_to_the_task_itself() -> None:
    policy = {"mode": "prefer_on_device", "rules": [{"name": "good", "mode": "prefer_in_cloud", "strategy": "cascade"}]}
    asked = task(policy=policy, stated=frozenset({"mode", "strategy"}))
    ruled = router().apply_rules(asked)
    assert (ruled.policy.mode, ruled.policy.strategy) == (Mode.PREFER_ON_DEVICE, Strategy.ROUTE)
    unstated = router().apply_rules(task(policy=policy))
    assert (unstated.policy.mode, unstated.policy.strategy) == (Mode.PREFER_IN_CLOUD, Strategy.CASCADE)


def test_a_denied_task_is_refused_with_the_rules_reason() -> None:
    policy = {"rules": [{"name": "night", "when": {"time": {"start": "22:00", "end": "06:00"}}, "deny": "the office sleeps"}]}
    with pytest.raises(PermissionDenied, match="the office sleeps"):
        router(now=NOON.replace(hour=23)).decide(task(policy=policy), PAIR)
    assert router().decide(task(policy=policy), PAIR).candidates


def test_rules_that_leave_no_side_refuse_the_task() -> None:
    policy = {"rules": [{"name": "up", "mode": "only_in_cloud"}, {"name": "down", "mode": "only_on_device"}]}
    with pytest.raises(PermissionDenied, match="no side"):
        router().decide(task(policy=policy), PAIR)


def test_rules_look_at_the_device() -> None:
    policy = {"mode": "prefer_on_device", "rules": [{"name": "empty", "when": {"battery": {"below": 0.2}}, "mode": "prefer_in_cloud"}]}
    for battery, first in ((0.1, "far"), (0.9, "near")):
        assert router(DeviceState(battery=battery)).decide(task(policy=policy), PAIR).candidates[0] == first


def test_a_rule_about_the_language_looks_for_it_unless_the_task_says() -> None:
    pytest.importorskip("py3langid", reason="rules about the language need the extra 'router'")
    policy = {"rules": [{"name": "german", "when": {"language": ["de"]}, "agent": "far"}]}
    assert router().decide(task("Wie komme ich am schnellsten zum Bahnhof?", policy=policy), PAIR).candidates[0] == "far"
    assert router().decide(task("How do I get to the railway station?", policy=policy), PAIR).candidates[0] == "near"
    assert router().decide(task("ok", policy=policy, language="de"), PAIR).candidates[0] == "far"


def test_an_agent_that_would_go_beyond_a_limit_is_left_out() -> None:
    decision = learned(near=0.1, far=0.9).decide(task(policy={"limits": {"task": {"dollars": 0.00001}}}), PAIR)
    assert decision.candidates == ("near",)
    assert any("limit for the task" in (each.objection or "") for each in decision.considered)


def test_a_task_for_which_no_agent_has_budget_left_is_refused() -> None:
    spent = Spent(tokens=1000)
    with pytest.raises(BudgetExceeded, match="limit for the task"):
        router().decide(task(policy={"limits": {"task": {"tokens": 1000}}}), PAIR, spent=spent)


def test_a_follow_up_goes_to_the_agent_that_answered_last() -> None:
    taught = learned(near=0.9, far=0.2)
    taught.sessions.keep("chat", "far")
    assert taught.decide(task("commit it", session="chat"), PAIR).candidates == ("far", "near")
    assert taught.decide(task("commit it", session="chat", unstick=True), PAIR).candidates == ("near", "far")
    assert taught.decide(task("commit it", session="other"), PAIR).candidates == ("near", "far")
    assert taught.decide(task("commit it", session="chat", policy={"stickiness": {"follow_ups": False}}), PAIR).candidates[0] == "near"


def test_a_follow_up_that_has_to_stay_does_not_inherit_the_cloud() -> None:
    taught = router()
    taught.sessions.keep("chat", "far")
    assert taught.decide(task("my diagnosis is", session="chat", policy={"sensitivity": "private"}), PAIR).candidates == ("near",)


def test_those_named_in_the_order_of_fallback_take_over_first() -> None:
    agents = (NEAR, FAR, Stand("spare", Side.FAR, prices=priced(1)))
    policy = {"fallback": {"order": ["spare"]}, "mode": "prefer_on_device"}
    assert router().decide(task(policy=policy), agents).candidates == ("near", "spare", "far")


def test_in_shadow_the_decision_is_recorded_and_changes_nothing() -> None:
    decision = learned(near=0.1, far=0.9).decide(task(policy={"router": {"shadow": True}}), PAIR)
    assert (decision.candidates, decision.shadowed) == (("near", "far"), ("far", "near"))
    assert "in shadow: the router would try far then near" in decision.reasons


def test_a_target_for_the_far_share_is_held() -> None:
    taught = learned(near=0.5, far=0.8)
    decisions = [taught.decide(task(policy={"router": {"far_share": 0.3}}), PAIR) for _ in range(600)]
    assert sum(each.candidates[0] == "far" for each in decisions[100:]) / 500 == pytest.approx(0.3, abs=0.02)


def test_private_tasks_do_not_count_for_the_far_share() -> None:
    taught = learned(near=0.5, far=0.8)
    target = {"router": {"far_share": 0.5}}
    private = task(policy={**target, "sensitivity": "private"})
    free = []
    for _ in range(300):
        taught.decide(private, PAIR)
        free.append(taught.decide(task(policy=target), PAIR))
    assert sum(each.candidates[0] == "far" for each in free[100:]) / 200 == pytest.approx(0.5, abs=0.05)


def test_exploration_is_off_unless_asked_for_and_bounded_when_on() -> None:
    taught = learned(near=0.55, far=0.5)
    assert not any(taught.decide(task(), PAIR).explored for _ in range(200))
    policy = task(policy={"router": {"explore_share": 0.1}})
    explored = [taught.decide(policy, PAIR) for _ in range(300)]
    tried = [each for each in explored if each.explored]
    assert 0 < len(tried) <= 30
    assert all(each.candidates[0] == "far" for each in tried)


def test_explaining_changes_nothing() -> None:
    taught = learned(near=0.5, far=0.8)
    asked = task(policy={"router": {"far_share": 0.3, "explore_share": 0.5}})
    first = taught.explain(asked, PAIR)
    assert all(taught.explain(asked, PAIR) == first for _ in range(50))


def test_nothing_is_learned_where_the_policy_says_so() -> None:
    ignorant = router()
    asked = task(policy={"router": {"learn": False}})
    decision = ignorant.decide(asked, PAIR)
    for _ in range(50):
        ignorant.learn(asked, decision, "near", score=0.0)
    assert ignorant.decide(asked, PAIR) == decision


def test_a_decision_survives_json() -> None:
    decision = learned(near=0.5, far=0.8).decide(task(policy={"router": {"far_share": 0.3}}), PAIR)
    assert RouteDecision.model_validate_json(decision.model_dump_json()) == decision


modes = st.sampled_from(Mode)
rules = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("r"), "when": st.fixed_dictionaries({"tags": st.sampled_from([[], ["a"], ["b"]])}), "mode": modes},
        optional={"agent": st.sampled_from(["near", "far"]), "strategy": st.sampled_from(["device", "cloud", "route", "cascade"])},
    ),
    max_size=4,
)


@given(rules, modes, st.sampled_from(Strategy), st.sets(st.sampled_from("ab")), st.booleans())
def test_no_policy_sends_a_private_task_to_a_far_agent(
    given_rules: list[dict[str, object]], mode: Mode, strategy: Strategy, tags: set[str], in_session: bool
) -> None:
    policy = {"rules": given_rules, "mode": mode, "strategy": strategy, "sensitivity": "private", "router": {"threshold": -5.0}}
    decided = router()
    decided.sessions.keep("chat", "far")
    asked = task(policy=policy, tags=tuple(tags), session="chat" if in_session else None)
    _assert_stays(decided, asked)


@given(rules, modes, st.sampled_from(Strategy))
def test_no_policy_sends_a_task_far_that_a_rule_keeps(given_rules: list[dict[str, object]], mode: Mode, strategy: Strategy) -> None:
    keeps = {"name": "keeps", "mode": "only_on_device"}
    policy = {"rules": [*given_rules, keeps], "mode": mode, "strategy": strategy, "router": {"threshold": -5.0}}
    _assert_stays(router(), task(policy=policy))


def _assert_stays(decided: Router, asked: Task) -> None:
    try:
        decision = decided.decide(decided.apply_rules(asked), PAIR)
    except NearfarError:
        return
    assert decision.candidates == ("near",)
    assert decision.supervisor is None


def test_exploration_is_bounded_while_nothing_is_known() -> None:
    fresh = router()
    asked = task(policy={"router": {"explore_share": 0.05}})
    decisions = [fresh.decide(asked, PAIR) for _ in range(100)]
    assert sum(each.candidates[0] == "far" for each in decisions) == sum(each.explored for each in decisions) <= 5


def test_an_agent_that_a_rule_names_is_not_explored_away_nor_counted_for_the_budget() -> None:
    fresh = router()
    named = {"rules": [{"name": "named", "agent": "near"}], "router": {"explore_share": 1.0}}
    decisions = [fresh.decide(task(policy=named), PAIR) for _ in range(50)]
    assert {each.candidates[0] for each in decisions} == {"near"}
    assert all(each.is_bound for each in decisions)


def test_shadow_mode_leaves_a_rules_agent_alone_and_shows_the_order_that_is_served() -> None:
    named = {"rules": [{"name": "named", "agent": "far"}], "router": {"shadow": True}}
    assert router().decide(task(policy=named), PAIR).candidates == ("far", "near")
    shadowed = learned(near=0.1, far=0.9).decide(task(policy={"router": {"shadow": True}}), PAIR)
    assert tuple(each.agent for each in shadowed.considered) == shadowed.candidates == ("near", "far")


def test_a_doubted_near_draft_goes_to_the_cloud_before_another_near_agent() -> None:
    agents = (NEAR, Stand("second", Side.NEAR, prices=priced(0)), FAR)
    decision = router().decide(task(policy={"strategy": "cascade"}), agents)
    assert decision.candidates == ("near", "far", "second")


def test_nobody_supervises_itself_where_a_limit_leaves_the_executor_out() -> None:
    dear = Stand("near", Side.NEAR, prices=priced(1e6))
    policy = {"strategy": "pevr", "limits": {"task": {"dollars": 0.01}}}
    decision = router().decide(task(policy=policy), (dear, FAR))
    assert (decision.candidates, decision.supervisor) == (("far",), None)


def test_tasks_that_nobody_looked_at_leave_what_a_head_predicts_alone() -> None:
    taught = router()
    head = Path("head")
    private = task(policy={"sensitivity": "private"})
    for _ in range(50):
        taught.outcomes.add(ScoredAnswer(taught.decide(private, PAIR), "near", 1.0, head))
    assert taught.outcomes.correction(head).corrected("near", "", 0.2).probability == pytest.approx(0.2)
