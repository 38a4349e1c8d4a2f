"""The file of runs: it survives what interrupts a sweep, and says where it is damaged."""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from study_records import record

from nearfar.orchestrator.lab.study import run_key
from nearfar.orchestrator.lab.study.sweep import RecordLog, read_records
from nearfar.protocols import ConfigError

RECORDS = [record(task=number, answer=f"line\nbreak {number} — ünïcode") for number in range(4)]
TEXT = b"".join(each.model_dump_json().encode() + b"\n" for each in RECORDS)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with RecordLog(path) as log:
        for each in RECORDS:
            log.append(each)
    assert read_records(path) == RECORDS
    assert path.read_bytes() == TEXT


def test_each_line_is_in_the_file_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with RecordLog(path) as log:
        log.append(RECORDS[0])
        assert read_records(path) == RECORDS[:1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(cut=st.integers(min_value=0, max_value=len(TEXT)))
def test_a_file_cut_anywhere_is_gone_on_with(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(TEXT[:cut])
    whole = TEXT[:cut].count(b"\n")
    assert read_records(path) == RECORDS[:whole]
    with RecordLog(path) as log:
        assert log.keys == {each.key for each in RECORDS[:whole]}
        for each in RECORDS[whole:]:
            log.append(each)
    assert path.read_bytes() == TEXT


@pytest.mark.parametrize("notes", [b"my notes", TEXT + b"my notes", b"first note\nlast note", b'{"mine": 1}'])
def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path, notes: bytes) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(notes)
    with pytest.raises(ConfigError, match="is no record of a run"):
        RecordLog(path)
    assert path.read_bytes() == notes


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_a_file_that_is_none_is_refused_before_it_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    make: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "pipe": partial(os.mkfifo, path),
        "device": partial(path.symlink_to, "/dev/zero"),
    }
    make[kind]()
    with pytest.raises(ConfigError, match="is no regular file"):
        RecordLog(path)


def test_zeros_that_a_power_cut_left_at_the_end_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(TEXT + bytes(300))
    with RecordLog(path) as log:
        assert log.records == RECORDS
    assert path.read_bytes() == TEXT


def test_a_run_is_recorded_once(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "runs.jsonl") as log:
        log.append(RECORDS[0])
        with pytest.raises(ValueError, match="recorded already"):
            log.append(RECORDS[0])


@pytest.mark.parametrize(("line", "problem"), [(b"nonsense", "line 2 .*Invalid JSON"), (b'{"key": "a"}', "line 2 .*world: Field required")])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(TEXT.split(b"\n")[0] + b"\n" + line + b"\n" + TEXT)
    with pytest.raises(ConfigError, match=problem):
        read_records(path)
    with pytest.raises(ConfigError, match=problem):
        RecordLog(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.jsonl"):
        read_records(tmp_path / "missing.jsonl")


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with RecordLog(path), pytest.raises(ConfigError, match="another sweep"):
        RecordLog(path)
    with RecordLog(path) as log:
        assert log.records == []


def test_a_key_depends_on_what_is_run_and_not_on_the_order_of_its_knobs() -> None:
    run: dict[str, Any] = {"world": "w", "task": "t", "seed": 1, "strategy": "pevr", "oracle": False}
    one = run_key(**run, knobs={"a": 1, "b": {"c": [2], "d": 3}})
    assert one == run_key(**run, knobs={"b": {"d": 3, "c": [2]}, "a": 1})
    others: list[dict[str, Any]] = [{"seed": 2}, {"world": "v"}, {"task": "u"}, {"strategy": "eva"}, {"oracle": True}]
    changed = {run_key(**{**run, **other}, knobs={"a": 1, "b": {"c": [2], "d": 3}}) for other in others}
    assert len(changed | {one, run_key(**run, knobs={})}) == len(others) + 2


def test_what_json_cannot_hold_does_not_damage_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    odd = record(measures={"precision": math.nan, "bits": math.inf, "recall": 0.5}, answer="cut off \ud83d")
    with RecordLog(path) as log:
        log.append(odd)
    assert read_records(path) == [odd]
    assert odd.measures == {"precision": None, "bits": None, "recall": 0.5}
    assert odd.answer == "cut off ?"
