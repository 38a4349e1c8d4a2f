"""Decisions on the way to a result: the agents that a task goes to, the strategy that `auto` chose, and the evidence about drafts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field, JsonValue

from ...protocols import Side
from ...protocols.steps import Value
from .modes import Mode, Strategy, TaskProfile

Knobs = Mapping[str, JsonValue]
RESERVED: Final = ("auto", "mode", "preset", "sensitivity", "strategy")
"""Keys of the policy that the user decides, and that `auto` never changes."""
PROTECTIONS: Final = ("guard", "limits", "privacy", "rules")
"""Sections of the policy that protect the user: outcomes measured under others count, and these stay as they are."""


class EstimateSource(StrEnum):
    """Source of an estimate."""

    MEASURED = "measured"
    """Outcomes of this agent on such tasks."""
    PROFILE = "profile"
    """Measurements of its model on this device by `nearfar models bench`."""
    LEARNED = "learned"
    """Recorded outcomes of other tasks, by a trained head."""
    PRIOR = "prior"
    """Nothing but general knowledge about agents of its kind."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated figure, and its uncertainty."""

    value: float
    """The likeliest value."""
    deviation: float
    """Standard deviation of what the figure may really be."""
    source: EstimateSource
    """Source of the figure."""

    def text(self, form: str) -> str:
        """Return the figure with its uncertainty and its source. `form`: a format of numbers, such as `.2f`."""
        return f"{self.value:{form}} \u00b1 {self.deviation:{form}} ({self.source})"


FIGURES: Final = ("P(success)", "first token, s", "seconds", "in a queue, s", "dollars", "cached", "joules", "utility", "left out because")
"""Names of `ConsideredAgent.figures`; those of an estimate are the first seven."""


@dataclass(frozen=True, slots=True)
class AgentEstimate:
    """Estimates for one agent on one task."""

    success: Estimate
    """Probability that it does the task right."""
    predicted: float
    """The probability before it was corrected by outcomes."""
    first_token_seconds: Estimate
    """Seconds until the first token."""
    seconds: Estimate
    """Seconds until the task is done, over all steps."""
    dollars: Estimate | None
    """US dollars; None: its price is unknown."""
    joules: Estimate | None = None
    """Joules of the device's energy; None: unknown."""
    queue_seconds: float = 0.0
    """Seconds of both figures of time in which the agent works on calls before this one."""
    cached_share: float = 0.0
    """Share of the tokens read that is expected to be in the agent's prompt cache."""
    by_length: float | None = None
    """The probability by prompt length, next to `predicted`, before it was corrected; None: there is no head."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The estimates in words, in the order of `FIGURES`."""
        return (
            self.success.text(".2f"),
            self.first_token_seconds.text(".2f"),
            self.seconds.text(".2f"),
            f"{self.queue_seconds:.2f}" if self.queue_seconds else "",
            "unknown" if self.dollars is None else self.dollars.text(".5f"),
            f"{self.cached_share:.0%}" if self.cached_share else "",
            "unknown" if self.joules is None else self.joules.text(".3g"),
        )


@dataclass(frozen=True, slots=True)
class ConsideredAgent:
    """One agent and its rating for a task."""

    agent: str
    """Name of the agent."""
    side: Side
    """Its side."""
    estimate: AgentEstimate | None
    """None: there was nothing to decide between agents."""
    utility: float | None
    """Utility by the policy's objective."""
    objection: str | None = None
    """Reason why the task may not have it; None: it may."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Expected figures in words, in the order of `FIGURES`."""
        utility = "" if self.utility is None else f"{self.utility:.3f}"
        return (*(("",) * 7 if self.estimate is None else self.estimate.figures), utility, self.objection or "")


