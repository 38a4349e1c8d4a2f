"""The chain of readers: the GPU's own counter, the processor's, the battery's discharge.

Each sees another part of the machine, so that a reader is only asked about a model whose processor it sees: NVML the NVIDIA GPUs, RAPL
the processor's packages with their memory, a battery the whole device.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...protocols import Execution
from .battery import look_for_battery
from .look import EnergyReader, ReaderLook
from .nvml import look_for_nvml
from .rapl import look_for_rapl

_NVIDIA: Final = frozenset({"cuda", "tensorrt"})
_IN_THE_PACKAGE: Final = frozenset({"cpu", "openvino"})
"""Providers that compute inside of the processor's package. Others may stand for a card, which RAPL does not see."""


def open_reader(execution: Execution | None, root: Path = Path("/")) -> EnergyReader | None:
    """Return the first reader of the chain that is present and sees the processor of the model; None: the energy cannot be measured."""
    looks: list[Callable[[], ReaderLook]] = [lambda: look_for_battery(root)]
    if execution is not None and execution.provider in _IN_THE_PACKAGE:
        looks.insert(0, lambda: look_for_rapl(root))
    if execution is not None and (execution.provider in _NVIDIA or "nvidia" in execution.device.lower()):
        looks.insert(0, look_for_nvml)
    return next((found for look in looks if (found := look().reader) is not None), None)
