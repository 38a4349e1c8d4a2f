"""A task cut into subtasks: a directed acyclic graph, read from a model's reply and never trusted before it was checked."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from ...protocols import InvalidOutput
from ...protocols.messages import Value
from .json_replies import read_json_reply
from .subtasks_prompts import SUBTASKS_SCHEMA


class Subtask(Value):
    """A part of a task that is worked on by itself."""

    id: str = Field(min_length=1, max_length=100)
    task: str = Field(min_length=1)
    """What is asked of it."""
    needs: tuple[str, ...] = ()
    """Ids of the subtasks whose results it is shown; it starts when they are there."""

    @field_validator("needs")
    @classmethod
    def _each_once(cls, needs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(needs))


class SubtaskPlan(Value):
    """The subtasks of one task. Make it with `read_plan` or `checked_plan`, so that its dependencies are sound."""

    subtasks: tuple[Subtask, ...] = Field(min_length=1)

    def __getitem__(self, identifier: str) -> Subtask:
        return next(subtask for subtask in self.subtasks if subtask.id == identifier)

    @property
    def needs(self) -> Mapping[str, tuple[str, ...]]:
        """What each subtask waits for."""
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
    def steps_to_the_end(self) -> Mapping[str, int]:
        """For each subtask, the length of the longest chain that starts with it: how many, itself included, run one after another."""
        steps = dict.fromkeys(self.needs, 1)
        for identifier in reversed(tuple(TopologicalSorter(self.needs).static_order())):
            for need in self.needs[identifier]:
                steps[need] = max(steps[need], steps[identifier] + 1)
        return steps


_SUBTASKS = TypeAdapter(tuple[Subtask, ...])


def read_plan(reply: str, *, maximum_subtasks: int) -> SubtaskPlan:
    """The plan in a model's reply. Raises `InvalidOutput`, whose message tells the model what to mend."""
    value = read_json_reply(reply, SUBTASKS_SCHEMA)
    assert isinstance(value, dict), "the schema asks for an object"
    try:
        subtasks = _SUBTASKS.validate_python(value["subtasks"], strict=False)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InvalidOutput(f"subtask {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    return checked_plan(subtasks, maximum_subtasks=maximum_subtasks)


def checked_plan(subtasks: Sequence[Subtask], *, maximum_subtasks: int) -> SubtaskPlan:
    """The plan that consists of `subtasks`.

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