class RouteDecision(Value):
    """The agents to try, in order, and the reasons."""

    strategy: Strategy
    """The strategy that serves the task."""
    mode: Mode
    """The mode that serves the task."""
    candidates: tuple[str, ...]
    """Names of the agents to try, the first one first."""
    judged: bool
    """Every draft but the last candidate's must pass the evidence checks."""
    reasons: tuple[str, ...]
    """Reasons, as sentences."""
    denied: str | None = None
    """Reason why the rules refuse the task, so that no agent is a candidate; None: they do not."""
    supervisor: str | None = None
    """Name of the agent that plans and checks the first candidate's work; None: it works alone."""
    considered: tuple[ConsideredAgent, ...] = ()
    """Every agent of the team: the candidates in their order, then those that were left out."""
    advantage: float | None = None
    """Utility of the best far candidate less that of the best near one; None: one side is missing, or the router did not choose."""
    threshold: float | None = None
    """Advantage from which the far side goes first."""
    is_supervisor_bought: bool | None = None
    """The budget lets the supervisor be asked, or has better uses; None: no budget chose."""
    similarity: float | None = None
    """Similarity of the prompt to those that the head was trained on, 0 to 1; None: there was no head, or it does not look."""
    predictor: Literal["head", "length", "none"] = "none"
    """The predictor of success that read the prompt: a trained head, its length alone, or none."""
    is_bound: bool = False
    """A rule, the session or a limit settled who comes first, whatever the advantage."""
    task_class: str = ""
    """Class of the task, if known."""
    explored: bool = False
    """Another agent than the best known one was chosen, to learn about it."""
    propensity: float = Field(default=1.0, gt=0, le=1)
    """Probability with which the first candidate was chosen, given all decisions before; below 1 where `explore_share` let it be drawn."""
    shadowed: tuple[str, ...] = ()
    """The order that the router would have chosen in shadow mode; empty: it decides."""

    def estimate_of(self, agent: str) -> AgentEstimate | None:
        """Return the estimate for the agent with the name `agent`; None: there is none."""
        return next((each.estimate for each in self.considered if each.agent == agent), None)


class Arm(Value):
    """A strategy and what differs from the default policy, in the shape of the `[policy]` section."""

    strategy: Strategy
    """The strategy."""
    knobs: Knobs = {}
    """Keys of the policy that it sets, with their values."""

    @property
    def key(self) -> str:
        """Return an equal text for an equal configuration."""
        return f"{self.strategy} {json.dumps(self.knobs, sort_keys=True)}" if self.knobs else str(self.strategy)


class ConsideredArm(Value):
    """One configuration and its rating for a task."""

    arm: Arm
    """The configuration."""
    label: str
    """Name for people."""
    score: float
    """Expected score, between 0 and 1."""
    deviation: float
    """Standard deviation of the expected score."""
    weight: float
    """Number of outcomes that the expectation is worth."""
    dollars: float | None
    """Expected US dollars of the task; None: unknown."""
    utility: float
    """The score less one deviation, less the dollars at `dollars_per_point`."""
    outcomes: int
    """Number of outcomes recorded for it on any tasks."""
    similar: int
    """Number of outcomes recorded for it on similar tasks."""
    objection: str | None = None
    """Reason why this task may not have it; None: it may."""


class SelectionDecision(Value):
    """The choice that `auto` made for one task."""

    profile: TaskProfile
    """Features of the task, without the words of a private task."""
    task_class: str
    """The class of recorded tasks that it belongs to; empty: it is like none of them."""
    familiarity: float
    """Share of its words that tasks of the class have used before."""
    candidates: tuple[ConsideredArm, ...]
    """The best first; those that the task may not have last."""
    chosen: Arm
    """The configuration that was chosen."""
    explored: bool
    """Another configuration than the best known one was chosen, to learn about it."""
    propensity: float = Field(default=1.0, gt=0, le=1)
    """Probability with which it was chosen, given all choices before; below 1 where it was drawn."""
    reasons: tuple[str, ...]
    """The choice in sentences."""

    @property
    def winner(self) -> ConsideredArm:
        """Return the candidate that was chosen."""
        return next(candidate for candidate in self.candidates if candidate.arm == self.chosen)


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
