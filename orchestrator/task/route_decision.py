"""`RouteDecision`: who serves a task, what was expected of each candidate, and why."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ...protocols import Side
from ...protocols.messages import Value
from .modes import Mode, Strategy


@dataclass(frozen=True, slots=True)
class Impression:
    """What the prior sees in a prompt."""

    deviations: tuple[float, ...]
    """Its measures, standardised and bounded."""
    gain: float
    """P(far side right) - P(near side right), relative to other prompts of the same traffic: 0 for an average one, within -1 and 1."""
    is_familiar: bool
    """The prompt looks like those that the prior was fitted to."""
    by_length: bool
    """Most prompts of late do not, so that the gain follows from the length alone."""


class EstimateSource(StrEnum):
    """Where an estimate comes from."""

    MEASURED = "measured"
    """From what this agent came to on such tasks before."""
    PROFILE = "profile"
    """From what `nearfar models bench` measured of its model on this device."""
    LEARNED = "learned"
    """From recorded outcomes of other tasks, by a trained head."""
    PRIOR = "prior"
    """From nothing but what holds for agents of its kind."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An expected figure, and how unsure it is."""

    value: float
    deviation: float
    """Standard deviation of what the figure may really be."""
    source: EstimateSource


@dataclass(frozen=True, slots=True)
class AgentEstimate:
    """What is expected of one agent on one task."""

    success: Estimate
    """Probability that it does the task right."""
    predicted: float
    """The same before it was corrected by outcomes."""
    first_token_seconds: Estimate
    seconds: Estimate
    """Until the task is done, over all steps."""
    dollars: Estimate | None
    """US dollars; None: its price is unknown."""
    joules: Estimate | None = None
    """Of the device's energy; None: unknown."""


@dataclass(frozen=True, slots=True)
class ConsideredAgent:
    """One agent, as it was judged for a task."""

    agent: str
    side: Side
    estimate: AgentEstimate | None
    """None where nothing was to be decided between agents."""
    utility: float | None
    """By the policy's objective."""
    objection: str | None = None
    """Why the task may not have it; None where it may."""


class RouteDecision(Value):
    """Which agents will be tried, in order, and why."""

    strategy: Strategy
    mode: Mode
    candidates: tuple[str, ...]
    """Names of the agents that remain, the first one first."""
    judged: bool
    """Every draft but the last candidate's must pass the evidence checks."""
    reasons: tuple[str, ...]
    denied: str | None = None
    """Why the rules refuse the task, so that no agent is a candidate; None: they do not."""
    supervisor: str | None = None
    """Name of the agent that plans and checks the first candidate's work; None where it works alone."""
    considered: tuple[ConsideredAgent, ...] = ()
    """Every agent of the team: the candidates in their order, then those that were left out."""
    advantage: float | None = None
    """Utility of the best far candidate less that of the best near one; None where one side is missing, or the router did not choose."""
    threshold: float | None = None
    """Advantage from which the far side goes first."""
    similarity: float | None = None
    """Of the prompt to those that the head was trained on, 0 to 1; None: there was no head, or it does not look."""
    predictor: Literal["head", "prior", "nobody"] = "nobody"
    """Who looked at the prompt to predict success."""
    impression: Impression | None = None
    """What the prior saw in the prompt, in numbers; None where a head knew it, or nobody looked."""
    is_bound: bool = False
    """A rule, the session or a limit settled who comes first, whatever the advantage."""
    task_class: str = ""
    """Of the task, as far as it is known."""
    explored: bool = False
    """Another agent than the best known one, to learn about it."""
    shadowed: tuple[str, ...] = ()
    """The order that the router would have chosen, where it only looks on; empty where it decides."""

    def estimate_of(self, agent: str) -> AgentEstimate | None:
        """What was expected of an agent."""
        return next((each.estimate for each in self.considered if each.agent == agent), None)
