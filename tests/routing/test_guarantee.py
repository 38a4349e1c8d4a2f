"""Thresholds whose quality holds with confidence on new tasks."""

from math import comb

import pytest

pytest.importorskip("numpy")

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.lab.statistics import Margins, error_of, guaranteed_threshold, p_value
from nearfar.protocols import ConfigError


def tasks(count: int, seed: int) -> tuple["numpy.ndarray", "numpy.ndarray", "numpy.ndarray"]:
    """Advantages, and scores of a near side that is worse where the advantage is high."""
    random = numpy.random.default_rng(seed)
    hard = random.random(count)
    return hard, (random.random(count) > 0.6 * hard).astype(float), (random.random(count) < 0.9).astype(float)


def mean_kept(threshold: float, share: float) -> bool:
    """Whether the expected score under a threshold is the share of far's: both follow from how `tasks` draws."""
    stays = min(max(threshold, 0.0), 1.0)
    return stays * (1 - 0.6 * stays / 2) + (1 - stays) * 0.9 >= share * 0.9


@pytest.mark.parametrize("share", [0.9, 0.95, 1.0])
def test_a_guaranteed_share_of_the_far_score_is_missed_no_more_often_than_the_confidence_allows(share: float) -> None:
    missed = 0
    for seed in range(200):
        try:
            found = guaranteed_threshold(Margins.of_share(*tasks(400, seed), share=share), confidence=0.9)
        except ConfigError:
            continue
        missed += not mean_kept(found.threshold, share)
    assert missed <= 20


def test_more_tasks_let_more_stay_near() -> None:
    few, many = (guaranteed_threshold(Margins.of_share(*tasks(count, 1), share=0.95), confidence=0.95) for count in (300, 5000))
    assert many.far_share < few.far_share
    assert many.p_value <= error_of(0.95)


def test_too_few_tasks_are_refused_with_how_many_would_do() -> None:
    with pytest.raises(ConfigError, match="20 tasks") as refused:
        guaranteed_threshold(Margins.of_share(*tasks(20, 2), share=0.99), confidence=0.95)
    assert "would be needed" in str(refused.value.hint)


def test_a_quality_that_nothing_reaches_needs_less_quality_and_not_more_tasks() -> None:
    advantages, near, far = tasks(500, 3)
    with pytest.raises(ConfigError) as refused:
        guaranteed_threshold(Margins(advantages, near, far, wanted=0.99), confidence=0.95)
    assert "ask for less quality" in str(refused.value.hint)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, float("nan")])
def test_a_confidence_lies_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ConfigError, match="confidence"):
        guaranteed_threshold(Margins(*tasks(50, 4), wanted=0.5), confidence=confidence)


@given(st.integers(1, 60), st.data(), st.floats(0.01, 0.99))
def test_right_and_wrong_answers_have_the_exact_binomial_p_value(count: int, data: st.DataObject, wanted: float) -> None:
    right = data.draw(st.integers(0, count))
    scores = numpy.array([1.0] * right + [0.0] * (count - right))
    exact = sum(comb(count, k) * wanted**k * (1 - wanted) ** (count - k) for k in range(right, count + 1))
    assert p_value(scores, wanted) == pytest.approx(min(exact, 1.0), abs=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.floats(0.1, 0.9), st.floats(0.5, 3.0))
def test_the_test_by_betting_errs_no_more_often_than_its_error(mean: float, concentration: float) -> None:
    random = numpy.random.default_rng(5)
    draws = random.beta(mean * concentration, (1 - mean) * concentration, (300, 80))
    assert numpy.mean([p_value(scores, mean) <= 0.05 for scores in draws]) <= 0.1


def test_the_error_leaves_room_for_the_luck_of_new_tasks() -> None:
    assert error_of(0.95) == pytest.approx(0.01, abs=0.001)
    assert error_of(0.5) == pytest.approx(0.5)
