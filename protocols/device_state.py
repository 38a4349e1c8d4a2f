"""`DeviceState`: battery, temperature and memory of a device, which routing rules look at besides the task."""

from collections.abc import Callable
from enum import StrEnum

from pydantic import Field

from .messages import Value


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
    thermal: Thermal | None = None
    free_memory_bytes: int | None = Field(default=None, ge=0)
    is_offline: bool | None = None
    """No network can be reached."""


DeviceStateSource = Callable[[], DeviceState]
"""Looks at the device; called once for each decision, so it has to be quick."""
