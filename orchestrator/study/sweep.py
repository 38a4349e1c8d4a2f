"""The sweep itself: which runs are left, handing them out under the cost ceiling, and recording each as it ends."""

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio

from ...protocols import NearfarError, WorkerCrashed
from ..worlds.world import WorldTask
from .pools import Pool
from .records import RecordLog, RunRecord
from .study import Study
from .workbench import Item, failed_record
from .world_loading import draw_tasks, open_world

logger = logging.getLogger(__name__)

_TRIES = 2
"""Times that a run is given to a process that dies of it."""

Listener = Callable[[RunRecord], None]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the study, made or not."""

    key: str
    item: Item
    task: WorldTask


def all_runs(study: Study) -> list[Run]:
    """Every run of a study, such that one stopped early has compared all configurations on as many tasks.

    Raises `ConfigError` where a world cannot be opened or draws no tasks.
    """
    worlds = {name: open_world(name) for name in study.worlds}
    drawn = {(name, seed): draw_tasks(worlds[name], study.tasks, seed) for name in study.worlds for seed in study.seeds}
    longest = max(len(tasks) for tasks in drawn.values())
    places = itertools.product(range(longest), study.seeds, study.worlds)
    return [run for index, seed, world in places for run in _runs_at(study, drawn, world, seed, index)]


def _runs_at(study: Study, drawn: Mapping[tuple[str, int], Sequence[WorldTask]], world: str, seed: int, index: int) -> Iterator[Run]:
    tasks = drawn[world, seed]
    for configuration in study.configurations if index < len(tasks) else ():
        task = tasks[index]
        item = Item(world=world, seed=seed, index=index, configuration=configuration.label)
        yield Run(configuration.key(world=world, task=task.identifier, seed=seed), item, task)


class Budget:
    """What may still be spent. A run is let through when the dearest one like it so far would still fit.

    Until one run of a configuration in a world has ended its price is unknown, and it is taken to need all that is left; so the
    ceiling is passed by at most the last runs' distance from the dearest before them.
    """

    def __init__(self, ceiling: float | None, spent: Sequence[RunRecord]) -> None:
        self._ceiling = ceiling
        self._dearest: dict[tuple[str, str], float] = defaultdict(float)
        self._reserved = 0.0
        self.spent = 0.0
        """US dollars of all runs that ended."""
        for record in spent:
            self._count(record)

    def reserve(self, item: Item) -> float | None:
        """The dollars set aside for a run; None where they are not left."""
        if self._ceiling is None:
            return 0.0
        left = self._ceiling - self.spent - self._reserved
        needed = self._dearest.get((item.world, item.configuration), left)
        if left <= 0 or needed > left:
            return None
        self._reserved += needed
        return needed

    def settle(self, reserved: float, record: RunRecord) -> None:
        """Replace what was set aside by what was spent."""
        self._reserved -= reserved
        self._count(record)

    def _count(self, record: RunRecord) -> None:
        kind = (record.world, record.configuration)
        # A run that lost count of its tokens is taken for as dear as the dearest like it.
        dollars = self._dearest[kind] if record.dollars is None else record.dollars
        self._dearest[kind] = max(self._dearest[kind], dollars)
        self.spent += dollars


class Sweep:
    """Makes the runs of a study that are not recorded yet."""

    def __init__(self, study: Study, log: RecordLog) -> None:
        self._study = study
        self._log = log
        self.runs = all_runs(study)
        """All of them, made or not."""
        keys = {run.key for run in self.runs}
        self.budget = Budget(study.ceiling, [record for record in log.records if record.key in keys])

    @property
    def missing(self) -> list[Run]:
        """The runs that are left."""
        return [run for run in self.runs if run.key not in self._log.keys]

    @property
    def records(self) -> list[RunRecord]:
        """The runs of this study that are made; the log may hold those of others."""
        keys = {run.key for run in self.runs}
        return [record for record in self._log.records if record.key in keys]

    async def make(self, pool: Pool, listener: Listener) -> Literal["complete", "ceiling"]:
        """Hand out what is left; `listener` hears each record. Raises what keeps the study from being run, with all ended runs recorded."""
        left = iter(self.missing)
        ended = anyio.Condition()
        state = _Handout()

        async def hand_out() -> None:
            while (handed := await self._next(left, state, ended)) is not None:
                run, reserved = handed
                try:
                    record = await self._made(pool, run)
                except NearfarError as error:
                    state.failure = error
                    running.cancel_scope.cancel()
                    return
                self.budget.settle(reserved, record)
                self._log.append(record)
                listener(record)
                async with ended:
                    state.under_way -= 1
                    ended.notify_all()

        async with anyio.create_task_group() as running:
            for _ in range(pool.capacity):
                running.start_soon(hand_out)
        if state.failure is not None:
            raise state.failure
        return "complete" if not self.missing else "ceiling"

    async def _next(self, left: Iterator[Run], state: "_Handout", ended: anyio.Condition) -> tuple[Run, float] | None:
        """The next run that the budget allows; waits while those under way may still free some of it."""
        async with ended:
            while True:
                state.waiting = state.waiting or next(left, None)
                if state.waiting is None:
                    return None
                reserved = self.budget.reserve(state.waiting.item)
                if reserved is not None:
                    run, state.waiting = state.waiting, None
                    state.under_way += 1
                    return run, reserved
                if state.under_way == 0:
                    return None
                await ended.wait()

    async def _made(self, pool: Pool, run: Run) -> RunRecord:
        """The record of a run; one that its process dies of is given up after a second try."""
        problem = ""
        for _ in range(_TRIES):
            try:
                return await pool.run(run.item)
            except WorkerCrashed as error:
                logger.warning("%s under %s: %s", run.task.identifier, run.item.configuration, error)
                problem = f"{type(error).__name__}: {error.message}"
        configuration = next(each for each in self._study.configurations if each.label == run.item.configuration)
        return failed_record(run.item, run.task, configuration, problem)


@dataclass(slots=True)
class _Handout:
    """What those who hand out runs share."""

    waiting: Run | None = None
    """The next run, for which the budget does not suffice yet."""
    under_way: int = 0
    failure: NearfarError | None = None
    """What keeps the study from being run."""
