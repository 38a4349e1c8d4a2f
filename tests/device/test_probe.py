"""The whole probe, and the looks at engines, which may hang, crash or babble."""

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest
from fake_system import supply, write_system
from llama_engine import needs_llama
from pydantic import BaseModel

from nearfar.device.hardware.probe import ENGINES, NVML, Hardware, ProviderDevice, execution_providers, look_at_drivers, probe_hardware
from nearfar.device.hardware.processors import Component, Presence, ProcessorKind

pytestmark = pytest.mark.anyio

SHAPE = {
    "cpu": {"model", "architecture", "physical_cores", "logical_cores", "usable_cores", "quota", "features"},
    "memory": {"total_bytes", "free_bytes", "limit_bytes"},
    "gpus": {"kind", "name", "driver"},
    "npus": {"kind", "name", "driver"},
    "battery": {"charge"},
    "power": {"source"},
    "heat": {"thermal", "sensors"},
    "engines": {"name", "version", "providers"},
    "energy": {"name"},
}
"""What scripts read: `nearfar doctor --json`, below `hardware`. Fields may be added, and none may go."""


def components(value: BaseModel) -> Iterator[Component]:
    """Every component inside a report, however deep."""
    if isinstance(value, Component):
        yield value
    for name in type(value).model_fields:
        field = getattr(value, name)
        for inner in field if isinstance(field, tuple) else (field,):
            if isinstance(inner, BaseModel):
                yield from components(inner)


async def test_this_machine_is_described_and_every_part_says_what_is_known_of_it() -> None:
    hardware = await probe_hardware()
    found = list(components(hardware))
    assert len(found) > len(SHAPE)
    assert all(part.presence in Presence and part.reason for part in found)
    assert hardware.cpu.presence is Presence.PRESENT
    assert hardware.memory.presence is Presence.PRESENT
    assert {engine.name for engine in hardware.engines} == set(ENGINES)
    assert [reader.name for reader in hardware.energy] == ["nvml", "rapl", "battery"]


async def test_a_machine_that_tells_nothing_is_unknown_and_no_error(tmp_path: Path) -> None:
    hardware = await probe_hardware(write_system(tmp_path, {}))
    parts = (hardware.cpu, hardware.memory, *hardware.gpus, *hardware.npus, hardware.battery, hardware.power, hardware.heat)
    assert {part.presence for part in parts} == {Presence.UNKNOWN}


def test_the_report_keeps_its_shape() -> None:
    definitions = Hardware.model_json_schema()["$defs"]
    properties = Hardware.model_json_schema()["properties"]
    assert set(SHAPE) <= set(properties)
    for name, fields in SHAPE.items():
        reference = properties[name].get("$ref") or properties[name]["items"]["$ref"]
        assert fields | {"presence", "reason"} <= set(definitions[reference.rpartition("/")[2]]["properties"])


@needs_llama
async def test_installed_engines_compute_on_the_cpu_at_least() -> None:
    engines = {engine.name: engine for engine in (await look_at_drivers()).engines}
    present = {provider.name: provider for provider in engines["llama.cpp"].providers if provider.presence is Presence.PRESENT}
    assert present["cpu"].kind is ProcessorKind.CPU
    assert present["cpu"].device


def _install_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every engine be looked at, also one that is not installed here."""
    for name, (_, package) in ENGINES.items():
        monkeypatch.setitem(ENGINES, name, ("json", package))


async def test_an_engine_that_is_not_installed_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "llama.cpp", ("no_such_module", "no-such-package"))
    engine, _ = (await look_at_drivers(command=[sys.executable, "-c", ""])).engines
    assert engine.presence is Presence.ABSENT
    assert "no-such-package" in engine.reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit(3)", "exit code 3"),
        ('print(\'{"presence": "present"}\')', "exit code 0"),
        ("print('x' * 1_000_000)", "exit code 0"),
        ("import no_such_driver", "exit code 1: ModuleNotFoundError: No module named 'no_such_driver'"),
        ("import sys; sys.exit('x' * 1_000_000)", "exit code 1: xxx"),
    ],
)
async def test_what_cannot_be_looked_at_is_unknown_with_the_cause(code: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_all(monkeypatch)
    drivers = await look_at_drivers(command=[sys.executable, "-c", code])
    for part in (*drivers.engines, drivers.energy[0]):
        assert part.presence is Presence.UNKNOWN
        assert reason in part.reason


async def test_a_driver_that_crashes_leaves_the_other_counters_of_energy_known(tmp_path: Path) -> None:
    root = write_system(tmp_path, supply("BAT0", type="Battery", status="Discharging", power_now=9_000_000))
    drivers = await look_at_drivers(root, command=[sys.executable, "-c", "import os; os.abort()"])
    assert [(reader.name, reader.presence) for reader in drivers.energy] == [
        ("nvml", Presence.UNKNOWN),
        ("rapl", Presence.ABSENT),
        ("battery", Presence.PRESENT),
    ]


async def test_a_look_that_hangs_is_killed_with_its_helpers_and_its_subject_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_all(monkeypatch)
    hangs = f'sleep 600 & echo $$ $! > {tmp_path}/"$0"; wait'
    with anyio.fail_after(30):
        drivers = await look_at_drivers(command=["sh", "-c", hangs], seconds=2.0)
    parts = (*drivers.engines, drivers.energy[0])
    assert {part.presence for part in parts} == {Presence.UNKNOWN}
    assert all("2 s" in part.reason for part in parts)
    looks = [*ENGINES, NVML]
    left = [int(number) for name in looks for number in (tmp_path / name).read_text(encoding="utf-8").split()]
    assert len(left) == 2 * len(looks)
    _, alive = psutil.wait_procs([psutil.Process(number) for number in left if psutil.pid_exists(number)], timeout=10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_an_execution_provider_that_is_only_built_in_is_unknown_until_a_model_runs() -> None:
    listed = [
        ProviderDevice("CPUExecutionProvider", ProcessorKind.CPU, "some CPU"),
        ProviderDevice("QNNExecutionProvider", ProcessorKind.NPU, "HTP"),
    ]
    built_with = ["CUDAExecutionProvider", "AzureExecutionProvider", "CPUExecutionProvider"]
    found = {provider.name: provider.presence for provider in execution_providers(built_with, listed)}
    assert (found["cpu"], found["qnn"], found["cuda"], found["coreml"]) == (
        Presence.PRESENT,
        Presence.PRESENT,
        Presence.UNKNOWN,
        Presence.ABSENT,
    )
    assert "azure" not in found  # it would compute in the cloud
