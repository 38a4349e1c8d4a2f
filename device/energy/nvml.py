"""The energy counters of NVIDIA's GPUs, through NVML, the driver's own library (https://docs.nvidia.com/deploy/nvml-api)."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

from ..hardware.components import Presence
from .look import ReaderLook


class Nvml(Protocol):
    """The part of the module `pynvml` that is used."""

    @property
    def NVMLError(self) -> type[Exception]: ...

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...  # noqa: ANN401 - a pointer of the library's own
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, /) -> int:  # noqa: ANN401 - see above
        """Return the millijoules since the driver was loaded."""


class NvmlReader:
    """All NVIDIA GPUs of the machine together."""

    name = "nvml"
    least_seconds = 0.2
    """The counters are refreshed every 20 to 100 ms, by the kind of GPU."""

    def __init__(self, nvml: Nvml, gpus: Sequence[object]) -> None:
        self._nvml = nvml
        self._gpus = gpus
        self._last: int | None = None

    def lap(self) -> float | None:
        """Return the joules since the last call."""
        last, self._last = self._last, self._millijoules()
        if last is None or self._last is None or self._last < last:  # The counter restarts with the driver.
            return None
        return (self._last - last) / 1e3

    def _millijoules(self) -> int | None:
        try:
            return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self._gpus)
        except self._nvml.NVMLError:
            return None


def look_for_nvml(nvml: Nvml | None = None) -> ReaderLook:
    """Look for GPUs that count their energy. `nvml` replaces `pynvml`, for tests."""
    found = nvml or _installed()
    if found is None:
        reason = "the Python package nvidia-ml-py is not installed: pip install 'nearfar[nvidia]'"
        return ReaderLook(NvmlReader.name, Presence.UNKNOWN, reason)
    try:
        found.nvmlInit()
        gpus = [found.nvmlDeviceGetHandleByIndex(index) for index in range(found.nvmlDeviceGetCount())]
        for gpu in gpus:
            found.nvmlDeviceGetTotalEnergyConsumption(gpu)  # Raises on GPUs older than Volta.
    except found.NVMLError as error:
        return ReaderLook(NvmlReader.name, Presence.ABSENT, f"NVML: {error}")
    if not gpus:
        return ReaderLook(NvmlReader.name, Presence.ABSENT, "the driver finds no GPU")
    return ReaderLook(NvmlReader.name, Presence.PRESENT, f"NVML, {len(gpus)} GPU{'s' * (len(gpus) > 1)}", NvmlReader(found, gpus))


def _installed() -> Nvml | None:
    try:
        import pynvml
    except ImportError:
        return None
    return cast(Nvml, pynvml)
