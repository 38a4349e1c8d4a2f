"""Nothing of onnxruntime or onnxruntime-genai reports to its maker: no socket is opened, and no identifier of this machine is kept.

A child process runs a real step and a real session in an empty home folder. The kernel ends it, and its own children, if they ask for a
network socket: Python's own hooks do not see what C++ does.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_genai", reason="running ONNX models needs onnxruntime-genai: pip install 'nearfar[onnx]'")

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the filter of system calls is Linux's")

_WITHOUT_SOCKETS = """
import ctypes, platform, struct

SOCKET, ARCHITECTURE = {"x86_64": (41, 0xC000003E), "aarch64": (198, 0xC00000B7)}[platform.machine()]
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
KILL, ALLOW = 0x80000000, 0x7FFF0000
# Of the kernel's struct seccomp_data: the call's number, the architecture, and the lower half of the first argument, the family.
NUMBER, MACHINE, FAMILY = 0, 4, 16
PROGRAM = [
    (LOAD, 0, 0, MACHINE),
    (JUMP_IF_EQUAL, 0, 6, ARCHITECTURE),
    (LOAD, 0, 0, NUMBER),
    (JUMP_IF_EQUAL, 0, 4, SOCKET),
    (LOAD, 0, 0, FAMILY),
    (JUMP_IF_EQUAL, 1, 0, 2),  # AF_INET
    (JUMP_IF_EQUAL, 0, 1, 10),  # AF_INET6
    (RETURN, 0, 0, KILL),
    (RETURN, 0, 0, ALLOW),
]
code = b"".join(struct.pack("HBBI", *line) for line in PROGRAM)
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", len(PROGRAM), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
"""

_STEP = """
import asyncio, sys
from nearfar.device.onnx import OnnxAgent
from nearfar.protocols import Message, StepRequest, complete

async def main():
    async with await OnnxAgent.load(sys.argv[1]) as agent:
        reply = await complete(agent, StepRequest(messages=(Message.user("What is the mayor of Port Alder?"),)))
        assert reply.finished.usage.output_tokens

asyncio.run(main())
"""

_ROUTER = """
import sys
from pathlib import Path
from nearfar.orchestrator.util.embedding import session

session(Path(sys.argv[1], "model.onnx").read_bytes(), "near")
"""

_PROBE = """
import asyncio
from nearfar.device.hardware.probe import probe_hardware

hardware = asyncio.run(probe_hardware())
presences = {engine.name: engine.presence for engine in hardware.engines}
assert presences["onnxruntime"] == "present", hardware.engines
assert presences["llama.cpp"] in ("present", "absent"), hardware.engines
"""

_AS_SHIPPED = """
import sys
import onnxruntime_genai

onnxruntime_genai.Model(sys.argv[1])
"""


def _run(code: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    home.mkdir()
    # On a machine that says it is a CI's, the library is silent of its own accord.
    hidden = ("ORT_DISABLE_TELEMETRY", "CI")
    environment = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("XDG_")}
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, env={**environment, "HOME": str(home)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [_STEP, _ROUTER, _PROBE], ids=["a step of OnnxAgent", "a session of the router", "the probe"])
def test_no_socket_is_opened_and_nothing_is_kept(code: str, near_folder: Path, tmp_path: Path) -> None:
    done = _run(_WITHOUT_SOCKETS + code, near_folder, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "home").iterdir())


def test_a_socket_would_end_the_process(near_folder: Path, tmp_path: Path) -> None:
    done = _run(_WITHOUT_SOCKETS + "import socket\nsocket.socket()", near_folder, tmp_path / "home")
    assert done.returncode == -signal.SIGSYS


def test_the_library_as_it_ships_would_keep_an_identifier(near_folder: Path, tmp_path: Path) -> None:
    _run(_AS_SHIPPED, near_folder, tmp_path / "home")
    assert list((tmp_path / "home").rglob("deviceid"))
