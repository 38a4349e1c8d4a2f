"""What a device says of itself."""

import sys
from pathlib import Path

import pytest
from fake_system import MEMINFO, supply, write_system, zone

from nearfar.device.hardware.state import read_device_state
from nearfar.protocols import DeviceState, PowerSource, Thermal


def interface(name: str, kind: int, operstate: str, flags: str = "0x1003") -> dict[str, str]:
    folder = f"sys/class/net/{name}"
    return {f"{folder}/type": str(kind), f"{folder}/operstate": operstate, f"{folder}/flags": flags}


LOOPBACK = interface("lo", 772, "unknown")


def test_this_machine_can_be_read() -> None:
    read = read_device_state()
    assert read.free_memory_bytes is not None
    assert read.free_memory_bytes > 0
    assert read.is_offline is not None


def test_a_laptop_tells_everything(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        **supply("BAT0", type="Battery", status="Discharging", capacity=12),
        **zone(0, 97, passive=95, critical=105),
        **LOOPBACK,
        **interface("wlan0", 1, "up"),
    }
    assert read_device_state(write_system(tmp_path, files)) == DeviceState(
        battery=0.12,
        power_source=PowerSource.BATTERY,
        thermal=Thermal.SERIOUS,
        free_memory_bytes=8_000_000 * 1024,
        is_offline=False,
    )


def test_a_state_is_live(tmp_path: Path) -> None:
    root = write_system(tmp_path, {**zone(0, 50, critical=105), **interface("wlan0", 1, "up")})
    before = read_device_state(root)
    write_system(root, {**zone(0, 106, critical=105), **interface("wlan0", 1, "down")})
    after = read_device_state(root)
    assert (before.thermal, before.is_offline) == (Thermal.NOMINAL, False)
    assert (after.thermal, after.is_offline) == (Thermal.CRITICAL, True)


@pytest.mark.parametrize(
    ("interfaces", "is_offline"),
    [
        ({}, None),
        (LOOPBACK, True),
        ({**LOOPBACK, **interface("eth0", 1, "down")}, True),
        ({**LOOPBACK, **interface("tun0", 65534, "unknown", "0x10d1")}, False),
        ({**LOOPBACK, **interface("tun0", 65534, "unknown", "0x10d0")}, True),
    ],
)
def test_offline_means_that_no_interface_but_loopback_is_up(tmp_path: Path, interfaces: dict[str, str], is_offline: bool | None) -> None:
    assert read_device_state(write_system(tmp_path, interfaces)).is_offline is is_offline


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert read_device_state(write_system(tmp_path, {})) == DeviceState()


def test_a_system_that_is_no_linux_is_unknown_without_psutil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr("sys.platform", "some_other_system")
    assert read_device_state(tmp_path) == DeviceState()
