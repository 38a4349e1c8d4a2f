"""Subtasks and their outcomes."""

from enum import StrEnum

from pydantic import Field, field_validator

from ...protocols.messages import Value


class Subtask(Value):
    """A part of a task that is worked on by itself."""

    id: str = Field(min_length=1, max_length=100)
    task: str = Field(min_length=1)
    """The request of the subtask."""
    needs: tuple[str, ...] = ()
    """Ids of the subtasks whose results it is shown; it starts when they are done."""

    @field_validator("needs")
    @classmethod
    def _each_once(cls, needs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(needs))


class SubtaskOutcome(StrEnum):
    """Outcome of a subtask."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """A subtask that it needs failed or was skipped, so it never ran."""
