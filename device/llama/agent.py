"""`LlamaAgent`: any GGUF model as an agent, run by llama.cpp in a process of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import anyio

from ...protocols import AgentCard, Capabilities, Limits, Prices, Side
from ..compute import FASTEST
from ..gguf import GgufHeader, check_adapters, read_header
from ..profiles import speeds_of
from ..worker.agent import LocalAgent, check_counts, check_default_adapters, check_installed
from ..worker.process import WorkerProcess
from ..worker.protocol import WorkerReady
from .options import LlamaOptions

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
        """Read and check the file's header."""
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
        prices: Prices | None = None,
    ) -> Self:
        """Start a worker and load `model`, a .gguf file, in it.

        `name`: the agent's name; the file's by default.
        `side`: where callers are to think this agent is; on the far side it refuses private requests.
        `context_tokens`: most tokens of one step, prompt and output together; by default what the model was trained for, at most 8192.
        `parallel`: steps that are decoded at the same time; further ones wait. A step reserves its prompt and `max_output_tokens`, the
        whole context if it names none, of a cache that holds `parallel` contexts, but no more than 16384 tokens or one context: with a
        large context, steps run side by side only if they limit their output.
        `threads`: CPU threads; by default one for every two logical CPUs that this process may use, up to all physical cores for batches
        where that is faster, and a single one for a model below 20 million parameters.
        `compute`: what to compute on: `fastest`, `lowest_power`, or the name of a backend of llama.cpp, such as `cpu`, `cuda` or `metal`.
        The card's `execution` says what it came to.
        `allow_fallback`: where that backend is absent, take another one instead of failing.
        `gpu_layers`: layers of the model to keep on a GPU or NPU, where `compute` is one; -1 for all; by default as many as fit its memory.
        `adapters`: LoRA adapters for this model by name, as GGUF files; `StepRequest.adapter` and `call_adapter` choose among them.
        `adapter`, `call_adapter`: those of requests that name none.
        `prices`: by default 0 on both sides, since the model runs on this machine.

        Raises `ModelNotFound` if there is no such file, `ModelError` if it is not a usable model or an adapter is for another one,
        `ConfigError` if llama-cpp-python is not installed, a number makes no sense, or what it is to compute on is absent.
        """
        check_installed("llama_cpp", "llguidance", extra="llama")
        check_counts(context_tokens=context_tokens, parallel=parallel, threads=threads)
        check_default_adapters(adapter, call_adapter, adapters or {})
        path = Path(await anyio.Path(model).absolute())
        header = await anyio.to_thread.run_sync(read_header, path)
        adapter_paths = {adapter: Path(await anyio.Path(file).absolute()) for adapter, file in (adapters or {}).items()}
        await anyio.to_thread.run_sync(check_adapters, adapter_paths, path)
        options = LlamaOptions(
            path=str(path),
            context_tokens=context_tokens,
            parallel=parallel,
            threads=threads,
            compute=compute,
            allow_fallback=allow_fallback,
            gpu_layers=gpu_layers,
            adapters={adapter: str(file) for adapter, file in adapter_paths.items()},
            tokens_per_second=await anyio.to_thread.run_sync(speeds_of, path),
            kv_bytes_per_token=header.kv_elements_per_token and header.kv_elements_per_token * _BYTES_PER_KV_ELEMENT,
        )
        worker, ready = await WorkerProcess.start(cls.worker_module, options)
        card = _card(name or path.stem, side, header, options, ready, prices or Prices.free("runs on this machine"))
        return cls(card, options, worker, adapter=adapter, call_adapter=call_adapter)


def _card(name: str, side: Side, header: GgufHeader, options: LlamaOptions, ready: WorkerReady, prices: Prices | None) -> AgentCard:
    return AgentCard(
        name=name,
        side=side,
        model=header.name or Path(options.path).stem,
        description=header.description or "",
        world=header.world,
        capabilities=Capabilities(tools=True, json_schema=True, confidence=True, seed=True, cancellation=True),
        limits=Limits(context_tokens=ready.context_tokens, concurrency=options.parallel),
        prices=prices,
        execution=ready.execution,
        parameters=header.parameters,
        kv_bytes_per_token=options.kv_bytes_per_token,
        adapters=tuple(options.adapters),
    )
