"""When a draft is stopped because its confidence collapses."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.routing.looks import EarlyStop, learn_early_stop, objection
from nearfar.protocols import ConfigError

SHARES = st.floats(0, 1)
STEPS = st.lists(st.none() | SHARES, min_size=1, max_size=8)


@given(SHARES, STEPS)
def test_with_the_policys_own_minimum_exactly_the_drafts_are_stopped_that_would_be_rejected(
    minimum: float, steps: list[float | None]
) -> None:
    known = [confidence for confidence in steps if confidence is not None]
    lowest = min(known, default=None)
    rejected = objection("an answer", confidence=lowest, minimum_confidence=minimum)
    assert any(map(EarlyStop(threshold=minimum).stops, steps)) == (rejected is not None)


@given(st.lists(st.tuples(st.none() | SHARES, st.none() | st.sampled_from([0.0, 1.0])), min_size=60, max_size=120), st.floats(0.5, 0.99))
def test_drafts_below_a_learned_threshold_were_wrong_as_often_as_was_asked(
    drafts: list[tuple[float | None, float | None]], certainty: float
) -> None:
    known = [(confidence, score) for confidence, score in drafts if confidence is not None and score is not None]
    if len(known) < 20:
        return
    rule = learn_early_stop(*zip(*drafts, strict=True), certainty=certainty)
    stopped = [score for confidence, score in known if confidence < rule.threshold]
    assert not stopped or 1 - sum(stopped) / len(stopped) >= certainty


def test_a_threshold_is_found_where_low_confidence_means_a_wrong_answer() -> None:
    random = Random(0)
    confidences = [random.random() for _ in range(1000)]
    scores = [float(confidence > 0.4) for confidence in confidences]
    assert learn_early_stop(confidences, scores).threshold == pytest.approx(0.4, abs=0.05)


def test_nothing_is_stopped_where_confidence_tells_nothing() -> None:
    random = Random(0)
    rule = learn_early_stop([random.random() for _ in range(500)], [float(random.random() < 0.5) for _ in range(500)])
    assert rule.threshold == 0
    assert not rule.stops(0.0)


def test_too_few_known_drafts_are_refused_with_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"10 drafts .* too few, 20 lack one"):
        learn_early_stop([0.5] * 20 + [None] * 10, [1.0] * 10 + [None] * 10 + [0.0] * 10)


@pytest.mark.parametrize("certainty", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_certainty_that_cannot_be_had_is_refused(certainty: float) -> None:
    with pytest.raises(ConfigError):
        learn_early_stop([0.5] * 30, [0.0] * 30, certainty=certainty)
