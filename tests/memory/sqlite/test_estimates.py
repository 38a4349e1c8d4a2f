"""What estimates of similarities promise: whatever they leave out is not among the best."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.memory.sqlite.estimates import BLOCK, IS_AVAILABLE, coded, promising

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="numkong is not installed")


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 200), width=st.integers(1, 400), spread=st.sampled_from([0.0, 1e-4, 0.1, 10.0]))
def test_the_most_similar_vectors_are_among_the_promising_ones(seed: int, count: int, width: int, spread: float) -> None:
    numbers = numpy.random.default_rng(seed)
    made = (numbers.standard_normal(width) + spread * numbers.standard_normal((200, width))).astype(numpy.float32)
    made /= numpy.linalg.norm(made, axis=1, keepdims=True)
    query = made[numbers.integers(200)]
    similarities = numpy.einsum("ij,j->i", made, query)
    found = promising(coded(made), query, count, lambda slots: similarities[slots])
    best = numpy.flatnonzero(similarities > numpy.partition(similarities, -count)[-count])
    assert set(best.tolist()) <= set(found.tolist())
    assert len(found) >= count


def test_few_of_vectors_that_differ_are_promising() -> None:
    numbers = numpy.random.default_rng(0)
    made = numbers.standard_normal((5_000, 384), dtype=numpy.float32)
    made /= numpy.linalg.norm(made, axis=1, keepdims=True)
    found = promising(coded(made), made[0], 10, lambda slots: made[slots] @ made[0])
    assert len(found) < 100


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_codes_that_are_arranged_in_blocks_say_the_same(count: int) -> None:
    numbers = numpy.random.default_rng(count)
    made = numbers.standard_normal((count, 40), dtype=numpy.float32)
    plain = coded(made)
    arranged = plain.arranged(count // 2).arranged(count)
    assert len(arranged.blocks) == count // BLOCK
    least = min(count, 5)
    found, expected = (promising(one, made[-1], least, lambda slots: made[slots] @ made[-1]) for one in (arranged, plain))
    assert found.tolist() == expected.tolist()
