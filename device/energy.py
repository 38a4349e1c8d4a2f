"""Measure the energy that computing takes: readers of the machine's counters, a meter that reads one of them over intervals, and the
share of each step, with its speed and its part of the cache.

The readers form a chain: the GPU's own counter, the processor's, the battery's discharge. Each sees another part of the machine, so a
reader is only asked about a model whose processor it sees: NVML the NVIDIA GPUs, RAPL the processor's packages with their memory, a
battery the whole device.

Energy is read between passes through the model, whenever the steps that are under way change and every now and then in between. The joules
drawn since the last look are shared out in proportion to the tokens that each step has put through the model since then. The energy of a
step that is shorter than the reader can resolve, or that no reader sees, is estimated from the model's profile on this device, if there
is one.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

from ..protocols import EnergySource, Execution, Performance
from .hardware import entries, read_integer, read_text
from .hardware.processors import Presence
from .hardware.state import linux_batteries

_LOOK_SECONDS: Final = 0.2
"""Between two looks at the meter while the same steps are under way."""

Estimate = Callable[[int, int], "float | None"]
"""Joules for a number of prompt tokens and one of generated tokens; None if the device's power is unknown."""


class EnergyReader(Protocol):
    """A reader of the energy that a part of the machine draws, for all programs together."""

    @property
    def name(self) -> str:
        """The reader's name: `nvml`, `rapl` or `battery`."""

    @property
    def least_seconds(self) -> float:
        """The shortest interval that can be measured: the figures are refreshed no more often."""

    def lap(self) -> float | None:
        """Return the joules since the last call; None at the first call, and if a figure could not be read in between."""


@dataclass(frozen=True, slots=True)
class ReaderLook:
    """One reader, or why there is none."""

    name: str
    presence: Presence
    reason: str
    """The source that it reads; or the missing part, and how to get it."""
    reader: EnergyReader | None = None
    """The reader itself, if it is present."""


_POWER_SUPPLIES: Final = "sys/class/power_supply"


class BatteryReader:
    """The power that the batteries give, times the time between two looks. It is the whole device's: screen and radio included.

    The figures are those of Linux's power supply class: https://docs.kernel.org/power/power_supply_class.html
    """

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
        return ReaderLook(BatteryReader.name, Presence.ABSENT, f"/{_POWER_SUPPLIES} lists no battery")
    silent = next((battery for battery in batteries if _watts(battery) is None), None)
    if silent is not None:
        return ReaderLook(BatteryReader.name, Presence.UNKNOWN, f"/{_POWER_SUPPLIES}/{silent.name} does not report its power")
    names = ", ".join(battery.name for battery in batteries)
    return ReaderLook(BatteryReader.name, Presence.PRESENT, f"/{_POWER_SUPPLIES}, {names}, while discharging", BatteryReader(batteries))


def _watts(battery: Path) -> float | None:
    """Return the power that a battery reports, in watts. Some drivers give a discharge as a negative number."""
    power = read_integer(battery / "power_now")
    if power is not None:
        return abs(power) / 1e6
    current, voltage = read_integer(battery / "current_now"), read_integer(battery / "voltage_now")
    return None if current is None or voltage is None else abs(current * voltage) / 1e12


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
    """All NVIDIA GPUs of the machine together, through NVML, the driver's own library: https://docs.nvidia.com/deploy/nvml-api"""

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


_POWERCAP: Final = "sys/class/powercap"
_ZONE: Final = re.compile(r"intel-rapl:\d+")
_PART: Final = re.compile(r"intel-rapl:\d+:\d+")
_ADVICE: Final = "only root may read it; `chmod a+r` its energy_uj, or a udev rule, allows others"


class RaplReader:
    """The packages of the processor and their memory, by the processor's own counters, RAPL.

    Linux shows them as powercap: https://docs.kernel.org/power/powercap/powercap.html. AMD's processors have the same counters under the
    same name. Since CVE-2020-8694 only root may read them.
    """

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
    zones = list(_zones(root / _POWERCAP))
    if not zones:
        return ReaderLook(RaplReader.name, Presence.ABSENT, f"/{_POWERCAP} lists no package: no such counters, or a virtual machine")
    closed = next((zone for zone in zones if read_integer(zone / "energy_uj") is None), None)
    if closed is not None:
        return ReaderLook(RaplReader.name, Presence.UNKNOWN, f"/{_POWERCAP}/{closed.name} cannot be read: {_ADVICE}")
    return ReaderLook(RaplReader.name, Presence.PRESENT, f"/{_POWERCAP}, {', '.join(zone.name for zone in zones)}", RaplReader(zones))


def _zones(folder: Path) -> Iterator[Path]:
    """Yield the packages, and memory that has a counter of its own. Other zones are part of a package, or contain the packages."""
    for entry in entries(folder):
        name = read_text(entry / "name") or ""
        if (_ZONE.fullmatch(entry.name) and name.startswith("package")) or (_PART.fullmatch(entry.name) and name == "dram"):
            yield entry


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


