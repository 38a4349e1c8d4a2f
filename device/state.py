"""Reading the state of this device, as far as its operating system tells."""

from ..protocols import DeviceState, PowerSource


def read_device_state() -> DeviceState:
    """One look: battery, power source, free memory, and whether any network interface is up. Without psutil all of it is unknown."""
    try:
        import psutil
    except ImportError:
        return DeviceState()
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    plugged = None if battery is None else battery.power_plugged
    interfaces = psutil.net_if_stats()
    return DeviceState(
        battery=None if battery is None else min(max(battery.percent / 100, 0.0), 1.0),
        power_source=None if plugged is None else PowerSource.MAINS if plugged else PowerSource.BATTERY,
        free_memory_bytes=psutil.virtual_memory().available,
        is_offline=not any(stats.isup for name, stats in interfaces.items() if not _is_loopback(name, stats.flags)),
    )


def _is_loopback(name: str, flags: str) -> bool:
    return "loopback" in flags.split(",") or name == "lo"
