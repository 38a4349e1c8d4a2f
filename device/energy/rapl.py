"""RAPL, the processor's own energy counters, through Linux's powercap (https://docs.kernel.org/power/powercap/powercap.html).

AMD's processors have the same counters under the same name. Since CVE-2020-8694 only root may read them.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..hardware.components import Presence
from ..hardware.files import entries, read_integer, read_text
from .look import ReaderLook

_CLASS: Final = "sys/class/powercap"
_ZONE: Final = re.compile(r"intel-rapl:\d+")
_PART: Final = re.compile(r"intel-rapl:\d+:\d+")
_ADVICE: Final = "only root may read it; `chmod a+r` its energy_uj, or a udev rule, allows others"


class RaplReader:
    """The packages of the processor and their memory."""

    name = "rapl"
    least_seconds = 0.002
    """The counters are refreshed about every millisecond."""

    def __init__(self, zones: Sequence[Path]) -> None:
        self._zones = [_Zone(zone) for zone in zones]

    def lap(self) -> float | None:
        """Return the joules since the last call."""
        laps = [zone.lap() for zone in self._zones]
        known = [lap for lap in laps if lap is not None]
        return sum(known) / 1e6 if len(known) == len(laps) else None


class _Zone:
    """One counter, in microjoules, which begins again at zero behind `max_energy_range_uj`."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range = read_integer(folder / "max_energy_range_uj")
        self._last: int | None = None

    def lap(self) -> int | None:
        last, self._last = self._last, read_integer(self._counter)
        if last is None or self._last is None:
            return None
        drawn = self._last - last
        if drawn >= 0:
            return drawn
        return None if self._range is None else drawn + self._range


def look_for_rapl(root: Path = Path("/")) -> ReaderLook:
    """Look for the counters of all processor packages; `root` is that of the file system."""
    zones = list(_zones(root / _CLASS))
    if not zones:
        return ReaderLook(RaplReader.name, Presence.ABSENT, f"/{_CLASS} lists no package: no such counters, or a virtual machine")
    closed = next((zone for zone in zones if read_integer(zone / "energy_uj") is None), None)
    if closed is not None:
        return ReaderLook(RaplReader.name, Presence.UNKNOWN, f"/{_CLASS}/{closed.name} cannot be read: {_ADVICE}")
    return ReaderLook(RaplReader.name, Presence.PRESENT, f"/{_CLASS}, {', '.join(zone.name for zone in zones)}", RaplReader(zones))


def _zones(folder: Path) -> Iterator[Path]:
    """Yield the packages, and memory that has a counter of its own. Other zones are part of a package, or contain the packages."""
    for entry in entries(folder):
        name = read_text(entry / "name") or ""
        if (_ZONE.fullmatch(entry.name) and name.startswith("package")) or (_PART.fullmatch(entry.name) and name == "dram"):
            yield entry
