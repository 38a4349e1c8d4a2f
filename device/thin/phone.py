"""Read the state of a phone: battery, warmth and free memory, as far as Android or Linux lets a plain process see them.

`device.hardware.state` does this for machines on which more packages can be installed.
"""

import json
import shutil
import subprocess
from math import isfinite
from pathlib import Path

from ...protocols.v1 import hub_pb2 as pb
from ..hardware.linux import entries, read_integer, read_text
from . import inner

_COMMAND = "termux-battery-status"
_COMMAND_SECONDS = 3.0
"""Without its companion app (Termux:API) the command never answers."""

# Degrees Celsius. A phone slows down when its battery is at about the first, and switches off not far above the second.
_HOT_BATTERY, _DANGEROUS_BATTERY = 45.0, 50.0
_NEAR_CELSIUS = 5.0
"""So close below the point where performance is held back, a device is `fair`."""


class Phone:
    """Reads the state of the device below `root`, which is "/" unless a test brings its own tree."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._sys = root / "sys/class"
        self._meminfo = root / "proc/meminfo"
        self._command = shutil.which(_COMMAND)

    def __call__(self) -> pb.DeviceState:
        """Read the state. It blocks for as long as Android takes to answer. A figure that cannot be read is absent."""
        state = self._from_termux() or self._from_power_supplies()
        state.thermal = max(state.thermal, *(_warmth_of_zone(zone) for zone in entries(self._sys / "thermal")), pb.THERMAL_UNKNOWN)
        if (free := self._free_memory()) is not None:
            state.free_memory_bytes = free
        return state

    def _from_termux(self) -> pb.DeviceState | None:
        """Ask Android's battery service, through Termux:API."""
        if self._command is None:
            return None
        try:
            done = subprocess.run([self._command], capture_output=True, timeout=_COMMAND_SECONDS, check=True)
            status = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            self._command = None  # nor will it answer the next time
            return None
        except (OSError, subprocess.CalledProcessError, ValueError):
            return None
        celsius = _number(inner(status, "temperature"))
        state = pb.DeviceState(thermal=_warmth(celsius, _HOT_BATTERY, _DANGEROUS_BATTERY))
        if (percentage := _number(inner(status, "percentage"))) is not None:
            state.battery = _share(percentage)
        plugged = inner(status, "plugged")
        if isinstance(plugged, str):
            state.power_source = pb.POWER_SOURCE_BATTERY if plugged == "UNPLUGGED" else pb.POWER_SOURCE_MAINS
        return state

    def _from_power_supplies(self) -> pb.DeviceState:
        """Read Linux's own files. Android hides them from apps, so that on a phone without Termux:API all stays unknown."""
        state = pb.DeviceState()
        for supply in entries(self._sys / "power_supply"):
            if read_text(supply / "type") == "Battery" and read_text(supply / "scope") != "Device":  # the latter is a mouse's
                if (capacity := read_integer(supply / "capacity")) is not None:
                    state.battery = _share(capacity)
                is_draining = read_text(supply / "status") == "Discharging"
                state.power_source = pb.POWER_SOURCE_BATTERY if is_draining else pb.POWER_SOURCE_MAINS
        return state

    def _free_memory(self) -> int | None:
        for line in (read_text(self._meminfo) or "").splitlines():
            name, _, amount = line.partition(":")
            digits = amount.removesuffix("kB").strip()
            if name == "MemAvailable" and digits.isdecimal():
                return int(digits) * 1024
        return None


def _warmth_of_zone(zone: Path) -> pb.Thermal:
    """Compare a thermal zone with its own trip points, by which the kernel itself throttles and switches off."""
    trips: dict[str | None, int] = {}
    for kind_file in zone.glob("trip_point_*_type"):
        kind, at = read_text(kind_file), read_integer(kind_file.with_name(kind_file.name.replace("_type", "_temp")))
        if at is not None and at > 0:
            trips[kind] = min(at, trips.get(kind, at))
    dangerous = min((trips[kind] for kind in ("hot", "critical") if kind in trips), default=None)
    return _warmth(_celsius(read_integer(zone / "temp")), _celsius(trips.get("passive")), _celsius(dangerous))


def _warmth(celsius: float | None, held_back: float | None, dangerous: float | None) -> pb.Thermal:
    """Judge a temperature. `held_back` and `dangerous`: where the device slows down, and where it has to cool down; None: unknown."""
    if celsius is None or (held_back is None and dangerous is None):
        return pb.THERMAL_UNKNOWN
    if dangerous is not None and celsius >= dangerous:
        return pb.THERMAL_CRITICAL
    if held_back is None or celsius < held_back - _NEAR_CELSIUS:
        return pb.THERMAL_NOMINAL
    return pb.THERMAL_SERIOUS if celsius >= held_back else pb.THERMAL_FAIR


def _celsius(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / 1000


def _share(percentage: float) -> float:
    return min(max(percentage / 100, 0.0), 1.0)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
