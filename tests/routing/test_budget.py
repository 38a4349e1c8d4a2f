"""Budget control holds its target on any stream of advantages, and spends it where that is worth most."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.budgets import Commitment
from nearfar.orchestrator.routing.budget import (
    LEAST_WINDOW,
    TOLERANCE,
    DollarRateController,
    FarShareController,
)
from nearfar.protocols import ConfigError, InvalidRequest

ROUNDING = 1e-9


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def decide(controller: FarShareController | DollarRateController, advantage: float, dollars: float | None = None) -> bool:
    """Serve one task as the threshold asks for."""
    goes_far = advantage > controller.threshold
    controller.observe(advantage, went_far=goes_far, dollars=dollars if goes_far else 0.0)
    return goes_far


def decisions(controller: FarShareController | DollarRateController, advantages: Iterable[float]) -> list[bool]:
    return [decide(controller, advantage) for advantage in advantages]


def worst_error(far: Sequence[bool], target: float, window: int) -> float:
    """The largest distance of the share from its target over all windows."""
    sums = list(accumulate(far, initial=0))
    return max(abs((end - start) / window - target) for start, end in zip(sums, sums[window:], strict=False))


STREAMS = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.sampled_from([-1.0, 0.0, 0.0, 0.3, 1e-300]), st.just(0.25)),
    min_size=3 * LEAST_WINDOW,
    max_size=400,
)


@settings(max_examples=60, deadline=None)
@given(STREAMS, st.floats(0, 1), st.integers(LEAST_WINDOW, 3 * LEAST_WINDOW))
def test_the_share_over_any_window_is_within_the_tolerance_on_any_stream(advantages: list[float], target: float, window: int) -> None:
    far = decisions(FarShareController(target, window), advantages)
    assert worst_error(far, target, window) <= TOLERANCE + ROUNDING


@pytest.mark.parametrize("target", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_an_abrupt_shift_does_not_move_the_share(target: float) -> None:
    random = Random(7)
    before = [random.gauss(0.1, 0.02) for _ in range(1000)]
    for mean, deviation in ((0.5, 0.1), (-0.5, 0.1), (0.1, 0.001), (0.1, 0.0)):
        far = decisions(FarShareController(target), [*before, *(random.gauss(mean, deviation) for _ in range(1200))])
        assert worst_error(far, target, 500) <= TOLERANCE + ROUNDING


def test_equal_advantages_are_split_at_the_target() -> None:
    far = decisions(FarShareController(0.3), [0.25] * 1000)
    assert sum(far) == pytest.approx(300, abs=5)
    assert not all(far[:20])


def test_of_two_kinds_of_tasks_the_better_one_goes_far_first() -> None:
    random = Random(3)
    kinds = [random.random() < 0.2 for _ in range(3000)]
    far = decisions(FarShareController(0.3), [0.4 if good else 0.1 for good in kinds])
    served = [goes for good, goes in zip(kinds, far, strict=True) if good]
    assert sum(served) / len(served) > 0.97


@pytest.mark.parametrize("target", [0.1, 0.3, 0.5])
def test_the_gain_is_close_to_that_of_the_best_fixed_threshold(target: float) -> None:
    """Measured over routing at random with the same share."""
    random = Random(11)
    advantages = [random.gauss(0, 1) for _ in range(6000)]
    best = sorted(advantages, reverse=True)[: round(target * len(advantages))]
    far = decisions(FarShareController(target), advantages)
    gain = sum(advantage for advantage, goes in zip(advantages, far, strict=True) if goes)
    at_random = sum(advantages) * target
    assert (gain - at_random) / (sum(best) - at_random) > 0.95


def test_forced_tasks_do_not_count_for_the_share() -> None:
    controller = FarShareController(0.3)
    decisions(controller, [0.1, 0.2, 0.3] * 50)
    before = controller._debt
    for _ in range(200):
        controller.observe(9.0, went_far=False, forced=True)
    assert controller._debt == before


def test_no_flood_follows_when_the_far_side_was_away() -> None:
    random = Random(5)
    controller = FarShareController(0.3)
    decisions(controller, (random.random() for _ in range(500)))
    for _ in range(1000):
        controller.observe(random.random(), went_far=False)
    far = decisions(controller, (random.random() for _ in range(500)))
    assert sum(far) / 500 == pytest.approx(0.3, abs=TOLERANCE + 1 / 500)


@pytest.mark.parametrize(("target", "expected"), [(0.0, False), (1.0, True)])
def test_none_and_all_are_targets_like_others(target: float, expected: bool) -> None:
    random = Random(1)
    assert set(decisions(FarShareController(target), (random.gauss(0, 1) for _ in range(300)))) == {expected}


def test_threads_lose_no_decision() -> None:
    """Those that decide at the same moment may be over by one each, and all are made good for."""
    controller = FarShareController(0.3, 500)
    random = Random(4)
    with ThreadPoolExecutor(8) as pool:
        far = list(pool.map(lambda advantage: decide(controller, advantage), [random.random() for _ in range(4000)]))
    assert sum(far) / len(far) == pytest.approx(0.3, abs=0.01)
    assert len(controller._recent.by_size) == 200


@pytest.mark.parametrize(("target", "window"), [(-0.1, 500), (1.1, 500), (math.nan, 500), (0.3, LEAST_WINDOW - 1)])
def test_a_share_that_cannot_be_held_is_refused(target: float, window: int) -> None:
    with pytest.raises(ConfigError):
        FarShareController(target, window)


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_an_advantage_that_is_no_number_is_refused(advantage: float) -> None:
    with pytest.raises(InvalidRequest):
        FarShareController(0.3).observe(advantage, went_far=True)
    with pytest.raises(InvalidRequest):
        FarShareController(0.3).observe(0.1, went_far=True, dollars=-1.0)


def hourly_dollars(controller: DollarRateController, clock: Clock, *, gap: float, price: float, hours: int, random: Random) -> float:
    """Mean dollars of an hour, with tasks that come one by one at random gaps."""
    spent, ends = 0.0, clock.now + hours * 3600
    while clock.now < ends:
        clock.now += random.expovariate(1 / gap)
        cost = random.uniform(0.5, 1.5) * price
        spent += cost * decide(controller, random.random(), cost)
    return spent / hours


def test_the_dollar_rate_holds_when_pace_and_price_shift() -> None:
    clock, random = Clock(), Random(6)
    controller = DollarRateController(2.0, now=clock)
    for gap, price in ((5, 0.01), (20, 0.015), (2, 0.01), (5, 0.1)):
        assert hourly_dollars(controller, clock, gap=gap, price=price, hours=5, random=random) == pytest.approx(2.0, rel=0.05)


def test_dollars_go_to_the_tasks_that_gain_most() -> None:
    clock, random = Clock(), Random(8)
    controller = DollarRateController(1.0, now=clock)
    gains, far = [], []
    for _ in range(4000):
        clock.now += 3.6
        gains.append(random.random())
        far.append(decide(controller, gains[-1], 0.005))
    best = sum(sorted(gains, reverse=True)[: sum(far)])
    assert sum(far) / len(far) == pytest.approx(0.2, abs=0.01)
    assert sum(gain for gain, goes in zip(gains, far, strict=True) if goes) / best > 0.97


def test_dollars_of_forced_tasks_are_spent_as_well() -> None:
    clock = Clock()
    controller = DollarRateController(1.0, now=clock)
    controller.observe(0.5, went_far=True, dollars=0.5, forced=True)
    assert controller.credit == -0.5
    controller.observe(0.5, went_far=True, dollars=0.2, forced=True)
    assert controller.threshold == math.inf


def test_a_price_that_is_unknown_counts_as_the_usual_one() -> None:
    controller = DollarRateController(1.0, now=Clock())
    controller.observe(0.5, went_far=True, dollars=0.1)
    controller.observe(0.5, went_far=True, dollars=None)
    assert controller.credit == pytest.approx(-0.2)


def test_no_dollars_are_spent_where_the_far_side_is_not_better() -> None:
    clock, random = Clock(), Random(9)
    controller = DollarRateController(100.0, now=clock)
    decide(controller, 0.5, 0.01)
    for _ in range(300):
        clock.now += 10
        assert not decide(controller, -random.random(), 0.01)


def test_after_a_quiet_night_no_more_than_a_tenth_of_an_hours_dollars_is_waiting() -> None:
    clock = Clock()
    controller = DollarRateController(1.5, now=clock)
    clock.now = 12 * 3600.0
    assert controller.credit == pytest.approx(0.15)


@pytest.mark.parametrize("dollars", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_refused(dollars: float) -> None:
    with pytest.raises(ConfigError):
        DollarRateController(dollars, now=Clock())


def test_the_bill_takes_the_place_of_what_was_set_aside() -> None:
    clock = Clock()
    controller = DollarRateController(1.0, now=clock)
    first = controller.commit(0.5, went_far=True, dollars=None)
    assert not controller.affords(0.001)  # nobody knows what the first one costs
    controller.settle(first, 0.2)
    assert controller.affords(0.5)
    assert controller.credit == pytest.approx(-0.2)
    clock.now = 3601.0
    assert controller.affords(1.0)


def test_a_task_that_turns_out_dear_holds_others_back_before_its_bill_comes() -> None:
    controller = DollarRateController(1.0, now=Clock())
    committed = controller.commit(0.5, went_far=True, dollars=0.1)
    assert controller.extend(committed, 0.05) == committed
    dearer = controller.extend(committed, 0.4)
    assert dearer.dollars > 0.4
    assert not controller.affords(0.1)
    controller.settle(dearer, 0.5)
    assert controller.affords(0.1)
    assert controller.credit == pytest.approx(-0.5)


def test_a_rise_of_prices_that_one_task_shows_counts_for_all_under_way_and_the_next() -> None:
    controller = DollarRateController(1.0, now=Clock())
    first, second = (controller.commit(0.5, went_far=True, dollars=0.05) for _ in range(2))
    assert controller.affords(0.1)
    controller.settle(first, 0.4)
    assert not controller.affords(0.1)  # the second one will take 0.4, too, and the next one 0.8
    controller.settle(second, 0.05)
    assert not controller.affords(0.1)
    assert controller.affords(0.05)


@pytest.mark.parametrize(("times", "dollars"), [(3.0, 0.4), (1e9, 0.1)])
def test_one_odd_task_does_not_hold_the_others_back_for_long(times: float, dollars: float) -> None:
    clock = Clock()
    controller = DollarRateController(1.0, now=clock)
    controller.settle(controller.commit(0.5, went_far=True, dollars=0.3 / times), 0.3)
    assert not controller.affords(dollars)
    clock.now = 3601.0
    assert controller.affords(dollars)


def test_a_bill_that_nobody_knows_counts_as_what_was_set_aside() -> None:
    controller = DollarRateController(1.0, now=Clock())
    controller.settle(controller.commit(0.5, went_far=True, dollars=0.4), None)
    controller.settle(controller.commit(0.5, went_far=True, dollars=None), None)
    assert controller.credit == pytest.approx(-0.4)
    with pytest.raises(InvalidRequest):
        controller.settle(None, -1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0, 0.2), st.integers(0, 5)), max_size=150))
def test_no_hour_affords_more_than_it_may_where_bills_are_as_expected(tasks: list[tuple[float, float, int]]) -> None:
    clock = Clock()
    controller = DollarRateController(1.0, now=clock)
    under_way: list[Commitment] = []
    paid: list[tuple[float, float]] = []
    for gap, dollars, keep in tasks:
        clock.now += gap
        while len(under_way) > keep:
            committed = under_way.pop(0)
            controller.settle(committed, committed.dollars)
            paid.append((clock.now, committed.dollars))
        if controller.affords(dollars):
            under_way.append(controller.commit(0.5, went_far=True, dollars=dollars))
        assert sum(bill for when, bill in paid if when > clock.now - 3600) <= 1.05


@pytest.mark.parametrize("tasks", [1, 2, 5, 20])
@pytest.mark.parametrize("target", [0.02, 0.2, 0.7])
def test_the_share_holds_over_many_processes_of_a_few_tasks(tasks: int, target: float) -> None:
    random = Random(2)
    processes = [FarShareController(target, seed=seed) for seed in range(3000 // tasks)]
    far = [goes for process in processes for goes in decisions(process, (random.random() for _ in range(tasks)))]
    assert sum(far) / len(far) == pytest.approx(target, abs=0.03)


def test_questions_about_one_task_have_one_threshold() -> None:
    controller = FarShareController(0.3, seed=None)
    assert len({controller.threshold for _ in range(20)}) == 1
