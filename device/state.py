"""Reading the state of this device, as far as its operating system tells."""

from pathlib import Path
from typing import Final

from ..protocols import DeviceState
from .hardware.files import entries, is_linux, read_integer, read_text
from .hardware.heat import read_heat
from .hardware.memory import free_memory_bytes
from .hardware.power import read_power

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
