"""Intervals and fronts against values computed by hand."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.lab import statistics
from nearfar.orchestrator.lab.statistics import pareto_front

numpy = pytest.importorskip("numpy")


def single(values: list[float]) -> dict[str, list[float]]:
    """One run of each task."""
    return {str(task): [value] for task, value in enumerate(values)}


def test_a_mean_is_over_tasks_and_not_over_runs() -> None:
    estimate = statistics.mean({"a": [1.0, 1.0, 1.0, 1.0], "b": [0.0]})
    assert estimate.value == 0.5
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_where_all_runs_agree_the_interval_is_a_point() -> None:
    estimate = statistics.mean(single([0.25] * 7))
    assert (estimate.low, estimate.value, estimate.high) == (0.25, 0.25, 0.25)


def test_an_interval_is_as_wide_as_the_normal_approximation_for_many_tasks() -> None:
    values = [1.0] * 300 + [0.0] * 100
    estimate = statistics.mean(single(values))
    half = 1.96 * math.sqrt(0.75 * 0.25 / 400)
    assert estimate.low == pytest.approx(0.75 - half, abs=0.006)
    assert estimate.high == pytest.approx(0.75 + half, abs=0.006)


def test_the_same_runs_give_the_same_interval() -> None:
    values = single([random.Random(4).random() for _ in range(30)])
    assert statistics.mean(values) == statistics.mean(values)


def test_repeating_tasks_under_more_seeds_does_not_pass_for_more_tasks() -> None:
    drawn = [float(number % 3 == 0) for number in range(60)]
    once = statistics.mean(single(drawn))
    thrice = statistics.mean({task: values * 3 for task, values in single(drawn).items()})
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.15)


def test_seeds_that_disagree_widen_the_interval() -> None:
    noisy = statistics.mean({str(task): [0.0, 1.0] for task in range(50)})
    assert noisy.value == 0.5
    assert noisy.high - noisy.low > 0.1


def test_a_difference_is_paired() -> None:
    first = single([random.Random(1).random() for _ in range(40)])
    second = {task: [values[0] - 0.125] for task, values in first.items()}
    estimate = statistics.difference(first, second)
    assert estimate.value == pytest.approx(0.125)
    assert [estimate.low, estimate.high] == pytest.approx([0.125, 0.125])


def test_a_ratio_is_of_the_means() -> None:
    estimate = statistics.ratio(single([1.0, 2.0, 3.0]), single([2.0, 4.0, 6.0]))
    assert estimate is not None
    assert [estimate.low, estimate.value, estimate.high] == pytest.approx([0.5, 0.5, 0.5])


def test_a_ratio_over_nothing_is_unknown() -> None:
    assert statistics.ratio(single([1.0, 1.0]), single([0.0, 0.0])) is None
    assert statistics.ratio(single([1.0, 1.0]), single([0.0, 1.0])) is None


def test_there_is_no_mean_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        statistics.mean({})


def test_the_front_by_hand() -> None:
    points = [(0.0, 0.4), (1.0, 0.9), (0.5, 0.3), (0.5, 0.6), (2.0, 0.9), (1.0, 0.8)]
    assert pareto_front(points) == [0, 3, 1]


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_nothing_beats_the_front_and_the_front_beats_all_else(drawn: list[tuple[int, int]]) -> None:
    points = [(float(cost), float(score)) for cost, score in drawn]
    front = [points[index] for index in pareto_front(points)]
    for cost, score in points:
        beaten = any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points)
        assert ((cost, score) in front) == (not beaten)
