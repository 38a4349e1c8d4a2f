"""What a phone says of itself."""

import json
import os
from pathlib import Path

import pytest

from nearfar.device import thin_worker as phone_module
from nearfar.device.thin_worker import Phone
from nearfar.protocols.v1 import hub_pb2 as pb

TERMUX = {"health": "GOOD", "percentage": 62, "plugged": "UNPLUGGED", "status": "DISCHARGING", "temperature": 31.2, "current": -312000}
"""As termux-battery-status writes it."""


@pytest.fixture(autouse=True)
def no_termux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def write_command(folder: Path, script: str) -> None:
    command = folder / "bin" / "termux-battery-status"
    write(command, f"#!/bin/sh\n{script}")
    command.chmod(0o755)


def write_zone(root: Path, celsius: float, **trips: float) -> None:
    zone = root / "sys/class/thermal/thermal_zone0"
    write(zone / "temp", int(celsius * 1000))
    for number, (kind, at) in enumerate(trips.items()):
        write(zone / f"trip_point_{number}_type", kind)
        write(zone / f"trip_point_{number}_temp", int(at * 1000))


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert Phone(tmp_path)() == pb.DeviceState()


def test_termux_tells_charge_power_source_and_warmth(tmp_path: Path) -> None:
    write_command(tmp_path, f"echo '{json.dumps(TERMUX)}'")
    state = Phone(tmp_path)()
    assert (state.battery, state.power_source, state.thermal) == (0.62, pb.POWER_SOURCE_BATTERY, pb.THERMAL_NOMINAL)


@pytest.mark.parametrize(
    ("celsius", "thermal"),
    [(39.9, pb.THERMAL_NOMINAL), (40, pb.THERMAL_FAIR), (45, pb.THERMAL_SERIOUS), (50, pb.THERMAL_CRITICAL), (None, pb.THERMAL_UNKNOWN)],
)
def test_a_warm_battery_is_a_warm_phone(tmp_path: Path, celsius: float | None, thermal: pb.Thermal) -> None:
    write_command(tmp_path, f"echo '{json.dumps(TERMUX | {'temperature': celsius, 'plugged': 'PLUGGED_USB'})}'")
    state = Phone(tmp_path)()
    assert (state.thermal, state.power_source) == (thermal, pb.POWER_SOURCE_MAINS)


@pytest.mark.parametrize("script", ["exit 1", "echo no JSON", "echo [1]", """echo '{"percentage": "many", "plugged": 1}'"""])
def test_an_odd_answer_of_termux_leaves_things_unknown(tmp_path: Path, script: str) -> None:
    write_command(tmp_path, script)
    assert Phone(tmp_path)() == pb.DeviceState()


def test_a_termux_that_never_answers_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phone_module, "_COMMAND_SECONDS", 0.2)
    write_command(tmp_path, f"echo asked >> {tmp_path}/log; exec sleep 60")
    phone = Phone(tmp_path)
    assert phone() == phone() == pb.DeviceState()
    assert (tmp_path / "log").read_text(encoding="utf-8") == "asked\n"


def test_a_linux_battery_is_read_and_a_mouse_is_not(tmp_path: Path) -> None:
    supplies = tmp_path / "sys/class/power_supply"
    for name, value in {"type": "Battery", "capacity": 40, "status": "Discharging"}.items():
        write(supplies / "BAT0" / name, value)
    for name, value in {"type": "Battery", "scope": "Device", "capacity": 99, "status": "Full"}.items():
        write(supplies / "mouse" / name, value)
    state = Phone(tmp_path)()
    assert (state.battery, state.power_source) == (0.4, pb.POWER_SOURCE_BATTERY)


@pytest.mark.parametrize(
    ("celsius", "trips", "thermal"),
    [
        (50, {"passive": 80, "critical": 100}, pb.THERMAL_NOMINAL),
        (76, {"passive": 80, "critical": 100}, pb.THERMAL_FAIR),
        (81, {"passive": 80, "critical": 100}, pb.THERMAL_SERIOUS),
        (101, {"passive": 80, "critical": 100}, pb.THERMAL_CRITICAL),
        (50, {"critical": 100}, pb.THERMAL_NOMINAL),
        (50, {"active": 40}, pb.THERMAL_UNKNOWN),
        (50, {"passive": -273}, pb.THERMAL_UNKNOWN),
    ],
)
def test_zones_are_judged_by_their_own_trip_points(tmp_path: Path, celsius: float, trips: dict[str, float], thermal: pb.Thermal) -> None:
    write_zone(tmp_path, celsius, **trips)
    assert Phone(tmp_path)().thermal == thermal


def test_free_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal:  8000000 kB\nMemFree:  100 kB\nMemAvailable:  2000 kB")
    assert Phone(tmp_path)().free_memory_bytes == 2000 * 1024
