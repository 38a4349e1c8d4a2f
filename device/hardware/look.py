"""One look through a driver: `python -m nearfar.device.hardware.look WHAT`, for an engine or `nvml`, prints it as JSON.

It loads the engine with every driver that it was built for, any of which may crash or hang, so it has a process of its own. It opens no
connection and writes no file.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ..compute import CPU, ProcessorKind
from ..onnx import PROVIDERS
from .components import EnergyComponent, EngineProvider, InferenceEngine, Presence

_SHOWN_WHERE_ABSENT: Final = ("cuda", "coreml", "qnn", "openvino", "webgpu")
"""Providers that people ask for by name."""
_CPU: Final = "CPUExecutionProvider"


class ProviderDevice(NamedTuple):
    """One entry of onnxruntime's list of devices."""

    provider: str
    """Its name, as onnxruntime writes it."""
    kind: ProcessorKind
    device: str


def execution_providers(built_with: Sequence[str], devices: Sequence[ProviderDevice]) -> Iterator[EngineProvider]:
    """Yield the CPU's provider, then those that run language models: present if onnxruntime lists a device, unknown if only built in."""
    processor = next((entry.device for entry in devices if entry.provider == _CPU), "")
    yield EngineProvider(presence=Presence.PRESENT, reason="part of onnxruntime", name=CPU, kind=ProcessorKind.CPU, device=processor)
    for name, provider in PROVIDERS.items():
        found = [entry for entry in devices if entry.provider == provider.full]
        for entry in found:
            reason = "in onnxruntime's own list of devices"
            yield EngineProvider(presence=Presence.PRESENT, reason=reason, name=name, kind=entry.kind, device=entry.device)
        if not found and provider.full in built_with:
            reason = "built in; whether its driver works shows when a model is loaded"
            yield EngineProvider(presence=Presence.UNKNOWN, reason=reason, name=name, kind=provider.kind)
        elif not found and name in _SHOWN_WHERE_ABSENT:
            yield EngineProvider(presence=Presence.ABSENT, reason="not in this build", name=name, kind=provider.kind)


_LLAMA_BACKENDS: Final = {
    "cuda": ProcessorKind.GPU,
    "rocm": ProcessorKind.GPU,
    "metal": ProcessorKind.INTEGRATED_GPU,
    "vulkan": ProcessorKind.GPU,
}
"""Backends that people ask for by name."""
_REASON: Final = "loaded"


def main() -> None:
    """Look at what the command line names."""
    # Drivers print to standard output, so the answer has a file descriptor of its own.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        answer.write(_LOOKS[sys.argv[1]]())


def _look_at_llama() -> str:
    import llama_cpp

    from ..llama.devices import backend_devices, keep_log

    keep_log()
    llama_cpp.llama_backend_init()
    present = [
        EngineProvider(
            presence=Presence.PRESENT,
            reason="in llama.cpp's own list of devices",
            name=device.provider,
            kind=device.kind,
            device=device.description,
            free_memory_bytes=None if device.kind is ProcessorKind.CPU else device.free_memory(),
        )
        for device in backend_devices()
    ]
    names = {provider.name for provider in present}
    offloads = bool(llama_cpp.llama_supports_gpu_offload())
    reason = "not in llama.cpp's own list of devices" if offloads else "this build is for the CPU only"
    absent = [
        EngineProvider(presence=Presence.ABSENT, reason=reason, name=name, kind=kind)
        for name, kind in _LLAMA_BACKENDS.items()
        if name not in names
    ]
    providers = (*present, *absent)
    found = InferenceEngine(presence=Presence.PRESENT, reason=_REASON, name="llama.cpp", version=llama_cpp.__version__, providers=providers)
    return found.model_dump_json()


def _look_at_onnxruntime() -> str:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # From 1.29 on, it sends telemetry otherwise.
    import onnxruntime

    kinds = {
        onnxruntime.OrtHardwareDeviceType.CPU: ProcessorKind.CPU,
        onnxruntime.OrtHardwareDeviceType.GPU: ProcessorKind.GPU,
        onnxruntime.OrtHardwareDeviceType.NPU: ProcessorKind.NPU,
    }
    devices = [
        ProviderDevice(entry.ep_name, kinds[entry.device.type], entry.device.metadata.get("Description", entry.device.vendor))
        for entry in onnxruntime.get_ep_devices()
    ]
    providers = tuple(execution_providers(onnxruntime.get_available_providers(), devices))
    found = InferenceEngine(
        presence=Presence.PRESENT, reason=_REASON, name="onnxruntime", version=onnxruntime.__version__, providers=providers
    )
    return found.model_dump_json()


def _look_at_nvml() -> str:
    from ..energy import look_for_nvml

    look = look_for_nvml()
    return EnergyComponent(presence=look.presence, reason=look.reason, name=look.name).model_dump_json()


_LOOKS: Final[Mapping[str, Callable[[], str]]] = {
    "llama.cpp": _look_at_llama,
    "onnxruntime": _look_at_onnxruntime,
    "nvml": _look_at_nvml,
}

if __name__ == "__main__":
    main()
