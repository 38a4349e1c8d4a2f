"""What a routing curve is summed up in."""

import pytest

numpy = pytest.importorskip("numpy")

from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.lab.statistics import QUANTILES, Point, RoutingCurve, curve_figures, estimated_means, routing_curve, with_interval

TASKS = 200
NEAR = [0.0] * (TASKS // 2) + [1.0] * (TASKS // 2)
FAR = [1.0] * TASKS

outcomes = st.lists(st.tuples(st.floats(-1, 1), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=2, max_size=60)


def test_a_router_that_knows_the_outcomes_recovers_the_whole_gap_with_the_tasks_that_need_it() -> None:
    gains = [far - near for near, far in zip(NEAR, FAR, strict=True)]
    curve = routing_curve(gains, NEAR, FAR)
    assert curve.recovered == pytest.approx(0.75)
    assert curve.far_share_for(0.5) == pytest.approx(0.25)
    assert curve.far_share_for(1.0) == pytest.approx(0.5)


def test_a_router_that_expects_the_same_of_every_task_is_worth_as_much_as_chance() -> None:
    curve = routing_curve([0.3] * TASKS, NEAR, FAR)
    assert curve.recovered == pytest.approx(0.5)
    assert curve.far_share_for(0.8) == pytest.approx(0.8)


def test_a_router_that_has_it_backwards_is_worse_than_chance() -> None:
    curve = routing_curve([near - far for near, far in zip(NEAR, FAR, strict=True)], NEAR, FAR)
    assert curve.recovered == pytest.approx(0.25)


def test_a_curve_has_a_point_for_each_quantile_and_one_without_far_tasks() -> None:
    curve = routing_curve([float(number) for number in range(TASKS)], NEAR, FAR)
    assert len(curve.points) == QUANTILES + 2
    assert (curve.points[0].far_share, curve.points[-1].far_share) == (0.0, 1.0)


def test_the_share_for_a_part_of_the_gap_lies_between_two_points_linearly() -> None:
    points = tuple(Point(far_share=share, quality=quality) for share, quality in ((0, 0.4), (0.5, 0.5), (1, 0.8)))
    curve = RoutingCurve(points=points, near=0.4, far=0.8)
    assert curve.far_share_for(0.25) == pytest.approx(0.5)
    assert curve.far_share_for(0.625) == pytest.approx(0.75)


def test_where_the_far_side_does_worse_the_gap_is_what_it_loses() -> None:
    curve = routing_curve([far - near for near, far in zip(NEAR, FAR, strict=True)], FAR, NEAR)
    assert curve.far_share_for(0.5) > 0


@given(outcomes)
def test_a_curve_begins_at_the_near_side_and_ends_at_the_far_one(rows: list[tuple[float, float, float]]) -> None:
    scores, near, far = zip(*rows, strict=True)
    if sum(near) == sum(far):
        return
    curve = routing_curve(scores, near, far)
    shares = [point.far_share for point in curve.points]
    assert shares == sorted(shares)
    assert curve.points[0].quality == pytest.approx(curve.near)
    assert curve.points[-1].quality == pytest.approx(curve.far)
    assert 0 <= curve.far_share_for(0.5) <= curve.far_share_for(0.8) <= 1


def test_figures_lie_within_their_intervals_and_are_the_same_each_time() -> None:
    random = numpy.random.default_rng(1)
    scores = (numpy.array(FAR) - numpy.array(NEAR)) + random.normal(0, 1, TASKS)
    figures = curve_figures(scores, NEAR, FAR)
    for found in (figures.recovered, figures.far_share_for_half, figures.far_share_for_most):
        assert found.low <= found.value <= found.high
    assert figures == curve_figures(scores, NEAR, FAR)
    curve, interval = with_interval(scores, NEAR, FAR)
    assert interval == figures.recovered
    assert interval.value == curve.recovered


def test_means_are_drawn_from_the_same_tasks() -> None:
    column = numpy.array(NEAR)
    one, other = estimated_means([column, 1 - column])
    assert one.value + other.value == pytest.approx(1)
    assert one.low + other.high == pytest.approx(1)


@pytest.mark.parametrize(
    ("scores", "near", "far", "message"),
    [([], [], [], "at least one task"), ([1.0], [0.0, 1.0], [1.0, 1.0], "at least one task"), ([1.0], [1.0], [1.0], "equally well")],
)
def test_tasks_without_a_gap_or_an_outcome_are_refused(scores: list[float], near: list[float], far: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        routing_curve(scores, near, far)
