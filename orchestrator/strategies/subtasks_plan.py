"""A task cut into subtasks: a directed acyclic graph, read from a model's reply and never trusted before it was checked."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import log2
from typing import Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from ...protocols import InvalidOutput
from ...protocols.messages import Value
from ..task.events import Subtask
from .replies import read_json_reply
from .subtasks_prompts import SUBTASKS_SCHEMA

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

    @property
    def steps_to_the_end(self) -> Mapping[str, int]:
        """For each subtask, the length of the longest chain that starts with it: how many, itself included, run one after another."""
        return _longest_chains(self.needed_by, dict.fromkeys(self.needs, 1))

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


_SUBTASKS = TypeAdapter(tuple[Subtask, ...])


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
