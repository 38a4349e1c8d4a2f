"""Samplers draw from exactly the tokens that they leave, and log-probabilities are the model's own."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.device.worker.engine import Logits, Mask
from nearfar.device.worker.sampling import Sampler, Weights, likeliest, log_probability
from nearfar.protocols import Message, StepRequest

LOGITS = st.lists(st.integers(-800, 800), min_size=2, max_size=40).map(lambda values: np.array(values, dtype=np.float32) / 100)


def sampler(**fields: object) -> Sampler:
    return Sampler(StepRequest.model_validate({"messages": (Message.user("x"),), "temperature": 1.0, "seed": 1} | fields))


def drawn(logits: Logits, allowed: Mask | None = None, **fields: object) -> Counter[int]:
    chosen = sampler(**fields)
    return Counter(chosen.pick(logits, allowed) for _ in range(4000))


def probabilities(logits: Logits) -> Weights:
    weights: Weights = np.exp(logits.astype(np.float64) - logits.max())
    weights /= weights.sum()
    return weights


@given(LOGITS, st.integers(1, 45))
def test_top_k_leaves_that_many_of_the_likeliest(logits: Logits, top_k: int) -> None:
    left = sampler(top_k=top_k)._truncated(logits) > -np.inf
    assert left.sum() == min(top_k, len(logits))
    assert not (~left).any() or logits[left].min() >= logits[~left].max()


@given(LOGITS, st.floats(0.01, 1.0))
def test_top_p_leaves_the_smallest_nucleus(logits: Logits, top_p: float) -> None:
    left = sampler(top_p=top_p)._truncated(logits) > -np.inf
    share = probabilities(logits)
    assert share[left].sum() >= top_p - 1e-9
    assert left.sum() == 1 or share[left].sum() - share[left].min() < top_p + 1e-9
    assert not (~left).any() or logits[left].min() >= logits[~left].max()


@given(LOGITS, st.floats(0.0, 1.0))
def test_min_p_leaves_what_is_likely_enough(logits: Logits, min_p: float) -> None:
    left = sampler(min_p=min_p)._truncated(logits) > -np.inf
    relative = np.exp((logits - logits.max()).astype(np.float64))
    assert list(left) == list(relative >= min_p)


def test_draws_follow_the_probabilities_of_the_tokens_that_are_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    counts = drawn(logits, top_k=2)
    assert set(counts) == {0, 1}
    assert counts[0] / 4000 == pytest.approx(4 / 7, abs=0.03)


def test_samplers_see_only_the_tokens_that_a_grammar_allows() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    allowed = np.array([False, False, True, True])
    assert set(drawn(logits, allowed, top_k=1)) == {2}
    assert set(drawn(logits, allowed, top_p=0.5)) == {2}
    assert set(drawn(logits, allowed, min_p=0.3)) == {2, 3}


def test_penalties_lower_the_tokens_that_the_output_holds() -> None:
    logits = np.array([1.0, 0.9, 0.0], dtype=np.float32)
    chosen = sampler(temperature=0.0, presence_penalty=0.05, frequency_penalty=0.04)
    picks = []
    for _ in range(4):
        picks.append(chosen.pick(logits))
        chosen.note(picks[-1:])
    # 0: 1.0, then 0.91, then 0.87; 1: 0.9 until it is chosen, then 0.81
    assert picks == [0, 0, 1, 0]
    assert list(logits) == [np.float32(1.0), np.float32(0.9), 0.0]


def test_a_sampler_without_penalties_counts_nothing() -> None:
    chosen = sampler(temperature=0.0)
    chosen.note([0, 0, 0])
    assert chosen.pick(np.array([1.0, 0.9], dtype=np.float32)) == 0


@given(LOGITS, st.integers(0, 20))
def test_the_likeliest_tokens_come_in_order_with_their_probabilities(logits: Logits, count: int) -> None:
    top = likeliest(logits, count)
    assert len(top) == min(count, len(logits))
    assert [logprob for _, logprob in top] == sorted((log_probability(logits, token) for token in range(len(logits))), reverse=True)[:count]
    assert all(logprob <= 0 for _, logprob in top)
