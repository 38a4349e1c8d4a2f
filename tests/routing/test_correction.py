"""What is predicted of an agent moves to what its tasks really come to, class by class."""

import math
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.routing.success import PRIOR, Correction, CorrectionPolicy
from nearfar.protocols import InvalidRequest

PROBABILITIES = st.floats(0, 1)
CLASSES = st.sampled_from(["", "search", "search/hops", "search/dates", "apps"])
EVENTS = st.tuples(CLASSES, PROBABILITIES, st.one_of(st.none(), st.floats(0, 1), st.sampled_from([0.0, 1.0])))


def outcomes(random: Random, count: int, rate: float) -> list[float]:
    return [float(random.random() < rate) for _ in range(count)]


def learned(
    results: list[float], *, probability: float = 0.5, task_class: str = "search", policy: CorrectionPolicy | None = None
) -> Correction:
    correction = Correction(policy)
    for result in results:
        correction.learn("near", task_class, probability, result)
    return correction


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=80), CLASSES, PROBABILITIES, st.floats(0.01, 2), st.floats(1e-3, 1e6))
def test_a_probability_stays_within_its_bounds_whatever_is_learned(
    events: list[tuple[str, float, float | None]], task_class: str, probability: float, deviation: float, half_life: float
) -> None:
    correction = Correction(CorrectionPolicy(deviation=deviation, half_life=half_life))
    for name, predicted, outcome in events:
        correction.learn("near", name, predicted, outcome)
    found = correction.corrected("near", task_class, probability)
    assert 0 < found.probability < 1
    assert 0 < found.deviation < 1
    assert math.isfinite(found.deviation)


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("predicted", [0.2, 0.7])
def test_it_converges_to_the_true_rate(rate: float, predicted: float) -> None:
    correction = learned(outcomes(Random(1), 2000, rate), probability=predicted)
    found = correction.corrected("near", "search", predicted)
    assert found.probability == pytest.approx(rate, abs=0.04)
    assert abs(found.probability - rate) < 4 * found.deviation
    assert found.outcomes == 2000


def test_without_outcomes_the_prediction_stands() -> None:
    found = Correction().corrected("near", "search/hops", 0.83)
    assert found.probability == pytest.approx(0.83)
    assert found.outcomes == 0
    assert Correction().corrected("near", "").probability == PRIOR


def test_a_single_outcome_changes_little() -> None:
    for result in (0.0, 1.0):
        assert learned([result]).corrected("near", "search", 0.5).probability == pytest.approx(0.5, abs=0.06)


def test_a_task_whose_outcome_nobody_knows_teaches_nothing() -> None:
    correction = learned([1.0, 0.0, 1.0])
    before = correction.corrected("near", "search")
    assert correction.learn("near", "search", 0.5, None) is None
    assert correction.learn("far", "apps", 0.5, None) is None
    assert correction.corrected("near", "search") == before
    assert correction.corrected("far", "apps").outcomes == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=20), EVENTS, PROBABILITIES, PROBABILITIES)
def test_a_better_outcome_and_a_better_prediction_never_make_it_worse(
    events: list[tuple[str, float, float | None]], last: tuple[str, float, float | None], first: float, second: float
) -> None:
    low, high = sorted((first, second))
    found = []
    for outcome in (low, high):
        correction = Correction()
        for event in events:
            correction.learn("near", *event)
        correction.learn("near", last[0], last[1], outcome)
        found.append(correction.corrected("near", last[0], last[1]).probability)
        assert correction.corrected("near", "search", low).probability <= correction.corrected("near", "search", high).probability
    assert found[0] <= found[1]


@pytest.mark.parametrize("predicted", [0.3, 0.5, 0.8])
def test_the_order_of_outcomes_matters_little(predicted: float) -> None:
    """As long as it is not the order in which an agent gets worse."""
    found = []
    for seed in range(40):
        results = [1.0] * 70 + [0.0] * 30
        Random(seed).shuffle(results)
        correction = learned(results, probability=predicted, policy=CorrectionPolicy(half_life=1e6))
        found.append(correction.corrected("near", "search", predicted))
    probabilities = [one.probability for one in found]
    assert max(probabilities) - min(probabilities) < found[0].deviation


def test_a_class_without_outcomes_inherits_from_the_wider_one() -> None:
    correction = learned(outcomes(Random(4), 300, 0.9), task_class="search/hops")
    hops, sibling, other = (correction.corrected("near", name, 0.5) for name in ("search/hops", "search/dates", "apps"))
    assert 0.5 < other.probability < sibling.probability < hops.probability
    assert hops.deviation < sibling.deviation < other.deviation
    assert (hops.outcomes, sibling.outcomes, other.outcomes) == (300, 0, 0)
    assert (correction.corrected("near", "search").outcomes, correction.corrected("near", "").outcomes) == (300, 300)
    assert correction.corrected("near", "search/dates/leap years", 0.5).probability == pytest.approx(sibling.probability)


def test_classes_that_differ_are_told_apart() -> None:
    correction, random = Correction(), Random(5)
    for _ in range(400):
        correction.learn("near", "easy", 0.5, float(random.random() < 0.9))
        correction.learn("near", "hard", 0.5, float(random.random() < 0.1))
    assert correction.corrected("near", "easy", 0.5).probability > 0.8
    assert correction.corrected("near", "hard", 0.5).probability < 0.2
    assert correction.corrected("near", "new", 0.5).probability == pytest.approx(0.5, abs=0.05)


def test_agents_are_corrected_each_on_its_own() -> None:
    correction = learned([0.0] * 50)
    assert correction.corrected("far", "search", 0.6).probability == pytest.approx(0.6)


def test_what_is_old_fades() -> None:
    results = [1.0, 0.0, 1.0, 0.0, 1.0] * 200 + [1.0, 0.0] * 50
    short, long = (learned(results, policy=CorrectionPolicy(half_life=half_life)).corrected("near", "search") for half_life in (50, 1e6))
    assert short.deviation > 1.5 * long.deviation
    assert short.probability == pytest.approx(0.53, abs=0.02)
    assert long.probability == pytest.approx(0.59, abs=0.01)


def test_a_drift_is_said_and_forgets() -> None:
    random, correction = Random(7), Correction()
    before = [correction.learn("near", "search", 0.5, result) for result in outcomes(random, 2000, 0.9)]
    sure = correction.corrected("near", "search", 0.5).deviation
    sentences = [correction.learn("near", "search", 0.5, result) for result in outcomes(random, 300, 0.4)]
    assert not any(before)
    said = [sentence for sentence in sentences if sentence is not None]
    assert said[0] == "near does worse than it used to, so what was learned of it counts for little from now on"
    found = correction.corrected("near", "search", 0.5)
    assert found.deviation > sure
    assert found.probability == pytest.approx(0.4, abs=0.1)


def test_threads_lose_no_outcome() -> None:
    correction = Correction()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: correction.learn(f"agent {number % 2}", "search", 0.5, float(number % 3 == 0)), range(2000)))
    assert [correction.corrected(f"agent {number}", "search").outcomes for number in range(2)] == [1000, 1000]


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_what_is_no_probability_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest):
        Correction().corrected("near", "search", value)
    with pytest.raises(InvalidRequest):
        Correction().learn("near", "search", 0.5, value)
