"""The `[policy.supervision]` section."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from ....protocols import Side
from ....protocols.messages import Value


class Trigger(StrEnum):
    """An event in the executor's work that causes a check (after SupervisorAgent, arXiv 2510.26585)."""

    TOOL_ERROR = "tool_error"
    """A tool returned an error."""
    LOOP = "loop"
    """An equal call was made `loop_calls` times, with arguments in any order."""
    STALL = "stall"
    """The last `stall_turns` turns brought nothing new: each word of their results was in the prompt or in an earlier result. An error
    brings
    nothing. After a reset the count starts again, since the executor has forgotten what it was told.
    """
    LONG_OBSERVATION = "long_observation"
    """A result is longer than `observation_characters`."""
    LOW_CONFIDENCE = "low_confidence"
    """The executor's confidence in its last step is below `minimum_confidence`."""
    HALF_SPENT = "half_spent"
    """Half of the turns, or of the task's timeout, is used up. Occurs once per task."""
    ANSWER = "answer"
    """The executor answered: the answer stands unless the supervisor intervenes. Without this trigger it ends the task unchecked."""


Cause = Trigger | Literal["interval", "act"]
"""Cause of a check; `act`: a call that may change something, in a step that the evidence speaks against."""


class Verdict(StrEnum):
    """Verdict of a check."""

    CONTINUE = "continue"
    INTERVENE = "intervene"
    UNREADABLE = "unreadable"
    """Neither word, or an INTERVENE without the text that has to follow it; the work continues."""


def _none_in_words(value: object) -> object:
    """Return None for "none", since TOML has no None."""
    return None if value == "none" else value


class SupervisionConfig(Value):
    """Supervision of one agent by the other in `pevr` and `eva`: the `[policy.supervision]` section of nearfar.toml.

    A turn is checked at most once, whether by interval or trigger. A trigger counts only events after the last check.
    """

    executor: Side = Side.NEAR
    """Side that works; the other one supervises it. `far` reverses the usual roles."""
    plan_below: float | None = Field(default=None, ge=0, le=1)
    """In `pevr`, confidence of the executor's first step, 0 to 1, below which the step is dropped and the task is planned first; an
    unknown
    confidence is low. None: every task is planned before the first step.
    """
    interval: Annotated[PositiveInt | None, BeforeValidator(_none_in_words)] = 8
    """Turns between two scheduled checks (Tv in arXiv 2605.30102); None, in TOML "none": only triggers cause checks."""
    triggers: tuple[Trigger, ...] = ()
    """Events that cause a check, in addition to the schedule."""
    loop_calls: int = Field(default=2, gt=1)
    """Number of calls, equal in name and arguments, that make a loop."""
    stall_turns: int = Field(default=3, gt=0)
    """Number of consecutive turns without news that make a stall."""
    observation_characters: int = Field(default=4000, gt=0)
    """Characters of one tool result above which it is a long observation."""
    minimum_confidence: float = Field(default=0.5, ge=0, le=1)
    """Confidence of a step, 0 to 1, below which it is low."""
    maximum_guidance: int = Field(default=4000, gt=0)
    """Most characters of a plan, or of a summary with advice; a longer one is not used."""
    shadow: bool = False
    """Record verdicts and change nothing, to measure how often the supervisor is wrong."""
