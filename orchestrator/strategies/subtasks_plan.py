"""The plan of `subtasks`: read from a model's reply, checked, run as soon as needs are met, and what each subtask may spend."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import ceil, log2
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ...protocols import InvalidOutput, NearfarError
from ...protocols.steps import Value
from ..task.events import Subtask, SubtaskOutcome
from .prompts import SUBTASKS_SCHEMA, read_json_reply

_DECAY: Final = 0.9
"""Factor by which a subtask's weight shrinks for each subtask that has to run before it."""
_READING: Final = 0.25
"""Extra complexity for each result that a subtask reads, as a share of the complexity of its own text."""

N = TypeVar("N", int, float)


class SubtaskPlan(Value):
    """The subtasks of one task. Make it with `read_plan` or `checked_plan`, so that its dependencies are sound."""

    subtasks: tuple[Subtask, ...] = Field(min_length=1)

    def __getitem__(self, identifier: str) -> Subtask:
        return next(subtask for subtask in self.subtasks if subtask.id == identifier)

    @property
    def needs(self) -> Mapping[str, tuple[str, ...]]:
        """The ids that each subtask waits for."""
        return {subtask.id: subtask.needs for subtask in self.subtasks}

    @property
    def summary(self) -> str:
        """The subtasks and what each waits for, in a line."""
        parts = [subtask.id + (f" after {' and '.join(subtask.needs)}" if subtask.needs else "") for subtask in self.subtasks]
        return f"cut into {len(parts)} subtasks: {', '.join(parts)}" if len(parts) > 1 else "the task was not cut"

    @property
    def sinks(self) -> tuple[str, ...]:
        """The subtasks that no other one needs: the answer is made from them."""
        needed = {need for subtask in self.subtasks for need in subtask.needs}
        return tuple(subtask.id for subtask in self.subtasks if subtask.id not in needed)

    @property
    def needed_by(self) -> Mapping[str, tuple[str, ...]]:
        """The ids of the subtasks that wait for each subtask."""
        return {each.id: tuple(other.id for other in self.subtasks if each.id in other.needs) for each in self.subtasks}

    def shares_to_the_end(self, weights: Mapping[str, float]) -> Mapping[str, float]:
        """Return, for each subtask, the weight of the heaviest chain that starts with it, divided by its own weight."""
        chains = _longest_chains(self.needed_by, weights)
        return {identifier: chains[identifier] / weights[identifier] for identifier in chains}

    def weights(self, complexity: Mapping[str, float] | None = None) -> Mapping[str, float]:
        """Return each subtask's share of a budget, relative to the average one.

        The rule is that of Plan-and-Budget (arXiv 2505.16122): the estimated complexity, less by a tenth for each subtask of the longest
        chain
        that leads to it, since early steps are the least certain and the rest builds on them.

        Args:
                complexity: positive numbers, by the subtasks' ids; None: estimated from how much is asked and how many results are to be
            read.
        """
        estimated = complexity or {subtask.id: _complexity(subtask) for subtask in self.subtasks}
        chains = _longest_chains(self.needs, dict.fromkeys(self.needs, 1))
        due = {identifier: estimated[identifier] * _DECAY ** (chain - 1) for identifier, chain in chains.items()}
        mean = sum(due.values()) / len(due)
        return {identifier: weight / mean for identifier, weight in due.items()}

    def downstream(self, identifier: str) -> frozenset[str]:
        """Return the subtasks that need this one, also indirectly."""
        found: set[str] = set()
        for each in TopologicalSorter(self.needs).static_order():
            if found.union({identifier}).intersection(self.needs[each]):
                found.add(each)
        return frozenset(found)


def _longest_chains(before: Mapping[str, Sequence[str]], lengths: Mapping[str, N]) -> dict[str, N]:
    """Return the length of the longest chain that ends with each subtask, itself included, where `before` says what may stand before it."""
    chains: dict[str, N] = {}
    for identifier in TopologicalSorter(before).static_order():
        chains[identifier] = lengths[identifier] + max((chains[each] for each in before[identifier]), default=0)
    return chains


def _complexity(subtask: Subtask) -> float:
    """Return how much a subtask seems to take: the logarithm of how many words are asked, and more for each result that it has to read."""
    return log2(1 + len(subtask.task.split())) * (1 + _READING * len(subtask.needs))


_SUBTASKS = TypeAdapter(tuple[Subtask, ...], config=ConfigDict(defer_build=True))


def read_plan(reply: str, *, maximum_subtasks: int) -> SubtaskPlan:
    """Return the plan in a model's reply. Raises `InvalidOutput`, whose message tells the model what to mend."""
    value = read_json_reply(reply, SUBTASKS_SCHEMA)
    assert isinstance(value, dict), "the schema asks for an object"
    try:
        subtasks = _SUBTASKS.validate_python(value["subtasks"], strict=False)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InvalidOutput(f"subtask {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    return checked_plan(subtasks, maximum_subtasks=maximum_subtasks)


def checked_plan(subtasks: Sequence[Subtask], *, maximum_subtasks: int) -> SubtaskPlan:
    """Return the plan that consists of `subtasks`.

    Raises `InvalidOutput` where there are none or too many, two share an id, one asks nothing, needs an unknown one, or they wait for
    each other in a circle.
    """
    if not subtasks:
        raise InvalidOutput("the plan has no subtasks")
    if len(subtasks) > maximum_subtasks:
        raise InvalidOutput(f"the plan has {len(subtasks)} subtasks; at most {maximum_subtasks} are allowed")
    identifiers = [subtask.id for subtask in subtasks]
    for subtask in subtasks:
        if identifiers.count(subtask.id) > 1:
            raise InvalidOutput(f"two subtasks have the id {subtask.id!r}")
        if not subtask.task.strip():
            raise InvalidOutput(f"subtask {subtask.id!r} asks nothing")
        for need in subtask.needs:
            if need not in identifiers:
                raise InvalidOutput(f"subtask {subtask.id!r} needs {need!r}, which is not among the subtasks")
    plan = SubtaskPlan(subtasks=tuple(subtasks))
    _check_acyclic(plan)
    return plan


def _check_acyclic(plan: SubtaskPlan) -> None:
    try:
        TopologicalSorter(plan.needs).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        raise InvalidOutput(f"the subtasks {' <- '.join(cycle)} wait for each other in a circle") from error


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
