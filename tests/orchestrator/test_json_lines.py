"""Files of JSON lines: appended to, and lines taken out of them."""

from pathlib import Path

from nearfar.orchestrator.util.json_lines import append_line, drop_lines


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
