"""The files that `auto` learns from, good and bad."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_runs import outcome, run

from nearfar.orchestrator.routing.outcome_records import Outcome, outcomes_of
from nearfar.orchestrator.routing.traces import append_outcome, read_outcomes
from nearfar.orchestrator.task.modes import Shape, Strategy, TaskProfile
from nearfar.protocols import ConfigError

PROFILE = TaskProfile.of("Who is Mira Falk?", ["search"])
REPORT = outcome(Strategy.EVA, 0.5, profile=PROFILE, task_class="people", knobs={"supervision": {"interval": 2}})


def test_runs_and_reports_can_stand_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(f"{run(label='eva/8').model_dump_json()}\n\n{REPORT.model_dump_json()}\n", encoding="utf-8")
    first, second = read_outcomes(path)
    assert isinstance(first, Outcome)
    assert (first.task_class, first.label, first.arm.strategy, first.score) == ("search/1 hop", "eva/8", Strategy.EVA, 1.0)
    assert second == REPORT


def test_runs_that_tell_nothing_about_a_configuration_are_left_out() -> None:
    records = [run(), run(oracle=True), run(strategy="auto"), run(knobs={"supervision": {"shadow": True}})]
    assert len(list(outcomes_of(records))) == 1


def test_a_run_with_a_long_context_is_known_as_such() -> None:
    (only,) = outcomes_of([run().model_copy(update={"context_words": 2000, "tools": ()})])
    assert only.profile == TaskProfile.of(run().prompt, context_words=2000)
    assert only.profile.shape is Shape.LONG_CONTEXT


def test_the_mode_that_a_sweep_gives_one_side_alone_is_not_a_knob() -> None:
    (only,) = outcomes_of([run(strategy="device", knobs={"mode": "only_on_device", "maximum_turns": 20})])
    assert only.arm.knobs == {"maximum_turns": 20}


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    line = REPORT.model_dump_json()
    path.write_text(f"{line}\n{line[: len(line) // 2]}", encoding="utf-8")
    assert read_outcomes(path) == [REPORT]


def test_a_report_after_a_cut_line_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(f'{REPORT.model_dump_json()}\n{{"type": "outc', encoding="utf-8")
    append_outcome(path, REPORT, setting="[policy.auto] reports")
    assert read_outcomes(path) == [REPORT, REPORT]


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[]",
        "{}",
        '{"type": "outcome"}',
        run(score=0.5).model_dump_json().replace('"score":0.5', '"score":5'),
        run(strategy="telepathy").model_dump_json(),
        REPORT.model_dump_json().replace('"dollars":0.0', '"dollars":-1'),
        REPORT.model_dump_json().replace('"eva"', '"telepathy"'),
        "[" * 100_000,
    ],
    ids=["noise", "list", "empty", "nothing in it", "score", "strategy", "dollars", "reported strategy", "nested"],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(f"{REPORT.model_dump_json()}\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"outcomes\.jsonl, line 2 is no outcome"):
        read_outcomes(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_noise_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_bytes(data + b"\n")
    with suppress(ConfigError):
        assert read_outcomes(path) == []


def test_a_missing_file_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_outcomes(tmp_path / "no.jsonl")
    assert "nearfar sweep" in caught.value.hint


def test_reports_that_cannot_be_kept_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        append_outcome(tmp_path, REPORT, setting="[policy.auto] reports")
