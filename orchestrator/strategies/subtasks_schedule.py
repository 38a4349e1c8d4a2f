"""In which order subtasks run, and what each may spend: as soon as their needs are met, so many at a time."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from graphlib import TopologicalSorter

import anyio
from anyio.abc import TaskGroup

from ...protocols import NearfarError


class Outcome(StrEnum):
    """What became of a subtask."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Something that it needs failed or was skipped, so it never ran."""


Work = Callable[[str], Awaitable[bool]]
"""Runs one subtask; false where it failed."""


async def run_as_ready(needs: Mapping[str, Sequence[str]], work: Work, *, parallel: int) -> dict[str, Outcome]:
    """Run each subtask once, as soon as those it needs are done, at most `parallel` at a time.

    A failed subtask has those skipped that need it, also indirectly; the others go on. A `NearfarError` of `work` cancels all of them and
    is raised.

    Args:
        needs: for each subtask those it waits for, without cycles and without unknown ones.
    """
    schedule = _Schedule(needs, work, parallel)
    async with anyio.create_task_group() as running:
        schedule.start_ready(running)
    if schedule.error is not None:
        raise schedule.error
    return schedule.outcomes


class _Schedule:
    def __init__(self, needs: Mapping[str, Sequence[str]], work: Work, parallel: int) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.error: NearfarError | None = None
        """What ended the work early; kept, since a task group would wrap it."""
        self._needs = needs
        self._work = work
        self._slots = anyio.Semaphore(parallel)
        self._sorter = TopologicalSorter(needs)
        self._sorter.prepare()

    def start_ready(self, running: TaskGroup) -> None:
        """Start what waits for nothing any more; whatever needs a failed subtask is skipped, which may set free further ones."""
        while ready := self._sorter.get_ready():
            for identifier in ready:
                if all(self.outcomes[need] is Outcome.DONE for need in self._needs[identifier]):
                    running.start_soon(self._run, identifier, running)
                else:
                    self._settle(identifier, Outcome.SKIPPED)

    async def _run(self, identifier: str, running: TaskGroup) -> None:
        async with self._slots:
            try:
                is_done = await self._work(identifier)
            except NearfarError as error:
                self.error = self.error or error
                running.cancel_scope.cancel()
                return
        self._settle(identifier, Outcome.DONE if is_done else Outcome.FAILED)
        self.start_ready(running)

    def _settle(self, identifier: str, outcome: Outcome) -> None:
        self.outcomes[identifier] = outcome
        self._sorter.done(identifier)


class Shares:
    """Divides a task's turns and time among its subtasks.

    Turns are shared evenly among those that have not started yet, so what one leaves over is there for the next. Time runs for all of
    them at once, so it is divided only along the longest chain of subtasks that still have to run one after another.

    Args:
        turns: of all subtasks together; each gets at least one.
        seconds: of all of them together; None: no limit.
        subtasks: how many there are.
    """

    def __init__(self, *, turns: int, seconds: float | None, subtasks: int) -> None:
        self._turns = turns
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._waiting = subtasks

    def take_turns(self) -> int:
        """Reserve the turns of the next subtask."""
        share = max(1, -(-self._turns // self._waiting))
        self._turns -= share
        self._waiting -= 1
        return share

    def give_back(self, turns: int) -> None:
        """Return what a subtask did not use."""
        self._turns += turns

    def seconds(self, *, steps_to_the_end: int) -> float | None:
        """The time of a subtask that starts now, with so many to run one after another, itself included."""
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.001) / steps_to_the_end
