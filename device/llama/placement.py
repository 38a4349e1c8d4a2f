"""Place a model's layers: on which devices, and how many of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...protocols import ConfigError
from ..compute import CPU, FASTEST, LOWEST_POWER, ProcessorKind, Provider, choose_provider
from ..gguf import GgufHeader, model_parts, read_header
from ..worker.protocol import DEFAULT_CONTEXT_TOKENS
from .backends import BackendDevice
from .options import LlamaOptions, cache_cells

ALL_LAYERS: Final = -1
_FOR_COMPUTING: Final = 0.15
"""Share of a GPU's free memory that is left for llama.cpp's intermediate results and for what else draws on it."""
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
    fitting = int(free * (1 - _FOR_COMPUTING) / per_layer)
    return ALL_LAYERS if fitting > layers else fitting
