"""`nearfar doctor` and `nearfar demo` on engines that die."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llama_engine import require_llama

require_llama()

_ENGINE = Path(__file__).parents[1] / "device" / "crashing_engine"


def nearfar(folder: Path, when: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on the engine that dies when CRASHING_ENGINE says."""
    given = {"PYTHONPATH": str(_ENGINE), "FIRST_PASSES": str(folder / "passes"), "CRASHING_ENGINE": when, "NEARFAR_HOME": str(folder)}
    command = [sys.executable, "-m", "nearfar", *arguments]
    return subprocess.run(command, cwd=folder, env={**os.environ, **given}, capture_output=True, text=True, timeout=100)


def test_doctor_says_that_extra_buffer_types_are_off_and_why(tmp_path: Path) -> None:
    found = json.loads(nearfar(tmp_path, "extra", "doctor", "--json").stdout)
    agents = [finding for finding in found["findings"] if finding["area"] == "agents"]
    assert {agent["status"] for agent in agents} == {"ok"}
    assert all("extra buffer types are off" in agent["detail"] and "SIGSEGV" in agent["detail"] for agent in agents)


def test_the_demo_stops_at_the_first_crash_and_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ended = nearfar(tmp_path, "later", "demo", "--tasks", "40")
    assert ended.returncode != 0
    assert "WorkerCrashed" in ended.stderr
    assert "--no-binary llama-cpp-python" in ended.stderr
    assert not list(tmp_path.glob("*.html"))
