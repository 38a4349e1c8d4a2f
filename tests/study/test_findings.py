"""Each lesson by its rule, on runs that are made to fit it or not."""

from collections.abc import Mapping
from typing import Any

import pytest
from study_records import record

from nearfar.orchestrator.lab.study.findings import Lesson, findings
from nearfar.orchestrator.lab.study.outcomes import Outcomes
from nearfar.orchestrator.routing.outcome_records import RunRecord

pytest.importorskip("numpy")

TASKS = 60
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be tested here"


def runs(label: str, share: float, *, world: str = "search", **changes: float) -> list[RunRecord]:
    """Runs of which a share succeeds, spread over the tasks."""
    solved = [int((task + 1) * share) > int(task * share) for task in range(TASKS)]
    return [record(label, task, world=world, score=float(success), **dict[str, Any](changes)) for task, success in enumerate(solved)]


def found(number: int, *groups: list[RunRecord]) -> Lesson:
    return findings(Outcomes(each for group in groups for each in group))[number - 1]


def shares(world: str, reached: Mapping[str, float]) -> list[RunRecord]:
    return [each for label, share in reached.items() for each in runs(label, share, world=world)]


def test_nothing_can_be_tested_on_a_single_configuration() -> None:
    assert {finding.answer for finding in findings(Outcomes(runs("device", 0.5)))} == {OPEN}


@pytest.mark.parametrize(("hybrid", "dollars", "answer"), [(0.9, 0.002, HOLDS), (0.9, 0.02, FAILS), (0.5, 0.002, FAILS)])
def test_collaboration(hybrid: float, dollars: float, answer: str) -> None:
    assert found(1, runs("device", 0.5), runs("cloud", 0.9), runs("pevr/4", hybrid, dollars=dollars)).answer == answer


@pytest.mark.parametrize(("apps_pevr", "answer"), [(0.9, HOLDS), (0.1, FAILS), (0.5, FAILS)])
def test_no_free_lunch(apps_pevr: float, answer: str) -> None:
    records = shares("search", {"pevr/4": 0.3, "eva/4": 0.8}) + shares("apps", {"pevr/4": apps_pevr, "eva/4": 0.5})
    assert found(2, records).answer == answer


@pytest.mark.parametrize(("busiest", "answer"), [(0.2, HOLDS), (0.9, FAILS), (0.75, FAILS)])
def test_more_cloud_is_not_better(busiest: float, answer: str) -> None:
    assert found(3, shares("search", {"pevr/2": busiest, "pevr/4": 0.8, "pevr/8": 0.5})).answer == answer


def test_two_intervals_show_no_optimum() -> None:
    assert found(3, shares("search", {"pevr/2": 0.2, "pevr/4": 0.8})).answer == OPEN


@pytest.mark.parametrize(("score", "joules", "answer"), [(0.6, 0.2, HOLDS), (0.6, 0.7, FAILS), (0.1, 0.2, FAILS)])
def test_energy(score: float, joules: float, answer: str) -> None:
    assert found(4, runs("device", 0.5), runs("eva/4", score, joules=joules)).answer == answer


def test_energy_is_open_where_nobody_took_any() -> None:
    assert found(4, runs("device", 0.0, joules=0.0), runs("eva/4", 0.0, joules=0.0)).answer == OPEN


def test_one_near_model_says_nothing_about_sizes() -> None:
    assert found(5, runs("device", 0.5), runs("pevr/4", 0.9)).answer == OPEN


@pytest.mark.parametrize(("world", "plan", "answer"), [("apps", 0.9, HOLDS), ("apps", 0.5, FAILS), ("search", 0.9, OPEN)])
def test_plans_matter_for_stateful_tasks(world: str, plan: float, answer: str) -> None:
    assert found(6, shares(world, {"device": 0.5, "pevr/inf": plan})).answer == answer


