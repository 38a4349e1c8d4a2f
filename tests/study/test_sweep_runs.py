"""The sweep in one process: what is run, in which order, what is recorded, and when it stops."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import pytest
from study_records import record

from nearfar.orchestrator.lab.study import Study, StudyFile, make_study
from nearfar.orchestrator.lab.study.pools import answer_of, as_error
from nearfar.orchestrator.lab.study.sweep import Budget, RecordLog, Sweep, read_records
from nearfar.orchestrator.lab.study.workbench import Item, Workbench
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError, Unavailable, WorkerCrashed

RUNS = ("device cloud cascade", "pevr/1", "eva/1+shadow")
DEADLINE = 60


def secrets(*, world: str = "secrets_world:SecretsWorld", agents: str = "secrets_world:agents", **keys: object) -> Study:
    """A study of the test world."""
    options = {"worlds": (world,), "runs": RUNS, "tasks": 4, "seeds": 2, "agents": agents, "public": True, **keys}
    return make_study(StudyFile.model_validate(options), near=None, far=None, policy=Policy())


class Bench:
    """A pool of this very process; `fail` may raise in place of a run."""

    def __init__(self, study: Study, *, capacity: int = 4, fail: Callable[[Item], None] = lambda item: None) -> None:
        self._workbench = Workbench(study)
        self._fail = fail
        self.capacity = capacity
        self.items: list[Item] = []

    async def run(self, item: Item) -> RunRecord:
        self.items.append(item)
        self._fail(item)
        return await self._workbench.run(item)

    async def __aenter__(self) -> Self:
        await self._workbench.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._workbench.__aexit__(kind, error, trace)


class OneProcess(Bench):
    """A pool whose process dies, with all runs in it, of hard task 1 under `cloud`, and is replaced."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self._death = anyio.Event()
        """Of the process that runs are given to now."""

    async def run(self, item: Item) -> RunRecord:
        death, is_deadly = self._death, (item.index, item.configuration) == (1, "cloud")
        for _ in range(5 if is_deadly else 20):
            await anyio.lowlevel.checkpoint()
            if death.is_set():
                raise WorkerCrashed("a process of the sweep died")
        if is_deadly:
            death.set()
            self._death = anyio.Event()
            raise WorkerCrashed("a process of the sweep died")
        return await super().run(item)


async def made(study: Study, path: Path, *, capacity: int = 4, fail: Callable[[Item], None] = lambda item: None) -> list[RunRecord]:
    """The records after a sweep to its end."""
    with anyio.fail_after(DEADLINE), RecordLog(path) as log:
        sweep = Sweep(study, log)
        async with Bench(study, capacity=capacity, fail=fail) as pool:
            await sweep.make(pool, lambda record: None)
        return sweep.records


