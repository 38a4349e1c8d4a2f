"""Recorded outcomes, replayed through the real router."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from recorded_tasks import FAR, FAR_DOLLARS, NEAR, PUBLIC, SIDES, recorded, with_outcomes, without

from nearfar.orchestrator.lab.replay import Recording, hold_out, with_router
from nearfar.orchestrator.lab.replay.replayed import Replayed, replay
from nearfar.orchestrator.lab.replay.simulation import Simulation, simulation, thresholds
from nearfar.orchestrator.lab.training import train_head, write_head
from nearfar.orchestrator.routing.escalation import Escalation
from nearfar.orchestrator.routing.looks import Cost
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import draft_examples_of, examples_of, train_escalation
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.orchestrator.task.rules import Rule
from nearfar.protocols import ConfigError, Sensitivity, Side

TASKS = 160
FOLDS = 2
Ask = Callable[[Policy], Replayed]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on tasks of the same kind, and on none of those that are replayed."""
    folder = tmp_path_factory.mktemp("head")
    write_head(train_head(examples_of(recorded(200, seed=1), [NEAR, FAR])), folder)
    return folder


@pytest.fixture(scope="module")
def ask(head: Path) -> Ask:
    """Replays the same tasks under a policy."""
    return lambda policy: replay(recorded(TASKS), with_router(policy, head=head), sides=SIDES, embedder=None, folds=FOLDS)


@pytest.fixture(scope="module")
def found(ask: Ask) -> Simulation:
    return simulation(ask(with_router(PUBLIC, threshold=0.2)))


def ruled(*rules: Rule) -> Policy:
    return PUBLIC.model_copy(update={"rules": rules})


def test_heads_that_have_not_seen_a_task_send_the_hard_ones_far() -> None:
    said: list[str] = []
    found = simulation(
        replay(recorded(TASKS), with_router(PUBLIC, threshold=0.2), sides=SIDES, embedder=None, folds=FOLDS, progress=said.append)
    )
    shares = {each.task_class: each.far_share for each in found.classes}
    assert shares["logic"] > 0.9
    assert shares["chores"] < 0.1
    assert found.policy.score.value > found.random.score.value + 0.1
    assert found.figures is not None
    assert found.figures.recovered.low > 0.6
    assert any("training" in sentence for sentence in said)


def test_no_head_has_seen_the_prompts_that_it_is_asked_about() -> None:
    traces = recorded(60)
    recording = Recording.of([*traces, *traces[:20]], SIDES)
    with hold_out(recording, head=None, embedder=None, folds=3, seed=0, progress=lambda _: None) as parts:
        assert sorted(place for part in parts for place in part.places) == list(range(80))
        for part in parts:
            assert part.head.is_dir()
            held, others = ({recording.cases[place].prompt for place in places} for places in (part.places, part.others))
            assert not held & others
    assert not any(part.head.exists() for part in parts)


def test_the_same_seed_gives_the_same_simulation(ask: Ask) -> None:
    assert simulation(ask(PUBLIC)) == simulation(ask(PUBLIC))


@pytest.mark.parametrize("place", [0, 1, 5, 8, -1])
def test_what_a_threshold_brings_is_what_the_router_decides_under_it(place: int, ask: Ask) -> None:
    replayed = ask(PUBLIC)
    threshold = thresholds(replayed)[place]
    decided = [task.chosen for task in ask(with_router(PUBLIC, threshold=threshold)).tasks]
    assert decided == replayed.served_by(threshold)


def test_the_front_begins_with_no_task_far_and_ends_with_all_of_them(found: Simulation) -> None:
    shares = [way.far_share.value for way in found.front]
    assert (shares[0], shares[-1]) == (0, 1)
    assert shares == sorted(shares)
    singles = {way.name: way.score for way in found.singles}
    assert (found.front[0].score, found.front[-1].score) == (singles[NEAR], singles[FAR])