@pytest.mark.parametrize(("plan", "restless", "answer"), [(0.5, 0.1, HOLDS), (0.9, 0.1, FAILS), (0.57, 0.1, FAILS), (0.5, 0.8, FAILS)])
def test_search_wants_light_advice(plan: float, restless: float, answer: str) -> None:
    calm = runs("eva/4", 0.8)
    restarted = [record("eva/4", task + TASKS, interventions=2, score=float(task < restless * TASKS)) for task in range(TASKS)]
    assert found(7, runs("device", 0.5), runs("pevr/inf", plan), calm, restarted).answer == answer


@pytest.mark.parametrize(
    ("apps_best", "search_best", "answer"), [("pevr/2", "eva/8", HOLDS), ("pevr/8", "eva/2", FAILS), ("pevr/4", "eva/4", FAILS)]
)
def test_how_often_to_verify_depends_on_the_task(apps_best: str, search_best: str, answer: str) -> None:
    labels = ("pevr/2", "pevr/4", "pevr/8", "eva/2", "eva/4", "eva/8")
    records = [
        each
        for world, best in (("apps", apps_best), ("search", search_best))
        for each in shares(world, {label: 0.9 if label == best else 0.3 for label in labels})
    ]
    assert found(8, records).answer == answer


def test_intervals_that_cannot_be_told_apart_show_no_dependence_on_the_task() -> None:
    records = [
        each
        for world, best in (("apps", "pevr/2"), ("search", "pevr/8"))
        for each in shares(world, {label: 0.52 if label == best else 0.5 for label in ("pevr/2", "pevr/4", "pevr/8")})
    ]
    assert found(8, records).answer == FAILS


@pytest.mark.parametrize(("score", "dollars", "answer"), [(0.5, 0.02, HOLDS), (0.95, 0.02, FAILS), (0.5, 0.001, FAILS)])
def test_roles_are_not_reversed(score: float, dollars: float, answer: str) -> None:
    assert found(9, runs("cloud", 0.6), runs("pevr/8+reversed", score, dollars=dollars)).answer == answer


def test_a_hybrid_that_solves_what_neither_side_solves() -> None:
    parts = [("device", 0, 20), ("cloud", 20, 40), ("pevr/4", 30, 60)]
    records = [record(label, task, score=float(start <= task < end)) for label, start, end in parts for task in range(TASKS)]
    finding = found(10, records)
    assert finding.answer == HOLDS
    assert "solves 20 of 60 runs that neither side solves" in finding.because
    inside = [record(label, task, score=float(task < 20)) for label, _, _ in parts for task in range(TASKS)]
    assert found(10, inside).answer == FAILS


@pytest.mark.parametrize(("peak", "answer"), [(2048, HOLDS), (4096, FAILS), (8192, FAILS)])
def test_memory(peak: int, answer: str) -> None:
    assert found(11, runs("device", 0.5), runs("pevr/4", 0.6, peak_kv_bytes=peak)).answer == answer


def test_memory_names_what_resets_did_only_where_there_were_any() -> None:
    calm = [runs("device", 0.5), runs("pevr/inf", 0.6), runs("pevr/4", 0.6)]
    assert "was reset" not in found(11, *calm).because
    restless = runs("pevr/2", 0.6, interventions=1, peak_kv_bytes=2048)
    assert "in the 60 runs in which pevr/2 was reset, at 50% [50%, 50%] of pevr/inf" in found(11, *calm, restless).because


def test_a_lesson_fails_where_it_fails_in_one_world() -> None:
    good = [runs(label, share, peak_kv_bytes=peak) for label, share, peak in (("device", 0.5, 4096), ("pevr/4", 0.6, 2048))]
    bad = [runs(label, share, world="apps", peak_kv_bytes=4096) for label, share in (("device", 0.5), ("pevr/4", 0.6))]
    assert found(11, *good).answer == HOLDS
    assert found(11, *good, *bad).answer == FAILS
    assert "apps:" in found(11, *good, *bad).because


def test_every_finding_is_whole_sentences_with_its_rule() -> None:
    for finding in findings(Outcomes(runs("device", 0.5))):
        assert finding.lesson.endswith(".")
        assert finding.rule.endswith(".")
        assert finding.because.endswith(".")
