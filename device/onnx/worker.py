"""The worker process of onnxruntime-genai: `python -m nearfar.device.onnx.worker`, started as `worker.serving` says."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ...protocols import ConfigError, Execution, ModelError
from ..hardware.processors import CPU, choose_provider, limited_memory, threads_for
from ..hardware.state import free_memory_bytes
from ..profiles import measuring_of, speeds_of
from ..worker.protocol import DEFAULT_CONTEXT_TOKENS, WorkerReady
from ..worker.scheduler import Scheduler
from ..worker.serving import serve_parent
from . import OnnxOptions
from .folder import OnnxFolder, read_folder
from .from_gguf import adapter_matrices, write_folder
from .model import OnnxAdapters, OnnxContext, OnnxModel, check_adapters, providers, really_running, write_adapter

_RUNTIME_BYTES: Final = 2 << 30
"""Address space for onnxruntime's threads and arenas, more than they use."""


def load(values: dict[str, Any]) -> tuple[Scheduler, WorkerReady]:
    """Load the model and make its scheduler.

    Raises `ModelError` if it cannot be loaded, `ConfigError` if the processor it is to compute on is absent.
    """
    options = OnnxOptions(**values)
    with TemporaryDirectory(prefix="nearfar-") as converted:
        return _load(options, _convert(options, Path(converted)) if Path(options.path).is_file() else options)


def _convert(options: OnnxOptions, target: Path) -> OnnxOptions:
    """Write a GGUF file and its adapters as onnxruntime-genai runs them; return the options that name what was written."""
    write_folder(Path(options.path), target, lora=bool(options.adapters))
    adapters = {name: str(target / f"{number}.onnx_adapter") for number, name in enumerate(options.adapters)}
    for name, path in adapters.items():
        write_adapter(Path(path), adapter_matrices(Path(options.adapters[name])))
    return replace(options, path=str(target), adapters=adapters)


def _load(given: OnnxOptions, options: OnnxOptions) -> tuple[Scheduler, WorkerReady]:
    """Load what `options` name. What was measured before is kept under the path that was given."""
    path = Path(given.path)
    folder = read_folder(Path(options.path))
    tokens = options.context_tokens or min(folder.context_tokens, DEFAULT_CONTEXT_TOKENS)
    choice = choose_provider(
        providers(),
        options.compute,
        allow_fallback=options.allow_fallback,
        parameters=folder.parameters,
        tokens_per_second=speeds_of(path),
    )
    model, context, execution = _open(options, folder, tokens, choice.provider.name)
    measuring = measuring_of(path, execution, kv_bytes_per_token=folder.kv_bytes_per_token)
    scheduler = Scheduler(model, context, context_tokens=tokens, parallel=options.parallel, measuring=measuring)
    return scheduler, WorkerReady(context_tokens=tokens, execution=execution)


def _open(options: OnnxOptions, folder: OnnxFolder, tokens: int, provider: str) -> tuple[OnnxModel, OnnxContext, Execution]:
    """Load the model on `provider`, or on the CPU if that fails and the provider was not asked for by name, or a fallback is allowed."""
    binding = options.compute == provider and not options.allow_fallback
    try:
        opened = _open_on(provider, options, folder, tokens)
    except ModelError:
        if binding or provider == CPU:
            raise
        return _open_on(CPU, options, folder, tokens)
    if binding and opened[2].provider != provider:
        message = f"the provider {provider!r} was asked for, but {opened[2].provider!r} runs the model"
        raise ConfigError(message, hint="name that one in compute, or set allow_fallback = true")
    return opened


def _open_on(provider: str, options: OnnxOptions, folder: OnnxFolder, tokens: int) -> tuple[OnnxModel, OnnxContext, Execution]:
    threads = options.threads or threads_for(folder.parameters).single
    # A GPU's driver reserves address space without end.
    with limited_memory(_room(folder, tokens * options.parallel)) if provider == CPU else nullcontext():
        model = OnnxModel(Path(options.path), folder, provider=provider, threads=threads)
        adapters = OnnxAdapters(model.handle, options.adapters, folder.adapter_inputs)
        context = OnnxContext(model, tokens=tokens, sequences=options.parallel, adapters=adapters)
        execution = really_running(context, layers=folder.layers, threads=threads, vocabulary=folder.vocabulary)
        check_adapters(context, options.adapters)
    return model, context, execution


def _room(folder: OnnxFolder, cells: int) -> int:
    """Return the bytes that loading may take. Raises `ModelError` if model and caches cannot fit."""
    needed, free = folder.size + cells * (folder.kv_bytes_per_token or 0), free_memory_bytes()
    if free is not None and needed > free:
        message = f"the model and a context of {cells} tokens need {needed >> 20} MiB, and {free >> 20} MiB of memory are free"
        raise ModelError(message, hint="give a smaller context_tokens or parallel")
    return 4 * needed + _RUNTIME_BYTES


if __name__ == "__main__":
    serve_parent(load)
