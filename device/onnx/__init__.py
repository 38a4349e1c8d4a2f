"""`OnnxAgent`: a folder of onnxruntime-genai as an agent, run in a process of its own, with the options and providers of that process.

onnxruntime calls a provider *available* if it was built in. Loading a model shows whether the provider's hardware and driver are present,
unless the provider stands in onnxruntime's list of devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, Self

import anyio

from ...protocols import AgentCard, Capabilities, Limits, ModelNotFound, Prices, Side
from ..gguf import check_adapters
from ..hardware.processors import FASTEST, ProcessorKind
from ..worker import LocalAgent, check_counts, check_default_adapters, check_installed
from ..worker.process import WorkerProcess
from ..worker.protocol import DEFAULT_CONTEXT_TOKENS, WorkerOptions, WorkerReady
from .folder import OnnxFolder, describe_gguf, read_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions(WorkerOptions):
    """Options that the agent gives to its worker process."""

    compute: str
    """`fastest`, `lowest_power`, or a provider's name."""
    allow_fallback: bool
    """Take another provider where that one is absent."""
    adapters: Mapping[str, str]
    """Paths of LoRA adapters by name."""


class ExecutionProvider(NamedTuple):
    """One of them."""

    genai: str
    """Its name in onnxruntime-genai."""
    full: str
    """Its name in onnxruntime."""
    kind: ProcessorKind
    """The kind of processor that it mostly computes on."""


PROVIDERS: Final = {
    "coreml": ExecutionProvider("CoreML", "CoreMLExecutionProvider", ProcessorKind.NPU),
    "cuda": ExecutionProvider("cuda", "CUDAExecutionProvider", ProcessorKind.GPU),
    "directml": ExecutionProvider("dml", "DmlExecutionProvider", ProcessorKind.GPU),
    "openvino": ExecutionProvider("OpenVINO", "OpenVINOExecutionProvider", ProcessorKind.INTEGRATED_GPU),
    "qnn": ExecutionProvider("QNN", "QNNExecutionProvider", ProcessorKind.NPU),
    "tensorrt": ExecutionProvider("NvTensorRtRtx", "NvTensorRTRTXExecutionProvider", ProcessorKind.GPU),
    "vitisai": ExecutionProvider("VitisAI", "VitisAIExecutionProvider", ProcessorKind.NPU),
    "webgpu": ExecutionProvider("WebGPU", "WebGpuExecutionProvider", ProcessorKind.GPU),
}


def short_name(full: str) -> str:
    """Return our name of a provider of onnxruntime."""
    ours = next((name for name, provider in PROVIDERS.items() if provider.full == full), None)
    return ours or full.removesuffix("ExecutionProvider").lower()


_MOST_CELLS: Final = 16384
"""Tokens that the caches of all steps together hold, unless one context alone is larger."""


class OnnxAgent(LocalAgent):
    """An agent on a folder that onnxruntime-genai runs. Make one with `load`, and close it with `aclose` or `async with`.

    The same request with the same seed gets the same reply: no step shares a pass with another.
    """

    worker_module = "nearfar.device.onnx.worker"

    @staticmethod
    def check_model(path: Path) -> None:
        """Look through the folder, or the file, at `path`."""
        read_model(path)

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
        adapters: Mapping[str, Path | str] | None = None,
        adapter: str | None = None,
        call_adapter: str | None = None,
        prices: Prices | None = None,
    ) -> Self:
        """Start a worker and load `model`, a folder with a genai_config.json, in it.

        `model` may also be the GGUF file of a model that ships with nearfar, which the worker converts; its adapters then are GGUF files.
        `name`: the agent's name; the folder's by default.
        `side`: where callers are to think this agent is; on the far side it refuses private requests.
        `context_tokens`: most tokens of one step, prompt and output together; by default what the model was made for, at most 8192.
        `parallel`: steps that advance side by side, each with a cache for a whole context; fewer where those would be more than 16384
        tokens together. Further steps wait.
        `threads`: CPU threads; by default one for every two logical CPUs that this process may use, and a single one for a model below
        20 million parameters.
        `compute`: what to compute on: `fastest`, `lowest_power`, or the name of an execution provider of onnxruntime, such as `cpu`, `cuda`
        or `qnn`. The card's `execution` says what it came to.
        `allow_fallback`: where that provider is absent, or does not run this model, take another one instead of failing.
        `adapters`: LoRA adapters for this model by name: .onnx_adapter files, among which `StepRequest.adapter` and `call_adapter` choose.
        `adapter`, `call_adapter`: those of requests that name none.
        `prices`: by default 0 on both sides, since the model runs on this machine.

        Raises `ModelNotFound` if there is no such folder, `ModelError` if it is not a usable model or an adapter is for another one,
        `ConfigError` if onnxruntime-genai is not installed, a number makes no sense, or what it is to compute on is absent or does not run
        the model.
        """
        check_installed("onnxruntime_genai", "llguidance", "tokenizers", extra="onnx")
        check_counts(context_tokens=context_tokens, parallel=parallel, threads=threads)
        path = Path(await anyio.Path(model).absolute())
        check_default_adapters(adapter, call_adapter, adapters or {})
        folder = await anyio.to_thread.run_sync(read_model, path)
        adapter_paths = {adapter: await _adapter_path(file) for adapter, file in (adapters or {}).items()}
        if path.is_file():
            await anyio.to_thread.run_sync(check_adapters, adapter_paths, path)
        tokens = context_tokens or min(folder.context_tokens, DEFAULT_CONTEXT_TOKENS)
        options = OnnxOptions(
            path=str(path),
            context_tokens=tokens,
            parallel=max(1, min(parallel, _MOST_CELLS // tokens)),
            threads=threads,
            compute=compute,
            allow_fallback=allow_fallback,
            adapters={adapter: str(file) for adapter, file in adapter_paths.items()},
        )
        worker, ready = await WorkerProcess.start(cls.worker_module, options)
        title = name or (path.stem if path.is_file() else path.name)
        card = _card(title, side, folder, options, ready, prices or Prices.free("runs on this machine"))
        return cls(card, options, worker, adapter=adapter, call_adapter=call_adapter)


def read_model(path: Path) -> OnnxFolder:
    """Describe a folder, or a GGUF file to convert. Raises as `read_folder` and `describe_gguf` do."""
    if not path.is_file():
        return read_folder(path)
    folder = describe_gguf(path)
    why = ", since llama.cpp is not installed" if find_spec("llama_cpp") is None else ""
    return replace(folder, description=f"{folder.description or ''} Run by onnxruntime{why}.".strip())


async def _adapter_path(file: Path | str) -> Path:
    path = Path(await anyio.Path(file).absolute())
    if not path.is_file():
        raise ModelNotFound(f"there is no adapter {path}", hint="check the path, or download the adapter first")
    return path


def _card(name: str, side: Side, folder: OnnxFolder, options: OnnxOptions, ready: WorkerReady, prices: Prices | None) -> AgentCard:
    return AgentCard(
        name=name,
        side=side,
        model=folder.name or name,
        description=folder.description or "",
        world=folder.world,
        capabilities=Capabilities(
            tools=True, json_schema=True, confidence=True, seed=True, cancellation=True, logprobs=True, reasoning_limit=True
        ),
        limits=Limits(context_tokens=ready.context_tokens, concurrency=options.parallel),
        prices=prices,
        execution=ready.execution,
        parameters=folder.parameters or None,
        kv_bytes_per_token=folder.kv_bytes_per_token,
        adapters=tuple(options.adapters),
    )
