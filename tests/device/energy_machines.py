"""Machines whose energy can be read, as file trees, and a stand-in for NVIDIA's library on machines without such a GPU."""

from pathlib import Path

from nearfar.protocols import Execution

ON_CPU = Execution(engine="llama.cpp", provider="cpu")
ON_CUDA = Execution(engine="llama.cpp", provider="cuda", device="NVIDIA GeForce RTX 4060")
ON_VULKAN = Execution(engine="llama.cpp", provider="vulkan", device="AMD Radeon RX 7600")
RANGE = 65_532_610_987
"""Microjoules at which a laptop's counter begins again."""


def write(folder: Path, **values: object) -> Path:
    """A folder of /sys with a file for each value."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n", encoding="utf-8")
    return folder


def rapl_zone(root: Path, zone: str, name: str, energy_uj: int = 0, max_energy_range_uj: int = RANGE) -> Path:
    """One counter of the powercap class."""
    return write(root / "sys/class/powercap" / zone, name=name, energy_uj=energy_uj, max_energy_range_uj=max_energy_range_uj)


def battery(root: Path, name: str = "BAT0", **values: object) -> Path:
    """A battery that drains at 12 W unless the values say otherwise."""
    drained = {"type": "Battery", "status": "Discharging", "power_now": 12_000_000}
    return write(root / "sys/class/power_supply" / name, **{**drained, **values})


class FakeNvml:
    """Stands in for `pynvml`; `millijoules` are the counters of its GPUs."""

    class NVMLError(Exception):
        """The library's error."""

    def __init__(self, *millijoules: int, lacks: str = "") -> None:
        self.millijoules = list(millijoules)
        self.lacks = lacks

    def nvmlInit(self) -> None:
        self._refuse("driver")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.millijoules)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int, /) -> int:
        self._refuse("counter")
        return self.millijoules[handle]

    def _refuse(self, what: str) -> None:
        if self.lacks == what:
            raise self.NVMLError(f"no {what}")
