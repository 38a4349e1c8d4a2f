"""The processors that this build of llama.cpp can compute on, the choice of those that a model's layers go to, and llama.cpp's log of it.

The processors come from ggml's device registry, which llama-cpp-python does not bind. Importing this module loads llama.cpp and every
driver that it was built for, which can take the process down: workers and probes are processes of their own.
"""

import ctypes
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import llama_cpp
from llama_cpp._ggml import libggml

from ...protocols import ConfigError, Execution
from ..gguf import GgufHeader, model_parts, read_header
from ..hardware.processors import CPU, FASTEST, LOWEST_POWER, ProcessorKind, Provider, choose_provider
from ..worker.protocol import DEFAULT_CONTEXT_TOKENS
from . import LlamaOptions, cache_cells

ENGINE: Final = "llama.cpp"
_KINDS: Final = (ProcessorKind.CPU, ProcessorKind.GPU, ProcessorKind.INTEGRATED_GPU)
"""By `ggml_backend_dev_type`. What follows there are helpers of the CPU, such as BLAS, and bundles of devices."""
_ALIASES: Final = {"mtl": "metal", "htp": "hexagon"}
_OTHER_KINDS: Final = {"metal": ProcessorKind.INTEGRATED_GPU, "hexagon": ProcessorKind.NPU}
"""Apple's and Qualcomm's processors register as plain GPUs."""
_REMOTE: Final = "rpc"
"""Another machine's processor: what is computed there leaves the device."""


class _Handle(ctypes.c_void_p):
    """ctypes turns a plain `c_void_p` into an integer, which it would then cut to 32 bits as an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDevice:
    """One processor as ggml knows it."""

    handle: int
    name: str
    """Its name in llama.cpp's log: `CUDA0`."""
    description: str
    provider: str
    """Its backend, in lower case: `cuda`."""
    kind: ProcessorKind
    free_memory: Callable[[], int]
    """Return the free bytes. The question itself takes some of a GPU's memory, so ask only a device that is used."""

    def as_provider(self) -> Provider:
        """Return the provider that this device belongs to."""
        return Provider(name=self.provider, kind=self.kind, device=self.description)


@cache
def backend_devices() -> tuple[BackendDevice, ...]:
    """Return all processors of this machine that llama.cpp can use."""
    return tuple(_devices())


def _devices() -> Iterator[BackendDevice]:
    for index in range(_call("dev_count", result=ctypes.c_size_t)):
        handle = _call("dev_get", ctypes.c_size_t(index))
        kind = _call("dev_type", handle, result=ctypes.c_int)
        family = _text("reg_name", _call("dev_backend_reg", handle)).lower()
        provider = _ALIASES.get(family, family)
        if provider != _REMOTE and kind < len(_KINDS):
            yield BackendDevice(
                handle=handle.value,
                name=_text("dev_name", handle),
                description=_text("dev_description", handle),
                provider=provider,
                kind=_OTHER_KINDS.get(provider, _KINDS[kind]),
                free_memory=partial(_free_memory, handle),
            )


def _free_memory(device: ctypes.c_void_p) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("dev_memory", device, ctypes.byref(free), ctypes.byref(total), result=None)
    return free.value


def _text(name: str, handle: ctypes.c_void_p) -> str:
    text: bytes = _call(name, handle, result=ctypes.c_char_p)
    return text.decode("utf-8", "replace").strip()


def _call(name: str, *arguments: Any, result: Any = _Handle) -> Any:  # noqa: ANN401 - a foreign function
    function = libggml[f"ggml_backend_{name}"]
    function.restype = result
    return function(*arguments)


def execution_of(
    layers: Sequence[str] | None, devices: Sequence[BackendDevice], *, threads: int, extra_buffers_off: str = ""
) -> Execution | None:
    """Describe the execution of a model whose `layers` llama.cpp has put on the devices of these names; None if its log did not say.

    The provider is the one that has most of the layers that left the CPU.
    """
    by_name = {device.name: device for device in devices}
    if layers is None or not all(name in by_name for name in layers):
        return None
    offloaded = [name for name in layers if by_name[name].kind is not ProcessorKind.CPU]
    busiest = by_name[max(set(offloaded), key=offloaded.count)] if offloaded else None
    device = busiest or next((device for device in devices if device.kind is ProcessorKind.CPU), None)
    return Execution(
        engine=ENGINE,
        provider=CPU if busiest is None else busiest.provider,
        device="" if device is None else device.description,
        layers=len(layers),
        offloaded_layers=len(offloaded),
        threads=threads,
        extra_buffers_off=extra_buffers_off,
    )


ALL_LAYERS: Final = -1
_FOR_COMPUTING: Final = 0.15
"""Share of a GPU's free memory that is left for llama.cpp's intermediate results and for what else draws on it."""
_LEAST_FOR_COMPUTING: Final = 256 << 20
"""Bytes that are left at least: the kernels and workspaces of CUDA's libraries take more than 100 MiB, whatever the model."""
_POLICIES: Final = (FASTEST, LOWEST_POWER)


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices and number of layers, as llama.cpp is told."""

    devices: tuple[BackendDevice, ...] = ()
    """None but the CPU where empty: llama.cpp would otherwise hand long prompts to a GPU even where no layer is on it."""
    layers: int = 0
    """Number of the model's last layers that go to the devices; `ALL_LAYERS`: each."""