def test_the_references_stand_where_they_belong(found: Simulation) -> None:
    assert found.best_single.name == FAR
    assert found.best_single.dollars is not None
    assert found.best_single.dollars.value == pytest.approx(FAR_DOLLARS)
    assert found.oracle.score.value >= max(way.score.value for way in (*found.singles, *found.front, found.policy))
    assert max(point.quality for point in found.oracle_front) == pytest.approx(found.oracle.score.value)
    assert found.random.far_share.value == pytest.approx(found.policy.far_share.value)


def test_the_oracle_asks_the_far_side_only_where_the_near_one_does_worse(found: Simulation) -> None:
    needed = sum((trace.outcomes[NEAR].score or 0) < (trace.outcomes[FAR].score or 0) for trace in recorded(TASKS))
    assert found.oracle.far_share.value == pytest.approx(needed / TASKS)


def test_traces_without_the_score_of_an_agent_are_counted_and_left_out(head: Path) -> None:
    traces = recorded(TASKS)
    traces[:30] = [*without(traces[:10], NEAR), *(with_outcomes(trace, gpt=AgentOutcome()) for trace in traces[10:30])]
    found = simulation(replay(traces, with_router(PUBLIC, head=head), sides=SIDES, embedder=None, folds=FOLDS))
    assert (found.tasks, found.incomplete) == (TASKS - 30, 30)


def test_traces_that_all_lack_a_score_are_refused_with_what_is_missing() -> None:
    traces = [with_outcomes(trace, gpt=AgentOutcome()) for trace in recorded(TASKS)]
    with pytest.raises(ConfigError, match=rf"known on 0 of {TASKS} tasks.*phi on {TASKS}, gpt on 0") as caught:
        replay(traces, PUBLIC, sides=SIDES, embedder=None)
    assert "record the scores" in caught.value.hint


@pytest.mark.parametrize(
    ("sides", "message"),
    [({NEAR: Side.NEAR}, "no far agent"), ({FAR: Side.FAR}, "no near agent"), ({**SIDES, "claude": Side.FAR}, "no outcome of 'claude'")],
)
def test_agents_that_cannot_be_compared_are_refused(sides: dict[str, Side], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recording.of(recorded(TASKS), sides)


@pytest.mark.parametrize("folds", [0, 1, TASKS + 1])
def test_a_split_into_no_parts_or_more_than_prompts_is_refused(folds: int, head: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be split"):
        replay(recorded(TASKS), with_router(PUBLIC, head=head), sides=SIDES, embedder=None, folds=folds)


def test_a_head_for_other_agents_is_refused(head: Path) -> None:
    traces = [with_outcomes(trace, claude=trace.outcomes[FAR]) for trace in recorded(TASKS)]
    with pytest.raises(ConfigError, match="claude"):
        replay(traces, with_router(PUBLIC, head=head), sides={**SIDES, "claude": Side.FAR}, embedder=None, folds=FOLDS)


def test_a_named_head_may_have_seen_the_tasks_and_the_reader_is_told(found: Simulation) -> None:
    assert any("trained on these tasks" in warning for warning in found.warnings)


def test_rules_settle_tasks_whatever_the_threshold(ask: Ask) -> None:
    replayed = ask(ruled(Rule.model_validate({"name": "chores", "when": {"task_class": ["chores"]}, "agent": FAR})))
    settled = [task for task in replayed.tasks if not task.is_free]
    assert {task.trace.task_class for task in settled} == {"chores"}
    assert {task.far for task in settled} == {task.chosen for task in settled} == {FAR}
    found = simulation(replayed)
    assert found.settled == len(settled)
    assert found.front[0].far_share.value == pytest.approx(len(settled) / TASKS)


def test_tasks_that_a_rule_denies_are_counted_and_left_out(ask: Ask) -> None:
    found = simulation(ask(ruled(Rule.model_validate({"name": "no logic", "when": {"task_class": ["logic"]}, "deny": "not here"}))))
    assert {each.task_class for each in found.classes} == {"chores"}
    assert sum(found.refused.values()) == TASKS - found.tasks
    assert all("not here" in reason for reason in found.refused)


def test_rules_that_settle_every_task_leave_nothing_to_simulate(ask: Ask) -> None:
    with pytest.raises(ConfigError, match="no recorded task is free"):
        ask(ruled(Rule.model_validate({"name": "all", "mode": "only_on_device"})))


def test_a_limit_on_dollars_keeps_tasks_on_the_device(ask: Ask) -> None:
    with pytest.raises(ConfigError, match="no recorded task is free"):
        ask(PUBLIC.model_copy(update={"limits": LimitsConfig(task=AmountsConfig(dollars=FAR_DOLLARS / 10))}))


def test_private_tasks_stay_on_the_device_and_the_front_shows_what_that_costs(ask: Ask) -> None:
    found = simulation(ask(PUBLIC.model_copy(update={"sensitivity": Sensitivity.PRIVATE})))
    assert found.policy.far_share.value == 0
    assert found.front[-1].far_share.value == 1
    assert any("private" in warning for warning in found.warnings)


def test_a_strategy_in_which_more_agents_take_part_is_named_as_such(ask: Ask) -> None:
    found = simulation(ask(PUBLIC.model_copy(update={"strategy": Strategy.EVA})))
    assert any("counts the first agent alone" in warning for warning in found.warnings)


CASCADE = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "evidence": {"second_opinion": "second"}})
TRIO = {**SIDES, "second": Side.NEAR}


