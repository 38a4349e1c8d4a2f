"""The hardware probe: look at everything that this machine has and that its engines can use.

Each engine, and NVIDIA's library, is looked at in a process of its own with a time limit, since a driver may crash or hang:
`python -m nearfar.device.hardware.probe WHAT`, which prints what it finds as JSON. The probe sends nothing anywhere and writes no file:
there is no network in it, and onnxruntime's telemetry is off.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final, NamedTuple

import anyio
from anyio.abc import ByteReceiveStream, Process
from pydantic import ValidationError

from ...protocols.steps import Value
from ...protocols.system import interpreter
from ..energy import look_for_battery, look_for_rapl
from .processors import CPU, Accelerator, Component, Cpu, Presence, ProcessorKind, read_accelerators, read_cpu
from .state import Battery, Heat, Memory, Power, read_heat, read_memory, read_power

ROOT: Final = Path("/")
ENGINES: Final = {"llama.cpp": ("llama_cpp", "llama-cpp-python"), "onnxruntime": ("onnxruntime", "onnxruntime")}
"""The Python module of each engine, and the package that brings it."""
NVML: Final = "nvml"
_SECONDS: Final = 30.0
"""A GPU's driver may take seconds to start; one that takes longer than this hangs."""
_LONGEST_COMPLAINT: Final = 500
_SHOWN_WHERE_ABSENT: Final = ("cuda", "coreml", "qnn", "openvino", "webgpu")
"""Providers that people ask for by name."""
_CPU: Final = "CPUExecutionProvider"


class EngineProvider(Component):
    """One way to compute, as an engine sees it."""

    name: str
    kind: ProcessorKind
    device: str = ""
    free_memory_bytes: int | None = None
    """Free bytes of the device's own memory."""


class InferenceEngine(Component):
    """A library that runs models. Unknown where looking at it failed."""

    name: str
    version: str | None = None
    providers: tuple[EngineProvider, ...] = ()


class EnergyComponent(Component):
    """One way to measure energy."""

    name: str


class Drivers(Value):
    """Facts that only drivers report."""

    engines: tuple[InferenceEngine, ...]
    energy: tuple[EnergyComponent, ...]


class Hardware(Drivers):
    """One look at the machine."""

    cpu: Cpu
    memory: Memory
    gpus: tuple[Accelerator, ...]
    """If there is none: one entry that says so."""
    npus: tuple[Accelerator, ...]
    battery: Battery
    power: Power
    heat: Heat


async def look_at_drivers(root: Path = ROOT, *, command: Sequence[str] = (), seconds: float = _SECONDS) -> Drivers:
    """Look at all engines and energy readers at the same time.

    `root`: root of the file system in which the energy readers look.
    `command`: the program that looks, this module by default; the name of an engine, or `nvml`, is added to it.
    `seconds`: time limit of each look. A look that takes longer is stopped, and its result is unknown.
    """
    # -P: the user's working folder may hold a json.py.
    command = command or (interpreter(), "-P", "-m", "nearfar.device.hardware.probe")
    engines: dict[str, InferenceEngine] = {}
    nvml: list[EnergyComponent] = []

    async def look_at_engine(name: str) -> None:
        engines[name] = await _engine(name, [*command, name], seconds)

    async def look_at_nvml() -> None:
        nvml.append(await _nvml([*command, NVML], seconds))

    async with anyio.create_task_group() as group:
        group.start_soon(look_at_nvml)
        for name in ENGINES:
            group.start_soon(look_at_engine, name)
    # The other counters are small files, which need no driver of their own.
    files = (
        EnergyComponent(presence=look.presence, reason=look.reason, name=look.name)
        for look in (look_for_rapl(root), look_for_battery(root))
    )
    return Drivers(engines=tuple(engines[name] for name in ENGINES), energy=(*nvml, *files))


async def _engine(name: str, command: Sequence[str], seconds: float) -> InferenceEngine:
    module, package = ENGINES[name]
    if find_spec(module) is None:
        return InferenceEngine(presence=Presence.ABSENT, reason=f"{package} is not installed", name=name)
    answer, ending = await _ask(command, seconds)
    try:
        return InferenceEngine.model_validate_json(answer)
    except ValidationError:
        return InferenceEngine(presence=Presence.UNKNOWN, reason=ending, name=name)


async def _nvml(command: Sequence[str], seconds: float) -> EnergyComponent:
    answer, ending = await _ask(command, seconds)
    try:
        return EnergyComponent.model_validate_json(answer)
    except ValidationError:
        return EnergyComponent(presence=Presence.UNKNOWN, reason=ending, name=NVML)


async def _ask(command: Sequence[str], seconds: float) -> tuple[bytes, str]:
    """Run the command; return its output, and a description of how it ended."""
    async with await anyio.open_process(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True) as process:
        try:
            with anyio.fail_after(seconds):
                answer, complaints = await _everything(process)
                return answer, f"loading it ended with {_ending(await process.wait())}{_last_line(complaints)}"
        except TimeoutError:
            return b"", f"it did not answer within {seconds:g} s and was stopped"
        finally:
            _stop(process)


async def _everything(process: Process) -> tuple[bytes, bytes]:
    """Read a process's output and error output to their ends."""
    assert process.stdout is not None, "it was started with a pipe"
    assert process.stderr is not None, "it was started with a pipe"
    answer, complaints = bytearray(), bytearray()

    async def collect(stream: ByteReceiveStream, into: bytearray) -> None:
        async for part in stream:
            into += part

    async with anyio.create_task_group() as group:
        group.start_soon(collect, process.stdout, answer)
        group.start_soon(collect, process.stderr, complaints)
    return bytes(answer), bytes(complaints)


