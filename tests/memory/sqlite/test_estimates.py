"""How the most similar of many vectors are found: for certain among few, and almost for certain among many."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nearfar.orchestrator.memory.sqlite import nearest as estimates
from nearfar.orchestrator.memory.sqlite.nearest import BLOCK, IS_AVAILABLE, encode_vectors, find_promising

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="numkong is not installed")


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 200), width=st.integers(1, 400), spread=st.sampled_from([0.0, 1e-4, 0.1, 10.0]))
def test_the_most_similar_vectors_are_among_the_promising_ones(seed: int, count: int, width: int, spread: float) -> None:
    numbers = numpy.random.default_rng(seed)
    made = unit(numbers.standard_normal(width) + spread * numbers.standard_normal((200, width)))
    codes, query = encode_vectors(made), made[numbers.integers(200)]
    similarities = codes.similarities(numpy.arange(200), query)
    found = find_promising(codes, query, count)
    best = numpy.flatnonzero(similarities > numpy.partition(similarities, -count)[-count])
    assert set(best.tolist()) <= set(found.tolist())
    assert len(found) >= count


def test_a_byte_for_each_number_keeps_similarities_to_a_thousandth() -> None:
    made = unit(numpy.random.default_rng(1).standard_normal((2_000, 384)))
    kept = encode_vectors(made).similarities(numpy.arange(2_000), made[0])
    assert float(numpy.abs(kept - made @ made[0]).max()) < 0.003
    assert float(numpy.abs(kept - made @ made[0]).mean()) < 0.0005


def test_few_of_vectors_that_differ_are_promising() -> None:
    made = unit(numpy.random.default_rng(0).standard_normal((5_000, 384)))
    assert len(find_promising(encode_vectors(made), made[0], 10)) < 100


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_codes_that_are_arranged_in_blocks_say_the_same(count: int) -> None:
    made = unit(numpy.random.default_rng(count).standard_normal((count, 40)))
    plain = encode_vectors(made)
    arranged = plain.arranged(count // 2).arranged(count)
    assert len(arranged.blocks) == count // BLOCK
    found, expected = (find_promising(one, made[-1], min(count, 5)) for one in (arranged, plain))
    assert found.tolist() == expected.tolist()


def test_of_many_vectors_about_some_topics_the_nearest_are_found_by_an_outline() -> None:
    numbers = numpy.random.default_rng(0)
    topics = numbers.standard_normal((60, 384))
    pairs = topics[numbers.integers(0, 60, (2, 40_000))].sum(axis=0)
    made = unit(pairs + 0.5 * numbers.standard_normal((40_000, 384)))
    check_outline(made, directions=64)


def test_vectors_that_have_nothing_in_common_get_an_outline_of_more_directions() -> None:
    check_outline(unit(numpy.random.default_rng(0).standard_normal((40_000, 384))), directions=256)


def check_outline(made: NDArray[numpy.float32], *, directions: int) -> None:
    """Check how many directions the outline of these vectors has, and that it finds the ten nearest."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimates, "FEW", 10_000)
        codes = encode_vectors(made).arranged(20_000).arranged(40_000)
    assert codes.outline is not None
    assert codes.blocks == ()
    assert codes.outline.directions.shape == (384, directions)
    hits = 0
    for query in made[:50]:
        exact = numpy.argsort(-codes.similarities(numpy.arange(40_000), query))[:10]
        hits += len({*exact.tolist()} & {*find_promising(codes, query, 10).tolist()})
    assert hits >= 0.99 * 500


def unit(vectors: NDArray[numpy.float64]) -> NDArray[numpy.float32]:
    made: NDArray[numpy.float32] = (vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)).astype(numpy.float32)
    return made