@dataclass(frozen=True, slots=True)
class EnergyInterval:
    """The time and energy of one interval."""

    seconds: float
    joules: float | None
    """None: not measured."""

    @property
    def watts(self) -> float | None:
        """The mean power; None if it is unknown."""
        return None if self.joules is None or not self.seconds else self.joules / self.seconds


class Meter:
    """Reads one reader at the ends of intervals, on a clock that never runs backwards."""

    def __init__(self, reader: EnergyReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._began = 0.0

    @property
    def least_seconds(self) -> float:
        """The shortest interval that can be measured."""
        return self._reader.least_seconds

    def start(self) -> None:
        """Begin an interval; what was drawn before it does not count."""
        self._began = self._clock()
        self._reader.lap()

    def stop(self) -> EnergyInterval:
        """End the interval. The next one begins at the same moment."""
        began, self._began = self._began, self._clock()
        return EnergyInterval(self._began - began, self._reader.lap())


@dataclass(slots=True, eq=False)
class Measures:
    """Measures of one step, from its first pass through the model on."""

    began: float = 0.0
    ended: float = 0.0
    first_token: float | None = None
    """When it came."""
    tokens: int = 0
    """Put through the model."""
    prefill_tokens: int = 0
    """Tokens put through the model before the first token was chosen."""
    first_tokens: int = 0
    """Output once the first token was chosen: the syntax that begins a tool call comes before it, and may follow at once."""
    cells: int = 0
    """Cells of the key-value cache that it held at its end, which is the most that it held."""
    unpaid_tokens: int = 0
    """Put through the model since the last look at the meter."""
    joules: float | None = 0.0

    def fed(self, tokens: int) -> None:
        """Count tokens that go through the model with the next pass."""
        self.tokens += tokens
        self.unpaid_tokens += tokens

    def chosen(self, output_tokens: int) -> None:
        """Take note that a token was chosen, after which the output has `output_tokens` tokens."""
        if self.first_token is None:
            self.first_token = time.monotonic()
            self.prefill_tokens = self.tokens
            self.first_tokens = output_tokens

    def charge(self, joules: float | None) -> None:
        """Add a share of the energy; None: unknown."""
        self.unpaid_tokens = 0
        self.joules = None if self.joules is None or joules is None else self.joules + joules


class Measuring:
    """Measures the steps of one scheduler.

    Args:
        kv_bytes_per_token: of the model's cache; None: unknown.
        meter: sees what computes; None: nothing does.
        estimate: joules by the model's profile; None: there is none.
    """

    def __init__(self, *, kv_bytes_per_token: int | None = None, meter: Meter | None = None, estimate: Estimate | None = None) -> None:
        self._kv_bytes_per_token = kv_bytes_per_token
        self._meter = meter
        self._estimate = estimate
        self._steps: list[Measures] = []
        self._looked = 0.0

    def begin(self, step: Measures) -> None:
        """Begin a step that is about to go through the model."""
        self._look()
        self._steps.append(step)
        step.began = time.monotonic()

    def passed(self) -> None:
        """Read the energy after a pass through the model, unless the last look was just before."""
        if self._meter is not None and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._look()

    def end(self, step: Measures, *, cells: int) -> None:
        """End a step, however it ended; it held so many cells of the cache."""
        step.ended, step.cells = time.monotonic(), cells
        self._look()
        self._steps.remove(step)

    def performance(self, step: Measures, output_tokens: int) -> Performance:
        """Return the measures of a step that is over."""
        joules, source = self._energy(step, output_tokens)
        first = step.ended if step.first_token is None else step.first_token
        return Performance(
            first_token_seconds=None if step.first_token is None else first - step.began,
            prefill_tokens_per_second=_rate(step.prefill_tokens, first - step.began),
            decode_tokens_per_second=_rate(output_tokens - step.first_tokens, step.ended - first),
            joules=joules,
            joules_source=source,
            kv_bytes=None if self._kv_bytes_per_token is None else step.cells * self._kv_bytes_per_token,
        )

    def _energy(self, step: Measures, output_tokens: int) -> tuple[float | None, EnergySource]:
        if self._meter is not None and step.joules and step.ended - step.began >= self._meter.least_seconds:
            return step.joules, EnergySource.MEASURED
        joules = None if self._estimate is None else self._estimate(step.prefill_tokens, output_tokens)
        return joules, EnergySource.UNAVAILABLE if joules is None else EnergySource.ESTIMATED

    def _look(self) -> None:
        """Share out the energy drawn since the last look. Energy drawn while no step was under way is charged to none."""
        if self._meter is None:
            return
        self._looked = time.monotonic()
        if not self._steps:
            self._meter.start()
            return
        drawn = self._meter.stop().joules
        tokens = sum(step.unpaid_tokens for step in self._steps)
        for step in self._steps:
            share = step.unpaid_tokens / tokens if tokens else 1 / len(self._steps)
            step.charge(None if drawn is None else drawn * share)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None