def _last_line(complaints: bytes) -> str:
    """Return the last line of an engine's complaints: mostly it names the missing library."""
    lines = complaints[-_LONGEST_COMPLAINT:].decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def _stop(process: Process) -> None:
    """Kill the process and the processes that it has started: a driver may have helpers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def probe_hardware(root: Path = Path("/")) -> Hardware:
    """Look at everything. What cannot be read is `unknown` with the reason, and never an error."""
    battery, power = read_power(root)
    gpus, npus = read_accelerators(root)
    drivers = await look_at_drivers(root)
    return Hardware(
        cpu=read_cpu(root),
        memory=read_memory(root),
        gpus=gpus,
        npus=npus,
        battery=battery,
        power=power,
        heat=read_heat(root),
        engines=drivers.engines,
        energy=drivers.energy,
    )


class ProviderDevice(NamedTuple):
    """One entry of onnxruntime's list of devices."""

    provider: str
    """Its name, as onnxruntime writes it."""
    kind: ProcessorKind
    device: str


def execution_providers(built_with: Sequence[str], devices: Sequence[ProviderDevice]) -> Iterator[EngineProvider]:
    """Yield the CPU's provider, then those that run language models: present if onnxruntime lists a device, unknown if only built in."""
    from ..onnx import PROVIDERS  # with processes, which the probe of a system without POSIX does not need

    processor = next((entry.device for entry in devices if entry.provider == _CPU), "")
    yield EngineProvider(presence=Presence.PRESENT, reason="part of onnxruntime", name=CPU, kind=ProcessorKind.CPU, device=processor)
    for name, provider in PROVIDERS.items():
        found = [entry for entry in devices if entry.provider == provider.full]
        for entry in found:
            reason = "in onnxruntime's own list of devices"
            yield EngineProvider(presence=Presence.PRESENT, reason=reason, name=name, kind=entry.kind, device=entry.device)
        if not found and provider.full in built_with:
            reason = "built in; whether its driver works shows when a model is loaded"
            yield EngineProvider(presence=Presence.UNKNOWN, reason=reason, name=name, kind=provider.kind)
        elif not found and name in _SHOWN_WHERE_ABSENT:
            yield EngineProvider(presence=Presence.ABSENT, reason="not in this build", name=name, kind=provider.kind)


_LLAMA_BACKENDS: Final = {
    "cuda": ProcessorKind.GPU,
    "rocm": ProcessorKind.GPU,
    "metal": ProcessorKind.INTEGRATED_GPU,
    "vulkan": ProcessorKind.GPU,
}
"""Backends that people ask for by name."""
_REASON: Final = "loaded"


def main() -> None:
    """Look at what the command line names."""
    # Drivers print to standard output, so the answer has a file descriptor of its own.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        answer.write(_LOOKS[sys.argv[1]]())


def _look_at_llama() -> str:
    import llama_cpp

    from ..llama.devices import backend_devices, keep_log

    keep_log()
    llama_cpp.llama_backend_init()
    present = [
        EngineProvider(
            presence=Presence.PRESENT,
            reason="in llama.cpp's own list of devices",
            name=device.provider,
            kind=device.kind,
            device=device.description,
            free_memory_bytes=None if device.kind is ProcessorKind.CPU else device.free_memory(),
        )
        for device in backend_devices()
    ]
    names = {provider.name for provider in present}
    offloads = bool(llama_cpp.llama_supports_gpu_offload())
    reason = "not in llama.cpp's own list of devices" if offloads else "this build is for the CPU only"
    absent = [
        EngineProvider(presence=Presence.ABSENT, reason=reason, name=name, kind=kind)
        for name, kind in _LLAMA_BACKENDS.items()
        if name not in names
    ]
    providers = (*present, *absent)
    found = InferenceEngine(presence=Presence.PRESENT, reason=_REASON, name="llama.cpp", version=llama_cpp.__version__, providers=providers)
    return found.model_dump_json()


def _look_at_onnxruntime() -> str:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # From 1.29 on, it sends telemetry otherwise.
    import onnxruntime

    kinds = {
        onnxruntime.OrtHardwareDeviceType.CPU: ProcessorKind.CPU,
        onnxruntime.OrtHardwareDeviceType.GPU: ProcessorKind.GPU,
        onnxruntime.OrtHardwareDeviceType.NPU: ProcessorKind.NPU,
    }
    devices = [
        ProviderDevice(entry.ep_name, kinds[entry.device.type], entry.device.metadata.get("Description", entry.device.vendor))
        for entry in onnxruntime.get_ep_devices()
    ]
    providers = tuple(execution_providers(onnxruntime.get_available_providers(), devices))
    found = InferenceEngine(
        presence=Presence.PRESENT, reason=_REASON, name="onnxruntime", version=onnxruntime.__version__, providers=providers
    )
    return found.model_dump_json()


def _look_at_nvml() -> str:
    from ..energy import look_for_nvml

    look = look_for_nvml()
    return EnergyComponent(presence=look.presence, reason=look.reason, name=look.name).model_dump_json()


_LOOKS: Final[Mapping[str, Callable[[], str]]] = {
    "llama.cpp": _look_at_llama,
    "onnxruntime": _look_at_onnxruntime,
    "nvml": _look_at_nvml,
}

if __name__ == "__main__":
    main()
