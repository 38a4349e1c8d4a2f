"""Thresholds that keep to a budget or a quality, found on recorded outcomes."""

import tomllib
from dataclasses import replace

import pytest

pytest.importorskip("numpy")

from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_tasks import FAR, FAR_DOLLARS, NEAR, PUBLIC, SIDES, recorded

from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.lab.replay import with_router
from nearfar.orchestrator.lab.replay.calibration import Measure, budget_target, calibrate, quality_target
from nearfar.orchestrator.lab.replay.replayed import Replayed, RoutedTask
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError, Sensitivity

PARTS = 5
TASKS = 500


def replayed(advantages: list[float] | None = None, policy: Policy = PUBLIC) -> Replayed:
    """Tasks with advantages that hard ones are likelier to have, unless they are given."""
    traces = recorded(TASKS if advantages is None else len(advantages))
    hard = [(trace.task_class == "logic") * 0.5 + (place * 7919 % 1000) / 1000 for place, trace in enumerate(traces)]
    tasks = [
        RoutedTask(trace, part=place % PARTS, near=NEAR, far=FAR, advantage=advantage, chosen=NEAR)
        for place, (trace, advantage) in enumerate(zip(traces, advantages or hard, strict=True))
    ]
    return Replayed(tuple(tasks), SIDES, PARTS, policy, incomplete=0, refused={})


def share_under(found: Replayed, threshold: float) -> float:
    return float(found.is_far(found.served_by(threshold)).mean())


@pytest.mark.parametrize(
    ("text", "measure", "amount"),
    [
        ("30%", Measure.FAR_SHARE, 0.3),
        ("0.3", Measure.FAR_SHARE, 0.3),
        (" 5 % ", Measure.FAR_SHARE, 0.05),
        ("$2e-3", Measure.DOLLARS, 0.002),
    ],
)
def test_a_budget_is_a_share_of_far_tasks_or_dollars_per_task(text: str, measure: Measure, amount: float) -> None:
    found = budget_target(text)
    assert found.measure is measure
    assert found.amount == pytest.approx(amount)


@pytest.mark.parametrize(("text", "measure", "amount"), [("95%", Measure.SCORE_SHARE, 0.95), (".82", Measure.SCORE, 0.82)])
def test_a_quality_is_a_share_of_the_far_sides_score_or_a_score(text: str, measure: Measure, amount: float) -> None:
    found = quality_target(text)
    assert found.measure is measure
    assert found.amount == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "a lot", "30", "-1", "120%", "$30%", "nan", "1e999", "0.3.1"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="budget|share"):
        budget_target(text)


@pytest.mark.parametrize("text", ["", "best", "$1", "7", "-0.2"])
def test_what_is_no_quality_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="quality"):
        quality_target(text)


@given(
    advantages=st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=20, max_size=80),
    share=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_a_budget_is_never_exceeded_on_the_tasks_that_it_was_found_on(advantages: list[float], share: float) -> None:
    advantages = [round(advantage, 3) for advantage in advantages]
    found = replayed(advantages)
    assert share_under(found, calibrate(found, budget=f"{share:.6f}").threshold) <= share + 1e-6


def test_a_budget_is_spent_as_far_as_it_goes() -> None:
    found = replayed()
    calibration = calibrate(found, budget="30%")
    assert share_under(found, calibration.threshold) == pytest.approx(0.3, abs=1.5 / TASKS)
    assert calibration.reached.value == pytest.approx(0.3, abs=0.03)
    assert calibration.reached == calibration.expected.far_share


def test_a_budget_in_dollars_is_kept_per_task() -> None:
    calibration = calibrate(replayed(), budget=f"${FAR_DOLLARS / 4}")
    assert calibration.expected.dollars is not None
    assert calibration.expected.dollars.value == pytest.approx(FAR_DOLLARS / 4, rel=0.1)


def test_a_quality_takes_no_more_far_tasks_than_it_needs() -> None:
    found = replayed()
    shares = [share_under(found, calibrate(found, quality=quality).threshold) for quality in ("70%", "90%", "99%")]
    assert shares == sorted(shares)
    assert shares[0] < shares[2]


