"""Who is alive, by the kernel's locks."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nearfar.orchestrator.storage.owners import Owner
from nearfar.protocols import StoreUnavailable

OTHER = """
import sys
from pathlib import Path
from nearfar.orchestrator.storage.owners import Owner
owner = Owner(Path(sys.argv[1]))
print(owner.name, flush=True)
sys.stdin.read()
"""


def test_a_process_is_alive_until_it_is_killed(tmp_path: Path) -> None:
    mine = Owner(tmp_path)
    with subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        assert mine.is_alive(name)
        assert mine.describe(name) == f"process {other.pid}"
        other.send_signal(signal.SIGSTOP)
        assert mine.is_alive(name)  # it may go on at any time
        other.kill()
        other.wait(10)
        assert not mine.is_alive(name)
    mine.close()


def test_an_owner_that_was_closed_is_not_alive(tmp_path: Path) -> None:
    mine, other = Owner(tmp_path), Owner(tmp_path)
    assert mine.is_alive(other.name)
    assert mine.is_alive(mine.name)
    other.close()
    assert not mine.is_alive(other.name)
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    watching = Owner(tmp_path)
    reading, writing = os.pipe()
    staying, ending = os.pipe()
    parent = os.fork()
    if parent == 0:  # it owns, forks a child of its own that stays, and is killed
        owner = Owner(tmp_path)
        child = os.fork()
        if child == 0:
            os.close(ending)
            os.read(staying, 1)  # until the test is over, however it ends
            os._exit(0)
        os.write(writing, f"{owner.name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    name = os.read(reading, 100).decode().strip()
    assert not watching.is_alive(name)
    os.close(ending)
    watching.close()


def test_files_of_the_dead_are_swept(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Owner(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    owner = Owner(tmp_path)
    owner.sweep()
    assert [path.stem for path in tmp_path.iterdir()] == [owner.name]
    owner.close()


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        Owner(tmp_path / "file")


def test_what_is_no_owners_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    mine = Owner(tmp_path)
    (tmp_path / "strange.owner").mkdir()
    with pytest.raises(StoreUnavailable, match=r"strange\.owner"):
        mine.sweep()
    mine.close()


def test_an_owner_is_alive_on_a_full_disk(tmp_path: Path, no_room: Callable[[int], AbstractContextManager[None]]) -> None:
    with no_room(0):
        mine = Owner(tmp_path)
    other = Owner(tmp_path)
    assert other.is_alive(mine.name)
    assert other.describe(mine.name) == "another process"
    other.close()
    mine.close()
