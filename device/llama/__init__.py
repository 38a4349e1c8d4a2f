"""`LlamaAgent`: any GGUF model as an agent, run by llama.cpp in a process of its own, and a prediction of the memory that it takes.

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
from pathlib import Path
from typing import Final, Self

import anyio

from ...protocols import AgentCard, Capabilities, Limits, Prices, Side
from ..gguf import GgufHeader, check_adapters, check_projector, read_header
from ..gguf_file import GgufFile
from ..hardware.processors import FASTEST
from ..profiles import speeds_of
from ..worker import LocalAgent, check_counts, check_default_adapters, check_installed
from ..worker.process import WorkerProcess
from ..worker.protocol import WorkerOptions, WorkerReady

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
    projector: str | None = None
    """Path of the multimodal projector; None: the model reads no images."""
    calls_folder: str | None = None
    """Folder in which calls are kept for drafting; None: they are forgotten with the worker."""


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


_BYTES_PER_KV_ELEMENT: Final = 2
"""llama.cpp keeps keys and values as 16-bit floats unless told otherwise, and the worker tells it nothing else."""


class LlamaAgent(LocalAgent):
    """An agent on a GGUF model. Make one with `load`, and close it with `aclose` or `async with`.

    The same request with the same seed gets the same reply, as far as llama.cpp computes the same numbers: other steps in the batch and
    cached prefixes change their rounding, which can tip a choice between tokens that are nearly equally likely.
    """

    worker_module = "nearfar.device.llama.worker"

    @staticmethod
    def check_model(path: Path) -> None:
        """Read and check the header of the file at `path`."""
        read_header(path)

    @classmethod
    async def load(
        cls,
        model: Path | str,
        *,
        name: str | None = None,
        side: Side = Side.NEAR,
        context_tokens: int | None = None,
        parallel: int = 4,
        threads: int | None = None,
        compute: str = FASTEST,
        allow_fallback: bool = False,
        gpu_layers: int | None = None,
        adapters: Mapping[str, Path | str] | None = None,
        adapter: str | None = None,
        call_adapter: str | None = None,
        projector: Path | str | None = None,
        calls_folder: Path | str | None = None,
        prices: Prices | None = None,
    ) -> Self:
        """Start a worker and load `model`, a .gguf file, in it.

        `name`: the agent's name; the file's by default.
        `side`: where callers are to think this agent is; on the far side it refuses private requests.
        `context_tokens`: most tokens of one step, prompt and output together; by default what the model was trained for, at most 8192.
        `parallel`: steps that are decoded at the same time; further ones wait. They share a cache of `parallel` contexts, at most 16384
        tokens or one context, of which a step reserves its prompt and `max_output_tokens`: the whole context if it names none.
        `threads`: CPU threads; by default half of the logical CPUs that this process may use, and one below 20 million parameters.
        `compute`: what to compute on: `fastest`, `lowest_power`, or the name of a backend of llama.cpp, such as `cpu`, `cuda` or `metal`.
        The card's `execution` says what it came to. `allow_fallback`: where that backend is absent, take another one instead of failing.
        `gpu_layers`: layers of the model to keep on a GPU or NPU, where `compute` is one; -1 for all; by default as many as fit its memory.
        `adapters`: LoRA adapters for this model by name, as GGUF files; `adapter`, `call_adapter`: those of requests that name none.
        `projector`: the model's multimodal projector, a GGUF file such as `mmproj-MODEL.gguf`, with which it reads images.
        `calls_folder`: folder that keeps tool calls, from which a new worker drafts, too; by default they are forgotten with the worker.
        `prices`: by default 0 on both sides, since the model runs on this machine.

        Raises `ModelNotFound` if there is no such file, `ModelError` if it is not a usable model or an adapter is for another one,
        `ConfigError` if llama-cpp-python is not installed, a number makes no sense, or what it is to compute on is absent.
        """
        check_counts(context_tokens=context_tokens, parallel=parallel, threads=threads)
        check_default_adapters(adapter, call_adapter, adapters or {})
        path = Path(await anyio.Path(model).absolute())
        header = await anyio.to_thread.run_sync(read_header, path)
        check_installed("llama_cpp", "llguidance", extra="llama")
        options = LlamaOptions(
            path=str(path),
            context_tokens=context_tokens,
            parallel=parallel,
            threads=threads,
            compute=compute,
            allow_fallback=allow_fallback,
            gpu_layers=gpu_layers,
            adapters=await _checked_adapters(adapters or {}, path),
            projector=None if projector is None else await _checked_projector(projector),
            calls_folder=None if calls_folder is None else str(await anyio.Path(calls_folder).absolute()),
            tokens_per_second=await anyio.to_thread.run_sync(speeds_of, path),
            kv_bytes_per_token=header.kv_elements_per_token and header.kv_elements_per_token * _BYTES_PER_KV_ELEMENT,
        )
        worker, ready = await WorkerProcess.start(cls.worker_module, options)
        card = _card(name or path.stem, side, header, options, ready, prices or Prices.free("runs on this machine"))
        return cls(card, options, worker, adapter=adapter, call_adapter=call_adapter)


async def _checked_adapters(adapters: Mapping[str, Path | str], base: Path) -> dict[str, str]:
    """Return the absolute paths of adapters by name. Raises as `check_adapters` does."""
    paths = {name: Path(await anyio.Path(file).absolute()) for name, file in adapters.items()}
    await anyio.to_thread.run_sync(check_adapters, paths, base)
    return {name: str(path) for name, path in paths.items()}


async def _checked_projector(projector: Path | str) -> str:
    """Return the absolute path of a projector. Raises `ModelNotFound` or `ModelError` if it is none."""
    path = Path(await anyio.Path(projector).absolute())
    await anyio.to_thread.run_sync(check_projector, path)
    return str(path)


def _card(name: str, side: Side, header: GgufHeader, options: LlamaOptions, ready: WorkerReady, prices: Prices | None) -> AgentCard:
    return AgentCard(
        name=name,
        side=side,
        model=header.name or Path(options.path).stem,
        description=header.description or "",
        world=header.world,
        capabilities=Capabilities(
            tools=True,
            json_schema=True,
            confidence=True,
            seed=True,
            cancellation=True,
            logprobs=True,
            images=options.projector is not None,
            reasoning_limit=True,
        ),
        limits=Limits(context_tokens=ready.context_tokens, concurrency=options.parallel),
        prices=prices,
        execution=ready.execution,
        parameters=header.parameters,
        kv_bytes_per_token=options.kv_bytes_per_token,
        adapters=tuple(options.adapters),
    )