def test_a_quality_is_reached_on_tasks_that_the_threshold_was_not_chosen_on() -> None:
    calibration = calibrate(replayed(), quality="0.8")
    assert calibration.reached == calibration.expected.score
    assert calibration.reached.low <= 0.8 <= calibration.reached.high
    assert calibration.wanted == 0.8


def test_misses_are_measured_on_each_held_out_part() -> None:
    calibration = calibrate(replayed(), budget="30%")
    assert len(calibration.misses) == PARTS
    assert calibration.worst_miss == max(calibration.misses)
    assert sum(calibration.misses) / PARTS == pytest.approx(calibration.reached.value - 0.3, abs=1e-9)


def test_an_unreachable_quality_says_what_is_reachable() -> None:
    found = replayed()
    best = max(float(found.scores(found.served_by(task.advantage)).mean()) for task in found.tasks)
    with pytest.raises(ConfigError, match="cannot be reached") as caught:
        calibrate(found, quality="0.999")
    assert f"{best:.2}" in caught.value.hint


def test_a_budget_below_what_rules_send_far_is_refused() -> None:
    found = replayed()
    settled = [replace(task, near=FAR, far=FAR, advantage=0.0) for task in found.tasks[:100]]
    with pytest.raises(ConfigError, match="no threshold keeps to that") as caught:
        calibrate(replace(found, tasks=(*settled, *found.tasks[100:])), budget="10%")
    assert "0.2" in caught.value.hint


def test_dollars_that_nobody_recorded_cannot_be_budgeted() -> None:
    found = replayed()
    outcomes = {agent: outcome.model_copy(update={"dollars": None}) for agent, outcome in found.tasks[0].trace.outcomes.items()}
    blank = replace(found.tasks[0], trace=found.tasks[0].trace.model_copy(update={"outcomes": outcomes}))
    with pytest.raises(ConfigError, match="cost"):
        calibrate(replace(found, tasks=(blank, *found.tasks[1:])), budget="$0.001")


@pytest.mark.parametrize(("budget", "quality"), [(None, None), ("30%", "95%")])
def test_it_takes_a_budget_or_a_quality_and_not_both(budget: str | None, quality: str | None) -> None:
    with pytest.raises(ConfigError, match="a budget or for a quality"):
        calibrate(replayed(), budget=budget, quality=quality)


@pytest.mark.parametrize("budget", ["0%", "30%", "100%"])
def test_its_lines_are_a_policy_under_which_the_threshold_decides(budget: str) -> None:
    calibration = calibrate(
        replayed(policy=PUBLIC.model_copy(update={"strategy": Strategy.EVA, "mode": Mode.PREFER_ON_DEVICE})), budget=budget
    )
    policy = parse_config(calibration.toml, "nearfar.toml").policy
    assert (policy.strategy, policy.mode) == (Strategy.ROUTE, Mode.AUTO)
    assert policy.router.threshold == calibration.threshold


def test_a_cascade_keeps_its_strategy_since_the_threshold_decides_about_its_drafts() -> None:
    assert "strategy" not in calibrate(replayed(policy=PUBLIC.model_copy(update={"strategy": Strategy.CASCADE})), budget="30%").toml


def test_its_lines_leave_alone_what_is_right_already() -> None:
    assert tomllib.loads(calibrate(replayed(), budget="30%").toml).keys() == {"policy"}
    assert "strategy" not in calibrate(replayed(), budget="30%").toml


def test_whatever_would_overrule_the_threshold_is_named() -> None:
    policy = with_router(PUBLIC, far_share=0.2).model_copy(update={"sensitivity": Sensitivity.PRIVATE})
    notes = " ".join(calibrate(replayed(policy=policy), budget="30%").notes)
    assert "far_share" in notes
    assert "private" in notes
    assert "names no head" in notes


def test_its_summary_holds_plain_values() -> None:
    found = calibrate(replayed(), quality="95%").summary()
    assert found["target"] == {"measure": "score_share", "amount": 0.95}
    assert found["worst_miss"] == max(found["misses"])
