"""`DeviceState`: battery, temperature and memory of a device, which routing rules look at besides the task."""

from collections.abc import Callable
from enum import StrEnum
from math import exp
from typing import Any, Final

from pydantic import Field

from .steps import Value


class PowerSource(StrEnum):
    """The device's source of power."""

    MAINS = "mains"
    BATTERY = "battery"


class Thermal(StrEnum):
    """The device's thermal state, in the terms of Apple's and Android's interfaces."""

    NOMINAL = "nominal"
    FAIR = "fair"
    SERIOUS = "serious"
    """Performance is held back."""
    CRITICAL = "critical"
    """The device has to cool down."""


class DeviceState(Value):
    """The state of a device at one moment. None means unknown, which is not the same as fine."""

    battery: float | None = Field(default=None, ge=0, le=1)
    """Share of a full charge."""
    power_source: PowerSource | None = None
    """Mains or battery; None: unknown."""
    thermal: Thermal | None = None
    """How hot the device is; None: unknown."""
    free_memory_bytes: int | None = Field(default=None, ge=0)
    """Memory that is free; None: unknown."""
    is_offline: bool | None = None
    """No network can be reached."""


DeviceStateSource = Callable[[], DeviceState]
"""Looks at the device; called once for each decision, so it has to be quick."""


_LAPTOP_JOULES: Final = 180_000.0
"""A full battery of 50 Wh."""
_AMBIENT_CELSIUS: Final = 25.0
_CELSIUS_PER_WATT: Final = 3.0
_SECONDS_TO_WARM: Final = 60.0
"""Seconds until a change of temperature is two thirds done (the time constant)."""
_FROM_CELSIUS: Final = {Thermal.CRITICAL: 95.0, Thermal.SERIOUS: 85.0, Thermal.FAIR: 70.0, Thermal.NOMINAL: _AMBIENT_CELSIUS}
_BYTES_FREE: Final = 8 << 30


class SimulatedDevice:
    """A `DeviceStateSource`: calling it returns the device's state.

    It starts as a laptop on battery, fully charged, cool and online. Time passes only in `run`, and `set` changes fields. The
    temperature follows Newton's law of cooling towards the value that the drawn power leads to.
    """

    def __init__(self, *, battery_joules: float = _LAPTOP_JOULES, celsius_per_watt: float = _CELSIUS_PER_WATT) -> None:
        """Set `battery_joules`, the energy of a full charge, and `celsius_per_watt`, the final rise over room temperature per watt."""
        self._battery_joules = battery_joules
        self._celsius_per_watt = celsius_per_watt
        self.celsius = _AMBIENT_CELSIUS
        self._state = DeviceState(
            battery=1.0, power_source=PowerSource.BATTERY, thermal=Thermal.NOMINAL, free_memory_bytes=_BYTES_FREE, is_offline=False
        )

    def __call__(self) -> DeviceState:
        """Return the device's state now."""
        return self._state

    def set(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of `DeviceState`, which it checks
        """Change fields of the state; None makes one unknown. The `changes` are fields of `DeviceState`; setting `thermal` also sets the
        temperature."""
        self._state = DeviceState.model_validate({**self._state.model_dump(), **changes})
        if self._state.thermal is not None and "thermal" in changes:
            self.celsius = _FROM_CELSIUS[self._state.thermal]

    def run(self, seconds: float, *, watts: float) -> None:
        """Let `seconds` pass at a constant power of so many `watts`. On the mains the battery neither drains nor charges; unknown values
        stay unknown."""
        settles_at = _AMBIENT_CELSIUS + watts * self._celsius_per_watt
        self.celsius = settles_at + (self.celsius - settles_at) * exp(-seconds / _SECONDS_TO_WARM)
        state = self._state
        battery = state.battery
        if battery is not None and state.power_source is not PowerSource.MAINS:
            battery = max(battery - seconds * watts / self._battery_joules, 0.0)
        thermal = None if state.thermal is None else _thermal(self.celsius)
        self._state = state.model_copy(update={"battery": battery, "thermal": thermal})


def _thermal(celsius: float) -> Thermal:
    return next((thermal for thermal, start in _FROM_CELSIUS.items() if celsius >= start), Thermal.NOMINAL)
