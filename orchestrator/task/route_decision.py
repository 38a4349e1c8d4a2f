"""The router's decision: the agents that may serve a task, the estimates for each, and the reasons."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import model_validator

from ...protocols import Side
from ...protocols.messages import Value
from .modes import Mode, Strategy


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
    deviation: float
    """Standard deviation of what the figure may really be."""
    source: EstimateSource


@dataclass(frozen=True, slots=True)
class AgentEstimate:
    """Estimates for one agent on one task."""

    success: Estimate
    """Probability that it does the task right."""
    predicted: float
    """The probability before it was corrected by outcomes."""
    first_token_seconds: Estimate
    seconds: Estimate
    """Seconds until the task is done, over all steps."""
    dollars: Estimate | None
    """US dollars; None: its price is unknown."""
    joules: Estimate | None = None
    """Joules of the device's energy; None: unknown."""


@dataclass(frozen=True, slots=True)
class ConsideredAgent:
    """One agent and its rating for a task."""

    agent: str
    side: Side
    estimate: AgentEstimate | None
    """None: there was nothing to decide between agents."""
    utility: float | None
    """Utility by the policy's objective."""
    objection: str | None = None
    """Reason why the task may not have it; None: it may."""


class RouteDecision(Value):
    """The agents to try, in order, and the reasons."""

    strategy: Strategy
    mode: Mode
    candidates: tuple[str, ...]
    """Names of the agents to try, the first one first."""
    judged: bool
    """Every draft but the last candidate's must pass the evidence checks."""
    reasons: tuple[str, ...]
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
    similarity: float | None = None
    """Similarity of the prompt to those that the head was trained on, 0 to 1; None: there was no head, or it does not look."""
    predictor: Literal["head", "prior", "nobody"] = "nobody"
    """Predictor of success that read the prompt."""
    is_bound: bool = False
    """A rule, the session or a limit settled who comes first, whatever the advantage."""
    task_class: str = ""
    """Class of the task, if known."""
    explored: bool = False
    """Another agent than the best known one was chosen, to learn about it."""
    shadowed: tuple[str, ...] = ()
    """The order that the router would have chosen in shadow mode; empty: it decides."""

    @model_validator(mode="before")
    @classmethod
    def _drop_impression(cls, fields: Any) -> Any:  # noqa: ANN401 - anything may be validated
        """Read decisions that were recorded with the measurements of a prior."""
        if isinstance(fields, dict) and "impression" in fields:
            return {name: value for name, value in fields.items() if name != "impression"}
        return fields

    def estimate_of(self, agent: str) -> AgentEstimate | None:
        """Return the estimate for an agent; None: there is none."""
        return next((each.estimate for each in self.considered if each.agent == agent), None)
