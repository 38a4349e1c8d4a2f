"""Exploration keeps to its share."""

from random import Random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.routing.exploration import BetaWorth, Explorer, Prospect, chance_of_best, chance_of_greatest
from nearfar.orchestrator.routing.outcomes import draw_score
from nearfar.protocols import ConfigError

UNSURE = (Prospect("near", utility=0.6, deviation=0.2), Prospect("far", utility=0.5, deviation=0.2))


def test_it_is_off_unless_asked_for() -> None:
    explorer = Explorer(seed=1)
    assert {explorer.choose(UNSURE).agent for _ in range(200)} == {"near"}
    assert (explorer.decisions, explorer.explored) == (200, 0)


@given(st.floats(0, 1), st.integers(0, 2**32), st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=4))
def test_it_never_takes_more_than_its_share(share: float, seed: int, beliefs: list[tuple[float, float]]) -> None:
    explorer = Explorer(share, seed=seed)
    prospects = [Prospect(str(place), *belief) for place, belief in enumerate(beliefs)]
    for _ in range(60):
        explorer.choose(prospects)
        assert explorer.explored <= share * explorer.decisions


def test_what_is_explored_is_counted() -> None:
    explorer = Explorer(0.1, seed=2)
    chosen = [explorer.choose(UNSURE).agent for _ in range(1000)]
    assert 0 < explorer.explored == chosen.count("far") <= 100


def test_what_is_surely_worse_is_never_tried() -> None:
    explorer = Explorer(1.0, seed=3)
    sure = (Prospect("near", utility=0.9, deviation=0.01), Prospect("far", utility=0.2, deviation=0.01))
    assert {explorer.choose(sure).agent for _ in range(300)} == {"near"}


def test_the_unsure_are_tried_more_than_the_sure() -> None:
    explorer, counts = Explorer(1.0, seed=4), {"best": 0, "sure": 0, "unsure": 0}
    prospects = (Prospect("best", 0.6, 0.05), Prospect("sure", 0.4, 0.05), Prospect("unsure", 0.4, 0.3))
    for _ in range(500):
        counts[explorer.choose(prospects).agent] += 1
    assert counts["best"] > counts["unsure"] > counts["sure"]


def test_the_same_seed_explores_the_same_way() -> None:
    first, second = (Explorer(0.5, seed=5) for _ in range(2))
    assert [first.choose(UNSURE) for _ in range(100)] == [second.choose(UNSURE) for _ in range(100)]


def test_what_is_not_explored_was_certain() -> None:
    explorer = Explorer(0.1, seed=6)
    assert [explorer.choose(UNSURE).propensity for _ in range(9)] == [1.0] * 9
    assert explorer.choose(UNSURE).propensity < 1


def test_the_propensity_is_how_often_an_agent_is_drawn() -> None:
    explorer = Explorer(1.0, seed=7)
    prospects = (Prospect("a", 0.6, 0.1), Prospect("b", 0.5, 0.2), Prospect("c", 0.4, 0.3))
    drawn = [explorer.choose(prospects) for _ in range(4000)]
    for name in "abc":
        told = {each.propensity for each in drawn if each.agent == name}
        assert len(told) == 1
        assert sum(each.agent == name for each in drawn) / len(drawn) == pytest.approx(told.pop(), abs=0.03)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.001, 1)), min_size=1, max_size=5))
def test_the_propensities_of_all_agents_sum_to_1(beliefs: list[tuple[float, float]]) -> None:
    means, deviations = zip(*beliefs, strict=True)
    assert sum(chance_of_greatest(means, deviations, place) for place in range(len(means))) == pytest.approx(1, abs=0.05)


def test_two_agents_have_the_propensity_of_their_gaussian_difference() -> None:
    expected = NormalDist(0.1, (0.2**2 + 0.3**2) ** 0.5)
    assert chance_of_greatest((0.6, 0.5), (0.2, 0.3), 0) == pytest.approx(1 - expected.cdf(0), abs=1e-6)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigError):
        Explorer(share)


@pytest.mark.parametrize(
    "beliefs",
    [
        [(0.0, 0.5, 2.0), (0.1, 0.4, 2.0)],
        [(0.0, 0.9, 1000.0), (0.0, 0.89, 400.0), (-0.05, 0.5, 1.0)],
        [(0.0, 0.000001, 2.0), (0.0, 0.02, 30.0), (0.2, 0.5, 0.3)],
        [(0.0, 0.999999, 8.0), (0.0, 0.9, 8.0)],
    ],
)
def test_the_propensity_of_a_strategy_is_how_often_its_drawn_score_is_worth_most(beliefs: list[tuple[float, float, float]]) -> None:
    random, draws = Random(8), 4000
    worths = [BetaWorth(*belief) for belief in beliefs]
    drawn = [[worth.constant + draw_score(worth.mean, worth.weight, random) for worth in worths] for _ in range(draws)]
    for place in range(len(worths)):
        often = sum(max(range(len(worths)), key=worth.__getitem__) == place for worth in drawn) / draws
        assert chance_of_best(worths, place) == pytest.approx(often, abs=0.03)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.3, 1e4), st.floats(0.3, 1e4)), min_size=1, max_size=4))
def test_the_propensities_of_all_strategies_sum_to_1(beliefs: list[tuple[float, float, float]]) -> None:
    worths = [BetaWorth(constant, right / (right + wrong), right + wrong) for constant, right, wrong in beliefs]
    assert sum(chance_of_best(worths, place) for place in range(len(worths))) == pytest.approx(1, abs=0.05)