def with_drafts(count: int, *, seed: int = 0) -> list[Trace]:
    """The recorded tasks with answers: a weak second near agent agrees with most right drafts, and with few others."""
    random = Random(seed)
    return [_with_answers(trace, random) for trace in recorded(count, seed=seed)]


def _with_answers(trace: Trace, random: Random) -> Trace:
    near, far = trace.outcomes[NEAR], trace.outcomes[FAR]
    draft = "right" if near.score else "wrong"
    second = draft if random.random() < (0.95 if near.score else 0.1) else "another"
    priced = near.model_copy(update={"answer": draft, "dollars": 0.0001})
    return with_outcomes(trace, phi=priced, second=AgentOutcome(score=float(random.random() < 0.1), answer=second), gpt=far)


def test_a_cascade_is_replayed_with_its_second_opinion(head: Path) -> None:
    traces = with_drafts(TASKS)
    found = simulation(replay(traces, CASCADE, sides=TRIO, embedder=None, folds=FOLDS))
    doubted = [trace for trace in traces if trace.outcomes[NEAR].answer != trace.outcomes["second"].answer]
    assert found.policy.far_share.value == pytest.approx(len(doubted) / TASKS, abs=0.05)  # of few tasks the second agent drafts
    assert found.policy.score.value > found.random.score.value + 0.1
    assert found.policy.dollars is not None
    assert found.policy.dollars.value == pytest.approx(0.0001 + FAR_DOLLARS * found.policy.far_share.value, rel=0.05)
    assert not any("counts the first agent alone" in warning for warning in found.warnings)


def test_a_share_over_a_cascade_is_that_of_its_escalations() -> None:
    found = simulation(replay(with_drafts(TASKS), with_router(CASCADE, far_share=0.2), sides=TRIO, embedder=None, folds=FOLDS))
    assert found.online is not None
    assert found.online.worst_miss <= found.online.tolerance + 1e-9
    assert found.online.far_share == pytest.approx(0.2, abs=0.04)
    assert found.online.score > found.random.score.value


def test_a_cascade_is_replayed_with_its_card(tmp_path: Path) -> None:
    opinions = [
        with_outcomes(trace, second=trace.outcomes["second"].model_copy(update={"seconds": 9.0})) for trace in with_drafts(300, seed=1)
    ]
    examples = draft_examples_of(opinions, draft=NEAR, far=FAR, opinions={"second": Cost(dollars=1e-5)})
    Escalation(train_escalation(examples)).save(tmp_path / "card.json")
    changes = {"evidence": {"escalation": tmp_path / "card.json"}, "objective": {"seconds": 0.1}}  # the second agent never drafts
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", **changes})
    slow = [with_outcomes(trace, second=trace.outcomes["second"].model_copy(update={"seconds": 9.0})) for trace in with_drafts(TASKS)]
    found = simulation(replay(slow, policy, sides=TRIO, embedder=None, folds=FOLDS))
    assert found.policy.score.value > found.random.score.value + 0.1
    assert 0.1 < found.policy.far_share.value < 0.8
    shares = [way.far_share.value for way in found.front]
    assert (shares[0], shares[-1], shares) == (0, 1, sorted(shares))


