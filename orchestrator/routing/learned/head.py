"""The learned head of the router: the probability that each agent gets a prompt right, before any token is generated.

Two parts see the prompt in two ways. The *words* part is a logistic regression over hashed n-grams (weighted by how rare they were in
training, and scaled to unit length) and the surface. The *meaning* part looks up the prompts of the training data that mean the most
similar thing, and averages what the agents came to on them. Both are ONNX models; without an embedder the words part stands alone.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import Field, ValidationError

from ....protocols import ConfigError
from ....protocols.messages import Value
from .features import hashed, surface

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vector = NDArray[numpy.float32]

FEATURES: Final = "hashed/1"
"""Version of `features`: a head trained on others cannot be used."""
WORDS: Final = "words.onnx"
MEANING: Final = "meaning.onnx"
CARD: Final = "head.json"


class HeadCard(Value):
    """What a head was trained for: `head.json`."""

    features: str = FEATURES
    embedder: str | None
    """Of the meaning part; None: it has none."""
    agents: tuple[str, ...] = Field(min_length=1)
    """Whose success it predicts, in the order of its outputs."""
    prompts: int = Field(gt=0)
    """It was trained on."""
    familiar: float = 0.0
    """Similarity to the nearest training prompts, below which a prompt is unlike all of them."""


class Prediction(Value):
    """What a head says of one prompt."""

    probabilities: Mapping[str, float]
    """That an agent gets it right, by name."""
    similarity: float | None
    """Mean cosine similarity to the nearest training prompts; None: there was no embedder."""
    is_familiar: bool
    """The prompt is like those of the training data. Where it is not, the probabilities are guesses."""


class EmbedsText(Protocol):
    """Anything that turns a text into a unit vector of the embedder that the head names."""

    def embed(self, text: str) -> "Vector": ...


class Head:
    """A trained head, loaded from its folder. Calls may come from any thread."""

    def __init__(self, folder: Path, embedder: EmbedsText | None = None) -> None:
        """Raises `ConfigError` where the folder holds no head, or one of another version, or onnxruntime is not installed."""
        self.card = read_card(folder)
        self._words = _session(folder / WORDS)
        self._embedder = embedder if self.card.embedder is not None else None
        self._meaning = _session(folder / MEANING) if self._embedder is not None else None

    def require(self, agents: Sequence[str]) -> None:
        """Raise `ConfigError` where the head was trained for other agents than these."""
        unknown = sorted(set(agents) - set(self.card.agents))
        if unknown:
            raise ConfigError(
                f"the head knows {', '.join(self.card.agents)} and not {', '.join(unknown)}",
                hint="train one on traces of these agents: nearfar router train",
            )

    def predict(self, prompt: str) -> Prediction:
        """Look at a prompt."""
        import numpy

        buckets, values = hashed(prompt)
        inputs = {
            "buckets": numpy.array(buckets, dtype=numpy.int64),
            "values": numpy.array(values, dtype=numpy.float32),
            "surface": numpy.array(surface(prompt), dtype=numpy.float32),
        }
        logits, probabilities = self._words.run(["logits", "probabilities"], inputs)
        similarity = None
        if self._meaning is not None and self._embedder is not None:
            vector = self._embedder.embed(prompt)
            probabilities, found = self._meaning.run(["probabilities", "similarity"], {"embedding": vector, "logits": logits})
            similarity = float(found)
        return Prediction(
            probabilities=dict(zip(self.card.agents, map(float, probabilities), strict=True)),
            similarity=similarity,
            is_familiar=similarity is None or similarity >= self.card.familiar,
        )


def read_card(folder: Path) -> HeadCard:
    """Raises `ConfigError` where there is none, or one of another version."""
    try:
        card = HeadCard.model_validate_json((folder / CARD).read_bytes())
    except (OSError, ValidationError, json.JSONDecodeError) as error:
        raise ConfigError(f"{folder} holds no head of the router", hint="nearfar router train writes one") from error
    if card.features != FEATURES:
        raise ConfigError(f"the head in {folder} was trained on features {card.features!r}, not {FEATURES!r}", hint="train it again")
    return card


def _session(path: Path) -> Any:  # noqa: ANN401 - onnxruntime carries no types
    # From 1.29 on, onnxruntime reports to its maker unless it is told not to before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError("a learned head needs onnxruntime", hint="pip install 'nearfar[router]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except (OSError, RuntimeError, ValueError) as error:  # onnxruntime raises its own kinds of RuntimeError for files that are none
        raise ConfigError(f"{path} is no ONNX model that can be run: {error}", hint="train the head again") from error
