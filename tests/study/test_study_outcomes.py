"""Figures of recorded runs against values counted by hand."""

from typing import Literal

import pytest
from study_records import record

from nearfar.orchestrator.lab.statistics import IntervalEstimate
from nearfar.orchestrator.lab.study.headline import auto_headline, headline
from nearfar.orchestrator.lab.study.outcomes import Outcomes, plan_only
from nearfar.orchestrator.routing.outcome_records import Check, RunRecord

pytest.importorskip("numpy")


def checked(task: int, verdicts: str, *, score: float) -> RunRecord:
    """A shadow run with one check per letter: c(ontinue), i(ntervene), u(nreadable)."""
    names: dict[str, Literal["continue", "intervene", "unreadable"]] = {"c": "continue", "i": "intervene", "u": "unreadable"}
    checks = tuple(Check(turn=turn, trigger="interval", verdict=names[letter]) for turn, letter in enumerate(verdicts, start=1))
    return record("eva/4+shadow", task, checks=checks, score=score)


def value(estimate: IntervalEstimate | None) -> float:
    assert estimate is not None
    return estimate.value


def test_configurations_stand_in_the_order_in_which_people_count() -> None:
    labels = ["pevr/8", "eva/4+shadow", "cloud", "pevr/2", "pevr/events", "device", "eva/2"]
    outcomes = Outcomes(record(label) for label in labels)
    assert outcomes.configurations("search") == ["device", "cloud", "pevr/2", "pevr/8", "pevr/events", "eva/2", "eva/4+shadow"]


def test_hybrids_leave_out_single_sides_oracles_and_shadows() -> None:
    outcomes = Outcomes(
        record(label) for label in ("device", "cloud", "cascade", "pevr/4+oracle", "eva/4+shadow", "pevr/8+reversed", "eva/4")
    )
    assert outcomes.hybrids("search") == ["cascade", "pevr/8+reversed", "eva/4"]
    assert (outcomes.near_alone("search"), outcomes.far_alone("search")) == ("device", "cloud")


def test_who_solves_what() -> None:
    solves = {"device": "11110000", "cloud": "11001100", "pevr/4": "10101010"}
    outcomes = Outcomes(record(label, task, score=float(bit)) for label, bits in solves.items() for task, bit in enumerate(bits))
    solved = outcomes.solved("search", near="device", far="cloud", hybrid="pevr/4")
    assert set(solved.model_dump().values()) == {1}
    assert solved.runs == 8


@pytest.mark.parametrize(
    ("region", "bits"),
    [
        ("near_only", "100"),
        ("far_only", "010"),
        ("hybrid_only", "001"),
        ("near_and_far", "110"),
        ("near_and_hybrid", "101"),
        ("far_and_hybrid", "011"),
    ],
)
def test_each_region_is_counted_under_its_name(region: str, bits: str) -> None:
    records = [record(label, score=float(bit)) for label, bit in zip(("device", "cloud", "pevr/4"), bits, strict=True)]
    solved = Outcomes(records).solved("search", near="device", far="cloud", hybrid="pevr/4")
    assert {name for name, count in solved.model_dump().items() if count} == {region}


def test_the_verifiers_errors_are_shares_of_the_runs_that_were_checked() -> None:
    records = [
        checked(0, "cc", score=0.0),  # missed
        checked(1, "cu", score=0.0),  # missed: an unreadable verdict changes nothing either
        checked(2, "ci", score=1.0),  # a false alarm
        checked(3, "ci", score=0.0),
        checked(4, "c", score=1.0),
        checked(5, "", score=0.0),  # nobody looked
    ]
    errors = Outcomes(records).verifier_errors("search", "eva/4+shadow")
    assert errors is not None
    assert (errors.runs, errors.false_negatives.value, errors.false_positives.value) == (5, 0.4, 0.2)


def test_without_a_check_there_is_no_verifier_to_be_wrong() -> None:
    assert Outcomes([checked(0, "", score=1.0)]).verifier_errors("search", "eva/4+shadow") is None


