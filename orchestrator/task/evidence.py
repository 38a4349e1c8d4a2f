"""Evidence about a draft, as results and records tell it."""

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from ...protocols.steps import Value


class AnswerSource(StrEnum):
    """The part of a text that is taken as the answer, from the surest to the last resort."""

    FIELD = "field"
    """A field of a JSON object."""
    BOXED = "boxed"
    """`\\boxed{...}`."""
    ANSWER_LINE = "answer line"
    """After "Answer:", "The answer is" or the like."""
    CHOICE = "choice"
    """The letter of one of the prompt's choices."""
    DATE = "date"
    """The date or time that was asked for."""
    CODE_BLOCK = "code block"
    """A value in a closing code block."""
    EMPHASIS = "emphasis"
    """A value set off in bold, in a formula, or on a line of its own."""
    NUMBER = "number"
    """The last number of a worked solution."""
    ENTITY = "entity"
    """The value or name that a closing sentence comes to."""
    TEXT = "text"
    """The whole text."""


class ExtractedAnswer(Value):
    """The answer that was found in a text."""

    source: AnswerSource
    """The part of the text that it was taken from."""
    text: str
    """The answer as it was written."""
    name: str = ""
    """Name of the field; empty where it was none."""

    def __str__(self) -> str:
        return f"{self.text[:80]} ({self.name or self.source})"


class ActLook(Value):
    """The looks at the tool calls of one step before they ran: calls of tools that change something."""

    step: int
    """Number of the step in its attempt, from 1."""
    tools: tuple[str, ...]
    """Names of the tools that were to be called."""
    findings: Mapping[str, Mapping[str, float]]
    """By look, such as `confidence`, or by the agent that was asked which calls it would make: what was measured."""
    doubt: str | None = None
    """Why the calls were not to run before another agent was asked; None: they were let run."""


class VerifiedDraft(Value):
    """A judge's verdict on a draft."""

    judge: str
    """Name of the agent that judged it."""
    raw: float = Field(ge=0, le=1)
    """Its probability that the draft is right."""
    score: float = Field(ge=0, le=1)
    """`raw`, corrected by the outcomes that were reported before."""
    because: str = ""
    """The reason; empty in logs, as it may repeat words of the task."""
    dollars: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Cost of the verdict."""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Time that it took."""


class WeighedDraft(Value):
    """A card's probabilities about a draft, before outcomes corrected them."""

    card: str
    """File of the card; empty: the default card."""
    p_draft: float = Field(ge=0, le=1)
    """Probability that the draft is right."""
    p_far: float = Field(ge=0, le=1)
    """Probability that the far agent would be right."""


class Arbitration(Value):
    """A far agent's verdict on a draft that was escalated to it, by its own answer."""

    by: str
    """Name of the far agent."""
    confirmed: bool
    """It gives the same answer."""
    draft_weight: float = Field(ge=0, le=1)
    """Weight of the label that the draft is right, or wrong where it was not confirmed."""
    far_weight: float = Field(ge=0, le=1)
    """Weight of the same label of the far answer."""
    opinions: Mapping[str, bool] = {}
    """Second opinions that give the far agent's answer, by their agents' names."""
