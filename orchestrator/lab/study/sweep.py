"""The sweep: which runs are left, handing them out under the cost ceiling, and recording each as a line of JSON as it ends."""

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import anyio
from pydantic import ValidationError

from ....protocols import ConfigError, NearfarError, WorkerCrashed
from ....protocols.system import file_locks
from ...routing.outcome_records import RunRecord
from ..worlds import WorldTask
from ..worlds.loading import draw_tasks, open_world
from . import Study
from .pools import RunPool
from .workbench import Item, failed_record

logger = logging.getLogger(__name__)
Listener = Callable[[RunRecord], None]
_BEGINNING = b'{"key"'
"""The first bytes of each line."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of the study, made or not."""

    key: str
    item: Item
    task: WorldTask


def all_runs(study: Study) -> list[PlannedRun]:
    """Return every run of a study, in an order in which a sweep stopped early has compared all configurations on as many tasks.

    Raises `ConfigError` where a world cannot be opened or draws no tasks.
    """
    worlds = {name: open_world(name) for name in study.worlds}
    drawn = {(name, seed): draw_tasks(worlds[name], study.tasks, seed) for name in study.worlds for seed in study.seeds}
    longest = max(len(tasks) for tasks in drawn.values())
    places = itertools.product(range(longest), study.seeds, study.worlds)
    return [run for index, seed, world in places for run in _runs_at(study, drawn, world, seed, index)]


def _runs_at(study: Study, drawn: Mapping[tuple[str, int], Sequence[WorldTask]], world: str, seed: int, index: int) -> Iterator[PlannedRun]:
    tasks = drawn[world, seed]
    for configuration in study.configurations if index < len(tasks) else ():
        task = tasks[index]
        item = Item(world=world, seed=seed, index=index, configuration=configuration.label)
        yield PlannedRun(configuration.key(world=world, task=task.identifier, seed=seed), item, task)


