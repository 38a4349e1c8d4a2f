"""The hardware probe: look at everything that this machine has and that its engines can use.

Each engine, and NVIDIA's library, is looked at in a process of its own with a time limit, since a driver may crash or hang. The probe
sends nothing anywhere: there is no network in it, and onnxruntime's telemetry is off.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, Process
from pydantic import ValidationError

from ..energy import look_for_battery, look_for_rapl
from .components import Drivers, EnergyComponent, Hardware, InferenceEngine, Presence
from .processors import read_accelerators, read_cpu
from .state import read_heat, read_memory, read_power

ROOT: Final = Path("/")
ENGINES: Final = {"llama.cpp": ("llama_cpp", "llama-cpp-python"), "onnxruntime": ("onnxruntime", "onnxruntime")}
"""The Python module of each engine, and the package that brings it."""
NVML: Final = "nvml"
LOOK: Final = (sys.executable, "-P", "-m", "nearfar.device.hardware.look")  # -P: the user's working folder may hold a json.py
_SECONDS: Final = 30.0
"""A GPU's driver may take seconds to start; one that takes longer than this hangs."""
_LONGEST_COMPLAINT: Final = 500


async def look_at_drivers(root: Path = ROOT, *, command: Sequence[str] = LOOK, seconds: float = _SECONDS) -> Drivers:
    """Look at all engines and energy readers at the same time.

    `root`: root of the file system in which the energy readers look.
    `command`: the program that looks; the name of an engine, or `nvml`, is added to it.
    `seconds`: time limit of each look. A look that takes longer is stopped, and its result is unknown.
    """
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
