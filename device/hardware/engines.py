"""What the installed engines can compute on, each looked at in a process of its own with a limit on its time."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from subprocess import DEVNULL, PIPE
from typing import Final

import anyio
from anyio.abc import Process
from pydantic import ValidationError

from .components import Engine, Presence

ENGINES: Final = {"llama.cpp": ("llama_cpp", "llama-cpp-python"), "onnxruntime": ("onnxruntime", "onnxruntime")}
"""The Python module of each engine, and the package that brings it."""
LOOK: Final = (sys.executable, "-P", "-m", "nearfar.device.hardware.look")  # -P: the user's working folder may hold a json.py
_SECONDS: Final = 30.0
"""A GPU's driver may take seconds to start; one that takes longer than this hangs."""


async def look_at_engines(*, command: Sequence[str] = LOOK, seconds: float = _SECONDS) -> tuple[Engine, ...]:
    """What each engine says, side by side.

    `command`: what looks at the engine whose name is added to it.
    `seconds`: after which it is stopped, and the engine's state is unknown.
    """
    found: dict[str, Engine] = {}

    async def look(name: str) -> None:
        found[name] = await _look_at(name, [*command, name], seconds)

    async with anyio.create_task_group() as group:
        for name in ENGINES:
            group.start_soon(look, name)
    return tuple(found[name] for name in ENGINES)


async def _look_at(name: str, command: Sequence[str], seconds: float) -> Engine:
    module, package = ENGINES[name]
    if find_spec(module) is None:
        return Engine(presence=Presence.ABSENT, reason=f"{package} is not installed", name=name)
    async with await anyio.open_process(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True) as process:
        try:
            with anyio.fail_after(seconds):
                answer = await _everything(process)
                code = await process.wait()
        except TimeoutError:
            return Engine(presence=Presence.UNKNOWN, reason=f"it did not answer within {seconds:g} s and was stopped", name=name)
        finally:
            _stop(process)
    try:
        return Engine.model_validate_json(answer)
    except ValidationError:
        return Engine(presence=Presence.UNKNOWN, reason=f"loading it ended with {_ending(code)}", name=name)


async def _everything(process: Process) -> bytes:
    assert process.stdout is not None, "it was started with a pipe"
    return b"".join([part async for part in process.stdout])


def _stop(process: Process) -> None:
    """With whatever it has started itself: a driver may have helpers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