def comparable(records: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """The runs by key, without what depends on the clock."""
    return {each.key: each.model_copy(update={"seconds": 0.0}) for each in records}


@pytest.mark.anyio
async def test_every_configuration_runs_on_every_task_once(tmp_path: Path) -> None:
    records = await made(secrets(), tmp_path / "runs.jsonl")
    runs = {(each.task, each.seed, each.configuration) for each in records}
    assert len(runs) == len(records) == 4 * 2 * 5
    assert records == read_records(tmp_path / "runs.jsonl")


@pytest.mark.anyio
async def test_a_record_says_what_happened(tmp_path: Path) -> None:
    records = {(each.configuration, each.task): each for each in await made(secrets(seeds=1), tmp_path / "runs.jsonl")}
    hard = {label: records[label, "secret-1-1"] for label in ("device", "cloud", "cascade", "pevr/1", "eva/1+shadow")}
    assert {label: each.success for label, each in hard.items()} == {
        "device": False,
        "cloud": True,
        "cascade": True,
        "pevr/1": False,
        "eva/1+shadow": False,
    }
    assert (hard["device"].dollars, hard["device"].far_calls, hard["device"].near_calls, hard["device"].turns) == (0.0, 0, 2, 2)
    assert (hard["cloud"].near_calls, hard["cloud"].far_calls, hard["cloud"].peak_kv_bytes) == (0, 2, 0)
    assert hard["cloud"].dollars
    assert "list price of" in hard["cloud"].dollars_source
    supervised = hard["pevr/1"]
    assert (supervised.far_calls, supervised.turns, supervised.interventions) == (2, 2, 0)
    assert [(check.turn, check.trigger, check.verdict) for check in supervised.checks] == [(1, "interval", "continue")]
    assert len(supervised.context_tokens) == supervised.turns
    assert sum(supervised.context_tokens) == supervised.near_usage.total_tokens
    assert (supervised.joules, supervised.joules_source, supervised.peak_kv_bytes) == (None, "unavailable", None)
    assert (supervised.prompt, supervised.tools, supervised.kind) == ("What is the secret of item 1-1?", ("reveal",), "hard")


@pytest.mark.anyio
async def test_a_second_sweep_makes_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = await made(secrets(tasks=2), path)
    wider = secrets(tasks=4)
    with anyio.fail_after(DEADLINE), RecordLog(path) as log:
        sweep = Sweep(wider, log)
        async with Bench(wider) as pool:
            assert await sweep.make(pool, lambda record: None) == "complete"
    assert len(pool.items) == 4 * 2 * 5 - len(first)
    assert comparable(sweep.records) == comparable(await made(wider, tmp_path / "other.jsonl"))


@pytest.mark.anyio
async def test_runs_are_handed_out_task_by_task(tmp_path: Path) -> None:
    study = secrets()
    with RecordLog(tmp_path / "runs.jsonl") as log:
        indices = [run.item.index for run in Sweep(study, log).runs]
    assert indices == sorted(indices)


@pytest.mark.anyio
async def test_the_order_and_the_number_at_a_time_change_no_outcome(tmp_path: Path) -> None:
    one = await made(secrets(), tmp_path / "one.jsonl", capacity=1)
    many = await made(secrets(), tmp_path / "many.jsonl", capacity=16)
    assert comparable(one) == comparable(many)


@pytest.mark.anyio
async def test_a_task_that_cannot_start_over_is_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    records = await made(secrets(world="secrets_world:HalfBrokenWorld", runs=("device",)), tmp_path / "runs.jsonl")
    errors = {each.task: each.error for each in records}
    assert errors["secret-1-0"] is None
    assert errors["secret-1-1"] == "ZeroDivisionError: the world could not start over on the task: one over nothing"
    assert [each.score for each in records if each.error] == [0.0] * 4


@pytest.mark.anyio
async def test_running_out_of_turns_is_an_error_whose_work_is_graded(tmp_path: Path) -> None:
    (run,) = await made(secrets(runs=("device:maximum_turns=1",), tasks=1, seeds=1), tmp_path / "runs.jsonl")
    assert (run.error or "").startswith("InvalidOutput: no answer within 1 turns")
    assert (run.success, run.score, run.turns) == (False, 0.25, 1)


@pytest.mark.anyio
async def test_a_process_that_dies_of_a_run_gets_it_twice(tmp_path: Path) -> None:
    crashes: list[Item] = []

    def crash(item: Item) -> None:
        if item.index == 1 and (item.configuration == "cloud" or item not in crashes):
            crashes.append(item)
            raise WorkerCrashed("a process of the sweep died")

    records = await made(secrets(runs=("device cloud",), seeds=1), tmp_path / "runs.jsonl", fail=crash)
    errors = {(each.configuration, each.task): each.error for each in records if each.error}
    assert errors == {("cloud", "secret-1-1"): "WorkerCrashed: a process of the sweep died"}
    assert len(crashes) == 3


@pytest.mark.anyio
async def test_runs_beside_the_one_that_their_process_died_of_are_made_after_all(tmp_path: Path) -> None:
    study = secrets(runs=("device cloud",), seeds=1)
    with anyio.fail_after(DEADLINE), RecordLog(tmp_path / "runs.jsonl") as log:
        sweep = Sweep(study, log)
        async with OneProcess(study) as pool:
            assert await sweep.make(pool, lambda record: None) == "complete"
    assert [(each.configuration, each.task) for each in sweep.records if each.error] == [("cloud", "secret-1-1")]


@pytest.mark.anyio
async def test_a_run_whose_world_returns_no_grade_is_a_failed_run_that_says_so() -> None:
    study = secrets(world="secrets_world:UngradedWorld", runs=("device",))
    async with Workbench(study) as workbench:
        record = await workbench.run(Item(world="secrets_world:UngradedWorld", seed=1, index=0, configuration="device"))
    assert not record.success
    assert record.error is not None
    assert "could not be graded" in record.error


@pytest.mark.anyio
async def test_a_message_that_is_no_run_ends_no_other_run_of_its_process() -> None:
    study = secrets(runs=("device",))
    async with Workbench(study) as workbench:
        answer = await answer_of(workbench, {"configuration": "device"})
    assert answer["error"] == "WorkerCrashed"
    assert isinstance(as_error(answer), WorkerCrashed)


@pytest.mark.anyio
async def test_runs_that_are_there_under_another_label_are_reported_under_the_studys(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    await made(secrets(runs=("eva/8",), seeds=1, tasks=1), path)
    records = await made(secrets(runs=("eva",), seeds=1, tasks=2), path)
    assert [each.configuration for each in records] == ["eva", "eva"]
    assert len(read_records(path)) == 2


@pytest.mark.anyio
async def test_what_keeps_the_study_from_being_run_is_raised_with_all_ended_runs_recorded(tmp_path: Path) -> None:
    def refuse(item: Item) -> None:
        if item.index == 2:
            raise Unavailable("no gateway any more")

    path = tmp_path / "runs.jsonl"
    with pytest.raises(Unavailable, match="no gateway any more"):
        await made(secrets(runs=("device",), seeds=1), path, capacity=1, fail=refuse)
    assert [each.task for each in read_records(path)] == ["secret-1-0", "secret-1-1"]


@pytest.mark.anyio
async def test_no_run_is_started_that_the_ceiling_may_not_cover(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    price = max(each.dollars or 0.0 for each in await made(secrets(runs=("cloud",)), tmp_path / "all.jsonl"))
    study = secrets(runs=("device cloud",), ceiling=3.5 * price)
    with anyio.fail_after(DEADLINE), RecordLog(path) as log:
        sweep = Sweep(study, log)
        async with Bench(study, capacity=16) as pool:
            assert await sweep.make(pool, lambda record: None) == "ceiling"
        assert 0 < sweep.budget.spent <= 3.5 * price
        assert sum(each.configuration == "cloud" for each in sweep.records) == 3
        assert sweep.missing
        again = Sweep(study, log)
        async with Bench(study) as pool:
            assert await again.make(pool, lambda record: None) == "ceiling"
    assert {item.configuration for item in pool.items} <= {"device"}


def test_a_budget_waits_for_the_price_of_the_first_run_of_a_kind() -> None:
    budget = Budget(1.0, [])
    cloud, other = (Item(world="search", seed=1, index=0, configuration=label) for label in ("cloud", "pevr/8"))
    reserved = budget.reserve(cloud)
    assert reserved == 1.0
    assert budget.reserve(other) is None
    budget.settle(reserved, record("cloud", dollars=0.3))
    assert budget.reserve(cloud) == 0.3
    assert budget.reserve(cloud) == 0.3
    assert budget.reserve(cloud) is None


def test_a_run_that_lost_count_costs_as_much_as_the_dearest_like_it() -> None:
    budget = Budget(1.0, [record("cloud", dollars=0.3), record("cloud", 1, dollars=0.2)])
    budget.settle(0.0, record("cloud", 2, dollars=None))
    assert budget.spent == pytest.approx(0.8)


def test_a_kind_of_run_whose_first_lost_count_still_has_an_unknown_price() -> None:
    budget = Budget(1.0, [record("cloud", dollars=None)])
    cloud = Item(world="search", seed=1, index=0, configuration="cloud")
    assert budget.reserve(cloud) == 1.0
    assert budget.reserve(cloud) is None


def test_what_a_lost_run_spent_is_taken_for_the_dearest_like_it() -> None:
    budget = Budget(1.0, [record("cloud", dollars=0.4)])
    cloud = Item(world="search", seed=1, index=0, configuration="cloud")
    reserved = budget.reserve(cloud)
    assert reserved == 0.4
    budget.lose(reserved, cloud)
    assert budget.spent == pytest.approx(0.8)
    assert budget.reserve(cloud) is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("agents", "problem"),
    [("secrets_world:not_agents", "not a near and a far agent"), ("secrets_world:nobody", "no function or class 'nobody'")],
)
async def test_a_factory_that_makes_no_agents_is_named(agents: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        async with Workbench(secrets(agents=agents)):
            pass


@pytest.mark.anyio
async def test_a_world_without_a_solver_has_no_oracle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no oracle"):
        await made(secrets(runs=("pevr/1+oracle",)), tmp_path / "runs.jsonl")


@pytest.mark.anyio
async def test_an_oracle_supervises_the_shipped_worlds(tmp_path: Path) -> None:
    study = secrets(world="search", runs=("pevr/1+oracle",), tasks=2, seeds=1, agents="secrets_world:near_only")
    records = await made(study, tmp_path / "runs.jsonl")
    assert {(each.oracle, each.far_model, each.error) for each in records} == {(True, "oracle of search", None)}
