"""The hardware half of `nearfar doctor`: what the probe has found, in a line each."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ..compose.agents import Accelerator, Cpu, EngineProvider, Hardware, InferenceEngine, Memory

_AREA: Final = "machine"
_GIB: Final = 1 << 30
_REBUILD: Final = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_BUILDS: Final = {"NVIDIA": ("cuda", "-DGGML_CUDA=on"), "AMD": ("rocm", "-DGGML_HIP=on"), "Intel": ("vulkan", "-DGGML_VULKAN=on")}
"""By the first word of a GPU's name: the backend of llama.cpp that computes on it, and how it is built."""


class Line(NamedTuple):
    """One line of the table, and what stands below it."""

    area: str
    name: str
    presence: str
    detail: str
    note: str = ""


def hardware_lines(hardware: "Hardware") -> Iterator[Line]:
    """All lines about the machine itself, then those about its engines."""
    yield _cpu(hardware.cpu)
    memory, battery, power, heat = hardware.memory, hardware.battery, hardware.power, hardware.heat
    yield Line(_AREA, "memory", memory.presence, _free(memory) or memory.reason)
    for accelerator in (*hardware.gpus, *hardware.npus):
        yield _accelerator(accelerator, hardware)
    yield Line(_AREA, "battery", battery.presence, battery.reason if battery.charge is None else f"{battery.charge:.0%}")
    yield Line(_AREA, "power source", power.presence, power.source or power.reason)
    hottest = max((sensor.celsius for sensor in heat.sensors), default=None)
    degrees = "" if hottest is None else f"; the hottest sensor shows {hottest:.0f} \N{DEGREE SIGN}C"
    yield Line(_AREA, "heat", heat.presence, (heat.thermal or heat.reason) + degrees)
    for reader in hardware.energy:
        yield Line("energy", reader.name, reader.presence, reader.reason)
    for engine in hardware.engines:
        yield from _engine(engine)


def _cpu(cpu: "Cpu") -> Line:
    cores = f"{cpu.physical_cores or '?'} cores, {cpu.logical_cores or '?'} threads, {cpu.usable_cores} usable"
    return Line(_AREA, "cpu", cpu.presence, f"{cpu.model or cpu.architecture}: {cores}", " ".join(cpu.features))


def _free(memory: "Memory") -> str:
    if memory.free_bytes is None or memory.total_bytes is None:
        return ""
    limited = "" if memory.limit_bytes is None else f", and {memory.limit_bytes / _GIB:.1f} for this process"
    return f"{memory.free_bytes / _GIB:.1f} GiB free of {memory.total_bytes / _GIB:.1f}{limited}"


def _accelerator(accelerator: "Accelerator", hardware: "Hardware") -> Line:
    name = "npu" if accelerator.kind == "npu" else "gpu"
    if accelerator.presence != "present":
        return Line(_AREA, name, accelerator.presence, accelerator.reason)
    backend, flag = _BUILDS.get(accelerator.name.split()[0], ("", ""))
    usable = {provider.name for engine in hardware.engines for provider in engine.providers if provider.presence == "present"}
    wants_build = name == "gpu" and backend and backend not in usable
    advice = f'no engine computes on it: CMAKE_ARGS="{flag}" {_REBUILD}'
    driver = f"driver {accelerator.driver}" if accelerator.driver else "without a driver"
    return Line(_AREA, name, accelerator.presence, f"{accelerator.name}, {driver}", advice if wants_build else "")


def _engine(engine: "InferenceEngine") -> Iterator[Line]:
    if engine.presence != "present":
        yield Line("engines", engine.name, engine.presence, engine.reason)
    for (presence, reason), providers in groupby(engine.providers, key=lambda each: (each.presence, each.reason)):
        yield Line("engines", engine.name, presence, _providers(providers, "" if presence == "present" else f": {reason}"))


def _providers(providers: Iterable["EngineProvider"], suffix: str) -> str:
    return ", ".join(_provider(provider) for provider in providers) + suffix


def _provider(provider: "EngineProvider") -> str:
    memory = "" if provider.free_memory_bytes is None else f", {provider.free_memory_bytes / _GIB:.1f} GiB free"
    return f"{provider.name} ({provider.device}{memory})" if provider.device else provider.name
