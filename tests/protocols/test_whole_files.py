"""Files that are replaced as a whole: a full disk, an error or a kill leaves the old file, and no half one."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nearfar.protocols.system import creating, replace_text, replacing


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text("old")
    return path


def test_the_new_content_takes_the_place_of_the_old(file: Path) -> None:
    replace_text(file, "nëw")
    assert file.read_text(encoding="utf-8") == "nëw"
    assert os.listdir(file.parent) == ["report.html"]


def test_an_error_leaves_the_old_file_and_nothing_else(file: Path) -> None:
    def write() -> None:
        with replacing(file) as fresh:
            fresh.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == ["report.html"]


@pytest.mark.parametrize("way", ["replacing", "creating"])
def test_a_kill_leaves_no_half_file(file: Path, way: str) -> None:
    target = file if way == "replacing" else file.with_name("new.html")
    program = f"""
import os, signal, sys
from pathlib import Path
from nearfar.protocols.system import {way}
with {way}(Path(sys.argv[1])) as fresh:
    fresh.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, target], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_text() == "old"
    assert target == file or not target.exists()


def test_a_full_disk_leaves_the_old_file_and_is_named(file: Path, no_room: Callable[[int], AbstractContextManager[None]]) -> None:
    with no_room(50_000), pytest.raises(OSError, match=r"report\.html"):
        replace_text(file, "x" * 100_000)
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == ["report.html"]


def test_the_new_file_has_the_old_ones_mode(file: Path) -> None:
    file.chmod(0o640)
    replace_text(file, "new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_private_file_is_private_also_if_the_old_one_was_not(file: Path) -> None:
    file.chmod(0o644)
    replace_text(file, "new", mode=0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_stays_one_and_its_file_is_replaced(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.html"
    link.parent.mkdir()
    link.symlink_to(file)
    replace_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_link_is_refused_where_it_is_not_to_be_followed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(file)
    with pytest.raises(OSError, match="link"):
        replace_text(link, "new", follows_links=False)
    assert file.read_text() == "old"


def test_a_device_is_written_to_and_stays_one() -> None:
    replace_text(Path(os.devnull), "new")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_folder_in_its_place_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        replace_text(tmp_path, "new")


def test_a_missing_folder_is_an_error_that_names_the_file_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failed:
        replace_text(tmp_path / "missing" / "report.html", "new")
    assert failed.value.filename == str(tmp_path / "missing" / "report.html")


def test_a_new_file_replaces_none(file: Path) -> None:
    with pytest.raises(FileExistsError), creating(file):
        pass
    assert file.read_text() == "old"


def test_a_file_that_another_process_made_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new.html"

    def write() -> None:
        with creating(path) as fresh:
            fresh.write_text("mine")
            path.write_text("theirs")

    with pytest.raises(FileExistsError):
        write()
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["new.html"]


def test_a_new_file_is_not_made_where_a_link_points(tmp_path: Path) -> None:
    path = tmp_path / "new.html"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError), creating(path):
        pass
    assert os.listdir(tmp_path) == ["new.html"]


def test_a_pipe_without_a_reader_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nothing reads from it"):
        replace_text(pipe, "new")


def test_a_pipe_with_a_reader_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_text(pipe, "new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)


def test_a_circle_of_links_is_an_error(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(OSError, match="circle"):
        replace_text(circle, "new")
