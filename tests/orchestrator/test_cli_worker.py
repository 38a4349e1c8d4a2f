"""`nearfar serve hub` and `nearfar worker attach`, as processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("llguidance", reason="running models needs an engine: pip install 'nearfar[onnx]'")

from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.selection import DEMO_SEED
from nearfar.orchestrator.lab.worlds.loading import SearchWorld

pytestmark = pytest.mark.timeout(120)

WORLD = SearchWorld()
TASK = next(task for task in WORLD.tasks(25, DEMO_SEED) if len(WORLD.question(task).program.steps) == 1)
ANSWER = WORLD.question(TASK).answer
TOOLS = f"""
from nearfar import tool

@tool
def open(title: str, section: str) -> str:
    '''Open.'''
    return "{ANSWER}"
"""


@pytest.fixture
def port() -> int:
    """One that was free a moment ago: the worker has to know it before the hub listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> Path:
    """The folder of the hub's machine, paired with one phone."""
    monkeypatch.chdir(tmp_path)
    hub = f'[hub]\naddress = "127.0.0.1:{port}"\ncertificate = "hub.pem"\nkey = "hub-key.pem"\n'
    (tmp_path / "nearfar.toml").write_text(
        f'[far]\nprovider = "llama"\nmodel = "far"\n{hub}[hub.workers.phone]\ntrust = "near"\n', encoding="utf-8"
    )
    return tmp_path


def test_without_a_hub_its_workers_cannot_be_listed() -> None:
    error = nearfar("worker", "list")["error"]
    assert isinstance(error, dict)
    assert error["type"] == "Unavailable"


def nearfar(*arguments: str) -> dict[str, object]:
    """What a command prints with `--json`."""
    printed: dict[str, object] = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    return printed


@contextmanager
def started(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, object]]]:
    """A command that runs on, and the line that it prints when it is ready."""
    command = [sys.executable, "-m", "nearfar", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_paired_device_lends_its_model_to_a_task_and_leaves_on_a_signal(folder: Path, port: int) -> None:
    pairing = nearfar("worker", "pair", "phone", "--address", f"127.0.0.1:{port}")
    secret = folder / "pairing"
    secret.touch(mode=0o600)
    secret.write_text(str(pairing["uri"]), encoding="utf-8")
    (folder / "empty.toml").touch()
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
    with started("serve", "hub") as (hub, announced):
        assert announced["workers"] == ["phone"]
        with started("worker", "attach", "--pairing-file", "pairing", "--near", "near", "--config", "empty.toml") as (worker, attached):
            assert attached == {"worker": "phone", "hub": f"127.0.0.1:{port}"}
            result = nearfar("run", TASK.prompt, "--mode", "only_on_device", "--strategy", "device", "--tools", "tools.py")
            assert (result["agent"], result["side"], str(result["text"]).strip()) == ("phone", "near", ANSWER)
            known = nearfar("worker", "list")["workers"]
            assert isinstance(known, list)
            assert [(one["name"], one["is_attached"], one["agents"][0]["side"]) for one in known] == [("phone", True, "near")]
            assert "phone: nearfar-near, near" in CliRunner().invoke(app, ["worker", "list"]).stdout
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        hub.send_signal(signal.SIGINT)
        assert hub.wait(30) == 0


@pytest.mark.parametrize("arguments", [
    ["worker", "attach", "localhost"],
    ["worker", "attach"],
    ["worker", "attach", "localhost", "--pairing-file", "pairing"],
    ["worker", "attach", "--pairing-file", "missing"],
    ["serve", "hub"],
    ["serve", "hub", "--tokens", "missing.toml"],
])  # fmt: skip
def test_mistake_is_explained_at_once(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.environ, "NEARFAR_TOKEN", raising=False)
    (folder / "nearfar.toml").unlink()
    error = nearfar(*arguments)["error"]
    assert isinstance(error, dict)
    assert error["type"] == "ConfigError"
    assert error["hint"]