def test_runs_by_interventions_have_the_median_of_their_scores() -> None:
    scores = [(0, 1.0), (0, 0.0), (0, 0.5), (2, 0.25), (2, 0.75)]
    records = [record("pevr/4", task, interventions=count, score=score) for task, (count, score) in enumerate(scores)]
    groups = Outcomes(records).interventions("search", "pevr/4")
    assert [(group.interventions, group.runs, group.median_score) for group in groups] == [(0, 3, 0.5), (2, 2, 0.5)]


def test_context_growth_is_over_the_runs_that_are_still_going() -> None:
    records = [record(task=0, context_tokens=(10, 20, 30)), record(task=1, context_tokens=(30,))]
    assert Outcomes(records).context_growth("search", "device") == [(20.0, 2), (20.0, 1), (30.0, 1)]


def test_differences_and_ratios_are_over_the_tasks_that_both_have_run() -> None:
    records = [record("device", task, score=0.0) for task in range(4)] + [record("pevr/4", task, score=0.5) for task in range(2)]
    records += [record("cloud", task, dollars=0.02) for task in (1, 2)]
    outcomes = Outcomes(records)
    assert value(outcomes.difference("search", "pevr/4", "device")) == 0.5
    assert value(outcomes.ratio("search", "pevr/4", "cloud", "dollars")) == pytest.approx(0.5)
    assert outcomes.ratio("search", "cloud", "device", "dollars") is None


def test_a_figure_that_no_run_knows_is_unknown() -> None:
    outcomes = Outcomes([record(joules=None, joules_source="unavailable"), record("eva/4", dollars=None)])
    assert outcomes.estimate("search", "device", "joules") is None
    assert outcomes.estimate("search", "eva/4", "dollars") is None
    assert outcomes.best("search", ["device", "eva/4"]) == "device"


def test_the_headline_compares_what_is_affordable() -> None:
    reaches = {
        "device": (0.5, 0.0),
        "cloud": (0.9, 1.0),
        "cascade": (0.85, 0.45),
        "pevr/4": (0.95, 0.8),
        "eva/4": (0.8, 0.3),
        "eva/events": (0.8, 0.2),
    }
    records = [
        record(label, task, score=score, dollars=dollars, far_calls=round(10 * dollars), peak_kv_bytes=800 if label == "eva/4" else 1000)
        for label, (score, dollars) in reaches.items()
        for task in range(5)
    ]
    line = headline(Outcomes(records), "search")
    assert line.near is not None
    assert line.far is not None
    assert line.best_hybrid is not None
    assert (line.near.configuration, line.far.configuration, line.best_hybrid.configuration) == ("device", "cloud", "pevr/4")
    assert line.beats_near is not None
    assert line.beats_near.configuration == "cascade"
    assert value(line.beats_near.points) == pytest.approx(35)
    assert line.approaches_far is not None
    assert line.approaches_far.configuration == "eva/events"
    assert value(line.approaches_far.score_share) == pytest.approx(0.8 / 0.9)
    assert line.events is not None
    assert (line.events.configuration, line.events.against) == ("eva/events", "pevr/4")
    assert value(line.events.far_call_share) == pytest.approx(0.25)
    assert {each.configuration: value(each.kv_share) for each in line.memory} == {"pevr/4": 1.0, "eva/events": 1.0}


def test_what_was_not_run_is_left_open() -> None:
    line = headline(Outcomes([record("device")]), "search")
    assert (line.far, line.best_hybrid, line.beats_near, line.approaches_far, line.events, line.memory) == (
        None,
        None,
        None,
        None,
        None,
        (),
    )


