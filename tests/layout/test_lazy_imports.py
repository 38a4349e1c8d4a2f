"""What importing a part loads, seen from a fresh interpreter."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from source_tree import FOLDERS

HEAVY = ("grpc", "httpx", "keyring", "langchain_core", "langgraph", "llama_cpp", "llguidance", "matplotlib", "numpy", "ray", "torch")
EXTRAS = (
    *("gguf", "httpx_sse", "jinja2", "keyring", "llama_cpp", "llguidance", "matplotlib"),
    *("numpy", "onnxruntime_genai", "psutil", "pynvml", "ray", "tokenizers", "torch"),
)
"""Top-level modules of what only an extra installs. httpx is none: LangGraph needs it too."""

REPORT_LOADED = """
import json, sys
json.dump(sorted(sys.modules), sys.stderr)
"""

HELP = f"""
import sys
sys.argv = ["nearfar", "--help"]
from nearfar.orchestrator.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code
{REPORT_LOADED}
"""

HIDE_EXTRAS = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""

SERVE_A_TASK = """
import asyncio
from nearfar import Hybrid, tool
from nearfar.protocols import ScriptedAgent, Side, ToolCall

@tool
def double(number: int) -> int:
    "Twice the number."
    return 2 * number

async def main():
    near = ScriptedAgent([ToolCall(id="1", name="double", arguments={"number": 21}), "42"])
    far = ScriptedAgent([], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, tools=[double]) as hybrid:
        result = await hybrid.run("What is twice 21?")
    print(result.text, result.served_on_device)

asyncio.run(main())
"""

REFUSE_THE_NETWORK = """
import socket
def refuse(*arguments):
    raise SystemExit("something connected during an import")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def python(code: str, *, folder: Path, arguments: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh interpreter, away from the repository, so that only what is installed can be found."""
    return subprocess.run([sys.executable, *arguments, "-c", code], cwd=folder, capture_output=True, text=True, timeout=110)


def loaded_by(code: str, folder: Path) -> set[str]:
    result = python(f"{code}\n{REPORT_LOADED}", folder=folder)
    assert result.returncode == 0, result.stderr
    modules: list[str] = json.loads(result.stderr)
    return set(modules)


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    result = python(HELP, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "demo" in result.stdout
    loaded = set(json.loads(result.stderr))
    assert not loaded & set(HEAVY)


def test_the_contract_loads_no_network_code(tmp_path: Path) -> None:
    loaded = loaded_by("from nearfar.protocols import StepRequest", tmp_path)
    assert "nearfar.protocols.steps" in loaded
    assert not loaded & {"grpc", "httpx", "langgraph", "llama_cpp"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_importing_one_folder_loads_no_other(folder: str, tmp_path: Path) -> None:
    loaded = loaded_by(f"import nearfar.{folder}", tmp_path)
    others = {f"nearfar.{other}" for other in FOLDERS if other not in (folder, "protocols")}
    assert f"nearfar.{folder}" in loaded
    assert not loaded & others
    assert not loaded & {"langgraph", "llama_cpp", "torch"}


def test_the_core_serves_tasks_without_any_extra(tmp_path: Path) -> None:
    result = python(HIDE_EXTRAS + SERVE_A_TASK, folder=tmp_path)
    assert result.stdout.split() == ["42", "True"], result.stderr


def test_without_the_extra_a_model_says_what_to_install(tmp_path: Path) -> None:
    ask = """
import asyncio
from nearfar import Hybrid
from nearfar.protocols import ConfigError

async def main():
    async with Hybrid(near="near") as hybrid:
        try:
            await hybrid.run("Hello?", mode="only_on_device")
        except ConfigError as error:
            print(error.hint)

asyncio.run(main())
"""
    result = python(HIDE_EXTRAS + ask, folder=tmp_path)
    assert "nearfar[llama]" in result.stdout, result.stderr


@pytest.mark.parametrize("name", ["protocols", "device", "cloud", "orchestrator.hybrid", "orchestrator.cli"])
def test_an_import_connects_to_nothing(name: str, tmp_path: Path) -> None:
    result = python(f"{REFUSE_THE_NETWORK}\nimport nearfar.{name}", folder=tmp_path)
    assert result.returncode == 0, result.stderr
