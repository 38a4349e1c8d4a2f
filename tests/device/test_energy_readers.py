"""Readers of the machine's energy, on file trees of machines that have something to read."""

from pathlib import Path

import pytest
from energy_machines import ON_CPU, ON_CUDA, ON_VULKAN, RANGE, FakeNvml, battery, rapl_zone, write
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.device.energy import BatteryReader, Meter, look_for_battery, look_for_nvml, look_for_rapl, open_reader


@settings(max_examples=50, deadline=None)
@given(start=st.integers(0, RANGE - 1), drawn=st.lists(st.integers(0, RANGE - 1), min_size=1, max_size=8))
def test_rapl_counts_on_when_its_counter_begins_again(tmp_path_factory: pytest.TempPathFactory, start: int, drawn: list[int]) -> None:
    root = tmp_path_factory.mktemp("rapl")
    zone = rapl_zone(root, "intel-rapl:0", "package-0", start)
    reader = look_for_rapl(root).reader
    assert reader is not None
    assert reader.lap() is None, "nothing was read before"
    counter = start
    for microjoules in drawn:
        counter += microjoules
        write(zone, energy_uj=counter % RANGE)
        assert reader.lap() == pytest.approx(microjoules / 1e6)


def test_a_counter_that_began_again_nobody_knows_where_makes_the_lap_unknown(tmp_path: Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    (zone / "max_energy_range_uj").unlink()
    reader = look_for_rapl(tmp_path).reader
    assert reader is not None
    reader.lap()
    write(zone, energy_uj=1_000_000)
    assert reader.lap() is None
    write(zone, energy_uj=3_000_000)
    assert reader.lap() == pytest.approx(2.0)


def test_rapl_sums_packages_and_memory_and_counts_no_part_twice(tmp_path: Path) -> None:
    zones = {"intel-rapl:0": "psys", "intel-rapl:1": "package-0", "intel-rapl:1:0": "core", "intel-rapl:1:1": "dram"}
    folders = [rapl_zone(tmp_path, zone, name) for zone, name in zones.items()]
    rapl_zone(tmp_path, "intel-rapl-mmio:0", "package-0", max_energy_range_uj=RANGE)
    reader = look_for_rapl(tmp_path).reader
    assert reader is not None
    reader.lap()
    for folder, joules in zip(folders, (100, 30, 20, 5), strict=True):
        write(folder, energy_uj=joules * 1_000_000)
    assert reader.lap() == pytest.approx(35.0)


def test_rapl_that_only_root_may_read_says_so(tmp_path: Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0")
    (zone / "energy_uj").unlink()  # What root's own tests cannot be refused, they can miss.
    look = look_for_rapl(tmp_path)
    assert look.reader is None
    assert "only root" in look.reason


def test_a_counter_that_vanishes_makes_the_lap_unknown_and_the_next_one_too(tmp_path: Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 5)
    reader = look_for_rapl(tmp_path).reader
    assert reader is not None
    reader.lap()
    (zone / "energy_uj").unlink()
    assert reader.lap() is None
    write(zone, energy_uj=10_000_005)
    assert reader.lap() is None
    write(zone, energy_uj=12_000_005)
    assert reader.lap() == pytest.approx(2.0)


def test_a_battery_gives_the_mean_of_its_power_over_the_time(tmp_path: Path) -> None:
    folder = battery(tmp_path, power_now=10_000_000)
    times = iter((100.0, 104.0, 106.0))
    reader = BatteryReader([folder], clock=lambda: next(times))
    assert reader.lap() is None
    write(folder, power_now=20_000_000)
    assert reader.lap() == pytest.approx(4 * 15.0)
    assert reader.lap() == pytest.approx(2 * 20.0)


def test_a_battery_without_a_power_gives_current_times_voltage(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "sys/class/power_supply/BAT1", type="Battery", status="Discharging", current_now=-1_500_000, voltage_now=12_000_000
    )
    times = iter((0.0, 2.0))
    reader = BatteryReader([folder], clock=lambda: next(times))
    reader.lap()
    assert reader.lap() == pytest.approx(2 * 18.0)
    assert look_for_battery(tmp_path).reader is not None


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown"])
def test_a_battery_that_does_not_drain_measures_nothing(tmp_path: Path, status: str) -> None:
    folder = battery(tmp_path)
    reader = look_for_battery(tmp_path).reader
    assert reader is not None
    reader.lap()
    write(folder, status=status)
    assert reader.lap() is None
    write(folder, status="Discharging")
    assert reader.lap() is None, "it was plugged in at the beginning of this lap"


def test_two_batteries_of_which_one_drains_count_as_that_one(tmp_path: Path) -> None:
    folders = [battery(tmp_path, "BAT0", status="Not charging", power_now=0), battery(tmp_path, "BAT1")]
    times = iter((0.0, 1.0))
    reader = BatteryReader(folders, clock=lambda: next(times))
    reader.lap()
    assert reader.lap() == pytest.approx(12.0)


def test_a_mouse_s_battery_is_none(tmp_path: Path) -> None:
    battery(tmp_path, "hidpp_battery_0", scope="Device")
    assert look_for_battery(tmp_path).reader is None


def test_nvml_sums_the_gpus_counters() -> None:
    nvml = FakeNvml(5_000, 7_000)
    reader = look_for_nvml(nvml).reader
    assert reader is not None
    assert reader.lap() is None
    nvml.millijoules = [6_500, 7_250]
    assert reader.lap() == pytest.approx(1.75)
    nvml.millijoules = [0, 10]
    assert reader.lap() is None, "the driver was loaded anew"


@pytest.mark.parametrize("lacks", ["driver", "counter"])
def test_nvml_that_lacks_something_is_no_reader_and_says_what(lacks: str) -> None:
    look = look_for_nvml(FakeNvml(1, lacks=lacks))
    assert look.reader is None
    assert lacks in look.reason


def test_a_gpu_that_stops_telling_makes_the_lap_unknown() -> None:
    nvml = FakeNvml(1)
    reader = look_for_nvml(nvml).reader
    assert reader is not None
    reader.lap()
    nvml.lacks = "counter"
    assert reader.lap() is None


def test_every_reader_of_this_machine_is_there_or_says_why_not() -> None:
    looks = (look_for_nvml(), look_for_rapl(), look_for_battery())
    assert [look.name for look in looks] == ["nvml", "rapl", "battery"]
    assert all(look.reason for look in looks)


def test_only_a_reader_that_sees_the_model_s_processor_is_asked(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0")
    assert open_reader(ON_VULKAN, tmp_path) is None
    assert open_reader(None, tmp_path) is None
    on_cpu = open_reader(ON_CPU, tmp_path)
    assert on_cpu is not None
    assert on_cpu.name == "rapl"
    battery(tmp_path)
    for execution in (ON_VULKAN, None):
        on_battery = open_reader(execution, tmp_path)
        assert on_battery is not None
        assert on_battery.name == "battery"


def test_the_gpu_s_counter_comes_first_where_the_model_runs_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0")
    monkeypatch.setattr("nearfar.device.energy._installed", lambda: FakeNvml(1))
    on_gpu, on_cpu = open_reader(ON_CUDA, tmp_path), open_reader(ON_CPU, tmp_path)
    assert on_gpu is not None
    assert on_cpu is not None
    assert (on_gpu.name, on_cpu.name) == ("nvml", "rapl")


def test_a_meter_s_intervals_follow_one_another(tmp_path: Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0")
    times = iter((10.0, 12.0, 12.0, 20.0, 21.0))
    reader = open_reader(ON_CPU, tmp_path)
    assert reader is not None
    meter = Meter(reader, clock=lambda: next(times))
    meter.start()
    write(zone, energy_uj=30_000_000)
    first = meter.stop()
    assert (first.seconds, first.joules, first.watts) == (2.0, 30.0, 15.0)
    write(zone, energy_uj=31_000_000)
    second = meter.stop()
    assert (second.seconds, second.joules, second.watts) == (0.0, 1.0, None)
    write(zone, energy_uj=99_000_000)
    meter.start()
    write(zone, energy_uj=99_500_000)
    third = meter.stop()
    assert (third.seconds, third.joules) == (1.0, 0.5), "what was drawn before the start does not count"
