"""Batteries and mains. On Linux from /sys/class/power_supply (https://docs.kernel.org/power/power_supply_class.html), else from psutil."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...protocols import PowerSource
from .components import Battery, Power, Presence
from .files import entries, is_linux, is_there, read_integer, read_text

_CLASS: Final = "sys/class/power_supply"
_PERIPHERAL: Final = "Device"
"""Scope of a mouse's battery, or a headset's."""


def read_power(root: Path = Path("/")) -> tuple[Battery, Power]:
    """Return the batteries, and the power source of the machine."""
    return _linux_power(root) if is_linux(root) else _other_power()


def _linux_power(root: Path) -> tuple[Battery, Power]:
    if not is_there(root / _CLASS):
        reason = f"there is no /{_CLASS}"
        return Battery(presence=Presence.UNKNOWN, reason=reason), Power(presence=Presence.UNKNOWN, reason=reason)
    supplies = _supplies(root)
    batteries = linux_batteries(root)
    online = [read_integer(supply / "online") for supply in supplies if read_text(supply / "type") not in (None, "Battery")]
    return _battery(batteries), _source(batteries, online)


def linux_batteries(root: Path) -> list[Path]:
    """Return the folders of the machine's own batteries."""
    return [supply for supply in _supplies(root) if read_text(supply / "type") == "Battery" and read_integer(supply / "present") != 0]


def _supplies(root: Path) -> list[Path]:
    return [supply for supply in entries(root / _CLASS) if read_text(supply / "scope") != _PERIPHERAL]


def _battery(batteries: Sequence[Path]) -> Battery:
    if not batteries:
        return Battery(presence=Presence.ABSENT, reason=f"/{_CLASS} lists none")
    charge = _charge(batteries)
    if charge is None:
        return Battery(presence=Presence.UNKNOWN, reason=f"{batteries[0].name} does not report its charge")
    return Battery(presence=Presence.PRESENT, reason=f"/{_CLASS}/{batteries[0].name}", charge=min(max(charge, 0.0), 1.0))


def _charge(batteries: Sequence[Path]) -> float | None:
    """Return the share of all batteries together if they state their contents in one unit; else the mean of their own figures."""
    for unit in ("energy", "charge"):
        held = [(read_integer(battery / f"{unit}_now"), read_integer(battery / f"{unit}_full")) for battery in batteries]
        known = [(now, full) for now, full in held if now is not None and full]
        if len(known) == len(batteries):
            return sum(now for now, _ in known) / sum(full for _, full in known)
    shown = [capacity for battery in batteries if (capacity := read_integer(battery / "capacity")) is not None]
    return sum(shown) / len(shown) / 100 if shown else None


def _source(batteries: Sequence[Path], online: Sequence[int | None]) -> Power:
    """Find the power source: mains that is plugged in decides, else the batteries' state of charging."""
    states = {read_text(battery / "status") for battery in batteries}
    reason = f"/{_CLASS}"
    if any(online) or states & {"Charging", "Full"}:
        return Power(presence=Presence.PRESENT, reason=reason, source=PowerSource.MAINS)
    if "Discharging" in states:
        return Power(presence=Presence.PRESENT, reason=reason, source=PowerSource.BATTERY)
    why = "lists no power supply" if not batteries and not online else "does not say which supply is in use"
    return Power(presence=Presence.UNKNOWN, reason=f"{reason} {why}")


def _other_power() -> tuple[Battery, Power]:
    try:
        import psutil
    except ImportError:
        reason = "psutil is not installed"
        return Battery(presence=Presence.UNKNOWN, reason=reason), Power(presence=Presence.UNKNOWN, reason=reason)
    if not hasattr(psutil, "sensors_battery"):
        reason = f"psutil does not report batteries on {sys.platform}"
        return Battery(presence=Presence.UNKNOWN, reason=reason), Power(presence=Presence.UNKNOWN, reason=reason)
    found = psutil.sensors_battery()
    if found is None:
        reason = "psutil finds no battery"
        return Battery(presence=Presence.ABSENT, reason=reason), Power(presence=Presence.UNKNOWN, reason=reason)
    battery = Battery(presence=Presence.PRESENT, reason="psutil", charge=min(max(found.percent / 100, 0.0), 1.0))
    if found.power_plugged is None:
        return battery, Power(presence=Presence.UNKNOWN, reason="psutil does not say whether it is plugged in")
    source = PowerSource.MAINS if found.power_plugged else PowerSource.BATTERY
    return battery, Power(presence=Presence.PRESENT, reason="psutil", source=source)
