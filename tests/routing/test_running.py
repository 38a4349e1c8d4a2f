"""Running estimates of what agents take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import priced

from nearfar.orchestrator.routing.costs import KEPT, MEMORY, RunningEstimates, StepTaken, TaskKind, TaskTaken, Window
from nearfar.orchestrator.task.decisions import EstimateSource
from nearfar.protocols import Side

finite = st.floats(min_value=0, max_value=1e6)


@given(st.lists(finite, min_size=1, max_size=3 * KEPT))
def test_a_window_holds_the_latest_values_and_nothing_else(values: list[float]) -> None:
    window = Window()
    for value in values:
        window.add(value)
    latest = sorted(values[-KEPT:])
    seen = window.observed
    assert (seen.count, seen.p95) == (len(latest), latest[len(latest) * 95 // 100])
    assert seen.mean == pytest.approx(sum(latest) / len(latest), rel=1e-6, abs=1e-3)
    assert seen.deviation >= 0


def step(tokens: int = 100, *, seconds: float = 1.0, dollars: float | None = None) -> StepTaken:
    return StepTaken(input_tokens=tokens, output_tokens=10, seconds=seconds, first_token_seconds=seconds / 4, dollars=dollars)


def test_before_anything_was_measured_estimates_are_priors() -> None:
    costs = RunningEstimates().costs("far", Side.FAR, tokens=100, prices=None)
    assert {costs.first_token_seconds.source, costs.seconds.source} == {EstimateSource.PRIOR}
    assert costs.dollars is None
    near = RunningEstimates().costs("near", Side.NEAR, tokens=100, prices=None)
    assert near.dollars is not None
    assert near.dollars.value == 0


def test_latency_is_that_of_prompts_of_the_same_size() -> None:
    running = RunningEstimates()
    for _ in range(10):
        running.add_step("near", step(50, seconds=1.0))
        running.add_step("near", step(5000, seconds=20.0))
    small, large = (running.costs("near", Side.NEAR, tokens=tokens, prices=None).seconds for tokens in (60, 4500))
    assert (small.value, large.value) == (1.0, 20.0)
    assert small.source is EstimateSource.MEASURED
    latency = running.latency("near", 5000)
    assert latency is not None
    assert latency.p95 == 20.0
    assert running.latency("far", 10) is None


def test_one_odd_step_does_not_stand_for_a_size_beside_a_well_known_one() -> None:
    running = RunningEstimates()
    for _ in range(10):
        running.add_step("near", step(50, seconds=1.0))
    running.add_step("near", step(200, seconds=90.0))
    assert running.costs("near", Side.NEAR, tokens=200, prices=None).seconds.value == 1.0


def taken(prompt_tokens: int, *, dollars: float | None = 0.01, seconds: float = 6.0) -> TaskTaken:
    return TaskTaken(
        prompt_tokens,
        steps=3,
        input_tokens=900,
        cached_tokens=300,
        cache_write_tokens=0,
        output_tokens=50,
        seconds=seconds,
        dollars=dollars,
        joules=None,
    )


def test_a_task_takes_the_seconds_and_dollars_of_all_its_steps() -> None:
    running = RunningEstimates()
    for _ in range(5):
        running.add_step("far", step(100, seconds=2.0))
        running.add_task("far", taken(100))
    costs = running.costs("far", Side.FAR, tokens=110, prices=priced(10))
    assert costs.seconds.value == pytest.approx(6.0)
    assert costs.dollars is not None
    assert costs.dollars.value == pytest.approx(0.01 + 3 * 10 * 10 / 1e6)


def test_a_task_of_unknown_price_leaves_the_price_list_to_tell() -> None:
    running = RunningEstimates()
    running.add_task("far", taken(100, dollars=None))
    assert running.costs("far", Side.FAR, tokens=100, prices=None).dollars is None


def test_a_price_that_rose_is_known_after_as_many_tasks_as_are_remembered() -> None:
    running = RunningEstimates()
    for dollars in (0.01,) * 100 + (0.1,) * 2 * MEMORY:
        running.add_task("far", taken(100, dollars=dollars), kind=TaskKind("search/hops", has_tools=True))
    costs = running.costs("far", Side.FAR, tokens=100, prices=None, kind=TaskKind("search/hops", has_tools=True))
    assert costs.dollars is not None
    assert costs.dollars.value == pytest.approx(0.1, rel=0.15)


def test_without_a_price_list_dollars_come_from_what_was_paid() -> None:
    running = RunningEstimates()
    running.add_step("far", step(90, dollars=0.001))
    dollars = running.costs("far", Side.FAR, tokens=190, prices=None).dollars
    assert dollars is not None
    assert dollars.value == pytest.approx(0.002)
    assert dollars.source is EstimateSource.MEASURED
