"""Options with which a llama.cpp worker loads its model, and a prediction of the memory that it will take, from the model's header alone.

A worker process holds the sum of five parts. The formulas follow llama.cpp's log of its buffers (0.3.36 of llama-cpp-python), and
`tests/device/test_fit.py` compares them with the memory of real worker processes:

* weights: the tensors as they lie in the file, which is mapped and read at once;
* cache: layers x key-value heads x (key length + value length) x 2 bytes per cell, rounded up to 256 cells, cleared when it is made;
* computing: the state of a pass over 128 tokens between two layers: three feed-forward vectors and four of the model's width as 32-bit
  floats, a copy of the widest at 8 bits for the matrix product, and flash attention's mask of 2 bytes per token and cell. The scheduler
  begins with so many and takes as many more, up to 512, as the machine computes in a fifth of a second, so that this part may become four
  times as large if the model is small for the machine. llama.cpp reserves room for the logits of 512 tokens, too, and never touches it;
* vocabulary: llama.cpp's tables, and those of llguidance, for each token;
* runtime: Python and the libraries, whatever the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..compute import FASTEST
from ..gguf import GgufFile, GgufHeader
from ..worker.protocol import WorkerOptions

_MOST_DEFAULT_CELLS: Final = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions(WorkerOptions):
    """Options that the agent gives to its worker process."""

    compute: str = FASTEST
    """`fastest`, `lowest_power`, or a provider's name."""
    allow_fallback: bool = False
    """Take another provider where that one is absent."""
    gpu_layers: int | None = None
    """Layers that go to it where it is no CPU; None: as many as fit its memory."""
    kv_bytes_per_token: int | None = None
    """By the file's header; None: unknown."""
    tokens_per_second: Mapping[str, float] = field(default_factory=dict)
    """Measured output speeds of this model, by provider."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Paths of LoRA adapters by name."""


def cache_cells(tokens: int, parallel: int) -> int:
    """Return the tokens that the cache is made for: parallel steps share the room of a few full contexts."""
    return max(tokens, min(tokens * parallel, _MOST_DEFAULT_CELLS))


_BATCH: Final = 128
_CELLS: Final = 256
"""llama.cpp makes caches of multiples of this."""
_FLOAT: Final = 4
_HALF: Final = 2
_Q8_PER_WEIGHT: Final = 34 / 32
_BYTES_PER_TOKEN: Final = 700
"""Measured between vocabularies of 1000 and 150000 tokens, after a step with tools."""
_RUNTIME_BYTES: Final = 70 << 20
"""Measured with the shipped models on Linux and Python 3.11; half of it are pages of libraries, which processes share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that a worker process holds once it has read a prompt."""

    weights: int
    cache: int
    computing: int
    vocabulary: int
    runtime: int = _RUNTIME_BYTES

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.computing + self.vocabulary + self.runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a model that decide how much memory it takes in addition to its weights."""

    trained_tokens: int
    """Context that it was trained for."""
    cache_bytes: int
    """Per cell."""
    width: int
    widest: int
    """The feed-forward layer's width, of all experts that one token uses."""
    vocabulary: int

    @classmethod
    def of(cls, file: GgufFile, header: GgufHeader) -> "ModelShape":
        """Read the shape from a model's header."""
        width = file.count(f"{header.architecture}.embedding_length") or 0
        tokens = file.array("tokenizer.ggml.tokens")
        return cls(
            trained_tokens=header.context_tokens or 0,
            cache_bytes=_HALF * (header.kv_elements_per_token or _layerwise_kv_elements(file, header.architecture, width)),
            width=width,
            widest=max(_widest(file, header.architecture), width),
            vocabulary=tokens.count if tokens is not None else 0,
        )

    def footprint(self, weights: int, *, context_tokens: int, parallel: int) -> Footprint:
        """Predict a worker's memory for steps of `context_tokens`, `parallel` of them at the same time, on the CPU."""
        cells = -(-cache_cells(context_tokens, parallel) // _CELLS) * _CELLS
        per_token = _FLOAT * (3 * self.widest + 4 * self.width) + int(_Q8_PER_WEIGHT * self.widest) + _HALF * cells
        return Footprint(
            weights=weights,
            cache=cells * self.cache_bytes,
            computing=_BATCH * per_token,
            vocabulary=_BYTES_PER_TOKEN * self.vocabulary,
        )

    def largest_context(self, weights: int, free: int, *, parallel: int) -> int | None:
        """Return the largest power of two, or else the trained context, that fits `free` bytes; None: not even 256 tokens do."""
        sizes = {self.trained_tokens, *(1 << bits for bits in range(8, self.trained_tokens.bit_length()))}
        fitting = (size for size in sizes if self.footprint(weights, context_tokens=size, parallel=parallel).total <= free)
        return max(fitting, default=None)


def _numbers(file: GgufFile, key: str) -> list[int]:
    """Return the number under a key, or the list with one for each layer."""
    array = file.array(key)
    single = file.count(key)
    return [number for number in array.numbers if type(number) is int] if array is not None else [single] if single else []


def _widest(file: GgufFile, architecture: str) -> int:
    dense = max(_numbers(file, f"{architecture}.feed_forward_length"), default=0)
    expert = max(_numbers(file, f"{architecture}.expert_feed_forward_length"), default=0)
    return max(dense, expert * (file.count(f"{architecture}.expert_used_count") or 1))


def _layerwise_kv_elements(file: GgufFile, architecture: str, width: int) -> int:
    """Return the numbers per cell if the layers differ in their heads; layers without attention state none. 0: the model has no such
    cache."""
    heads = max(_numbers(file, f"{architecture}.attention.head_count"), default=0)
    head_width = width // heads if heads else 0
    key = file.count(f"{architecture}.attention.key_length") or head_width
    value = file.count(f"{architecture}.attention.value_length") or head_width
    return sum(_numbers(file, f"{architecture}.attention.head_count_kv")) * (key + value)
