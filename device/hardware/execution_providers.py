"""onnxruntime's execution providers, under our names.

What it calls *available* is what it was built with. Whether a provider's hardware and driver are there shows in its list of devices, as far
as the provider takes part in that list, and otherwise only when a model is loaded.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..compute import ProcessorKind
from .components import EngineProvider, Presence

_SUFFIX: Final = "ExecutionProvider"
_KNOWN: Final = {
    "CPU": ("cpu", ProcessorKind.CPU),
    "CUDA": ("cuda", ProcessorKind.GPU),
    "Tensorrt": ("tensorrt", ProcessorKind.GPU),
    "NvTensorRTRTX": ("tensorrt-rtx", ProcessorKind.GPU),
    "ROCM": ("rocm", ProcessorKind.GPU),
    "MIGraphX": ("migraphx", ProcessorKind.GPU),
    "Dml": ("directml", ProcessorKind.GPU),
    "WebGpu": ("webgpu", ProcessorKind.GPU),
    "CoreML": ("coreml", ProcessorKind.NPU),
    "QNN": ("qnn", ProcessorKind.NPU),
    "VitisAI": ("vitisai", ProcessorKind.NPU),
    "OpenVINO": ("openvino", ProcessorKind.NPU),
    "Nnapi": ("nnapi", ProcessorKind.NPU),
}
"""`Azure` is not among them: it computes in the cloud."""
_SHOWN_WHERE_ABSENT: Final = ("CUDA", "CoreML", "QNN", "OpenVINO", "WebGpu")
"""Those that people ask for by name."""


class ProviderDevice(NamedTuple):
    """One entry of onnxruntime's list of devices."""

    provider: str
    """As onnxruntime writes it."""
    kind: ProcessorKind
    device: str


def execution_providers(built_with: Sequence[str], devices: Sequence[ProviderDevice]) -> Iterator[EngineProvider]:
    """What can be said of each provider."""
    for short, (name, kind) in _KNOWN.items():
        full = short + _SUFFIX
        found = [entry for entry in devices if entry.provider == full]
        for entry in found:
            reason = "in onnxruntime's own list of devices"
            yield EngineProvider(presence=Presence.PRESENT, reason=reason, name=name, kind=entry.kind, device=entry.device)
        if not found and full in built_with:
            needs_driver = kind is not ProcessorKind.CPU
            presence = Presence.UNKNOWN if needs_driver else Presence.PRESENT
            reason = "built in; whether its driver works shows when a model is loaded" if needs_driver else "part of onnxruntime"
            yield EngineProvider(presence=presence, reason=reason, name=name, kind=kind)
        elif not found and short in _SHOWN_WHERE_ABSENT:
            yield EngineProvider(presence=Presence.ABSENT, reason="not in this build", name=name, kind=kind)
