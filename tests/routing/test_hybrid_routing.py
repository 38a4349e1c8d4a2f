"""Routing as an app sees it: rules, limits, sessions and reports of a `Hybrid`."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from situations import priced

from nearfar import Hybrid, MemoryStore, Policy, Tier
from nearfar.orchestrator.agents import AgentHandle, AgentPool
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.decisions import EstimateSource
from nearfar.protocols import (
    Agent,
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    DeviceState,
    DeviceStateSource,
    InvalidRequest,
    Message,
    NearfarError,
    PermissionDenied,
    ScriptedAgent,
    Side,
    SimulatedDevice,
    Stalled,
    Thermal,
    Unavailable,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio


class Pair:
    """A near and a far agent that say what they are told, and the requests that reached them."""

    def __init__(self, near: Sequence[Reply], far: Sequence[Reply], *, far_dollars: float = 10) -> None:
        self.near = ScriptedAgent(near, name="near", prices=priced(0))
        self.far = ScriptedAgent(far, name="far", side=Side.FAR, prices=priced(far_dollars))

    def hybrid(self, policy: dict[str, Any], *, device: DeviceStateSource = DeviceState) -> Hybrid:
        given = Policy.model_validate({"strategy": "route", "sensitivity": "public", **policy})
        hybrid = Hybrid(near=self.near, far=self.far, policy=given)
        hybrid.device_state = device
        return hybrid


async def test_a_result_carries_its_decision_and_what_was_expected() -> None:
    pair = Pair(["Lima."], [])
    async with pair.hybrid({}) as hybrid:
        explained = hybrid.explain_route("What is the capital of Peru?")
        result = await hybrid.run("What is the capital of Peru?")
    assert result.decision == explained
    expected = result.decision.estimate_of("near")
    assert expected is not None
    assert expected.seconds.source is EstimateSource.PRIOR
    assert result.calls[0].first_token_seconds is not None
    assert result.calls[0].first_token_seconds <= result.calls[0].seconds


async def test_what_steps_really_took_replaces_the_prior() -> None:
    pair = Pair(["a"] * 6, [])
    async with pair.hybrid({}) as hybrid:
        for _ in range(5):
            await hybrid.run("What is it?")
        expected = hybrid.explain_route("What is it?").estimate_of("near")
    assert expected is not None
    assert expected.seconds.source is EstimateSource.MEASURED
    assert expected.dollars is not None
    assert expected.dollars.value == 0


async def test_reports_move_later_tasks_of_the_class_to_the_other_side() -> None:
    pair = Pair(["wrong"] * 20, ["right"] * 5)
    async with pair.hybrid({}) as hybrid:
        result = await hybrid.run("Is it legal?", task_class="law")
        for _ in range(19):
            hybrid.report(result, score=0.0)
            if hybrid.explain_route("Is it legal?", task_class="law").candidates[0] == "far":
                break
            result = await hybrid.run("Is it legal?", task_class="law")
        assert (await hybrid.run("Is it legal?", task_class="law")).text == "right"
        assert sum(attempt.agent == "far" for attempt in result.attempts) == 0


async def test_nothing_is_learned_from_a_task_whose_outcome_is_unknown() -> None:
    pair = Pair(["a"] * 10, [])
    async with pair.hybrid({}) as hybrid:
        before = hybrid.explain_route("What is it?").estimate_of("near")
        for _ in range(10):
            await hybrid.run("What is it?")
        after = hybrid.explain_route("What is it?").estimate_of("near")
    assert before is not None
    assert after is not None
    assert after.success == before.success


async def test_a_rule_may_change_the_strategy() -> None:
    rules = [{"name": "hard", "when": {"tags": ["hard"]}, "strategy": "cascade"}]
    pair = Pair([" ", "Lima."], ["Lima!"])
    async with pair.hybrid({"rules": rules}) as hybrid:
        judged, plain = await hybrid.run("Which city?", tags=["hard"]), await hybrid.run("Which city?")
    assert (judged.decision.strategy, judged.text) == ("cascade", "Lima!")
    assert (plain.decision.strategy, plain.text) == ("route", "Lima.")


async def test_a_denied_task_reaches_nobody() -> None:
    pair = Pair([], [])
    async with pair.hybrid({"rules": [{"name": "shut", "when": {"tags": ["payroll"]}, "deny": "not here"}]}) as hybrid:
        with pytest.raises(PermissionDenied, match="not here"):
            await hybrid.run("Who earns what?", tags=["payroll"])
    assert pair.near.requests == pair.far.requests == []


@pytest.mark.parametrize("strategy", ["route", "cascade", "auto"])
async def test_rules_are_evaluated_once_for_a_task(strategy: str) -> None:
    looks = []

    def device() -> DeviceState:
        looks.append(1)
        return DeviceState()

    pair = Pair(["Lima."] * 4, ["Lima."] * 4)
    rules = [{"name": "on the road", "when": {"power_source": "battery"}, "mode": "prefer_on_device"}]
    async with pair.hybrid({"strategy": strategy, "rules": rules}, device=device) as hybrid:
        result = await hybrid.run("What is the capital of Peru?")
    assert len(looks) == 1
    assert result.text == "Lima."


async def test_rules_are_evaluated_again_where_the_memory_makes_a_task_private() -> None:
    pair = Pair(["Green."], [])
    rules = [{"name": "mine", "when": {"sensitivity": "private"}, "strategy": "device"}]
    with MemoryStore.open(embedder=None) as store:
        store.put(("facts",), "colour", {"text": "Ana's favourite colour is green."}, tier=Tier.DEVICE)
        hybrid = Hybrid(near=pair.near, far=pair.far, policy={"strategy": "route", "sensitivity": "public", "rules": rules}, memory=store)
        async with hybrid:
            result = await hybrid.run("What is Ana's favourite colour?")
    assert [item.key for item in result.recalled] == ["colour"]
    assert result.decision.strategy == "device"
    assert any("mine" in reason for reason in result.reasons)


async def test_a_rule_that_fails_closed_keeps_the_task_at_home() -> None:
    rules = [{"name": "on the road", "when": {"power_source": "battery"}, "mode": "only_on_device"}]
    pair = Pair(["home"], [])
    async with pair.hybrid({"mode": "prefer_in_cloud", "rules": rules}) as hybrid:
        assert (await hybrid.run("Where?")).text == "home"


@pytest.mark.parametrize("strategy", ["cloud", "minions"])
async def test_a_rule_that_keeps_a_task_refuses_a_strategy_of_the_cloud(strategy: str) -> None:
    rules = [{"name": "secret", "mode": "only_on_device"}]
    pair = Pair(["home"] * 9, [])
    async with pair.hybrid({"rules": rules}) as hybrid:
        with contextlib.suppress(NearfarError):  # any of them, as long as the far side is not asked
            await hybrid.run("Where?", strategy=strategy, context="text " * 10)
    assert pair.far.requests == []


async def test_a_session_stays_with_its_agent_until_it_is_unstuck() -> None:
    pair = Pair(["near"] * 3, ["far"] * 3)
    rules = [{"name": "code", "when": {"tags": ["code"]}, "agent": "far"}]
    async with pair.hybrid({"rules": rules}) as hybrid:
        said = [
            (await hybrid.run("Write it.", session="s", tags=["code"])).text,
            (await hybrid.run("Commit it.", session="s")).text,
            (await hybrid.run("Commit it.")).text,
            (await hybrid.run("Thanks.", session="s", unstick=True)).text,
            (await hybrid.run("Bye.", session="s")).text,
        ]
    assert said == ["far", "far", "near", "near", "near"]


async def test_a_private_turn_of_a_far_session_stays_on_the_device() -> None:
    pair = Pair(["home"], ["away"])
    async with pair.hybrid({"mode": "prefer_in_cloud"}) as hybrid:
        await hybrid.run("Hello.", session="s")
        result = await hybrid.run("My PIN is 1234.", session="s", sensitivity="private")
    assert (result.text, result.side) == ("home", Side.NEAR)
    assert any("private" in reason for reason in result.reasons)


async def test_a_spent_day_leaves_tasks_to_the_near_side() -> None:
    pair = Pair(["near"] * 3, ["far " * 30] * 3, far_dollars=10)
    async with pair.hybrid({"mode": "prefer_in_cloud", "limits": {"day": {"dollars": 0.0005}}}) as hybrid:
        results = [await hybrid.run("Which city is it?") for _ in range(3)]
    assert [result.side for result in results] == [Side.FAR, Side.NEAR, Side.NEAR]
    assert any("limit for the day" in reason for reason in results[1].reasons)


async def test_a_limit_bounds_what_a_step_may_write() -> None:
    pair = Pair([], ["word " * 500])
    async with pair.hybrid({"mode": "only_in_cloud", "limits": {"call": {"dollars": 0.001}}}) as hybrid:
        result = await hybrid.run("Go on for ever.")
    assert result.dollars is not None
    assert result.dollars <= 0.001


async def test_a_task_that_nobody_may_pay_for_fails_with_the_limit() -> None:
    pair = Pair([], ["far"])
    async with pair.hybrid({"mode": "only_in_cloud", "limits": {"task": {"dollars": 0}}}) as hybrid:
        with pytest.raises(BudgetExceeded, match="limit for the task"):
            await hybrid.run("Which city is it?")
    assert pair.far.requests == []


@pytest.mark.parametrize(
    ("failure", "trigger"),
    [(Unavailable("gone"), "unavailable"), (Stalled("silent"), "stall"), (ContextOverflow("long"), "context_overflow")],
)
async def test_a_failure_hands_over_only_where_the_policy_lets_it(failure: NearfarError, trigger: str) -> None:
    pair = Pair([failure, failure], ["far"])
    async with pair.hybrid({"fallback": {"triggers": [trigger]}}) as hybrid:
        assert (await hybrid.run("Which city?")).was_fallback
    strict = Pair([failure], ["far"])
    others = [name for name in ("unavailable", "stall", "context_overflow", "timeout") if name != trigger]
    async with strict.hybrid({"fallback": {"triggers": others}}) as hybrid:
        with pytest.raises(type(failure)):
            await hybrid.run("Which city?")
    assert strict.far.requests == []


async def test_a_policy_that_names_an_unknown_agent_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        Pair([], []).hybrid({"rules": [{"name": "r", "agent": "nobody"}]})


@pytest.mark.parametrize("options", [{"tags": "code"}, {"task_class": 3}, {"session": 1}, {"unstick": "maybe"}, {"language": 5}])
async def test_options_of_the_wrong_type_are_refused(options: dict[str, Any]) -> None:
    pair = Pair(["near"], [])
    async with pair.hybrid({}) as hybrid:
        with pytest.raises(InvalidRequest):
            await hybrid.run("Which city?", **options)


async def test_parts_of_a_task_are_routed_each_by_itself() -> None:
    plan = '{"subtasks": [{"id": "a", "task": "Where is it?", "needs": []}, {"id": "b", "task": "How far?", "needs": ["a"]}]}'
    rules = [{"name": "short", "when": {"tokens": {"below": 5}}, "agent": "far"}]
    pair = Pair(["near"] * 3, [plan, "far", "far", "far"])
    async with pair.hybrid({"strategy": "subtasks", "subtasks": {"strategy": "route"}, "rules": rules}) as hybrid:
        result = await hybrid.run("Find out where it is, and then how far away that is.")
    assert [(call.role, call.agent) for call in result.calls] == [("plan", "far"), ("execute", "far"), ("execute", "near")]


async def test_dollars_of_a_task_are_split_over_its_parts_and_what_one_leaves_returns() -> None:
    parts = [{"id": name, "task": f"Look up fact {name} now.", "needs": []} for name in "abc"]
    plan = json.dumps({"subtasks": [*parts, {"id": "d", "task": "Compare the facts now.", "needs": ["a", "b", "c"]}]})
    pair = Pair([], [plan, *["fact"] * 4])
    policy = {"strategy": "subtasks", "mode": "only_in_cloud", "subtasks": {"strategy": "route", "parallel": 1}}
    async with pair.hybrid({**policy, "limits": {"task": {"dollars": 0.05}}}) as hybrid:
        result = await hybrid.run("Find three facts and compare them.")
    assert result.dollars is not None
    assert result.dollars <= 0.05
    _, first, second, third, last = (request.max_output_tokens or 0 for request in pair.far.requests)
    assert 0 < first < 2500  # half of what $0.05 would pay for
    assert first < second < third < last


async def test_a_part_cannot_take_the_dollars_of_the_others() -> None:
    plan = json.dumps({"subtasks": [{"id": name, "task": f"Look up fact {name} now.", "needs": []} for name in "ab"]})
    pair = Pair(["home"], [plan, "word " * 900, "word " * 900, "word " * 900], far_dollars=10)
    policy = {"strategy": "subtasks", "mode": "prefer_in_cloud", "subtasks": {"strategy": "route", "parallel": 1}}
    async with pair.hybrid({**policy, "limits": {"task": {"dollars": 0.012}}}) as hybrid:
        result = await hybrid.run("Find two facts.")
    assert [call.role for call in result.calls if call.side is Side.FAR][:3] == ["plan", "execute", "execute"]
    assert result.dollars is not None
    assert result.dollars <= 0.012


async def test_a_far_agent_that_was_never_opened_is_not_held_to_be_too_dear() -> None:
    far = ScriptedAgent(["far"], name="far", side=Side.FAR, prices=priced(10))

    async def open_far() -> Agent:
        return far

    policy = {"strategy": "route", "sensitivity": "public", "mode": "prefer_in_cloud", "limits": {"day": {"dollars": 1}}}
    router, team = (
        Router(),
        AgentPool((AgentHandle("near", Side.NEAR, ScriptedAgent([], name="near")), AgentHandle("far", Side.FAR, open_far))),
    )
    task = Task.model_validate({"messages": (Message.user("Which city?"),), "policy": policy})
    assert router.decide(task, list(team)).candidates == ("far", "near")


async def test_a_far_step_that_breaks_counts_for_the_most_it_can_have_cost() -> None:
    pair = Pair(["near"], [[Stalled("silent")]], far_dollars=10)
    async with pair.hybrid({"mode": "prefer_in_cloud", "limits": {"day": {"dollars": 100}}}) as hybrid:
        result = await hybrid.run("Which city?")
        assert (result.text, result.was_fallback) == ("near", True)
        left = hybrid._router.spending.share_left(Task(messages=(Message.user("Which city?"),), policy=hybrid.policy))
    assert left is not None
    assert 0.99 < left < 1


async def test_the_seconds_of_a_task_hold_for_its_parts_together() -> None:
    plan = json.dumps({"subtasks": [{"id": name, "task": f"Look up fact {name}.", "needs": []} for name in "abcd"]})
    pair = Pair([], [plan, *["fact"] * 5])
    policy = {"strategy": "subtasks", "mode": "only_in_cloud", "subtasks": {"strategy": "route", "parallel": 1}}
    async with pair.hybrid({**policy, "limits": {"task": {"seconds": 1e-6}}}) as hybrid:
        with pytest.raises(BudgetExceeded, match="limit for the task"):
            await hybrid.run("Find four facts.")
    assert len(pair.far.requests) <= 1


async def test_parts_of_a_later_task_do_not_stick_to_the_agent_of_the_session() -> None:
    plan = '{"subtasks": [{"id": "a", "task": "Where is it?", "needs": []}, {"id": "b", "task": "How far?", "needs": ["a"]}]}'
    pair = Pair(["near"] * 4, [plan, "far", "far"])
    async with pair.hybrid({"strategy": "subtasks", "subtasks": {"strategy": "route"}}) as hybrid:
        hybrid._router.sessions.keep("chat", "far")
        result = await hybrid.run("Find out where it is, and how far.", session="chat")
    assert {call.agent for call in result.calls if call.role == "execute"} == {"near"}


@pytest.mark.parametrize("score", ["1", None, float("nan"), 2])
async def test_a_score_that_is_none_is_refused(score: Any) -> None:  # noqa: ANN401 - anything
    pair = Pair(["near"], [])
    async with pair.hybrid({}) as hybrid:
        result = await hybrid.run("Which city?")
        with pytest.raises(InvalidRequest, match="between 0 and 1"):
            hybrid.report(result, score=score)


_SPARE = {
    "rules": [
        {"name": "let it cool", "when": {"thermal": ["serious", "critical"]}, "mode": "prefer_in_cloud"},
        {"name": "save the battery", "when": {"battery": {"below": 0.2}, "power_source": "battery"}, "mode": "prefer_in_cloud"},
    ]
}


async def _served_by(hybrid: Hybrid) -> str:
    return (await hybrid.run("What is it?")).agent


async def test_tasks_leave_a_device_that_runs_hot_and_return_when_it_has_cooled() -> None:
    device = SimulatedDevice()
    async with Pair(["near"] * 9, ["far"] * 9).hybrid(_SPARE, device=device) as hybrid:
        assert await _served_by(hybrid) == "near"
        while device().thermal is not Thermal.SERIOUS:
            device.run(10, watts=25)
        assert await _served_by(hybrid) == "far"
        device.run(600, watts=1)
        assert await _served_by(hybrid) == "near"


async def test_tasks_leave_a_device_whose_battery_runs_low_until_it_is_plugged_in() -> None:
    device = SimulatedDevice(battery_joules=1000)
    async with Pair(["near"] * 9, ["far"] * 9).hybrid(_SPARE, device=device) as hybrid:
        device.run(100, watts=7)
        assert await _served_by(hybrid) == "near"
        device.run(100, watts=2)
        assert await _served_by(hybrid) == "far"
        device.set(power_source="mains")
        assert await _served_by(hybrid) == "near"


async def test_a_private_task_stays_on_a_device_however_hot_and_empty_it_is() -> None:
    device = SimulatedDevice()
    device.set(thermal=Thermal.CRITICAL, battery=0.01)
    async with Pair(["near"], []).hybrid({**_SPARE, "sensitivity": "private"}, device=device) as hybrid:
        assert await _served_by(hybrid) == "near"


async def test_an_unknown_temperature_lets_a_preference_rest_and_a_protection_hold() -> None:
    device = SimulatedDevice()
    device.set(thermal=None)
    closed = {"name": "not when hot", "when": {"thermal": ["critical"]}, "deny": "it is too hot"}
    async with Pair(["near"], []).hybrid(_SPARE, device=device) as hybrid:
        assert await _served_by(hybrid) == "near"
    async with Pair([], []).hybrid({"rules": [closed]}, device=device) as hybrid:
        with pytest.raises(PermissionDenied):
            await hybrid.run("What is it?")
