"""The choice whether a far supervisor is asked in a task, at the multiplier of the budget."""

from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate, count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from situations import FAR, NEAR, task

from nearfar.orchestrator.budgets import Commitment
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.budget import TOLERANCE, FarShareController
from nearfar.orchestrator.routing.navigator import MENDED, SupervisionChoice, gain_of_supervision
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.results import Call
from nearfar.protocols import Side, Usage

PAIR = (NEAR, FAR)
WINDOW = 500


def pevr(prompt: str = "What is the capital of Peru?", *, task_class: str = "", **router: object) -> Task:
    return task(prompt, policy={"strategy": "pevr", "router": router}, task_class=task_class)


def choice_of(router: Router, asked: Task) -> SupervisionChoice:
    decision = router.decide(asked, PAIR)
    return SupervisionChoice(router.steering, asked, decision, prices=FAR.prices)


def far_call(dollars: str) -> Call:
    usage = Usage(input_tokens=20, output_tokens=300)
    return Call(role="plan", agent="far", side=Side.FAR, model="m", turn=0, usage=usage, dollars=Decimal(dollars), seconds=1.0)


def worst_error(far: Sequence[bool], target: float) -> float:
    sums = list(accumulate(far, initial=0))
    return max(abs((end - start) / WINDOW - target) for start, end in zip(sums, sums[WINDOW:], strict=False))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), min_size=8, max_size=40), st.floats(0.02, 0.98), st.integers(0, 99))
def test_the_share_of_planned_tasks_holds_over_any_stream(kinds: list[bool], target: float, seed: int) -> None:
    """For a while the first steps tell which tasks to plan, and for a while the prompts alone."""
    router, random = Router(seed=0), Random(seed)
    has_doubts = [kind for kind in kinds for _ in range(40)]
    far = [
        choice_of(router, pevr("word " * random.choice((1, 1, 50)), far_share=target)).buys(random.random() if doubts else None)
        for doubts in has_doubts
    ]
    assert len(far) < WINDOW or worst_error(far, target) <= TOLERANCE + 1e-9


@pytest.mark.parametrize("target", [0.1, 0.2, 0.3, 0.5])
def test_what_goes_far_unasked_counts_and_so_does_what_needs_no_plan(target: float) -> None:
    """Of some tasks an act goes far although they were not planned, and for some a plan is at hand."""
    router, random, far = Router(seed=0), Random(1), []
    for _ in range(2000):
        choice, is_forced = choice_of(router, pevr(far_share=target)), random.random() < target / 4
        if random.random() < (1 - target) / 4:
            choice.pass_by(went_far=is_forced)
            far.append(is_forced)
            continue
        is_bought = choice.buys(random.random())
        if is_forced and not is_bought:
            choice.correct(is_bought=False, went_far=True)
        far.append(is_bought or is_forced)
    assert worst_error(far, target) <= 0.02


@pytest.mark.parametrize("target", [0.1, 0.2, 0.3])
def test_the_share_holds_where_half_of_it_goes_far_unasked_and_every_task_seems_worth_more_than_the_last(target: float) -> None:
    controller, random, far = FarShareController(target, seed=0), Random(0), []
    for worth in range(3000):
        is_bought, is_forced = worth > controller.threshold, random.random() < target / 2
        controller.observe(worth, went_far=is_bought)
        controller.correct(counted_far=is_bought, went_far=is_bought or is_forced)
        far.append(is_bought or is_forced)
    assert worst_error(far, target) <= 0.02


@pytest.mark.parametrize("target", [0.1, 0.3])
def test_the_share_holds_without_the_tasks_that_are_left_out(target: float) -> None:
    """Of some tasks that were chosen about, planned or not, the near agent fails."""
    router, random, far = Router(seed=0), Random(1), []
    for _ in range(2000):
        choice = choice_of(router, pevr(far_share=target))
        is_bought = choice.buys(random.random())
        if random.random() < 0.2:
            choice.correct(is_bought=is_bought, went_far=None)
        else:
            far.append(is_bought)
    assert worst_error(far, target) <= 0.02


def test_answers_that_nothing_speaks_against_are_checked_after_those_in_doubt() -> None:
    router, random = Router(seed=0), Random(1)
    bought: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(400):
        is_doubted = random.random() < 0.2
        bought[is_doubted].append(choice_of(router, pevr(far_share=0.25)).buys(is_doubted=is_doubted))
    assert sum(bought[True]) > 0.8 * len(bought[True])
    assert 0 < sum(bought[False]) < 0.2 * len(bought[False])


def test_classes_in_which_the_near_agent_fails_are_planned_first() -> None:
    router = Router(seed=0)
    for task_class, score in (("hard", 0.0), ("easy", 1.0)):
        asked = pevr(task_class=task_class)
        for _ in range(30):
            router.learn(asked, router.decide(asked, PAIR), "near", score=score)
    bought: dict[str, list[bool]] = {"hard": [], "easy": []}
    for number in range(400):
        name = "hard" if number % 4 == 0 else "easy"
        bought[name].append(choice_of(router, pevr(task_class=name, far_share=0.25)).buys())
    assert sum(bought["hard"]) > 0.8 * len(bought["hard"])
    assert sum(bought["easy"]) < 0.1 * len(bought["easy"])


def test_a_plan_mends_a_part_of_what_the_near_agent_would_do_wrong() -> None:
    router = Router(seed=0)
    asked = pevr(far_share=0.5)
    decision = router.decide(asked, PAIR)
    near = decision.estimate_of("near")
    assert near is not None
    assert gain_of_supervision(decision) == pytest.approx(MENDED * (1 - near.success.value))


def test_once_both_agents_are_known_their_difference_is_the_gain() -> None:
    router = Router(seed=0)
    asked = pevr(far_share=0.5)
    for _ in range(40):
        decision = router.decide(asked, PAIR)
        router.learn(asked, decision, "near", score=1.0)
        router.learn(asked, decision, "far", score=0.0)
    assert gain_of_supervision(router.decide(asked, PAIR)) < 0


def test_the_bills_of_plans_and_checks_tell_what_the_next_task_of_a_class_will_take() -> None:
    router = Router(seed=0, monotonic=count(step=60.0).__next__)
    long, short = (pevr(task_class=name, dollars_per_hour=100.0) for name in ("long", "short"))
    for asked, bill in ((long, ("0.05", "0.03")), (short, ("0.01",))):
        for _ in range(5):
            choice_of(router, asked).learn([far_call(dollars) for dollars in bill])
    expected = []
    for asked in (long, short):
        set_aside: list[Commitment] = []
        decision = router.decide(asked, PAIR)
        choice = SupervisionChoice(router.steering, asked, decision, prices=FAR.prices, commitments=set_aside)
        assert choice.buys(1.0)
        expected.append(set_aside[0].expected)
    assert expected == pytest.approx([0.08, 0.01])


def test_a_plan_has_to_bring_more_where_dollars_are_short() -> None:
    router = Router(seed=0, monotonic=lambda: 0.0)
    asked = pevr(dollars_per_hour=1.0)
    assert choice_of(router, asked).price == 0
    assert choice_of(router, asked).buys(0.01)
    router.settle(asked, [], 2.0)
    assert choice_of(router, asked).price > 1
    assert not choice_of(router, asked).buys(1.0)


def test_a_task_that_is_counted_for_the_other_side_is_made_up_for() -> None:
    plain, corrected = (FarShareController(0.5, seed=0) for _ in range(2))
    for controller in (plain, corrected):
        controller.observe(0.5, went_far=controller is plain)
    corrected.correct(counted_far=False, went_far=True)
    assert plain.threshold == corrected.threshold
