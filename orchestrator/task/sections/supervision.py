"""`SupervisionConfig`: when the supervisor of `pevr` and `eva` looks at the executor's work, and what it may do about it."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from ....protocols import Side
from ....protocols.messages import Value


class Trigger(StrEnum):
    """An event in the executor's work that asks for a check (after SupervisorAgent, arXiv 2510.26585)."""

    TOOL_ERROR = "tool_error"
    """A tool returned an error."""
    LOOP = "loop"
    """The same call, arguments in any order, was made `loop_calls` times."""
    STALL = "stall"
    """The last `stall_turns` turns told the executor nothing: each word of their results stood in its prompt or in a result before them.
    An error tells nothing. After a reset the executor has forgotten what it was told, so that it counts anew."""
    LONG_OBSERVATION = "long_observation"
    """A result is longer than `observation_characters`."""
    LOW_CONFIDENCE = "low_confidence"
    """The executor's confidence in its last step is below `minimum_confidence`."""
    HALF_SPENT = "half_spent"
    """Half of the turns, or of the task's timeout, is used up. Fires once per task."""
    ANSWER = "answer"
    """The executor answered: without this one the answer ends the task unchecked, and with it the answer stands unless the supervisor
    intervenes."""


Cause = Trigger | Literal["interval", "act"]
"""What asked for a check; `act`: a call that may change something, in a step that the evidence speaks against."""


class Verdict(StrEnum):
    """What a check came to."""

    CONTINUE = "continue"
    INTERVENE = "intervene"
    UNREADABLE = "unreadable"
    """Neither word, or an INTERVENE without what has to follow it; the work goes on."""


def _none_in_words(value: object) -> object:
    """TOML has no None."""
    return None if value == "none" else value


class SupervisionConfig(Value):
    """How one agent supervises the other in `pevr` and `eva`: the `[policy.supervision]` section of nearfar.toml.

    The interval and the triggers combine: a turn is checked at most once, whatever asked for it. Each check uses up the evidence
    there is: a trigger fires again only on what came after the last check.
    """

    executor: Side = Side.NEAR
    """The side that works; the other one supervises it. `far` reverses the usual roles."""
    plan_below: float | None = Field(default=None, ge=0, le=1)
    """In `pevr`, the confidence of the executor's first step, as a probability, below which the task is planned: the step is dropped before
    it acts, and the executor begins anew from the plan. An unknown confidence is low. None: every task is planned before the first step."""
    interval: Annotated[PositiveInt | None, BeforeValidator(_none_in_words)] = 8
    """Turns between two checks on schedule (Tv in arXiv 2605.30102); None, in TOML "none": checks come from triggers alone."""
    triggers: tuple[Trigger, ...] = ()
    """Events that ask for a check, beside the schedule."""
    loop_calls: int = Field(default=2, gt=1)
    """Calls, equal in name and arguments, that make a loop."""
    stall_turns: int = Field(default=3, gt=0)
    """Turns in a row without news that make a stall."""
    observation_characters: int = Field(default=4000, gt=0)
    """Characters of one tool result, above which it is a long observation."""
    minimum_confidence: float = Field(default=0.5, ge=0, le=1)
    """Confidence of a step, as a probability, below which it is low."""
    maximum_guidance: int = Field(default=4000, gt=0)
    """Characters of a plan, or of a summary with advice; a longer one is not used."""
    shadow: bool = False
    """Record verdicts and change nothing, to measure how often the supervisor is wrong."""
