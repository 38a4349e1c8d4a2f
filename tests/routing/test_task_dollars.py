"""Dollars of tool-using tasks: what is expected of the next one, and what an hour costs, with the bills of a real `Hybrid.run`."""

from itertools import count
from pathlib import Path

import anyio
import pytest
from situations import priced

from nearfar import Hybrid, Policy, tool
from nearfar.orchestrator.routing.budget import DollarRateController
from nearfar.orchestrator.routing.steering import Steering
from nearfar.orchestrator.task.decisions import Estimate, EstimateSource
from nearfar.orchestrator.task.routing_policy import HOUR, RouterConfig
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import InvalidOutput, ScriptedAgent, Side, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PROMPT = "Which report is late?"
CALL_KEYS = count()


@tool
def search(query: str) -> str:
    """Search the reports."""
    return f"{query}: " + "report 17 came late in May " * 40


class Looping:
    """Searches so often, then answers; fails in the middle where it is told to."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.fails = False

    def __call__(self, request: StepRequest) -> Reply:
        done = sum(message.role == "tool" for message in request.messages)
        if self.fails and done == 1:
            raise InvalidOutput("nonsense")
        return ToolCall(id=f"c{next(CALL_KEYS)}", name="search", arguments={"query": "late"}) if done < self.steps - 1 else "Report 17."


def hybrid(
    far: Looping, *, near: Looping | None = None, prices: float = 100, records: RunsConfig | None = None, **policy: object
) -> Hybrid:
    given = Policy.model_validate({"strategy": "route", "sensitivity": "public", **policy})
    return Hybrid(
        near=ScriptedAgent(near or Looping(1), name="near"),
        far=ScriptedAgent(far, name="far", side=Side.FAR, prices=priced(prices)),
        policy=given,
        records=records,
    )


def dollars(pair: Hybrid, task_class: str = "") -> Estimate:
    estimate = pair.explain_route(PROMPT, tools=[search], task_class=task_class).estimate_of("far")
    assert estimate is not None
    assert estimate.dollars is not None
    return estimate.dollars


@pytest.mark.parametrize("steps", [1, 3, 8])
async def test_after_one_task_with_tools_the_next_one_is_expected_to_cost_as_much(steps: int) -> None:
    async with hybrid(Looping(steps), strategy="cloud") as pair:
        assert dollars(pair).source is EstimateSource.PRIOR
        paid = float((await pair.run(PROMPT, tools=[search])).dollars or 0)
        expected = dollars(pair)
    assert expected.source is EstimateSource.MEASURED
    assert expected.value == pytest.approx(paid, rel=0.01)


async def test_classes_are_learned_apart_and_draw_on_each_other_at_first() -> None:
    far = Looping(8)
    async with hybrid(far, strategy="cloud") as pair:
        for far.steps, name in ((8, "deep"), (1, "quick")) * 20:
            await pair.run(PROMPT, tools=[search], task_class=name)
        deep, quick, new = (dollars(pair, task_class=name).value for name in ("deep", "quick", "new"))
    assert deep > 20 * quick
    assert quick < new < deep


async def test_a_longer_prompt_is_read_again_in_each_step() -> None:
    async with hybrid(Looping(3), strategy="cloud") as pair:
        await pair.run(PROMPT, tools=[search])
        short = dollars(pair).value
        longer = pair.explain_route(PROMPT + " word" * 800, tools=[search]).estimate_of("far")
    assert longer is not None
    assert longer.dollars is not None
    assert longer.dollars.value - short == pytest.approx(3 * 1000 * 100 / 1e6, rel=0.01)


async def test_an_hour_of_tool_loops_costs_what_it_may() -> None:
    far = Looping(8)
    async with hybrid(far, strategy="route", router={"dollars_per_hour": 1.0}) as pair:
        for _ in range(20):  # only the far side is any good
            pair.report(await pair.run(PROMPT, tools=[search], mode="only_on_device"), score=0.0)
        cost = float((await pair.run(PROMPT, tools=[search], mode="only_in_cloud")).dollars or 0)
        paid = cost
        for _ in range(60):
            paid += float((await pair.run(PROMPT, tools=[search])).dollars or 0)
    assert 0 < paid <= 1.05 + cost
    assert cost > 0.05


async def test_tasks_side_by_side_wait_for_the_first_bill_before_a_second_one_is_spent_on() -> None:
    far = Looping(8)
    results = []
    async with hybrid(far, strategy="route", router={"dollars_per_hour": 0.5}) as pair:
        for _ in range(20):
            pair.report(await pair.run(PROMPT, tools=[search], mode="only_on_device"), score=0.0)

        async def ask() -> None:
            results.append(await pair.run(PROMPT, tools=[search]))

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(ask)
    dearest = max(float(result.dollars or 0) for result in results)
    assert dearest > 0.05
    assert sum(float(result.dollars or 0) for result in results) <= 0.525 + dearest


async def test_a_task_that_failed_is_billed_all_the_same() -> None:
    far = Looping(8)
    far.fails = True
    async with hybrid(far, strategy="cloud", router={"dollars_per_hour": 1.0}) as pair:
        for _ in range(3):
            with pytest.raises(InvalidOutput):
                await pair.run(PROMPT, tools=[search], mode="only_in_cloud")
        controller = pair._router.steering._rates.get(HOUR)
    assert isinstance(controller, DollarRateController)
    assert sum(paid for _, paid in controller._paid) > 0
    assert controller._set_aside == 0


def test_a_share_is_settled_by_nothing() -> None:
    settings = Policy.model_validate({"router": {"far_share": 0.3}}).router
    Steering(None, lambda: 0.0).settle(settings, [], 5.0)


DEAR = Estimate(value=0.2, deviation=0.0, source=EstimateSource.MEASURED)
HELD_BACK = 1e6


def per_hour(dollars: float) -> RouterConfig:
    return RouterConfig(dollars_per_hour=dollars)


def test_a_policy_that_names_another_rate_does_not_forget_what_the_hour_has_cost() -> None:
    clock = [0.0]
    steering = Steering(None, lambda: clock[0])
    steering.settle(per_hour(1.0), [], 0.95)
    clock[0] = 1800.0
    assert steering.threshold(per_hour(1.1), DEAR) > HELD_BACK
    assert HOUR in steering._rates
    assert not steering._rates[HOUR].affords(0.2)
    steering.threshold(per_hour(2.0), DEAR)
    assert steering._rates[HOUR].affords(0.2)


def test_a_task_that_ends_under_an_older_policy_leaves_the_new_rate_in_force() -> None:
    clock = [0.0]
    steering = Steering(None, lambda: clock[0])
    steering.threshold(per_hour(5.0), DEAR)
    steering.threshold(per_hour(1.0), DEAR)
    steering.settle(per_hour(5.0), [], 0.95)
    clock[0] = 1800.0
    assert HOUR in steering._rates
    assert not steering._rates[HOUR].affords(0.2)


async def test_a_process_that_is_started_again_goes_on_with_the_hour_that_was_spent(tmp_path: Path) -> None:
    kept = RunsConfig(folder=tmp_path)
    paid = dearest = 0.0
    for _ in range(4):
        async with hybrid(Looping(8), strategy="route", router={"dollars_per_hour": 1.0}, records=kept) as pair:
            for _ in range(20):  # only the far side is any good
                pair.report(await pair.run(PROMPT, tools=[search], mode="only_on_device"), score=0.0)
            bills = [float((await pair.run(PROMPT, tools=[search])).dollars or 0) for _ in range(3)]
            paid, dearest = paid + sum(bills), max(*bills, dearest)
    assert 0 < paid <= 1.0 + dearest
