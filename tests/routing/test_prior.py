"""The prior: what is believed of prompts that no head was trained for, and what outcomes add to it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from nearfar.orchestrator.lab.training import prior_training
from nearfar.orchestrator.routing.head import MEASURES, measures
from nearfar.orchestrator.routing.learned.prior import LEVEL, TRAFFIC, WEIGHT, AdaptivePrior, Prior, PriorNumbers, shipped
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.task.route_decision import Impression
from nearfar.protocols import ConfigError, InvalidRequest, Side

DATA = Path(__file__).parents[3] / "shared" / "data" / "routing"
COUNT = len(MEASURES)
PLAIN = PriorNumbers(
    centre=tuple(map(float, measures("How far is it from the sea to the town?"))),
    scale=COUNT * (1.0,),
    weights=tuple(0.1 if name == "digits" else 0.0 for name in MEASURES),
    length=0.2,
    farthest=4.0,
)
ORDINARY = "How far is it from the lake to the city?"
STRANGE = "\\" * 400
LONGER_STRANGE = "\\" * 900


def unfamiliar_traffic() -> Prior:
    prior = Prior(PLAIN)
    for _ in range(10):
        prior.observe(prior.look(STRANGE))
    return prior


def trace(prompt: str, near: float | None, far: float | None) -> Trace:
    return Trace(prompt=prompt, outcomes={"near": AgentOutcome(score=near), "far": AgentOutcome(score=far)})


def sums(word: str) -> list[Trace]:
    """The near agent fails at numbers of five digits and more."""
    return [trace(f"{word} {'7' * (place % 9)}", near=float(place % 9 < 5), far=1.0) for place in range(90)]


def impression(*first: float, gain: float = 0.0) -> Impression:
    return Impression((*first, *((COUNT - len(first)) * [0.0])), gain, is_familiar=True, by_length=False)


@given(some.text())
def test_any_text_has_a_number_for_each_measure(text: str) -> None:
    found = measures(text)
    assert len(found) == COUNT
    assert all(value >= 0 for value in found)


def test_measures_count_what_they_are_named_after() -> None:
    found = dict(zip(MEASURES, measures("If x = 12, is (x) not 3?\nA. yes\nB. no"), strict=True))
    one, two = dict(zip(MEASURES, measures("1"), strict=True))["digits"], found["choices"]
    assert one < two < found["digits"]
    assert found["assignments"] == found["brackets"] == found["questions"] == one


@given(some.text(min_size=1))
def test_a_gain_lies_between_minus_one_and_one(text: str) -> None:
    for prior in (Prior(), unfamiliar_traffic()):
        assert -1 <= prior.look(text).gain <= 1


def test_weights_decide_where_the_traffic_is_familiar() -> None:
    found = Prior(PLAIN).look("How far is it from 1 to 1000?")
    assert found.is_familiar
    assert not found.by_length
    assert found.gain > Prior(PLAIN).look(ORDINARY).gain


def test_length_alone_decides_where_the_traffic_is_new() -> None:
    prior = unfamiliar_traffic()
    short, long = prior.look(STRANGE), prior.look(LONGER_STRANGE)
    assert short.by_length
    assert not short.is_familiar
    assert long.gain > short.gain


def test_the_first_prompt_already_counts_as_traffic() -> None:
    assert Prior(PLAIN).look(STRANGE).by_length


def test_one_strange_prompt_among_ordinary_ones_does_not_change_how_prompts_are_ordered() -> None:
    prior = Prior(PLAIN)
    for _ in range(3):
        prior.observe(prior.look(ORDINARY))
    assert not prior.look(STRANGE).by_length


def test_the_prior_notices_when_the_traffic_becomes_familiar_again() -> None:
    prior = unfamiliar_traffic()
    for _ in range(TRAFFIC):
        prior.observe(prior.look(ORDINARY))
    assert not prior.look(ORDINARY).by_length


def test_a_look_leaves_no_trace() -> None:
    prior = Prior(PLAIN)
    for _ in range(10):
        prior.look(STRANGE)
    assert not prior.look(ORDINARY).by_length


def test_a_reason_names_what_speaks_for_the_decision() -> None:
    prior = Prior(PLAIN)
    assert prior.reason(prior.look("How far is it from 1 to 1000?")).startswith("more digits")
    assert "only the length counts: longer" in unfamiliar_traffic().reason(prior.look(LONGER_STRANGE))


def test_a_fitted_prior_knows_what_lets_the_better_agent_gain_in_every_kind() -> None:
    pytest.importorskip("numpy")
    prior = Prior(prior_training.fit_prior([sums("Add"), sums("Name the river")]))
    assert prior.look("Take 7777777").gain > prior.look("Take 7").gain


def test_unknown_outcomes_are_left_out_of_the_fit() -> None:
    pytest.importorskip("numpy")
    kind = [*sums("Add"), *(trace("Add 7777", near=None, far=1.0) for _ in range(3))]
    weights = prior_training.fit_prior([kind]).weights
    assert weights[MEASURES.index("digits")] > 0


def test_longer_prompts_go_first_even_where_length_had_no_bearing_in_training() -> None:
    pytest.importorskip("numpy")
    kind = [trace("word " * (place % 7 + 1), near=float(place % 7 > 3), far=1.0) for place in range(70)]
    assert prior_training.fit_prior([kind]).length > 0


def test_a_prior_cannot_be_fitted_without_agents_that_differ() -> None:
    pytest.importorskip("numpy")
    with pytest.raises(ConfigError, match="10 points"):
        prior_training.fit_prior([[trace("one", near=1.0, far=1.0), trace("two", near=0.0, far=0.0)]])
    with pytest.raises(ConfigError, match="at least one kind"):
        prior_training.fit_prior([])


def test_the_prior_that_ships_follows_from_the_recorded_outcomes() -> None:
    pytest.importorskip("numpy")
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is missing")
    from benchmarks.routing_figures.transfer import fitted_without, recorded

    again = fitted_without("", recorded(DATA))
    for name in ("centre", "scale", "weights"):
        assert getattr(again, name) == pytest.approx(getattr(shipped(), name), abs=1e-5)
    assert (again.length, again.farthest) == pytest.approx((shipped().length, shipped().farthest), abs=1e-5)


def test_without_outcomes_the_sides_differ_by_the_gain_of_the_prior() -> None:
    adaptive, seen = AdaptivePrior(), impression(gain=0.3)
    assert adaptive.probability("cloud", Side.FAR, seen) - adaptive.probability("phone", Side.NEAR, seen) == pytest.approx(0.3)


def test_outcomes_teach_on_which_prompts_an_agent_fails() -> None:
    adaptive = AdaptivePrior()
    for step in range(200):
        adaptive.learn("phone", Side.NEAR, impression(1.0 if step % 2 else -1.0), outcome=float(step % 2 == 0))
    assert adaptive.probability("phone", Side.NEAR, impression(-1.0)) > 0.7
    assert adaptive.probability("phone", Side.NEAR, impression(1.0)) < 0.3
    assert adaptive.probability("cloud", Side.FAR, impression(1.0)) == pytest.approx(0.5)


def test_nothing_is_learned_from_an_outcome_that_nobody_knows() -> None:
    adaptive = AdaptivePrior()
    adaptive.learn("phone", Side.NEAR, impression(1.0), outcome=None)
    assert adaptive.score("phone", Side.NEAR, impression(1.0)) == 0.5


def test_an_outcome_beyond_its_bounds_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        AdaptivePrior().learn("phone", Side.NEAR, impression(), outcome=2.0)


@given(some.lists(some.tuples(some.floats(-5, 5), some.floats(-5, 5), some.sampled_from((0.0, 1.0))), min_size=1, max_size=30))
def test_learning_one_by_one_comes_to_what_a_regression_on_all_outcomes_does(rows: list[tuple[float, float, float]]) -> None:
    numpy = pytest.importorskip("numpy")
    adaptive = AdaptivePrior()
    for first, second, outcome in rows:
        adaptive.learn("phone", Side.NEAR, impression(first, second), outcome)
    inputs = numpy.array([(first, second, 1.0) for first, second, _ in rows])
    precision = numpy.diag([WEIGHT**-2, WEIGHT**-2, LEVEL**-2])
    weights = numpy.linalg.solve(inputs.T @ inputs + precision, inputs.T @ (numpy.array([outcome for *_, outcome in rows]) - 0.5))
    expected = 0.5 + weights @ (1.0, -2.0, 1.0)
    assert adaptive.score("phone", Side.NEAR, impression(1.0, -2.0)) == pytest.approx(expected, abs=1e-6)
