"""`auto` chooses whatever was reported: any classes with any tools, in any order, in one process or the next."""

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_runs import PUBLIC, outcome

from nearfar import Hybrid, Strategy, tool
from nearfar.orchestrator.routing.auto import Chooser
from nearfar.orchestrator.routing.outcome_records import Outcome
from nearfar.orchestrator.routing.outcomes import Tallies
from nearfar.orchestrator.routing.traces import read_outcomes
from nearfar.orchestrator.task.modes import Mode, TaskProfile
from nearfar.orchestrator.task.policy import AutoConfig, Policy
from nearfar.protocols import ScriptedAgent, Sensitivity, Side

TOOLS = ("send_mail", "search", "frobnicate", "")
CLASSES = ("", "shop", "shop/returns", "shop/returns/late", "/", "//shop", "shop: short request", "form: short request", "class: shop")
PROMPTS = ("", "Is it open?", "Please pay Mira Falk 20, then go on.", "what " * 30, "shape: a prompt alone", "\u00df \x00 \n")

PROFILES = st.builds(
    TaskProfile.of,
    st.sampled_from(PROMPTS) | st.text(max_size=30),
    st.lists(st.sampled_from(TOOLS), max_size=3),
    context_words=st.sampled_from((0, 10, 2000)),
)
OUTCOMES = st.builds(
    outcome,
    st.sampled_from([strategy for strategy in Strategy if strategy is not Strategy.AUTO]),
    st.floats(0, 1),
    profile=PROFILES,
    task_class=st.sampled_from(CLASSES) | st.text(max_size=12),
    dollars=st.none() | st.floats(0, 1e300),
)
STEPS = st.lists(st.one_of(OUTCOMES, st.tuples(PROFILES, st.sampled_from(CLASSES), st.floats(0, 1)), st.just("restart")), max_size=20)


def counted(tallies: Tallies) -> None:
    """No group has fewer outcomes than a group inside it."""
    for group in tallies._groups:
        for tally in tallies.of(group[:-1], without=group).values() if group else ():
            assert min(tally.outcomes, tally.priced, tally.score, tally.dollars) >= 0


@settings(max_examples=80, deadline=None)
@given(STEPS, PROFILES, st.sampled_from((0.0, 0.3, 1.0)))
def test_no_mix_of_classes_tools_reports_and_restarts_makes_auto_fail(
    steps: list[Outcome | tuple[TaskProfile, str, float] | str], last: TaskProfile, explore_share: float
) -> None:
    policy = AutoConfig(explore_share=explore_share)
    known: list[Outcome] = []
    chooser = Chooser(policy, seed=1)
    for step in steps:
        if isinstance(step, Outcome):
            learned = step
        elif isinstance(step, tuple):
            profile, task_class, score = step
            chosen = chooser.choose(profile, PUBLIC)
            learned = outcome(chosen.chosen.strategy, score, profile=profile, task_class=task_class or chosen.task_class)
        else:
            chooser = Chooser(policy, [Outcome.model_validate_json(each.model_dump_json()) for each in known], seed=1)
            continue
        known.append(learned)
        chooser.store.add(learned)
    assert chooser.choose(last, PUBLIC).winner.objection is None
    counted(chooser.store.tallies)


@settings(max_examples=30, deadline=None)
@given(st.lists(OUTCOMES, max_size=30), PROFILES)
def test_a_restart_chooses_as_the_process_before_it(known: list[Outcome], profile: TaskProfile) -> None:
    again = [Outcome.model_validate_json(each.model_dump_json()) for each in known]
    assert Chooser(AutoConfig(), again).choose(profile, PUBLIC) == Chooser(AutoConfig(), known).choose(profile, PUBLIC)


def test_a_class_with_other_tools_is_told_apart() -> None:
    reading = TaskProfile.of("look at the order", ["find_order"])
    acting = TaskProfile.of("look at the order", ["find_order", "cancel_order"])
    chooser = Chooser(AutoConfig(dollars_per_point=1.0), has_defaults=False)
    for _ in range(60):
        for profile, best in ((reading, Strategy.EVA), (acting, Strategy.PEVR)):
            for strategy in (Strategy.EVA, Strategy.PEVR):
                chooser.store.add(outcome(strategy, float(strategy is best), profile=profile, task_class="shop/orders"))
    assert chooser.choose(reading, PUBLIC).chosen.strategy is Strategy.EVA
    assert chooser.choose(acting, PUBLIC).chosen.strategy is Strategy.PEVR
    assert chooser.choose(acting, PUBLIC).task_class == "shop/orders"


@tool
def find_order(number: str) -> str:
    """Find an order."""
    return number


@tool
def cancel_order(number: str) -> str:
    """Cancel an order."""
    return number


def hybrid(reports: Path) -> Hybrid:
    policy = Policy(strategy=Strategy.AUTO, sensitivity=Sensitivity.PUBLIC, auto=AutoConfig(reports=reports, explore_share=0.3))
    return Hybrid(near=ScriptedAgent(["Yes."] * 400), far=ScriptedAgent(["Yes."] * 400, name="far", side=Side.FAR), policy=policy)


@pytest.mark.anyio
async def test_tasks_of_one_class_with_other_tools_are_served_and_reported_across_restarts(tmp_path: Path) -> None:
    served = 0
    for _ in range(4):
        async with hybrid(tmp_path / "reports.jsonl") as pair:
            for number in range(12):
                tools = ([], [find_order], [find_order, cancel_order])[number % 3]
                result = await pair.run(f"Is order {number} late?", tools=tools)
                pair.report(result, score=number % 2, task_class="orders")
                served += 1
    assert served == len(read_outcomes(tmp_path / "reports.jsonl")) == 48


@pytest.mark.anyio
async def test_where_the_chooser_fails_the_default_serves_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Tallies, depth: int) -> float:
        if self._outcomes:
            raise KeyError("device")
        return 1.0

    async with hybrid(tmp_path / "reports.jsonl") as pair:
        pair.report(await pair.run("Find it.", tools=[find_order]), score=1.0)
        monkeypatch.setattr(Tallies, "credibility", broken)
        with caplog.at_level(logging.WARNING):
            explained = pair.explain("Cancel it.", tools=[cancel_order], mode=Mode.AUTO)
            result = await pair.run("Cancel it.", tools=[cancel_order])
    assert result.selection is not None
    assert result.selection.chosen == explained.chosen
    assert result.selection.chosen.strategy is Strategy.PEVR
    assert [record.getMessage() for record in caplog.records] == ["auto failed and the default serves: KeyError('device')"] * 2
