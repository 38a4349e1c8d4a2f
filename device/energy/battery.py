"""The battery's discharge, from Linux's power supply class (https://docs.kernel.org/power/power_supply_class.html).

It is the whole device's: screen and radio included.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..hardware.components import Presence
from ..hardware.files import read_integer, read_text
from ..hardware.power import linux_batteries
from .look import ReaderLook

_CLASS: Final = "sys/class/power_supply"


class BatteryReader:
    """The power that the batteries give, times the time between two looks."""

    name = "battery"
    least_seconds = 2.0
    """Fuel gauges refresh their figures about once a second."""

    def __init__(self, batteries: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._batteries = batteries
        self._clock = clock
        self._last: tuple[float, float | None] | None = None
        """When the power was last read, and what it was."""

    def lap(self) -> float | None:
        """Return the joules since the last call, by the mean of the power at both ends; None if the device was not on battery at both."""
        last, (now, watts) = self._last, (self._clock(), self._watts())
        self._last = (now, watts)
        if last is None or last[1] is None or watts is None:
            return None
        return (last[1] + watts) / 2 * (now - last[0])

    def _watts(self) -> float | None:
        states = [read_text(battery / "status") for battery in self._batteries]
        if "Charging" in states:
            return None
        powers = [_watts(battery) for battery, state in zip(self._batteries, states, strict=True) if state == "Discharging"]
        known = [power for power in powers if power is not None]
        return sum(known) if known and len(known) == len(powers) else None


def look_for_battery(root: Path = Path("/")) -> ReaderLook:
    """Look for batteries that report their power; `root` is that of the file system."""
    batteries = linux_batteries(root)
    if not batteries:
        return ReaderLook(BatteryReader.name, Presence.ABSENT, f"/{_CLASS} lists no battery")
    silent = next((battery for battery in batteries if _watts(battery) is None), None)
    if silent is not None:
        return ReaderLook(BatteryReader.name, Presence.UNKNOWN, f"/{_CLASS}/{silent.name} does not report its power")
    names = ", ".join(battery.name for battery in batteries)
    return ReaderLook(BatteryReader.name, Presence.PRESENT, f"/{_CLASS}, {names}, while discharging", BatteryReader(batteries))


def _watts(battery: Path) -> float | None:
    """Return the power that a battery reports, in watts. Some drivers give a discharge as a negative number."""
    power = read_integer(battery / "power_now")
    if power is not None:
        return abs(power) / 1e6
    current, voltage = read_integer(battery / "current_now"), read_integer(battery / "voltage_now")
    return None if current is None or voltage is None else abs(current * voltage) / 1e12
