"""The state of this device: memory, batteries, power source, temperatures and network, as far as its operating system reports them.

On Linux, batteries and mains are in /sys/class/power_supply (https://docs.kernel.org/power/power_supply_class.html). Temperatures are
compared with the sensors' own limits: the trip points of /sys/class/thermal (https://docs.kernel.org/driver-api/thermal/sysfs-api.html)
and the limits of the processors' sensors in /sys/class/hwmon (https://docs.kernel.org/hwmon/sysfs-interface.html); all are thousandths of
a degree Celsius. macOS reports the share of its speed that the CPU is held to (`pmset -g therm`); other figures come from psutil.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydantic import Field

from ...protocols import DeviceState, PowerSource, Thermal
from ...protocols.steps import Value
from . import entries, is_linux, is_there, memory_limits, read_celsius, read_integer, read_text, zone_limits
from .processors import Component, Presence

ROOT = Path("/")


class Memory(Component):
    """Main memory."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    """Memory that can be taken without swapping, and within the control group's limit."""
    limit_bytes: int | None = None
    """The control group's limit, if it is below the total."""


class Battery(Component):
    """All batteries of the machine together; those of a mouse do not count."""

    charge: float | None = Field(default=None, ge=0, le=1)


class Power(Component):
    """The power source of the machine."""

    source: PowerSource | None = None


class Sensor(Value):
    """One temperature, in degrees Celsius, and how it stands to the sensor's own limits."""

    name: str
    celsius: float
    thermal: Thermal | None = None
    """None: the sensor has no limits."""


class Heat(Component):
    """The temperatures. Present where at least one of them has limits to hold it against."""

    thermal: Thermal | None = None
    """The state of the hottest sensor, judged by its limits."""
    sensors: tuple[Sensor, ...] = ()


def free_memory_bytes(root: Path = ROOT) -> int | None:
    """Return the bytes that can be taken without swapping, and within the limits of the control groups; None: unknown."""
    return read_memory(root).free_bytes


def read_memory(root: Path = ROOT) -> Memory:
    """Read total, free and limited memory."""
    return _linux_memory(root) if is_linux(root) else _other_memory()


def _linux_memory(root: Path) -> Memory:
    fields = _meminfo(root)
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    if total is None or available is None:
        return Memory(presence=Presence.UNKNOWN, reason="/proc/meminfo cannot be read")
    limits = [(limit, free) for limit, free in memory_limits(root) if limit < total]
    return Memory(
        presence=Presence.PRESENT,
        reason="/proc/meminfo" + (" and the control group's limit" if limits else ""),
        total_bytes=total,
        free_bytes=min(available, *(free for _, free in limits)) if limits else available,
        limit_bytes=min((limit for limit, _ in limits), default=None),
    )


def _meminfo(root: Path) -> dict[str, int]:
    """Return bytes by name; the file counts in kibibytes."""
    lines = (line.split() for line in (read_text(root / "proc/meminfo") or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdecimal()}


def _other_memory() -> Memory:
    try:
        import psutil
    except ImportError:
        return Memory(presence=Presence.UNKNOWN, reason="psutil is not installed")
    memory = psutil.virtual_memory()
    return Memory(presence=Presence.PRESENT, reason="psutil", total_bytes=memory.total, free_bytes=memory.available)


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


_ORDER: Final = tuple(Thermal)
_NEAR_CELSIUS: Final = 10.0
"""So close below the point where performance is held back, a device is `fair`."""
_PROCESSORS: Final = re.compile(r"coretemp|k10temp|zenpower|cpu_?thermal|soc_?thermal|acpitz|amdgpu|radeon|nouveau|i915|xe|apple|scmi|scpi")
"""Names of sensors that sit in a processor or stand for the whole device; disks and network cards have their own heat."""
_PMSET_SECONDS: Final = 2.0
_PMSET_FRESH_SECONDS: Final = 10.0
_HALF_SPEED: Final = 50


def read_heat(root: Path = Path("/")) -> Heat:
    """Read all temperature sensors."""
    if is_linux(root):
        return _judge([*_zones(root), *_chips(root)])
    if sys.platform == "darwin":
        return heat_of_pmset(_pmset(int(time.monotonic() / _PMSET_FRESH_SECONDS)))
    return Heat(presence=Presence.UNKNOWN, reason=f"{sys.platform} does not report temperatures")


def _judge(sensors: Sequence[Sensor]) -> Heat:
    if not sensors:
        return Heat(presence=Presence.UNKNOWN, reason="no sensor of a processor in /sys/class/thermal or hwmon")
    known = [sensor.thermal for sensor in sensors if sensor.thermal is not None]
    if not known:
        return Heat(presence=Presence.UNKNOWN, reason="no sensor names a limit", sensors=tuple(sensors))
    return Heat(presence=Presence.PRESENT, reason="the sensors' own limits", thermal=max(known, key=_ORDER.index), sensors=tuple(sensors))


def _zones(root: Path) -> Iterator[Sensor]:
    for zone in entries(root / "sys/class/thermal"):
        celsius = read_celsius(zone / "temp")
        if zone.name.startswith("thermal_zone") and celsius is not None and read_text(zone / "mode") != "disabled":
            yield Sensor(name=read_text(zone / "type") or zone.name, celsius=celsius, thermal=level(celsius, *zone_limits(zone)))


def _chips(root: Path) -> Iterator[Sensor]:
    for chip in entries(root / "sys/class/hwmon"):
        name = read_text(chip / "name") or chip.name
        readings = sorted(chip.glob("temp*_input")) if _PROCESSORS.match(name) else []
        for reading in readings:
            celsius, prefix = read_celsius(reading), reading.name.removesuffix("_input")
            if celsius is not None:
                # Not `max`: to many drivers that is merely where the fans are to run at full speed.
                thermal = level(celsius, None, read_celsius(chip / f"{prefix}_crit"))
                yield Sensor(name=f"{name} {read_text(chip / f'{prefix}_label') or prefix}", celsius=celsius, thermal=thermal)


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


_LOOPBACK: Final = 772
"""`ARPHRD_LOOPBACK` of Linux's if_arp.h."""
_IFF_UP: Final = 0x1


def read_device_state(root: Path = Path("/")) -> DeviceState:
    """Read battery, power source, heat, free memory, and whether any network interface is up.

    Facts that Linux does not report are unknown, and so are all that need psutil on other systems if it is not installed.
    """
    battery, power = read_power(root)
    return DeviceState(
        battery=battery.charge,
        power_source=power.source,
        thermal=read_heat(root).thermal,
        free_memory_bytes=free_memory_bytes(root),
        is_offline=_is_offline(root),
    )


def _is_offline(root: Path) -> bool | None:
    if is_linux(root):
        interfaces = list(entries(root / "sys/class/net"))
        return not any(_is_up(interface) for interface in interfaces) if interfaces else None
    try:
        import psutil
    except ImportError:
        return None
    return not any(stats.isup for stats in psutil.net_if_stats().values() if "loopback" not in stats.flags.split(","))


def _is_up(interface: Path) -> bool:
    """Return True for an interface that is up. Tunnels do not know their state; they count as up if they are switched on."""
    if read_integer(interface / "type") == _LOOPBACK:
        return False
    state = read_text(interface / "operstate")
    return state == "up" or (state == "unknown" and bool(int(read_text(interface / "flags") or "0", 16) & _IFF_UP))
