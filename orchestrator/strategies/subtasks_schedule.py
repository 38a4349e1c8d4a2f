"""Run subtasks as soon as their needs are met, and share turns, time and budget among them."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from math import ceil
from typing import Final

import anyio
from anyio.abc import TaskGroup

from ...protocols import NearfarError
from ..task.events import SubtaskOutcome


class SharedAmount:
    """Divides turns, dollars, tokens or anything else that is spent.

    A part takes its share when it starts: the least that each is given, and of what is left beyond that the proportion of its weight to the
    weights of all that have not started. So shares are positive, their sum never goes beyond the amount where that is enough for the least
    of each, and the last part gets all that is left.

    Args:
        amount: to be shared; not negative.
        parts: how many there are. Their weights are relative to the average part, so that they add up to this number.
        least: what each part is given in any case.
    """

    def __init__(self, amount: float, parts: int, *, least: float = 0.0) -> None:
        self.left = amount
        self._waiting = parts
        self._weight = float(parts)
        self._least = least

    def take(self, weight: float = 1.0) -> float:
        """Reserve the share of a part that starts."""
        beyond = max(self.left - self._waiting * self._least, 0.0)
        proportion = weight / self._weight if self._waiting > 1 else 1.0
        share = self._least + beyond * min(proportion, 1.0)
        self.left -= share
        self.leave_out(weight)
        return share

    def leave_out(self, weight: float = 1.0) -> None:
        """Count a part out that will never start, so that the others share what it would have had."""
        self._waiting -= 1
        self._weight -= weight

    def give_back(self, amount: float) -> None:
        """Return what a part did not use, for those that start later. What it used beyond its share is negative."""
        self.left += amount


_ROUNDING: Final = 1e-9
"""By which a share may be above a whole number through arithmetic alone."""


Work = Callable[[str], Awaitable[bool]]
"""Runs one subtask; false where it failed."""


async def run_as_ready(needs: Mapping[str, Sequence[str]], work: Work, *, parallel: int) -> dict[str, SubtaskOutcome]:
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
        self.outcomes: dict[str, SubtaskOutcome] = {}
        self.error: NearfarError | None = None
        """The error that ended the work early; kept, since a task group would wrap it."""
        self._needs = needs
        self._work = work
        self._slots = anyio.Semaphore(parallel)
        self._sorter = TopologicalSorter(needs)
        self._sorter.prepare()

    def start_ready(self, running: TaskGroup) -> None:
        """Start what waits for nothing any more; whatever needs a failed subtask is skipped, which may set free further ones."""
        while ready := self._sorter.get_ready():
            for identifier in ready:
                if all(self.outcomes[need] is SubtaskOutcome.DONE for need in self._needs[identifier]):
                    running.start_soon(self._run, identifier, running)
                else:
                    self._settle(identifier, SubtaskOutcome.SKIPPED)

    async def _run(self, identifier: str, running: TaskGroup) -> None:
        async with self._slots:
            try:
                is_done = await self._work(identifier)
            except NearfarError as error:
                self.error = self.error or error
                running.cancel_scope.cancel()
                return
        self._settle(identifier, SubtaskOutcome.DONE if is_done else SubtaskOutcome.FAILED)
        self.start_ready(running)

    def _settle(self, identifier: str, outcome: SubtaskOutcome) -> None:
        self.outcomes[identifier] = outcome
        self._sorter.done(identifier)


class Shares:
    """Divides among its subtasks what a task may spend.

    Turns, dollars and tokens are shared by weight among those that have not started yet, so what one leaves over is there for the next.
    Time runs for all of them at once, so it is divided only along the longest chain of subtasks that still have to run one after another.

    Args:
        turns: of all subtasks together; each gets at least one.
        seconds: of all of them together; None: no limit.
        subtasks: how many there are. Their weights are relative to the average one, so that they add up to this number.
        dollars: of all of them together; None: no limit.
        tokens: likewise.
    """

    def __init__(
        self, *, turns: int, seconds: float | None, subtasks: int, dollars: float | None = None, tokens: int | None = None
    ) -> None:
        self._turns = SharedAmount(turns, subtasks, least=1)
        self._dollars = None if dollars is None else SharedAmount(dollars, subtasks)
        self._tokens = None if tokens is None else SharedAmount(tokens, subtasks, least=1)
        self._ends = None if seconds is None else time.monotonic() + seconds

    def take_turns(self, weight: float = 1.0) -> int:
        """Reserve the turns of the next subtask."""
        return _whole(self._turns, weight)

    def take_dollars(self, weight: float = 1.0) -> float | None:
        """Reserve the dollars of the next subtask; None: no limit."""
        return None if self._dollars is None else self._dollars.take(weight)

    def take_tokens(self, weight: float = 1.0) -> int | None:
        """Reserve the tokens of the next subtask; None: no limit."""
        return None if self._tokens is None else _whole(self._tokens, weight)

    def leave_out(self, weight: float = 1.0) -> None:
        """Count a subtask out that will never start."""
        for amount in (self._turns, self._dollars, self._tokens):
            if amount is not None:
                amount.leave_out(weight)

    def give_back(self, turns: int, *, dollars: float = 0.0, tokens: int = 0) -> None:
        """Return what a subtask did not use."""
        for amount, unused in ((self._turns, turns), (self._dollars, dollars), (self._tokens, tokens)):
            if amount is not None:
                amount.give_back(unused)

    def seconds(self, *, steps_to_the_end: float) -> float | None:
        """Return the time of a subtask that starts now.

        Args:
            steps_to_the_end: how many times its own share the subtasks need that are to run one after another, itself included; where
                all weigh the same, how many they are.
        """
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.001) / steps_to_the_end


def _whole(amount: SharedAmount, weight: float) -> int:
    """Return a share in whole numbers, rounded up."""
    share = amount.take(weight)
    rounded = ceil(share - _ROUNDING)
    amount.give_back(share - rounded)
    return rounded
