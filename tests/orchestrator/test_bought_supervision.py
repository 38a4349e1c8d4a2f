"""Under a budget, `pevr` and `eva` ask the far side where that is worth most, and the near agent works alone in the other tasks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from navigators import card_of, written
from supervised_pair import FREE, PAID, look, looks_at

from nearfar import Hybrid, Policy, Records, Result, tool
from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.task.events import Move
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import Finished, FinishReason, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, Usage
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PLAN = "1. look(page=1)\n2. answer"
REFUSED = "as the budget has better uses"
AMPLE = 1e6
"""Dollars per hour that plans cannot spend, however fast the machine serves tasks."""
Answers = Callable[[StepRequest], Reply]


def sure(reply: str | ToolCall, confidence: float | None) -> Reply:
    """A step of so much confidence."""
    reason = FinishReason.STOP if isinstance(reply, str) else FinishReason.TOOL_CALLS
    return [reply, Finished(reason=reason, confidence=confidence, usage=Usage(output_tokens=3), model="near")]


def plans(request: StepRequest) -> Reply:
    """The far agent: a plan where one is asked for, else the verdict that the work may go on."""
    return PLAN if "plan" in request.idempotency_key else "CONTINUE"


async def serve(policy: dict[str, Any], count: int, *, near: Answers = lambda _: "A bridge.", far: Answers = plans) -> list[Result]:
    """Let a near agent work on tasks of different lengths, one after the other, under the supervision of a far one."""
    known = Policy.model_validate({"strategy": "pevr", "sensitivity": "public", **policy})
    agents = ScriptedAgent(near, name="near", prices=FREE), ScriptedAgent(far, name="far", side=Side.FAR, prices=PAID)
    async with Hybrid(near=agents[0], far=agents[1], tools=[look], policy=known) as hybrid:
        return [await hybrid.run(f"Task {number}: " + "word " * (number * 7 % 40)) for number in range(count)]


def went_far(results: Sequence[Result]) -> int:
    return sum(any(call.side is Side.FAR for call in result.calls) for result in results)


async def test_a_share_of_the_tasks_is_planned() -> None:
    assert went_far(await serve({}, 20)) == 20
    results = await serve({"router": {"far_share": 0.2}}, 60)
    assert went_far(results) == pytest.approx(12, abs=5)
    alone = [result for result in results if not result.decision.is_supervisor_bought]
    assert all(any(REFUSED in reason for reason in result.reasons) for result in alone)
    assert all([call.role for call in result.calls] == ["execute"] for result in alone)


async def test_the_longer_tasks_are_planned_where_nothing_else_is_known() -> None:
    results = await serve({"router": {"far_share": 0.3}}, 160)
    by_choice: dict[bool | None, list[int]] = {True: [], False: []}
    for number, result in enumerate(results):
        by_choice[result.decision.is_supervisor_bought].append(number * 7 % 40)
    planned, alone = by_choice[True], by_choice[False]
    assert sum(planned) / len(planned) > 5 + sum(alone) / len(alone)


async def test_a_task_that_is_not_planned_is_not_checked_either() -> None:
    def works(request: StepRequest) -> Reply:
        acted = sum(message.tool_result is not None for message in request.messages)
        return "A bridge." if acted == 4 else looks_at(acted)

    results = await serve({"router": {"far_share": 0.2}, "supervision": {"interval": 2}}, 30, near=works)
    assert {call.role for result in results for call in result.calls if call.side is Side.FAR} == {"plan", "verify"}
    assert went_far(results) == pytest.approx(6, abs=4)


@pytest.mark.parametrize(("confidence", "share"), [(0.4, 0.1), (0.9, 0.4), (None, 0.2)])
async def test_the_share_holds_whatever_the_first_steps_look_like(confidence: float | None, share: float) -> None:
    """Fewer steps are dropped than are in doubt, or more."""
    results = await serve(
        {"router": {"far_share": share}, "supervision": {"plan_below": 0.7}}, 60, near=lambda _: sure("A bridge.", confidence)
    )
    assert went_far(results) == pytest.approx(60 * share, abs=5)
    assert all(any("first step" in reason for reason in result.reasons) for result in results if result.decision.is_supervisor_bought)


async def test_the_least_confident_first_steps_are_planned() -> None:
    def answers(request: StepRequest) -> Reply:
        number = int(request.messages[-1].text.split(":")[0].rpartition(" ")[2])
        return sure("A bridge.", 0.3 if number % 5 == 0 else 0.6)

    results = await serve({"router": {"far_share": 0.2}, "supervision": {"plan_below": 0.7}}, 150, near=answers)
    planned = [number for number, result in enumerate(results[50:]) if result.decision.is_supervisor_bought]
    assert sum(number % 5 == 0 for number in planned) >= 0.8 * len(planned) > 0


async def test_a_plan_that_comes_from_elsewhere_takes_nothing_of_the_share(tmp_path: Path) -> None:
    cache = AnswerCache(CacheConfig(path=tmp_path / "answers.db", plans=True, sides=()))
    policy = Policy.model_validate({"strategy": "pevr", "sensitivity": "public", "router": {"far_share": 0.4}})
    near = ScriptedAgent(lambda _: "A bridge.", name="near", prices=FREE)
    far = ScriptedAgent(lambda _: '1. search(query="East Calder")\n2. answer', name="far", side=Side.FAR, prices=PAID)
    async with Hybrid(near=near, far=far, policy=policy, records=Records(cache=cache)) as hybrid:
        results = [await hybrid.run("Find the emblem of East Calder.") for _ in range(30)]
    cache.close()
    assert went_far(results) == 1
    assert sum("earlier task" in reason for result in results for reason in result.reasons) >= 25


async def test_acts_in_doubt_go_far_whatever_the_share_and_leave_the_rest_of_it_to_plans() -> None:
    paid: list[str] = []

    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        return "paid"

    def works(request: StepRequest) -> Reply:
        number = int(request.messages[-1].text.split(":")[0].rpartition(" ")[2]) if request.messages[-1].role == "user" else 1
        return sure("Done.", 0.9) if number % 5 else sure(ToolCall(id=f"{number}", name="pay", arguments={"to": "word"}), 0.2)

    known = Policy.model_validate({"strategy": "pevr", "sensitivity": "public", "router": {"far_share": 0.3}})
    near = ScriptedAgent(works, name="near", prices=FREE)
    async with Hybrid(near=near, far=ScriptedAgent(plans, name="far", side=Side.FAR, prices=PAID), tools=[pay], policy=known) as hybrid:
        results = [await hybrid.run(f"Task {number}: word") for number in range(100)]
    assert all(any(call.trigger == "act" for call in result.calls) for result in results[::5])
    assert len(paid) == 20
    assert went_far(results) == pytest.approx(30, abs=5)


async def test_under_a_rate_of_dollars_tasks_are_planned_until_it_is_spent() -> None:
    ample = await serve({"router": {"dollars_per_hour": AMPLE}}, 20)
    short = await serve({"router": {"dollars_per_hour": 0.005}}, 20)
    assert went_far(ample) == 20
    assert 0 < went_far(short) < 10


@pytest.mark.parametrize("confidence", [0.4, 0.9])
async def test_under_a_rate_of_dollars_a_plan_needs_a_doubt(confidence: float) -> None:
    policy = {"router": {"dollars_per_hour": AMPLE}, "supervision": {"plan_below": 0.7}}
    assert went_far(await serve(policy, 10, near=lambda _: sure("A bridge.", confidence))) == (10 if confidence < 0.7 else 0)


async def test_a_floor_of_quality_buys_plans_where_the_near_agent_alone_is_below_it() -> None:
    assert went_far(await serve({"router": {"least_quality": 0.95}}, 20)) == 20
    assert went_far(await serve({"router": {"least_quality": 0.3}}, 40)) < 10


async def test_a_navigator_asks_in_the_share_of_the_tasks(tmp_path: Path) -> None:
    card = written(tmp_path, card_of({}, {Move.CHECK: 1.0, Move.PLAN: -1.0}))
    policy = {"supervision": {"navigator": card}}
    assert went_far(await serve(policy, 20)) == 20
    assert went_far(await serve({**policy, "router": {"far_share": 0.2}}, 60)) == pytest.approx(12, abs=5)


async def test_what_chance_asks_for_stays_within_the_share() -> None:
    policy = {"supervision": {"explore": 1.0}, "router": {"far_share": 0.1}}
    assert went_far(await serve(policy, 60)) <= 11


@pytest.mark.parametrize("triggers", [["answer"], []])
async def test_checks_of_eva_are_bought_like_plans(triggers: list[str]) -> None:
    """A share of the tasks has room for checks of answers that no trigger asks for."""
    policy = {"strategy": "eva", "supervision": {"triggers": triggers}, "router": {"far_share": 0.2}}
    assert went_far(await serve(policy, 60)) == pytest.approx(12, abs=5)


async def test_under_a_rate_of_dollars_answers_are_checked_only_where_that_is_due() -> None:
    policy = {"strategy": "eva", "router": {"dollars_per_hour": AMPLE}}
    assert went_far(await serve(policy, 10)) == 0
    assert went_far(await serve({**policy, "supervision": {"triggers": ["answer"]}}, 10)) == 10


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_tasks_of_which_the_near_agent_fails_do_not_use_up_the_share(strategy: str) -> None:
    def answers(request: StepRequest) -> Reply:
        number = int(request.messages[-1].text.split(":")[0].rpartition(" ")[2])
        return Unavailable("gone") if number % 4 == 0 else "A bridge."

    policy = {"strategy": strategy, "router": {"far_share": 0.2}, "breakers": {"failures_in_a_row": 99, "failure_share": 1.0}}
    results = await serve(policy, 80, near=answers)
    kept = [result for result in results if len(result.attempts) == 1]
    assert len(kept) == 60
    assert went_far(kept) == pytest.approx(12, abs=5)


@pytest.mark.parametrize("changes", [{"mode": "prefer_on_device"}, {"router": {"far_share": 0.2, "shadow": True}}])
async def test_elsewhere_than_in_mode_auto_and_in_shadow_all_are_planned(changes: dict[str, Any]) -> None:
    results = await serve({"router": {"far_share": 0.2}, **changes}, 20)
    assert went_far(results) == 20
    assert {result.decision.is_supervisor_bought for result in results} == {None}


async def test_private_tasks_take_nothing_of_the_share() -> None:
    assert went_far(await serve({"sensitivity": "private", "router": {"far_share": 0.5}}, 10)) == 0


async def test_a_supervisor_that_cannot_be_reached_leaves_the_near_agent_alone() -> None:
    policy = {"router": {"far_share": 0.5}, "breakers": {"failures_in_a_row": 99, "failure_share": 1.0}}
    results = await serve(policy, 10, far=lambda _: Unavailable("no network"))
    assert all(result.text == "A bridge." for result in results)