def test_auto_is_compared_over_the_mixed_stream() -> None:
    better = {"search": "eva/4", "apps": "pevr/4"}
    records = [
        record(
            label,
            task,
            world=world,
            seed=seed,
            score=1.0 if better[world] == label else 0.0,
            tools=("pay",) if world == "apps" else ("search",),
        )
        for world in better
        for label in ("pevr/4", "eva/4")
        for seed in (1, 2)
        for task in range(20)
    ]
    line = auto_headline(records)
    assert line is not None
    assert (line.tasks, line.best_fixed_score) == (80, 0.5)
    assert line.score > 0.9
    assert len(line.regret) == 80
    assert line.regret[-1] < 0
    assert line.points.value == pytest.approx(100 * (line.score - line.best_fixed_score))
    assert line.points.low > 20


def test_of_equally_good_fixed_configurations_auto_is_held_against_the_cheaper() -> None:
    prices = {"cascade": 0.2, "cloud": 0.3, "pevr/4": 0.1}
    records = [record(label, task, seed=seed, dollars=dollars) for label, dollars in prices.items() for seed in (1, 2) for task in range(4)]
    line = auto_headline(records)
    assert line is not None
    assert line.best_fixed == "pevr/4"
    assert line.best_fixed_dollars == pytest.approx(0.1)
    assert (line.most_useful_fixed, line.points.value) == ("pevr/4", 0)


def test_auto_spends_more_the_more_a_point_is_worth() -> None:
    records = [
        record(label, task, seed=seed, score=score, dollars=dollars)
        for label, score, dollars in (("device", 0.5, 0.0), ("pevr/4", 0.8, 0.01), ("cloud", 0.9, 0.05))
        for seed in (1, 2)
        for task in range(20)
    ]
    line = auto_headline(records)
    assert line is not None
    assert [point.dollars_per_point for point in line.front] == sorted(point.dollars_per_point for point in line.front)
    assert (line.front[0].score, line.front[0].dollars) == (0.5, 0.0)
    assert line.front[-1].score == pytest.approx(0.9)


def test_events_are_held_against_the_best_of_all_fixed_intervals() -> None:
    tuned = {"supervision": {"interval": 4, "maximum_guidance": 100}}
    records = [record("pevr/4", task, score=0.2) for task in range(4)]
    records += [record("pevr/4", task, score=0.9, configuration="pevr/4:maximum_guidance=100", knobs=tuned) for task in range(4)]
    records += [record("eva/events", task, score=0.5) for task in range(4)]
    line = headline(Outcomes(records), "search")
    assert line.events is not None
    assert line.events.against == "pevr/4:maximum_guidance=100"


def test_of_events_that_score_the_same_the_one_with_the_fewest_far_calls_counts() -> None:
    def knobs(**supervision: object) -> dict[str, object]:
        return {"supervision": {"interval": None, **supervision}}

    runs = {
        "pevr/8": (0.9, 2, {"supervision": {"interval": 8}}),
        "pevr/events": (0.91, 2, knobs(triggers=["loop"])),
        "pevr/inf:plan_below=0.9": (0.895, 1, knobs(plan_below=0.9)),
        "pevr/inf:plan_below=0.5": (0.8, 0, knobs(plan_below=0.5)),
    }
    records = [
        record("pevr/8", task, configuration=label, score=score, far_calls=calls, knobs=changes)
        for label, (score, calls, changes) in runs.items()
        for task in range(4)
    ]
    line = headline(Outcomes(records), "search")
    assert line.events is not None
    assert (line.events.configuration, line.events.against) == ("pevr/inf:plan_below=0.9", "pevr/8")


def test_a_plan_that_waits_for_a_doubt_is_not_the_plan_alone() -> None:
    waiting = {"supervision": {"interval": None, "plan_below": 0.9}}
    records = [record("pevr/inf", 1, configuration="pevr/inf:plan_below=0.9", knobs=waiting)]
    assert plan_only(Outcomes(records), "search") is None
    always = record("pevr/inf", 1, knobs={"supervision": {"interval": None}})
    assert plan_only(Outcomes([*records, always]), "search") == "pevr/inf"


def test_auto_cannot_be_judged_with_a_single_seed() -> None:
    assert auto_headline([record("device"), record("cloud")]) is None
