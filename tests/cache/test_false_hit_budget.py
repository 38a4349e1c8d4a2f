"""Thresholds hold the false-hit budget: not on what they were learned from alone, but on what comes."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_answers import World

from nearfar.orchestrator.cache.thresholds import (
    CONFIDENCE,
    Interval,
    JudgedHit,
    judgements_needed,
    learn_threshold,
    lower_bound,
    upper_bound,
)
from nearfar.orchestrator.task.sections.cache import LEAST_THRESHOLD

judgements = st.lists(st.builds(JudgedHit, st.floats(0.5, 1.0), st.booleans()), max_size=300)


@pytest.mark.parametrize(
    ("false", "judged", "confidence", "low", "high"),
    [(0, 10, 0.975, 0.0, 0.3085), (1, 20, 0.975, 0.0013, 0.2487), (5, 50, 0.975, 0.0333, 0.2181), (0, 59, 0.95, 0.0, 0.0495)],
)
def test_bounds_are_those_of_the_published_tables(false: int, judged: int, confidence: float, low: float, high: float) -> None:
    assert lower_bound(false, judged, confidence) == pytest.approx(low, abs=1e-4)
    assert upper_bound(false, judged, confidence) == pytest.approx(high, abs=1e-4)


def test_bounds_stand_many_judgements() -> None:
    assert upper_bound(1_000, 100_000, 0.95) == pytest.approx(0.01 + 1.645 * math.sqrt(0.01 * 0.99 / 100_000), rel=0.01)


@given(st.integers(1, 500), st.data())
def test_the_interval_holds_the_observed_share(judged: int, data: st.DataObject) -> None:
    false = data.draw(st.integers(0, judged))
    interval = Interval(false, judged)
    assert interval.share is not None
    assert 0 <= interval.low <= interval.share <= interval.high <= 1


@given(judgements, st.floats(0.005, 0.2))
def test_what_is_learned_is_proved_by_what_was_judged(judged: list[JudgedHit], budget: float) -> None:
    threshold = learn_threshold(judged, budget)
    if threshold is None:
        return
    above = [judgement for judgement in judged if judgement.similarity >= threshold]
    assert LEAST_THRESHOLD <= threshold <= 1
    assert len(above) >= judgements_needed(budget)
    assert upper_bound(sum(not judgement.is_same for judgement in above), len(above), CONFIDENCE) <= budget


def test_too_few_judgements_prove_nothing() -> None:
    assert learn_threshold([JudgedHit(0.99, is_same=True)] * (judgements_needed(0.02) - 1), 0.02) is None
    assert learn_threshold([JudgedHit(0.99, is_same=True)] * judgements_needed(0.02), 0.02) is not None


def drawn(random: Random, count: int, risk: Callable[[float], float]) -> list[JudgedHit]:
    similarities = [random.uniform(LEAST_THRESHOLD, 1.0) for _ in range(count)]
    return [JudgedHit(similarity, is_same=random.random() >= risk(similarity)) for similarity in similarities]


@pytest.mark.parametrize("risk", [lambda similarity: 1 - similarity, lambda _: 0.05, lambda similarity: 0.3 * (similarity < 0.9)])
def test_at_most_one_threshold_in_twenty_breaks_its_budget(risk: Callable[[float], float]) -> None:
    """200 thresholds, each learned from 600 pairs; its true risk is the mean over all similarities from it on."""
    budget, broken = 0.05, 0
    for seed in range(200):
        threshold = learn_threshold(drawn(Random(seed), 600, risk), budget)
        if threshold is not None and threshold < 1:
            places = [threshold + (1 - threshold) * step / 1000 for step in range(1001)]
            broken += sum(map(risk, places)) / len(places) > budget
    assert broken <= 200 * (1 - CONFIDENCE) + 8  # and twice the deviation of such a count


def test_a_refuted_threshold_serves_nothing_until_it_is_proved_again(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db", threshold=0.9, false_hit_budget=0.05) as cache:
        assert cache.thresholds.of("general") == 0.9
        for number in range(20):
            cache.thresholds.add("general", 0.95, was_served=True, is_same=number % 2 == 0)
        assert cache.thresholds.of("general") is None
        assert cache.thresholds.of("health") == 0.9
        for _ in range(600):
            cache.thresholds.add("general", 0.99, was_served=False, is_same=True)
        assert cache.thresholds.of("general") is not None


def test_what_was_judged_outlives_the_process(tmp_path: Path) -> None:
    for expected in (0, 1):
        with World().cache(tmp_path / "answers.db") as cache:
            assert len(cache.thresholds.judgements("general")) == expected
            cache.thresholds.add("general", 0.95, was_served=True, is_same=True)


def beta_share(place: float, one: int, other: int) -> float:
    """The part of the beta distribution below a place, by Simpson's rule: another way to the binomial's tails (Clopper and Pearson)."""
    scale = math.lgamma(one + other) - math.lgamma(one) - math.lgamma(other)

    def density(x: float) -> float:
        if x <= 0 or x >= 1:
            return math.exp(scale) * (one == 1 and x <= 0 or other == 1 and x >= 1)
        return math.exp(scale + (one - 1) * math.log(x) + (other - 1) * math.log1p(-x))

    steps = 4000
    weights = (1, *([4, 2] * (steps // 2 - 1)), 4, 1)
    return sum(weight * density(place * step / steps) for step, weight in enumerate(weights)) * place / steps / 3


@given(st.integers(1, 300), st.data(), st.sampled_from([0.9, 0.95, 0.975]))
@settings(max_examples=40, deadline=None)
def test_bounds_are_the_quantiles_of_beta_distributions(judged: int, data: st.DataObject, confidence: float) -> None:
    false = data.draw(st.integers(0, judged))
    if false < judged:
        assert beta_share(upper_bound(false, judged, confidence), false + 1, judged - false) == pytest.approx(confidence, abs=1e-6)
    if false > 0:
        assert beta_share(lower_bound(false, judged, confidence), false, judged - false + 1) == pytest.approx(1 - confidence, abs=1e-6)


@given(st.integers(1, 60), st.data())
@settings(max_examples=40, deadline=None)
def test_a_bound_is_where_the_exact_tail_crosses_its_probability(judged: int, data: st.DataObject) -> None:
    false = data.draw(st.integers(0, judged - 1))
    bound = upper_bound(false, judged, 0.975)

    def tail(share: Fraction) -> Fraction:
        return sum((math.comb(judged, k) * share**k * (1 - share) ** (judged - k) for k in range(false + 1)), Fraction(0))

    width = Fraction(1, 10**9)
    assert tail(Fraction(bound) - width) > Fraction(25, 1000) > tail(Fraction(bound) + width)
