"""A run of the tests in several processes ends, red, when one of them dies."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

_OPTIONS = ("--numprocesses", "2", "--dist", "loadfile", "-p", "xdist", "-p", "pytest_timeout", "-p", "no:cacheprovider")
_FILES, _TESTS = 4, 3
_SECONDS = 60


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A small suite of passing tests under this project's own settings."""
    for number in range(_FILES):
        (tmp_path / f"test_{number}.py").write_text("".join(f"def test_{test}(): pass\n" for test in range(_TESTS)))
    return tmp_path


@pytest.mark.parametrize("death", ["SIGKILL", "SIGSEGV"])
@pytest.mark.parametrize("test", range(_TESTS), ids=["first", "middle", "last"])
def test_a_run_ends_and_names_the_test_that_its_process_died_in(suite: Path, test: int, death: str) -> None:
    kill(suite, death, [(1, test)])
    status, output = run(suite)
    assert is_named(f"test_1.py::test_{test}", status, output)


def test_a_run_ends_when_the_last_test_of_all_kills_its_process(suite: Path) -> None:
    kill(suite, "SIGKILL", [(_FILES - 1, _TESTS - 1)])
    status, output = run(suite)
    assert is_named(f"test_{_FILES - 1}.py::test_{_TESTS - 1}", status, output)


def test_a_run_ends_when_every_file_kills_its_process(suite: Path) -> None:
    kill(suite, "SIGKILL", [(number, 1) for number in range(_FILES)])
    status, output = run(suite)
    assert is_named("::test_1", status, output)


def test_a_run_ends_when_one_process_dies_after_the_other(suite: Path) -> None:
    kill(suite, "SIGSEGV", [(0, 1), (1, 1)])
    pipe = suite / "pipe"
    os.mkfifo(pipe)
    open_to_the_end = f"_held = open({str(pipe)!r}, 'w')"
    until_the_other_is_dead = f"open({str(pipe)!r}).read()"
    for number, first in enumerate((open_to_the_end, until_the_other_is_dead)):
        path = suite / f"test_{number}.py"
        path.write_text(path.read_text().replace("(): os.kill", f"(): {first}; os.kill"))
    status, output = run(suite)
    assert all(is_named(f"test_{number}.py::test_1", status, output) for number in (0, 1))


def is_named(test: str, status: int, output: str) -> bool:
    """Return whether the run failed and names the test that its process died in.

    xdist ends with an internal error, and no name, where it looks for a process while none is left, or sends tests to one that has
    just died.
    """
    if status == pytest.ExitCode.INTERNAL_ERROR:
        return "no active workers" in output or "cannot send (already closed?)" in output
    return status == pytest.ExitCode.TESTS_FAILED and f"{test} - worker 'gw" in output


def kill(suite: Path, death: str, tests: Iterable[tuple[int, int]]) -> None:
    """Let these tests, by numbers of file and test, kill their process."""
    for number, test in tests:
        path = suite / f"test_{number}.py"
        deadly = f"def test_{test}(): os.kill(os.getpid(), signal.{death})"
        path.write_text("import os, signal\n" + path.read_text().replace(f"def test_{test}(): pass", deadly))


def run(suite: Path) -> tuple[int, str]:
    """The exit status and the output of pytest with the options of this project and of `make test`."""
    settings = Path(__file__).parents[2] / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(suite), *_OPTIONS, str(suite)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # Other plugins only take time here.
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        environment.pop(name, None)
    ended = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    return ended.returncode, ended.stdout
