"""Temperatures, and how they stand to the limits that the sensors themselves name.

On Linux these are the trip points of /sys/class/thermal (https://docs.kernel.org/driver-api/thermal/sysfs-api.html) and the limits of the
processors' sensors in /sys/class/hwmon (https://docs.kernel.org/hwmon/sysfs-interface.html); all are thousandths of a degree Celsius.
macOS tells the share of its speed that the CPU is held to (`pmset -g therm`).
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...protocols import Thermal
from .components import Heat, Presence, Sensor
from .files import entries, is_linux, read_integer, read_text

_ORDER: Final = tuple(Thermal)
_NEAR_CELSIUS: Final = 10.0
"""So close below the point where performance is held back, a device is `fair`."""
_CREDIBLE_CELSIUS: Final = range(1, 150)
"""Drivers report 0, -273 or 255 degrees where they know nothing."""
_PROCESSORS: Final = re.compile(r"coretemp|k10temp|zenpower|cpu_?thermal|soc_?thermal|acpitz|amdgpu|radeon|nouveau|i915|xe|apple|scmi|scpi")
"""Names of sensors that sit in a processor or stand for the whole device; disks and network cards have their own heat."""
_PMSET_SECONDS: Final = 2.0
_PMSET_FRESH_SECONDS: Final = 10.0
_HALF_SPEED: Final = 50


def read_heat(root: Path = Path("/")) -> Heat:
    """Read all temperature sensors."""
    if is_linux(root):
        return _judged([*_zones(root), *_chips(root)])
    if sys.platform == "darwin":
        return heat_of_pmset(_pmset(int(time.monotonic() / _PMSET_FRESH_SECONDS)))
    return Heat(presence=Presence.UNKNOWN, reason=f"{sys.platform} does not report temperatures")


def _judged(sensors: Sequence[Sensor]) -> Heat:
    if not sensors:
        return Heat(presence=Presence.UNKNOWN, reason="no sensor of a processor in /sys/class/thermal or hwmon")
    known = [sensor.thermal for sensor in sensors if sensor.thermal is not None]
    if not known:
        return Heat(presence=Presence.UNKNOWN, reason="no sensor names a limit", sensors=tuple(sensors))
    return Heat(presence=Presence.PRESENT, reason="the sensors' own limits", thermal=max(known, key=_ORDER.index), sensors=tuple(sensors))


def _zones(root: Path) -> Iterator[Sensor]:
    for zone in entries(root / "sys/class/thermal"):
        celsius = _celsius(zone / "temp")
        if zone.name.startswith("thermal_zone") and celsius is not None and read_text(zone / "mode") != "disabled":
            points = dict(_trip_points(zone))
            dangerous = min((points[kind] for kind in ("hot", "critical") if kind in points), default=None)
            thermal = level(celsius, points.get("passive"), dangerous)
            yield Sensor(name=read_text(zone / "type") or zone.name, celsius=celsius, thermal=thermal)


def _trip_points(zone: Path) -> Iterator[tuple[str, float]]:
    """Yield the lowest temperature of each kind of trip point; an `active` one only starts a fan."""
    found: dict[str, float] = {}
    for kind in zone.glob("trip_point_*_type"):
        celsius, name = _celsius(zone / kind.name.replace("_type", "_temp")), read_text(kind)
        if celsius is not None and name is not None:
            found[name] = min(celsius, found.get(name, celsius))
    yield from found.items()


def _chips(root: Path) -> Iterator[Sensor]:
    for chip in entries(root / "sys/class/hwmon"):
        name = read_text(chip / "name") or chip.name
        readings = sorted(chip.glob("temp*_input")) if _PROCESSORS.match(name) else []
        for reading in readings:
            celsius, prefix = _celsius(reading), reading.name.removesuffix("_input")
            if celsius is not None:
                # Not `max`: to many drivers that is merely where the fans are to run at full speed.
                thermal = level(celsius, None, _celsius(chip / f"{prefix}_crit"))
                yield Sensor(name=f"{name} {read_text(chip / f'{prefix}_label') or prefix}", celsius=celsius, thermal=thermal)


def _celsius(path: Path) -> float | None:
    thousandths = read_integer(path)
    return None if thousandths is None or thousandths // 1000 not in _CREDIBLE_CELSIUS else thousandths / 1000


def level(celsius: float, held_back: float | None, dangerous: float | None) -> Thermal | None:
    """Compare a temperature with the limit at which performance is held back and the one at which the device must cool down.

    If only the second is known, the first is taken to lie shortly below it.
    """
    if dangerous is not None and celsius >= dangerous:
        return Thermal.CRITICAL
    if held_back is None:
        held_back = None if dangerous is None else dangerous - _NEAR_CELSIUS
    if held_back is None:
        return None
    if celsius >= held_back:
        return Thermal.SERIOUS
    return Thermal.FAIR if celsius >= held_back - _NEAR_CELSIUS else Thermal.NOMINAL


@lru_cache(maxsize=1)
def _pmset(_period: int) -> str:
    """Return the command's output, cached for a period of time, so that not every decision waits for a process."""
    try:
        command = ["/usr/bin/pmset", "-g", "therm"]
        return subprocess.run(command, capture_output=True, text=True, timeout=_PMSET_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def heat_of_pmset(text: str) -> Heat:
    """Parse `pmset -g therm`: the speed limit, or that there has been none since the machine started."""
    limit = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", text)
    if limit is None and "No thermal warning" not in text:
        return Heat(presence=Presence.UNKNOWN, reason="pmset -g therm reports no limit")
    speed = 100 if limit is None else int(limit[1])
    thermal = Thermal.NOMINAL if speed >= 100 else Thermal.SERIOUS if speed >= _HALF_SPEED else Thermal.CRITICAL
    return Heat(presence=Presence.PRESENT, reason="pmset -g therm", thermal=thermal)
