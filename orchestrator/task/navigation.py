"""Moves of a navigator, and the evidence that it chooses them by."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat

from ...protocols.steps import Value


class Move(StrEnum):
    """The course of a supervised task after a step of its executor."""

    STEP = "step"
    """The step is carried out; an answer ends the task."""
    PLAN = "plan"
    """The step is dropped, and the executor starts over from a plan of the supervisor."""
    CHECK = "check"
    """The step is carried out, and the supervisor checks the work."""


EVIDENCE: Final = (
    "lowest confidence",
    "last confidence",
    "share of the prompt that is covered",
    "words of the prompt that are not",
    "grounded share of the step",
    "share of the turns",
    "turns",
    "repeated calls",
    "tool errors",
    "has a plan",
    "plan progress",
    "far calls",
    "answers",
    "may change something",
    "has changed something",
    "words of the prompt",
)
"""Figures of a state."""


class Navigated(Value):
    """A move was chosen for the executor's last step."""

    type: Literal["navigated"] = "navigated"
    seen: tuple[FiniteFloat, ...] = Field(min_length=len(EVIDENCE), max_length=len(EVIDENCE))
    """The evidence that it was chosen by."""
    move: Move
    """What was chosen."""
    probability: Annotated[float, Field(gt=0, le=1)]
    """How likely it was: 1 where nothing was left to chance."""