class RecordLog:
    """A `runs.jsonl` that is written to by one process; use it as a context manager.

    Opening it cuts off a last line that an interrupted sweep left incomplete, and reads what is there.
    Raises `ConfigError` where another process writes to the file, a line of it is no record, or it is a device, a folder or a pipe.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no regular file", hint="choose another folder: --out")
        with ExitStack() as stack:
            self._file: IO[bytes] = stack.enter_context(path.open("ab+"))
            self._lock(path)
            self.records: list[RunRecord] = self._resume(path)
            """All records, in the order of their lines."""
            stack.pop_all()
        self.keys = {record.key for record in self.records}

    def append(self, record: RunRecord) -> None:
        """Write one line. Raises `ValueError` for a run that is there already."""
        if record.key in self.keys:
            raise ValueError(f"run {record.key} is recorded already")
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()
        self.keys.add(record.key)
        self.records.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Make sure that the lines are on the disk, and let others write."""
        if self._file.closed:
            return
        os.fsync(self._file.fileno())
        self._file.close()

    def _lock(self, path: Path) -> None:
        locks = file_locks("a sweep")
        try:
            locks.flock(self._file, locks.LOCK_EX | locks.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another sweep writes to {path}", hint="wait for it, or choose another folder: --out") from None

    def _resume(self, path: Path) -> list[RunRecord]:
        self._file.seek(0)
        data = self._file.read()
        records = list(_parse_lines(data[: _whole(data)], path))
        if not _BEGINNING.startswith(data[_whole(data) :].strip(b"\0")[: len(_BEGINNING)]):  # a power cut leaves zeros
            raise ConfigError(
                f"the last line of {path} is no record of a run", hint="mend or delete that line, or choose another folder: --out"
            )
        self._file.truncate(_whole(data))
        return records


def read_records(path: Path) -> list[RunRecord]:
    """Read the records of a file, without a last line that was cut off while it was written.

    Raises `ConfigError` that names the line which is no record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a runs.jsonl that `nearfar sweep` wrote") from error
    return list(_parse_lines(data[: _whole(data)], path))


def _whole(data: bytes) -> int:
    """Return the length of the lines that are complete."""
    return data.rfind(b"\n") + 1


def _parse_lines(data: bytes, path: Path) -> Iterator[RunRecord]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield RunRecord.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigError(f"{path}, line {number} is no record of a run: {problem}", hint="mend or delete that line") from error


class Budget:
    """The dollar budget of a sweep. It admits a run if the dearest run like it so far would still fit.

    Until one run of a configuration in a world has ended its price is unknown, and it reserves all that is left. So the ceiling is
    exceeded by at most what the last runs cost beyond the dearest before them.
    """

    def __init__(self, ceiling: float | None, spent: Sequence[RunRecord]) -> None:
        self._ceiling = ceiling
        self._dearest: dict[tuple[str, str], float] = {}
        self._reserved = 0.0
        self.spent = 0.0
        """US dollars of all runs that ended."""
        for record in spent:
            self._count(record)

    def reserve(self, item: Item) -> float | None:
        """Reserve dollars for a run; None if they are not left."""
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

    def lose(self, reserved: float, item: Item) -> None:
        """Release the reservation of a run that was lost with its process, and count the run as dear as the dearest like it."""
        self._reserved -= reserved
        self._spend((item.world, item.configuration), None)

    def _count(self, record: RunRecord) -> None:
        self._spend((record.world, record.configuration), record.dollars)

    def _spend(self, kind: tuple[str, str], dollars: float | None) -> None:
        if dollars is None:  # taken for as dear as the dearest like it; where there is none, the price is as unknown as before
            self.spent += self._dearest.get(kind, 0.0)
            return
        self._dearest[kind] = max(self._dearest.get(kind, 0.0), dollars)
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
    def missing(self) -> list[PlannedRun]:
        """The runs that are left."""
        return [run for run in self.runs if run.key not in self._log.keys]

    @property
    def records(self) -> list[RunRecord]:
        """The runs of this study that are made, under its labels; the log may hold those of others."""
        labels = {run.key: run.item.configuration for run in self.runs}
        made = (record for record in self._log.records if record.key in labels)
        return [record.model_copy(update={"configuration": labels[record.key]}) for record in made]

    async def make(self, pool: RunPool, listener: Listener) -> Literal["complete", "ceiling"]:
        """Hand out what is left; `listener` hears each record. Raises what keeps the study from being run, with all ended runs recorded."""
        first = _Handout(iter(self.missing), listener)
        await self._work_off(first, pool, at_once=pool.capacity)
        # A process takes all its runs with it when it dies, and one of them may be to blame: each has its second try alone.
        await self._work_off(_Handout(iter(first.crashed), listener, is_last=True), pool, at_once=1)
        return "complete" if not self.missing else "ceiling"

    async def _work_off(self, handout: "_Handout", pool: RunPool, *, at_once: int) -> None:
        async def hand_out() -> None:
            while (handed := await self._next(handout)) is not None:
                run, reserved = handed
                try:
                    record = await self._make_run(pool, run, is_last=handout.is_last)
                except NearfarError as error:
                    handout.failure = error
                    running.cancel_scope.cancel()
                    return
                await self._settle(handout, run, reserved, record)

        async with anyio.create_task_group() as running:
            for _ in range(at_once):
                running.start_soon(hand_out)
        if handout.failure is not None:
            raise handout.failure

    async def _next(self, handout: "_Handout") -> tuple[PlannedRun, float] | None:
        """Return the next run that the budget allows; wait while those under way may still free some of it."""
        async with handout.ended:
            while True:
                handout.waiting = handout.waiting or next(handout.left, None)
                if handout.waiting is None:
                    return None
                reserved = self.budget.reserve(handout.waiting.item)
                if reserved is not None:
                    run, handout.waiting = handout.waiting, None
                    handout.under_way += 1
                    return run, reserved
                if handout.under_way == 0:
                    return None
                await handout.ended.wait()

    async def _make_run(self, pool: RunPool, run: PlannedRun, *, is_last: bool) -> RunRecord | None:
        """Make a run; None if its process died, unless this was its last try."""
        try:
            return await pool.run(run.item)
        except WorkerCrashed as error:
            logger.warning("%s under %s: %s", run.task.identifier, run.item.configuration, error)
            configuration = next(each for each in self._study.configurations if each.label == run.item.configuration)
            return failed_record(run.item, run.task, configuration, f"{type(error).__name__}: {error.message}") if is_last else None

    async def _settle(self, handout: "_Handout", run: PlannedRun, reserved: float, record: RunRecord | None) -> None:
        if record is None:
            self.budget.lose(reserved, run.item)
            handout.crashed.append(run)
        else:
            self.budget.settle(reserved, record)
            self._log.append(record)
            handout.listener(record)
        async with handout.ended:
            handout.under_way -= 1
            handout.ended.notify_all()


@dataclass(slots=True)
class _Handout:
    """The shared state of the tasks that hand out runs."""

    left: Iterator[PlannedRun]
    listener: Listener
    is_last: bool = False
    """No run has another try after this one."""
    ended: anyio.Condition = field(default_factory=anyio.Condition)
    """Notified when a run has ended."""
    waiting: PlannedRun | None = None
    """The next run, for which the budget does not suffice yet."""
    under_way: int = 0
    crashed: list[PlannedRun] = field(default_factory=list)
    """Runs whose process died."""
    failure: NearfarError | None = None
    """The error that ends the sweep."""
