"""Texts as vectors on this device: all-MiniLM-L6-v2 in int8, on onnxruntime with a single thread.

Routing, memory and caches compare meanings by them.
"""

import os
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ....protocols import ConfigError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vector = NDArray[numpy.float32]

NAME: Final = "all-MiniLM-L6-v2/int8/1"
"""Name of the model and the version of its export: vectors of another one cannot be compared with its."""
WIDTH: Final = 384
EARLY_WIDTH: Final = 768
MAXIMUM_TOKENS: Final = 128
"""Tokens of a text that `embed` reads: of a longer one, half from its head and half from its tail."""
EARLY_TOKENS: Final = 64
"""Tokens of a text that `early` reads."""
LOWER_LAYERS: Final = "minilm-lower.onnx"
UPPER_LAYERS: Final = "minilm-upper.onnx"
TOKENIZER: Final = "tokenizer.json"

_REACH: Final = 16
"""Characters read from either end of a text, over the tokens that are kept: to tokenize a whole book for 128 of them takes seconds."""


class MiniLmEmbedder:
    """The model, loaded once. Calls may come from any thread.

    Raises `ConfigError` where onnxruntime or tokenizers is not installed.
    """

    def __init__(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError("embeddings need tokenizers", hint="pip install 'nearfar[router]'") from error
        models = files(__package__) / "models"
        self._tokenizer = Tokenizer.from_str((models / TOKENIZER).read_text(encoding="utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lower, self._upper = (session((models / part).read_bytes(), part) for part in (LOWER_LAYERS, UPPER_LAYERS))

    def embed(self, text: str) -> "Vector":
        """Return the meaning of a text: a unit vector of shape (384,). The product of two is their cosine similarity."""
        (hidden,) = self._lower.run(["hidden"], {"input_ids": self._ids(text, MAXIMUM_TOKENS)})
        vector: Vector = self._upper.run(["embedding"], {"hidden": hidden})[0]
        return vector

    def early(self, text: str) -> "Vector":
        """Return the output of the lower four of the six layers, of shape (768,), in two thirds of the time.

        It has the means over the tokens after two layers and after four. They say less about the topic and more about wording and the kind
        of task, on which success depends. It is no unit vector.
        """
        vector: Vector = self._lower.run(["early"], {"input_ids": self._ids(text, EARLY_TOKENS)})[0]
        return vector

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32]":
        """Return `embed` of each text, of shape (texts, 384)."""
        return _stacked([self.embed(text) for text in texts], WIDTH)

    def early_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32]":
        """Return `early` of each text, of shape (texts, 768)."""
        return _stacked([self.early(text) for text in texts], EARLY_WIDTH)

    def tokens(self, text: str, most: int = MAXIMUM_TOKENS) -> list[int]:
        """Return the tokens that the model reads of a text: of a long one, as many from its head as from its tail."""
        # A half of a surrogate pair has no UTF-8, which is what the tokenizer works on.
        clipped = _clipped(text, _REACH * most).encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer.encode(clipped).ids
        half = most // 2
        return ids if len(ids) <= most else [*ids[:half], *ids[-half:]]

    def _ids(self, text: str, most: int) -> "NDArray[numpy.int64]":
        import numpy

        return numpy.array(self.tokens(text, most), dtype=numpy.int64)


def _clipped(text: str, reach: int) -> str:
    return text if len(text) <= 2 * reach else f"{text[:reach]} {text[-reach:]}"


def _stacked(vectors: "Sequence[Vector]", width: int) -> "NDArray[numpy.float32]":
    # Made one at a time: int8 is scaled by all that is computed together, so in a batch a text's vector would depend on the others.
    import numpy

    return numpy.stack(vectors) if vectors else numpy.empty((0, width), dtype=numpy.float32)


def session(model: bytes, name: str) -> Any:  # noqa: ANN401 - onnxruntime carries no types
    """Return a session on one thread. `name` is the model's name in errors.

    Raises `ConfigError` if onnxruntime is not installed, or cannot run the model.
    """
    # From 1.29 on, onnxruntime reports to its maker unless it is told not to before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as states
    except ImportError as error:
        raise ConfigError("this needs onnxruntime", hint="pip install 'nearfar[router]'") from error
    options = onnxruntime.SessionOptions()
    # Next to a busy llama.cpp, a second thread waits far longer than it computes.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # They have no class in common but Exception.
    errors = (states.Fail, states.InvalidArgument, states.InvalidGraph, states.InvalidProtobuf, states.NotImplemented)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except errors as error:
        hint = "it is damaged: train the head, or build the embedder, again"
        raise ConfigError(f"{name} is no ONNX model that can be run: {error}", hint=hint) from error
