"""The processors that this build of llama.cpp can compute on, through ggml's device registry, which llama-cpp-python does not bind.

Whatever imports this module loads llama.cpp and every driver that it was built for, which can take the process down: workers and probes
are processes of their own.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from llama_cpp._ggml import libggml

from ...protocols import Execution
from ..compute import CPU, ProcessorKind, Provider

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
