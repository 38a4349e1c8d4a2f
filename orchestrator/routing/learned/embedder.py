"""Sentence embeddings on this device: all-MiniLM-L6-v2, int8, on onnxruntime with a single thread."""

import os
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from ....protocols import ConfigError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vector = NDArray[numpy.float32]

NAME: Final = "all-MiniLM-L6-v2/int8/1"
"""Of the model and the version of its export: embeddings of another one cannot be compared with its."""
WIDTH: Final = 384
MAXIMUM_TOKENS: Final = 128
"""Read of a text: the first half from its head, the second from its tail where it is longer."""


class Embedder:
    """The model, loaded once. Calls may come from any thread.

    Raises `ConfigError` where onnxruntime or tokenizers is not installed.
    """

    def __init__(self) -> None:
        # From 1.29 on, onnxruntime reports to its maker unless it is told not to before it is imported.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError("embeddings need onnxruntime and tokenizers", hint="pip install 'nearfar[router]'") from error
        models = files(__package__) / "models"
        self._tokenizer = Tokenizer.from_str((models / "tokenizer.json").read_text(encoding="utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        # Beside a busy llama.cpp, a second thread waits far longer than it computes.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            (models / "minilm.onnx").read_bytes(), options, providers=["CPUExecutionProvider"]
        )

    def embed(self, text: str) -> "Vector":
        """The unit vector of a text, of shape (384,)."""
        import numpy

        tokens = numpy.array([self._tokens(text)], dtype=numpy.int64)
        (vectors,) = self._session.run(None, {"input_ids": tokens, "attention_mask": numpy.ones_like(tokens)})
        vector: Vector = vectors[0]
        return vector

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32]":
        """One row per text, of shape (texts, 384)."""
        import numpy

        return numpy.stack([self.embed(text) for text in texts]) if texts else numpy.empty((0, WIDTH), dtype=numpy.float32)

    def _tokens(self, text: str) -> list[int]:
        # Tokenizing a whole book to keep 128 tokens of it takes seconds; no token is longer than this many characters a piece.
        reach = MAXIMUM_TOKENS * 32
        clipped = text if len(text) <= 2 * reach else f"{text[:reach]} {text[-reach:]}"
        ids: list[int] = self._tokenizer.encode(clipped).ids
        half = MAXIMUM_TOKENS // 2
        return ids if len(ids) <= MAXIMUM_TOKENS else [*ids[:half], *ids[-half:]]
