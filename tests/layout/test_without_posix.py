"""Near servers, the gateway and the command line work where there is no POSIX, as on Windows.

What other packages need of it stays: they have parts of their own for Windows. What nearfar may not need is taken away before it is
imported: modules, functions of `os`, signals and flags.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import asyncio, anyio._backends._asyncio, concurrent.futures.thread, getpass, importlib.metadata, subprocess, tempfile, shutil, zoneinfo
import google.rpc.error_details_pb2, grpc.aio, grpc_health.v1.health, grpc_reflection.v1alpha.reflection, grpc_status.rpc_status
import httpx, httpx_sse, jsonschema, keyring, langgraph.graph, langgraph.store.base, orjson, psutil, rich.console, typer.rich_utils
import os, signal, sys

class Without:
    "Finds none of the modules that exist on POSIX alone."
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules.pop(name, None)
for name in ("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "fchmod", "fchown", "killpg", "setsid", "getpgid",
             "mkfifo", "sched_getaffinity", "getloadavg", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY"):
    if hasattr(os, name):
        delattr(os, name)
for name in dir(signal):
    known = ("SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_IGN", "SIG_DFL")
    if name.startswith("SIG") and name not in known or name in ("alarm", "setitimer", "pthread_sigmask"):
        delattr(signal, name)
"""
MODULES = (
    *("cloud.gateway", "cloud.provider", "cloud.server_trials", "cloud.server_info", "device", "device.store", "device.hardware.probe"),
    *(
        "orchestrator.hybrid.hybrid",
        "orchestrator.compose.gateway_process",
        "orchestrator.compose.policy_file",
        "orchestrator.lab.study.sweep",
    ),
    *(f"orchestrator.cli.{name}" for name in ("config", "run", "sweep", "doctor", "runs", "memory", "cache", "budget", "models")),
    *(f"orchestrator.cli.{name}" for name in ("policy", "serve", "worker")),
    *("protocols.server", "protocols.client", "protocols.hub", "protocols.attach", "protocols.token_file"),
)
IMPORT = """
import importlib
for name in {modules!r}:
    importlib.import_module("nearfar." + name)
"""
SERVE = """
import asyncio, contextlib, io, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send(json.dumps({"data": [{"id": "tiny"}]}) if self.path == "/v1/models" else "{}", "application/json")
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "delta": {"content": "Lima"}, "finish_reason": "stop"}
        self.send("data: " + json.dumps({"choices": [choice]}) + "\\n\\ndata: [DONE]\\n\\n", "text/event-stream")
    def send(self, text, kind):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}/v1"
"""
TASK = """
from nearfar.orchestrator.cli import main
sys.argv = ["nearfar", "run", "What is the capital of Peru?", "--near", URL, "--json"]
main()
"""
GATEWAY = """
from nearfar import ScriptedAgent, Side, StepRequest, Message, Sensitivity, complete
from nearfar.cloud.gateway import serve_gateway
from nearfar.protocols.client import RemoteAgent

async def ask():
    far = ScriptedAgent(["Lima"], name="far", side=Side.FAR)
    async with serve_gateway({"far": far}, "127.0.0.1:0", tokens={"laptop": "a-long-random-token"}) as gateway:
        remote = await RemoteAgent.connect(gateway.address, token="a-long-random-token")
        reply = await complete(remote, StepRequest(messages=(Message.user("Peru?"),), sensitivity=Sensitivity.PUBLIC))
        await remote.aclose()
    print(json.dumps(reply.text))

asyncio.run(ask())
"""
REFUSED = """
from nearfar import ConfigError, Hybrid

async def ask(**arguments):
    try:
        async with Hybrid(**arguments) as hybrid:
            await hybrid.run("Hello?")
    except ConfigError as error:
        return str(error)

print(json.dumps([asyncio.run(ask(near="near")), asyncio.run(ask(near=URL, records=sys.argv[1]))]))
"""


def python(code: str, folder: Path, *arguments: str) -> str:
    """Run code in a fresh interpreter without POSIX and return its output."""
    command = [sys.executable, "-c", HIDE + code, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_command_line_the_gateway_and_near_servers_are_imported(tmp_path: Path) -> None:
    python(IMPORT.format(modules=MODULES), tmp_path)


def test_a_task_is_served_by_a_near_server(tmp_path: Path) -> None:
    result = json.loads(python(SERVE + TASK, tmp_path))
    assert (result["text"], result["served_on_device"]) == ("Lima", True)


def test_a_gateway_serves(tmp_path: Path) -> None:
    assert json.loads(python("import json\n" + GATEWAY, tmp_path)) == "Lima"


def test_what_needs_posix_says_so(tmp_path: Path) -> None:
    engine, records = json.loads(python(SERVE + REFUSED, tmp_path, str(tmp_path / "records")))
    assert "ollama:MODEL" in engine
    assert "file locks" in records


@pytest.mark.parametrize("module", ["fcntl", "termios"])
def test_the_simulation_takes_posix_away(module: str, tmp_path: Path) -> None:
    code = f"try:\n    import {module}\nexcept ModuleNotFoundError:\n    print(hasattr(os, 'fork'), hasattr(signal, 'SIGKILL'))"
    assert python(code, tmp_path).split() == ["False", "False"]
