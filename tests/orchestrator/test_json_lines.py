"""Files of JSON lines: appended to, and lines taken out of them."""

import os
from pathlib import Path

import pytest

from nearfar.orchestrator.util.text import append_line, drop_lines, read_lines


def test_lines_are_dropped_in_place_and_what_others_append_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for line in (b"one", b"two", b"three"):
        append_line(path, line)
    before = path.stat().st_ino
    drop_lines(path, lambda line: line == b"two")
    append_line(path, b"four")
    assert (path.read_bytes(), path.stat().st_ino) == (b"one\nthree\nfour\n", before)
    drop_lines(path, lambda _: True)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("torn", [b'{"type":"ta', b"\0\0\0"])
def test_what_a_process_left_unfinished_is_removed(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{}\n" + torn)
    append_line(path, b"{}")
    assert read_lines(path) == [b"{}", b"{}", b""]


@pytest.mark.parametrize("theirs", [b"notes of one line", b"notes\nwithout an end", b"\x93NUMPY"])
def test_a_file_that_somebody_else_wrote_loses_nothing(tmp_path: Path, theirs: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(theirs)
    with pytest.raises(OSError, match="something else"):
        append_line(path, b"{}")
    assert path.read_bytes() == theirs


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    assert read_lines(tmp_path / "log.jsonl") == [b""]
