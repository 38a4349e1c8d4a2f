"""Choose the processor that a model computes on: by what is fastest, by what draws least power, or by name.

A *provider* is one way in which an engine computes: a backend of llama.cpp, an execution provider of onnxruntime. Each engine lists the
providers that it has on this machine (`llama/devices.py`, `onnx/model.py`); `choose_provider` picks one of that list.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from ..protocols import ConfigError
from ..protocols.steps import Value

FASTEST: Final = "fastest"
LOWEST_POWER: Final = "lowest_power"
CPU: Final = "cpu"


class ProcessorKind(StrEnum):
    """The kind of processor that a provider runs on."""

    CPU = "cpu"
    GPU = "gpu"
    """With memory of its own."""
    INTEGRATED_GPU = "integrated_gpu"
    """Shares the memory, and the power budget, of the CPU."""
    NPU = "npu"


class Provider(Value):
    """One way to compute that an engine has on this machine."""

    name: str
    """In lower case, as in `Execution.provider`: `cpu`, `cuda`, `metal` ..."""
    kind: ProcessorKind
    device: str = ""
    """The processor's own name, where the engine tells it."""


class ProviderChoice(Value):
    """A provider, and why it."""

    provider: Provider
    reason: str


_PREFERRED: Final = (
    "tensorrt",
    "cuda",
    "rocm",
    "migraphx",
    "metal",
    "coreml",
    "directml",
    "vulkan",
    "sycl",
    "opencl",
    "webgpu",
    "openvino",
    "qnn",
    "vitisai",
    "hexagon",
    "nnapi",
)
"""Providers from fast to slow, for machines without measurements. A vendor's own library goes before a portable one, and a GPU before an
NPU: decoding is bound by memory, and NPUs read the CPU's. Providers that are not named here follow; the CPU is last."""
_TINY_MODEL: Final = 20_000_000
"""Weights below which a pass takes less time on the CPU than a GPU needs to start its kernels."""
_FRUGAL: Final = (ProcessorKind.NPU, ProcessorKind.INTEGRATED_GPU, ProcessorKind.CPU, ProcessorKind.GPU)
"""From little power to much. A card of its own idles at what a laptop's CPU draws under load."""


def choose_provider(
    present: Sequence[Provider],
    wanted: str,
    *,
    allow_fallback: bool = False,
    tokens_per_second: Mapping[str, float] | None = None,
    parameters: int | None = None,
) -> ProviderChoice:
    """Choose the provider that `wanted` asks for: `fastest`, `lowest_power` or a provider's name.

    `allow_fallback`: if a named provider is absent, take the fastest of the others instead of failing.
    `tokens_per_second`: measured speeds of this model, by provider. `fastest` uses them if at least two of the providers present have
    one.
    `parameters`: weights of the model, whose size decides if nothing was measured.

    Raises `ConfigError` for a provider that is absent.
    """
    if wanted == FASTEST:
        return _fastest(present, tokens_per_second or {}, parameters)
    if wanted == LOWEST_POWER:
        provider = min(present, key=lambda each: (_FRUGAL.index(each.kind), _rank(each)))
        return ProviderChoice(provider=provider, reason=f"of {_names(present)}, a {_word(provider.kind)} draws least power")
    named = next((provider for provider in present if provider.name == wanted), None)
    if named is not None:
        return ProviderChoice(provider=named, reason="asked for by name")
    if not allow_fallback:
        hint = f"use one of those present, {_names(present)}, or set allow_fallback = true; `nearfar doctor` says why {wanted} is missing"
        raise ConfigError(f"{wanted!r} is not available on this machine", hint=hint)
    fallback = _fastest(present, tokens_per_second or {}, parameters)
    return ProviderChoice(provider=fallback.provider, reason=f"{wanted} is absent and fallback is allowed; {fallback.reason}")


def _fastest(present: Sequence[Provider], tokens_per_second: Mapping[str, float], parameters: int | None) -> ProviderChoice:
    measured = [provider for provider in present if provider.name in tokens_per_second]
    if len(measured) > 1:
        provider = max(measured, key=lambda each: tokens_per_second[each.name])
        return ProviderChoice(
            provider=provider, reason=f"measured: {tokens_per_second[provider.name]:.1f} tokens/s, the most of {_names(measured)}"
        )
    cpu = next((provider for provider in present if provider.kind is ProcessorKind.CPU), None)
    if cpu is not None and parameters is not None and parameters < _TINY_MODEL:
        return ProviderChoice(provider=cpu, reason=f"with {parameters / 1e6:.1f} million weights, too small a model to gain from another")
    provider = min(present, key=_rank)
    reason = "the only one" if len(present) == 1 else f"of {_names(present)}, expected to be the fastest"
    return ProviderChoice(provider=provider, reason=reason)


def _rank(provider: Provider) -> int:
    if provider.kind is ProcessorKind.CPU:
        return len(_PREFERRED) + 1
    return _PREFERRED.index(provider.name) if provider.name in _PREFERRED else len(_PREFERRED)


def _names(providers: Sequence[Provider]) -> str:
    return ", ".join(dict.fromkeys(provider.name for provider in providers))


def _word(kind: ProcessorKind) -> str:
    return {ProcessorKind.CPU: "CPU", ProcessorKind.NPU: "NPU"}.get(kind, "GPU")