CPU_ONLY: Final = Placement()


def place(options: LlamaOptions, devices: Sequence[BackendDevice]) -> Placement:
    """Choose among the devices what the options ask for.

    Raises `ConfigError` where that is absent or has no room, and no fallback is allowed.
    """
    if len(devices) == 1 and options.compute in (*_POLICIES, CPU) and not options.gpu_layers:
        return CPU_ONLY
    header = read_header(Path(options.path))  # only if there is a choice: it takes a while with a large vocabulary
    provider = _provider(options, header, devices)
    if provider.kind is ProcessorKind.CPU or options.gpu_layers == 0:
        return CPU_ONLY
    chosen = tuple(device for device in devices if device.provider == provider.name)
    layers = options.gpu_layers if options.gpu_layers is not None else _layers_for(options, header, chosen)
    if not layers and options.compute == provider.name and not options.allow_fallback:
        hint = "close other programs that use it, take a smaller model or context, or set allow_fallback = true"
        raise ConfigError(f"{provider.name} has not enough free memory for one layer of this model", hint=hint)
    return Placement(chosen, layers) if layers else CPU_ONLY


def may_fall_back(options: LlamaOptions) -> bool:
    """Tell if the options let a model run on the CPU where a GPU does not take it."""
    return options.allow_fallback or (options.gpu_layers is None and options.compute in _POLICIES)


def _provider(options: LlamaOptions, header: GgufHeader, devices: Sequence[BackendDevice]) -> Provider:
    choice = choose_provider(
        [device.as_provider() for device in devices],
        options.compute,
        allow_fallback=options.allow_fallback,
        tokens_per_second=options.tokens_per_second,
        parameters=header.parameters if options.gpu_layers is None else None,
    )
    takes_layers = choice.provider.kind is not ProcessorKind.CPU
    is_free = options.allow_fallback or options.gpu_layers is None or (options.gpu_layers == 0 and options.compute in _POLICIES)
    if not is_free and takes_layers != bool(options.gpu_layers):
        hint = "leave gpu_layers out, or set allow_fallback = true; `nearfar doctor` says which GPUs there are"
        raise ConfigError(f"gpu_layers is {options.gpu_layers}, but the model would run on {choice.provider.name}", hint=hint)
    return choice.provider


def _layers_for(options: LlamaOptions, header: GgufHeader, devices: Sequence[BackendDevice]) -> int:
    tokens = options.context_tokens or min(header.context_tokens or DEFAULT_CONTEXT_TOKENS, DEFAULT_CONTEXT_TOKENS)
    return layers_that_fit(
        sum(device.free_memory() for device in devices),
        model_bytes=sum(part.stat().st_size for part in model_parts(Path(options.path))),
        cache_bytes=cache_cells(tokens, options.parallel) * (options.kv_bytes_per_token or 0),
        layers=header.layers,
    )


def layers_that_fit(free: int, *, model_bytes: int, cache_bytes: int, layers: int | None) -> int:
    """Return how many layers a GPU with `free` bytes takes; `ALL_LAYERS` if all fit, or a size is unknown.

    All layers count as equally large, and the output layer as one more of them. Each brings its share of the cache with it.
    """
    if not free or not layers:
        return ALL_LAYERS
    per_layer = model_bytes / (layers + 1) + cache_bytes / layers
    fitting = max(0, int((free - max(free * _FOR_COMPUTING, _LEAST_FOR_COMPUTING)) / per_layer))
    return ALL_LAYERS if fitting > layers else fitting


_ERROR_LEVEL: Final = 4
_ASSIGNED: Final = re.compile(rb"layer\s+(\d+) assigned to device ([^\s,]+)")

_errors: deque[str] = deque(maxlen=20)
_layers: dict[int, str] = {}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a ctypes prototype
def _keep(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if level == _ERROR_LEVEL:
        _errors.append(text.decode("utf-8", "replace").strip())
    elif (assigned := _ASSIGNED.search(text)) is not None:
        _layers[int(assigned[1])] = assigned[2].decode("utf-8", "replace")


def keep_log() -> None:
    """Take llama.cpp's log from here on; nothing of it is printed."""
    llama_cpp.llama_log_set(_keep, ctypes.c_void_p(0))


def explanation() -> str:
    """Return llama.cpp's own last words, the most telling line first, and forget them: what fails next has other reasons."""
    lines = [*_errors]
    _errors.clear()
    for line in lines:
        if "error loading model:" in line:
            return line.split("error loading model:", 1)[1].strip()
    return lines[-1] if lines else "llama.cpp gave no reason"


def layer_devices(layers: int) -> list[str] | None:
    """Return the device that llama.cpp put each of a model's `layers` on, when it last loaded one; None if its log does not say."""
    devices = [_layers.get(layer) for layer in range(layers)]
    return None if None in devices else [device for device in devices if device is not None]
