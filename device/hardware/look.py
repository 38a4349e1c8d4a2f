"""One look at what an engine can compute on: `python -m nearfar.device.hardware.look ENGINE` prints it as JSON.

It loads the engine with every driver that it was built for, any of which may crash or hang, so it has a process of its own. It opens no
connection and writes no file.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from ..compute import ProcessorKind
from .components import Engine, EngineProvider, Presence
from .execution_providers import ProviderDevice, execution_providers

_LLAMA_BACKENDS: Final = {
    "cuda": ProcessorKind.GPU,
    "rocm": ProcessorKind.GPU,
    "metal": ProcessorKind.INTEGRATED_GPU,
    "vulkan": ProcessorKind.GPU,
}
"""Those that people ask for by name."""
_REASON: Final = "loaded"


def main() -> None:
    """Look at the engine that the command line names."""
    # Drivers print what they like; the answer has a way of its own.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        answer.write(_LOOKS[sys.argv[1]]().model_dump_json())


def _look_at_llama() -> Engine:
    import llama_cpp

    from ..llama.backends import backend_devices
    from ..llama.log import keep_log

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
    return Engine(presence=Presence.PRESENT, reason=_REASON, name="llama.cpp", version=llama_cpp.__version__, providers=(*present, *absent))


def _look_at_onnxruntime() -> Engine:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # It reports to its maker otherwise, from 1.29 on.
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
    return Engine(presence=Presence.PRESENT, reason=_REASON, name="onnxruntime", version=onnxruntime.__version__, providers=providers)


_LOOKS: Final[Mapping[str, Callable[[], Engine]]] = {"llama.cpp": _look_at_llama, "onnxruntime": _look_at_onnxruntime}

if __name__ == "__main__":
    main()
