"""Replays of `auto` over recorded runs."""

import pytest
from measured_runs import DOLLARS, run, runs

from nearfar.orchestrator.lab.study.headline import replay
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.policy import AutoConfig
from nearfar.protocols import ConfigError


def test_a_mixed_stream_goes_better_than_under_any_single_configuration() -> None:
    found = replay(runs(80))
    best = found.fixed[found.best_fixed]
    assert len(found.tasks) == found.auto.tasks == best.tasks == 320
    assert found.auto.score > best.score
    assert found.auto.dollars is not None
    assert best.dollars is not None
    assert found.auto.dollars < best.dollars
    assert found.regret[-1] < 0
    assert {task.world: task.chosen for task in found.tasks} == {"search": "eva", "apps": "pevr"}


def test_figures_add_up() -> None:
    found = replay(runs(10))
    assert found.auto.score == sum(task.score for task in found.tasks)
    assert found.auto.dollars == pytest.approx(sum(DOLLARS[task.chosen] for task in found.tasks))
    assert found.regret[-1] == pytest.approx(sum(task.fixed_utility - task.utility for task in found.tasks))
    assert found.fixed["device"].dollars == 0
    assert found.fixed["cloud"].mean_score == found.fixed["cloud"].score / 40


def test_the_same_records_in_any_order_give_the_same_replay() -> None:
    records = list(runs(10))
    assert replay(records) == replay(records[::-1])
    assert replay(records, order=1).auto == replay(records).auto
    assert [task.task for task in replay(records, order=1).tasks] != [task.task for task in replay(records).tasks]


def test_nothing_is_chosen_from_what_it_is_judged_on() -> None:
    """Where the configuration that wins under one seed fails under the other, only a chooser that peeks does well."""
    records = [
        run(
            prompt=f"What is fact {number} of seed {seed}?",
            task=f"{seed}-{number}",
            seed=seed,
            strategy=arm,
            score=float((arm == "eva") == (seed == 1)),
        )
        for seed in (1, 2)
        for number in range(30)
        for arm in ("eva", "pevr")
    ]
    assert replay(records).auto.score == 0


@pytest.mark.parametrize(("repeats", "score"), [(True, 0), (False, 10)])
def test_a_prompt_that_two_seeds_drew_is_not_learned_from(repeats: bool, score: int) -> None:
    records = [
        run(
            prompt="Who is older?" if repeats else f"Who is older in year {'x' * seed}?",
            task=f"{seed}-{number}",
            seed=seed,
            strategy=arm,
            score=float(arm == "pevr"),
        )
        for seed in (1, 2)
        for number in range(5)
        for arm in ("device", "pevr")
    ]
    assert replay(records).auto.score == score


def test_learning_on_the_way_falls_ever_less_behind() -> None:
    found = replay(runs(150, seeds=(1, 2, 3)), AutoConfig(explore_share=1.0), learning="online", order=4)
    third = len(found.tasks) // 3
    first, last = found.tasks[:third], found.tasks[-third:]
    assert sum(task.score for task in last) > sum(task.score for task in first)
    assert sum(task.chosen in ("eva", "pevr", "cloud") for task in last) > 0.8 * third


def test_tasks_without_all_configurations_are_counted_and_left_out() -> None:
    records = list(runs(10))
    found = replay(records[1:])
    assert (found.left_out, len(found.tasks)) == (1, 39)


@pytest.mark.parametrize(
    "records", [[], [run(strategy="eva", task="a"), run(strategy="pevr", task="b")]], ids=["nothing", "nothing in common"]
)
def test_a_sweep_that_cannot_be_compared_is_refused(records: list[RunRecord]) -> None:
    with pytest.raises(ConfigError, match="every configuration"):
        replay(records)


def test_one_seed_is_not_enough_to_judge_by() -> None:
    with pytest.raises(ConfigError, match="one seed"):
        replay(runs(5, seeds=(1,)))


def test_runs_that_failed_before_any_agent_was_asked_teach_nothing() -> None:
    records = list(runs(10))
    lost = {"error": "WorkerCrashed: died", "tools": (), "near_calls": 0, "far_calls": 0, "score": 0.0, "success": False, "dollars": None}
    whole, crashed = replay(records), replay([records[0].model_copy(update=lost), *records[1:]])
    assert (crashed.left_out, len(crashed.tasks)) == (1, 39)
    kept = {(task.world, task.seed, task.task): task.task_class for task in whole.tasks}
    assert all(kept[task.world, task.seed, task.task] == task.task_class for task in crashed.tasks)


def test_oracle_shadow_and_auto_runs_do_not_take_part() -> None:
    records = list(runs(5))
    extra = [
        record.model_copy(update=changes)
        for record in records[::4]
        for changes in ({"oracle": True, "configuration": "oracle"}, {"strategy": "auto", "configuration": "auto"})
    ]
    assert replay([*records, *extra]) == replay(records)
