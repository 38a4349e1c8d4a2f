"""What is read from /proc and /sys, on machines that are written to a folder."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_system import KIB, MEMINFO, chip, supply, write_system, zone
from hypothesis import given
from hypothesis import strategies as st

from nearfar.device.hardware import cpu_quota
from nearfar.device.hardware.processors import Presence, cpu_of_sysctl, read_accelerators, read_cpu, usable_cores
from nearfar.device.hardware.state import free_memory_bytes, heat_of_pmset, level, read_heat, read_memory, read_power
from nearfar.protocols import PowerSource, Thermal

LAPTOP = supply("BAT0", type="Battery", present=1, status="Discharging", energy_now=20, energy_full=50, capacity=40)
GROUP = "sys/fs/cgroup/app.slice"
IN_A_GROUP = {"proc/self/cgroup": "0::/app.slice/task.scope", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}


def test_memory_is_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    memory = read_memory(write_system(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (memory.total_bytes, memory.free_bytes, memory.limit_bytes) == (16_000_000 * KIB, 8_000_000 * KIB, None)


def test_a_control_group_of_version_2_limits_memory_and_its_cache_counts_as_free(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        f"{GROUP}/memory.max": "4000000",
        f"{GROUP}/memory.current": "3000000",
        f"{GROUP}/memory.stat": "anon 5\ninactive_file 1000000",
        f"{GROUP}/task.scope/memory.max": "max",
        f"{GROUP}/task.scope/memory.current": "3000000",
    }
    memory = read_memory(write_system(tmp_path, {**IN_A_GROUP, **files}))
    assert (memory.free_bytes, memory.limit_bytes) == (2_000_000, 4_000_000)


def test_a_control_group_of_version_1_is_found_where_a_container_sees_it(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/docker/0123\n0::/",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000",
    }
    assert free_memory_bytes(write_system(tmp_path, files)) == 3_000_000


def test_a_group_that_is_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, f"{GROUP}/memory.max": "4000", f"{GROUP}/memory.current": "5000"}
    assert free_memory_bytes(write_system(tmp_path, {**IN_A_GROUP, **files})) == 0


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({**IN_A_GROUP, f"{GROUP}/cpu.max": "150000 100000"}, 1.5),
        ({**IN_A_GROUP, f"{GROUP}/cpu.max": "300000 100000", f"{GROUP}/task.scope/cpu.max": "50000 100000"}, 0.5),
        ({**IN_A_GROUP, f"{GROUP}/cpu.max": "max 100000"}, None),
        ({**IN_A_GROUP, "proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
        (
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_the_tightest_cpu_quota_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(write_system(tmp_path, files)) == quota


def test_a_fraction_of_a_core_is_still_one_core(tmp_path: Path) -> None:
    root = write_system(tmp_path, {**IN_A_GROUP, f"{GROUP}/cpu.max": "50000 100000"})
    assert usable_cores(root) == 1


def test_an_x86_cpu_tells_its_cores_and_instruction_sets(tmp_path: Path) -> None:
    core = "processor : {n}\nmodel name : Some CPU @ 2.0GHz\nphysical id : 0\ncore id : {core}\nflags : fpu avx avx2 amx_int8 avx512f\n"
    text = "\n".join(core.format(n=number, core=number // 2) for number in range(4))
    cpu = read_cpu(write_system(tmp_path, {"proc/cpuinfo": text}))
    assert (cpu.model, cpu.physical_cores, cpu.logical_cores) == ("Some CPU @ 2.0GHz", 2, 4)
    assert cpu.features == ("avx", "avx2", "avx512f", "amx_int8")


def test_an_arm_cpu_tells_them_in_its_own_words(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor : 0\nFeatures : fp asimd asimddp asimdhp i8mm sve\n\nprocessor : 1\nFeatures : fp asimd\n",
        "proc/device-tree/model": "Some Board Model B\0",
    }
    cpu = read_cpu(write_system(tmp_path, files))
    assert (cpu.model, cpu.physical_cores, cpu.logical_cores) == ("Some Board Model B", None, 2)
    assert cpu.features == ("neon", "asimdhp", "asimddp", "i8mm", "sve")


def test_macos_tells_them_through_sysctl() -> None:
    counts = "hw.physicalcpu: 8\nhw.logicalcpu: 8\n"
    text = f"machdep.cpu.brand_string: Apple M9\n{counts}hw.optional.arm.FEAT_I8MM: 1\nhw.optional.arm.FEAT_SME: 0\n"
    cpu = cpu_of_sysctl(text)
    assert (cpu.model, cpu.physical_cores, cpu.features) == ("Apple M9", 8, ("i8mm",))


@pytest.mark.parametrize(
    ("files", "charge", "source"),
    [
        (LAPTOP, 0.4, PowerSource.BATTERY),
        ({**LAPTOP, **supply("AC", type="Mains", online=1)}, 0.4, PowerSource.MAINS),
        ({**LAPTOP, **supply("AC", type="Mains", online=0)}, 0.4, PowerSource.BATTERY),
        ({**LAPTOP, **supply("ucsi", type="USB", online=1)}, 0.4, PowerSource.MAINS),
        ({**LAPTOP, **supply("mouse", type="Battery", scope="Device", capacity=90, status="Discharging")}, 0.4, PowerSource.BATTERY),
        ({**LAPTOP, **supply("BAT1", type="Battery", energy_now=50, energy_full=50, status="Full")}, 0.7, PowerSource.MAINS),
        (supply("battery", type="Battery", status="Charging", capacity=55), 0.55, PowerSource.MAINS),
        (supply("battery", type="Battery", status="Full", charge_now=103, charge_full=100), 1.0, PowerSource.MAINS),
        (supply("AC", type="Mains", online=1), None, PowerSource.MAINS),
        (supply("battery", type="Battery", status="Unknown"), None, None),
    ],
)
def test_batteries_and_mains(tmp_path: Path, files: dict[str, str], charge: float | None, source: PowerSource | None) -> None:
    battery, power = read_power(write_system(tmp_path, files))
    assert battery.charge == (None if charge is None else pytest.approx(charge))
    assert power.source == source


def test_no_battery_is_absent_and_no_list_of_them_is_unknown(tmp_path: Path) -> None:
    battery, power = read_power(write_system(tmp_path / "desktop", supply("AC", type="Mains", online=1)))
    assert (battery.presence, power.presence) == (Presence.ABSENT, Presence.PRESENT)
    battery, power = read_power(write_system(tmp_path / "phone", {}))
    assert (battery.presence, power.presence) == (Presence.UNKNOWN, Presence.UNKNOWN)


@pytest.mark.parametrize(
    ("files", "thermal"),
    [
        (zone(0, 50, passive=95, critical=105), Thermal.NOMINAL),
        (zone(0, 86, passive=95, critical=105), Thermal.FAIR),
        (zone(0, 96, passive=95, critical=105), Thermal.SERIOUS),
        (zone(0, 106, passive=95, critical=105), Thermal.CRITICAL),
        (zone(0, 96, critical=105), Thermal.SERIOUS),
        (zone(0, 60, active=50, critical=105), Thermal.NOMINAL),
        ({**zone(0, 50, critical=105), **zone(1, 100, critical=105)}, Thermal.SERIOUS),
        ({**zone(0, 50, critical=105), **zone(1, 100, critical=105, mode="disabled")}, Thermal.NOMINAL),
        (zone(0, 50, passive=-274, critical=105), Thermal.NOMINAL),
        (chip(0, "coretemp", temp1_input=91000, temp1_max=80000, temp1_crit=100000, temp1_label="Package id 0"), Thermal.SERIOUS),
        (chip(0, "coretemp", temp1_input=81000, temp1_max=80000, temp1_crit=100000), Thermal.FAIR),
        ({**zone(0, 50, critical=105), **chip(0, "nvme", temp1_input=90000, temp1_crit=80000)}, Thermal.NOMINAL),
    ],
)
def test_heat_is_judged_by_the_sensors_own_limits(tmp_path: Path, files: dict[str, str], thermal: Thermal) -> None:
    heat = read_heat(write_system(tmp_path, files))
    assert (heat.presence, heat.thermal) == (Presence.PRESENT, thermal)


@pytest.mark.parametrize("files", [{}, zone(0, 50), zone(0, 0, critical=105), chip(0, "k10temp", temp1_input=45000)])
def test_heat_is_unknown_without_a_sensor_that_names_a_limit(tmp_path: Path, files: dict[str, str]) -> None:
    heat = read_heat(write_system(tmp_path, files))
    assert (heat.presence, heat.thermal) == (Presence.UNKNOWN, None)


temperatures = st.floats(-50, 200)


@given(colder=temperatures, warmer=temperatures, limits=st.tuples(st.none() | temperatures, st.none() | temperatures))
def test_a_warmer_device_is_never_judged_cooler(colder: float, warmer: float, limits: tuple[float | None, float | None]) -> None:
    colder, warmer = sorted((colder, warmer))
    below, above = level(colder, *limits), level(warmer, *limits)
    order = list(Thermal)
    assert (below is None) == (above is None)
    assert below is None or above is None or order.index(below) <= order.index(above)


@pytest.mark.parametrize(
    ("text", "thermal"),
    [
        ("CPU_Scheduler_Limit \t= 100\nCPU_Speed_Limit \t= 100\n", Thermal.NOMINAL),
        ("CPU_Speed_Limit \t= 70\n", Thermal.SERIOUS),
        ("CPU_Speed_Limit \t= 30\n", Thermal.CRITICAL),
        ("Note: No thermal warning level has been recorded\n", Thermal.NOMINAL),
        ("", None),
    ],
)
def test_macos_tells_how_far_it_holds_the_cpu_back(text: str, thermal: Thermal | None) -> None:
    assert heat_of_pmset(text).thermal == thermal


def test_gpus_and_npus_are_named_with_their_drivers(tmp_path: Path) -> None:
    gpu, npu, hidden = "sys/bus/pci/devices/0000:01:00.0", "sys/class/accel/accel0/device", "sys/bus/pci/devices/0000:00:02.0"
    files = {
        f"{gpu}/vendor": "0x10de",
        f"{gpu}/class": "0x030200",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA Some Card\nIRQ: 1",
        f"{npu}/vendor": "0x8086",
        f"{hidden}/vendor": "0x1af4",
        f"{hidden}/class": "0x030000",
    }
    links = {f"{gpu}/driver": "sys/drivers/nvidia", f"{npu}/driver": "sys/drivers/intel_vpu"}
    (card,), (accelerator,) = read_accelerators(write_system(tmp_path, files, links))
    assert (card.presence, card.name, card.driver) == (Presence.PRESENT, "NVIDIA Some Card", "nvidia")
    assert (accelerator.presence, accelerator.name, accelerator.driver) == (Presence.PRESENT, "Intel NPU", "intel_vpu")


def test_a_gpu_that_linux_reaches_through_windows_is_present(tmp_path: Path) -> None:
    root = write_system(tmp_path, {"dev/dxg": "", "sys/bus/pci/devices/a/class": "0x060000"})
    gpus, npus = read_accelerators(root)
    assert [(each.presence, each.driver) for each in gpus] == [(Presence.PRESENT, "dxgkrnl")]
    assert [each.presence for each in npus] == [Presence.ABSENT]


def test_hardware_without_a_driver_is_present_and_says_so(tmp_path: Path) -> None:
    pci = "sys/bus/pci/devices"
    files = {
        f"{pci}/a/vendor": "0x1002",
        f"{pci}/a/class": "0x030000",
        f"{pci}/b/vendor": "0x8086",
        f"{pci}/b/class": "0x120000",
    }
    (gpu,), (npu,) = read_accelerators(write_system(tmp_path, files))
    assert (gpu.name, gpu.driver, npu.driver) == ("AMD GPU", None, None)
    assert "without a driver" in gpu.reason


@pytest.mark.parametrize(
    ("prepare", "presence"),
    [
        (lambda root: (root / "sys/bus/pci/devices").mkdir(parents=True), Presence.ABSENT),
        (lambda root: None, Presence.UNKNOWN),
    ],
)
def test_none_is_absent_only_where_the_system_lists_its_devices(
    tmp_path: Path, prepare: Callable[[Path], None], presence: Presence
) -> None:
    root = write_system(tmp_path, {})
    prepare(root)
    gpus, npus = read_accelerators(root)
    assert [each.presence for each in (*gpus, *npus)] == [presence, presence]


def test_a_system_of_whose_batteries_psutil_tells_nothing_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    battery, power = read_power(tmp_path)
    assert (battery.presence, power.presence) == (Presence.UNKNOWN, Presence.UNKNOWN)


@pytest.mark.parametrize(
    ("told", "charge", "source", "presence"),
    [
        (SimpleNamespace(percent=37.0, power_plugged=False), 0.37, PowerSource.BATTERY, Presence.PRESENT),
        (SimpleNamespace(percent=100.4, power_plugged=True), 1.0, PowerSource.MAINS, Presence.PRESENT),
        (SimpleNamespace(percent=50.0, power_plugged=None), 0.5, None, Presence.PRESENT),
        (None, None, None, Presence.ABSENT),
    ],
)
def test_where_there_is_no_linux_psutil_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: SimpleNamespace | None,
    charge: float | None,
    source: PowerSource | None,
    presence: Presence,
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: told)
    battery, power = read_power(tmp_path)
    assert (battery.charge, power.source, battery.presence) == (charge, source, presence)
    assert free_memory_bytes(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.2)
