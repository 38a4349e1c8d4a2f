"""What a device says of itself at the moment: what routing rules look at beside the task."""

from collections.abc import Callable
from enum import StrEnum

from pydantic import Field

from .messages import Value


class PowerSource(StrEnum):
    """What the device runs on."""

    MAINS = "mains"
    BATTERY = "battery"


class Thermal(StrEnum):
    """How hot the device is, in the words of Apple's and Android's thermal interfaces."""

    NOMINAL = "nominal"
    FAIR = "fair"
    SERIOUS = "serious"
    """Performance is held back."""
    CRITICAL = "critical"
    """The device has to cool down."""


class DeviceState(Value):
    """One look at the device. None means unknown, which is not the same as fine."""

    battery: float | None = Field(default=None, ge=0, le=1)
    """Share of a full charge."""
    power_source: PowerSource | None = None
    thermal: Thermal | None = None
    free_memory_bytes: int | None = Field(default=None, ge=0)
    is_offline: bool | None = None
    """No network can be reached."""


DeviceStateSource = Callable[[], DeviceState]
"""Looks at the device; called once for each decision, so it has to be quick."""
