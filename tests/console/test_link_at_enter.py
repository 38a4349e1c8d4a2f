"""The terminal of the console gives another link when Enter is pressed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("termios")

PROGRAM = """
import asyncio, fcntl, sys, termios
from pathlib import Path

from nearfar import Hybrid, Records, ScriptedAgent
from nearfar.orchestrator.cli.http import open_console
from nearfar.orchestrator.compose.config import Config
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.orchestrator.task.stores import RunsConfig

if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

async def main():
    folder = Path(sys.argv[1])
    async with Hybrid(near=ScriptedAgent([], name="near"), records=Records(folder)) as hybrid:
        config = Config(runs=RunsConfig(folder=folder), serve=ServeConfig(address="127.0.0.1:0"))
        await open_console(hybrid, config, 1.0, as_json=False)

asyncio.run(main())
"""


def next_link(process: subprocess.Popen[str]) -> str:
    """Return the next link that is printed."""
    assert process.stdout is not None
    for line in process.stdout:
        if "/console/enter?key=" in line:
            return line.strip()
    raise AssertionError(process.wait(20))


@pytest.mark.timeout(60)
def test_each_enter_prints_another_link(tmp_path: Path) -> None:
    terminal, its_end = os.openpty()
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=its_end, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        os.close(its_end)
        found = {next_link(process)}
        for _ in range(2):
            os.write(terminal, b"\n")
            found.add(next_link(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    os.close(terminal)
    assert len(found) == 3


@pytest.mark.timeout(60)
def test_without_a_terminal_one_link_is_printed(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        next_link(process)
        process.stdin.write("\n")
        process.stdin.close()
        process.terminate()
        assert process.stdout is not None
        assert "enter?key=" not in process.stdout.read()
