"""The worker process of llama.cpp: `python -m nearfar.device.llama.worker`, started as `worker.serving` says."""

import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from ...protocols import ModelError
from ..gguf import model_parts
from ..hardware.processors import Threads, limited_memory, threads_for
from ..hardware.state import free_memory_bytes
from ..profiles import measuring_of
from ..worker.drafting import Drafting
from ..worker.protocol import DEFAULT_CONTEXT_TOKENS, WorkerReady
from ..worker.scheduler import Scheduler
from ..worker.serving import serve_parent
from . import LlamaOptions, cache_cells
from .devices import CPU_ONLY, BackendDevice, Placement, backend_devices, execution_of, layer_devices, may_fall_back, place
from .extra_buffers import extra_buffers
from .model import LlamaAdapters, LlamaContext, LlamaModel, start_backend

if TYPE_CHECKING:
    from .vision import LlamaImages

_logger = logging.getLogger(__name__)

_SPARE_BYTES: Final = 4 << 30
"""Address space for what the file's size does not tell: intermediate results, the vocabulary, adapters."""
_THREAD_BYTES: Final = 128 << 20
"""Address space that a thread takes for its stack and its arena of the C library, whatever it uses of them."""
_ROUNDING: Final = 0.1
"""Difference between a logit of a pass of one token and of one of several. On one thread of an x86 CPU they are equal to the last bit."""
_ANOTHER_KERNEL: Final = 0.6
"""Difference if single tokens have a kernel of their own, as on GPUs. Two threads that share one token's long context reach 0.3."""


def load(values: dict[str, Any]) -> tuple[Scheduler, WorkerReady]:
    """Load the model and make its scheduler.

    Raises `ModelError` if it cannot be loaded, `ConfigError` if the processor it is to compute on is absent.
    """
    options = LlamaOptions(**values)
    buffers = extra_buffers()  # before memory is limited: a child would inherit the limit
    start_backend()
    devices = backend_devices()
    placement = place(options, devices)
    try:
        return _open(options, placement, devices, extra_buffers_off=buffers.reason)
    except ModelError as error:  # another program may have taken the GPU's memory meanwhile
        if not placement.layers or not may_fall_back(options):
            raise
        _logger.warning("%s runs on the CPU, since the GPU did not take it: %s", options.path, error)
    return _open(options, CPU_ONLY, devices, extra_buffers_off=buffers.reason)


def _open(
    options: LlamaOptions, placement: Placement, devices: Sequence[BackendDevice], *, extra_buffers_off: str
) -> tuple[Scheduler, WorkerReady]:
    """Load the model onto the processors of a placement, and make its scheduler. Raises `ModelError` if it cannot be loaded there."""
    # Drivers of GPUs map far more than they use.
    with nullcontext() if placement.layers else limited_memory(_room(Path(options.path))):
        model = LlamaModel(options.path, placement)
        tokens = options.context_tokens or min(model.trained_context_tokens, DEFAULT_CONTEXT_TOKENS)
        cells = cache_cells(tokens, options.parallel)
        threads = Threads(options.threads, options.threads) if options.threads else threads_for(model.parameters)
        if not placement.layers:
            _check_memory(cells, options.kv_bytes_per_token or 0)
        adapters = LlamaAdapters(model.handle, options.adapters)
        try:
            context = LlamaContext(model, cells=cells, sequences=options.parallel, threads=threads, adapters=adapters)
        except ModelError:
            model.free()
            raise
        images = _images(options, model, context, threads=threads.batch, on_gpu=bool(placement.layers))
    execution = execution_of(layer_devices(model.layers), devices, threads=threads.single, extra_buffers_off=extra_buffers_off)
    measuring = measuring_of(Path(options.path), execution, kv_bytes_per_token=options.kv_bytes_per_token)
    tolerance = _ANOTHER_KERNEL if placement.layers or threads.single > 1 else _ROUNDING
    folder = None if options.calls_folder is None else Path(options.calls_folder)
    drafting = Drafting(model.vocabulary, tolerance=tolerance, folder=folder) if model.forgets else None
    scheduler = Scheduler(
        model, context, context_tokens=tokens, parallel=options.parallel, measuring=measuring, drafting=drafting, images=images
    )
    return scheduler, WorkerReady(context_tokens=tokens, execution=execution)


def _images(options: LlamaOptions, model: LlamaModel, context: LlamaContext, *, threads: int, on_gpu: bool) -> "LlamaImages | None":
    """Load the projector, if one is configured. Raises `ModelError` if it is none of this model's."""
    if options.projector is None:
        return None
    from .vision import LlamaImages  # it loads a library that only projectors need

    return LlamaImages(options.projector, model, context, threads=threads, on_gpu=on_gpu)


def _room(path: Path) -> int:
    """Return the address space that a sound model may take: its file, once more as llama.cpp may rearrange it, and all free memory for
    its cache."""
    weights = sum(file.stat().st_size for file in model_parts(path))
    free = free_memory_bytes() or psutil.virtual_memory().total
    return 2 * weights + free + _SPARE_BYTES + _THREAD_BYTES * (os.cpu_count() or 1)


def _check_memory(cells: int, bytes_per_cell: int) -> None:
    """Raise `ModelError` if the cache cannot fit: to find out by filling the memory would end other processes, too."""
    needed, free = cells * bytes_per_cell, free_memory_bytes()
    if free is not None and needed > free:
        message = f"a context of {cells} tokens needs {needed >> 20} MiB, and {free >> 20} MiB of memory are free"
        raise ModelError(message, hint="give a smaller context_tokens or parallel")


if __name__ == "__main__":
    serve_parent(load)