def test_a_draft_that_broke_its_schema_goes_far_whatever_the_share() -> None:
    traces = [with_outcomes(trace, phi=trace.outcomes[NEAR].model_copy(update={"is_valid": False})) for trace in with_drafts(60)]
    found = simulation(replay(traces, with_router(CASCADE, far_share=0.2), sides=TRIO, embedder=None, folds=FOLDS))
    assert found.online is not None
    assert found.online.far_share == 1


def test_traces_without_answers_are_said_to_tell_nothing_of_drafts(ask: Ask) -> None:
    found = simulation(ask(PUBLIC.model_copy(update={"strategy": Strategy.CASCADE})))
    assert any("nothing is known of the drafts" in warning for warning in found.warnings)


def test_dollars_are_unknown_where_a_far_price_is_missing(head: Path) -> None:
    traces = recorded(TASKS)
    traces[0] = with_outcomes(traces[0], gpt=traces[0].outcomes[FAR].model_copy(update={"dollars": None}))
    found = simulation(replay(traces, with_router(PUBLIC, head=head), sides=SIDES, embedder=None, folds=FOLDS))
    assert found.policy.dollars is None


def test_with_several_agents_on_a_side_the_most_useful_one_stands_for_it() -> None:
    traces = [with_outcomes(trace, tiny=AgentOutcome(score=float(int(trace.id) % 10 == 0))) for trace in recorded(TASKS)]
    found = simulation(replay(traces, PUBLIC, sides={**SIDES, "tiny": Side.NEAR}, embedder=None, folds=FOLDS))
    singles = {way.name: way.score.value for way in found.singles}
    assert found.front[0].score.value == pytest.approx(singles[NEAR], abs=0.05)
    assert len(found.singles) == 3


def test_a_budget_is_held_over_the_stream_while_the_router_learns(head: Path) -> None:
    found = simulation(replay(recorded(600), with_router(PUBLIC, head=head), sides=SIDES, embedder=None, folds=FOLDS, far_share=0.3))
    assert found.online is not None
    assert found.online.far_share == pytest.approx(0.3, abs=found.online.tolerance)
    assert found.online.worst_miss <= found.online.tolerance
    assert len(found.online.running) == 600 - found.online.window + 1
    near, far = found.front[0].score.value, found.front[-1].score.value
    assert found.online.score > near + 0.3 * (far - near)


def test_the_policys_own_budget_is_held_without_being_asked_for(head: Path) -> None:
    found = simulation(replay(recorded(TASKS), with_router(PUBLIC, head=head, far_share=0.5), sides=SIDES, embedder=None, folds=FOLDS))
    assert found.online is not None
    assert found.summary()["online"]["target"] == 0.5
    assert "running" not in found.summary()["online"]


def test_a_budget_is_held_whatever_strategy_the_policy_has(head: Path) -> None:
    cascade = with_router(PUBLIC, head=head).model_copy(update={"strategy": Strategy.CASCADE})
    found = simulation(replay(recorded(TASKS), cascade, sides=SIDES, embedder=None, folds=FOLDS, far_share=0.5))
    assert found.online is not None
    assert found.online.far_share == pytest.approx(0.5, abs=found.online.tolerance)


def test_a_budget_that_is_no_share_is_refused(head: Path) -> None:
    with pytest.raises(ConfigError, match="share"):
        simulation(replay(recorded(TASKS), with_router(PUBLIC, head=head), sides=SIDES, embedder=None, folds=FOLDS, far_share=30))


def test_a_replay_writes_nothing_into_the_policys_log(head: Path, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    simulation(replay(recorded(40), with_router(PUBLIC, head=head, log=log), sides=SIDES, embedder=None, folds=FOLDS, far_share=0.3))
    assert not log.exists()
