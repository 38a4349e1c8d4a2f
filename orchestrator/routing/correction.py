"""Online correction: what is predicted of an agent is moved by what its tasks really came to, for each class of tasks.

The log-odds of a predicted probability get an offset for the agent and one for each class that the task is in, from the widest to the
narrowest. An offset is Gaussian, and starts at 0: without outcomes the prediction stands, and a class without any inherits from the wider
ones. Each outcome is one step of assumed-density filtering: the logistic likelihood is replaced by its quadratic approximation at the
prediction (one Newton step, as in the extended Kalman filter), and the offsets are kept as if independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from threading import Lock
from typing import Final

from pydantic import Field, FiniteFloat

from ...protocols import InvalidRequest
from ...protocols.messages import Value
from ..selection.classes import lineage
from .drift import Drift, DriftDetector, DriftState

PRIOR: Final = 0.5
"""Probability of an agent of which nothing is predicted."""
KEPT_AFTER_DRIFT: Final = 0.1
"""Share of an agent's evidence that outlasts a drift."""
_ANY_CLASS: Final = ""
"""The level of all tasks."""
_LEAST: Final = 1e-4
"""Probability as which a prediction of 0 counts; that of 1 likewise. Outcomes could never correct them."""
_MOST_LOGIT: Final = 14.0
"""Bound of corrected log-odds: a chance of one in a million."""


class CorrectionPolicy(Value):
    """How predictions are corrected."""

    deviation: float = Field(default=0.3, gt=0, le=2)
    """Standard deviation, in log-odds, of each offset before any outcome. The smaller, the less a single outcome changes."""
    half_life: float = Field(default=2000.0, gt=0)
    """Outcomes of an agent in a class after which one counts half."""


class Offset(Value):
    """What is believed of one offset."""

    mean: FiniteFloat = 0.0
    """In log-odds."""
    evidence: float = Field(default=0.0, ge=0)
    """Precision gained from outcomes, on top of that of the prior."""
    outcomes: int = Field(default=0, ge=0)
    """Learned from, faded or not."""


class AgentState(Value):
    """What was learned of one agent."""

    offsets: Mapping[str, Offset] = {}
    """By class; that of all tasks has no name."""
    drift: DriftState = DriftState()


class CorrectionState(Value):
    """What was learned of all agents."""

    agents: Mapping[str, AgentState] = {}


@dataclass(frozen=True, slots=True)
class Corrected:
    """A prediction in the light of outcomes."""

    probability: float
    """Above 0 and below 1."""
    deviation: float
    """How unsure the correction leaves it: a standard deviation, in probability."""
    outcomes: int
    """Of the agent on tasks of the narrowest class."""


class Correction:
    """The offsets of all agents. Calls may come from any thread.

    Args:
        policy: how much and for how long outcomes count.
        state: of an earlier correction; None: nothing was learned.
    """

    def __init__(self, policy: CorrectionPolicy | None = None, *, state: CorrectionState | None = None) -> None:
        self._policy = policy or CorrectionPolicy()
        known = (state or CorrectionState()).agents
        self._offsets = {agent: dict(learned.offsets) for agent, learned in known.items()}
        self._detectors = {agent: DriftDetector(learned.drift) for agent, learned in known.items()}
        self._lock = Lock()

    def corrected(self, agent: str, task_class: str, probability: float = PRIOR) -> Corrected:
        """What to expect of an agent.

        Args:
            agent: its name; of an unknown one the prediction stands.
            task_class: from coarse to fine, such as `search/hops`; empty: unknown.
            probability: that it gets the task right, as predicted without outcomes.

        Raises `InvalidRequest` for a probability outside 0 to 1.
        """
        _check("a probability", probability)
        with self._lock:
            offsets = self._of(agent, _levels(task_class))
        return self._judged(probability, offsets)

    def learn(self, agent: str, task_class: str, probability: float, outcome: float | None) -> str | None:
        """Learn what a task came to; where nobody knows (None), nothing. The other arguments are those of `corrected`.

        Returns a sentence where the agent has drifted, so that what was learned of it counts for less from now on.
        Raises `InvalidRequest` for a probability or an outcome outside 0 to 1.
        """
        _check("a probability", probability)
        if outcome is None:
            return None
        _check("an outcome", outcome)
        levels = _levels(task_class)
        with self._lock:
            offsets = self._of(agent, levels)
            expected = self._judged(probability, offsets).probability
            self._offsets.setdefault(agent, {}).update(zip(levels, self._moved(offsets, expected, outcome), strict=True))
            drift = self._detectors.setdefault(agent, DriftDetector()).observe(outcome - expected)
            if drift is None:
                return None
            self._widen(agent)
        return _sentence(agent, drift)

    @property
    def state(self) -> CorrectionState:
        """What was learned so far."""
        with self._lock:
            learned = {
                agent: AgentState(offsets=dict(offsets), drift=self._detectors[agent].state) for agent, offsets in self._offsets.items()
            }
        return CorrectionState(agents=learned)

    def _of(self, agent: str, levels: Sequence[str]) -> list[Offset]:
        known = self._offsets.get(agent, {})
        return [known.get(level, _UNMOVED) for level in levels]

    def _judged(self, probability: float, offsets: Sequence[Offset]) -> Corrected:
        moved = min(max(_logit(probability) + sum(offset.mean for offset in offsets), -_MOST_LOGIT), _MOST_LOGIT)
        found = 1 / (1 + exp(-moved))
        deviation = found * (1 - found) * sqrt(sum(self._variance(offset) for offset in offsets))
        return Corrected(found, deviation, offsets[-1].outcomes)

    def _variance(self, offset: Offset) -> float:
        return 1 / (self._policy.deviation**-2 + offset.evidence)

    def _moved(self, offsets: Sequence[Offset], expected: float, outcome: float) -> list[Offset]:
        """The offsets after an outcome: each takes its share of the surprise by how unsure it is. What is old fades by widening them."""
        fading = 0.5 ** (1 / self._policy.half_life)
        faded = [offset.model_copy(update={"evidence": fading * offset.evidence}) for offset in offsets]
        variances = [self._variance(offset) for offset in faded]
        whole, curvature = sum(variances), expected * (1 - expected)
        return [
            Offset(
                mean=offset.mean + variance * (outcome - expected) / (1 + curvature * whole),
                evidence=offset.evidence + curvature / (1 + curvature * (whole - variance)),
                outcomes=offset.outcomes + 1,
            )
            for offset, variance in zip(faded, variances, strict=True)
        ]

    def _widen(self, agent: str) -> None:
        """Trust less in what was learned of an agent."""
        offsets = self._offsets[agent]
        for level, offset in offsets.items():
            offsets[level] = offset.model_copy(update={"evidence": KEPT_AFTER_DRIFT * offset.evidence})


_UNMOVED: Final = Offset()


def _levels(task_class: str) -> tuple[str, ...]:
    return (_ANY_CLASS, *lineage(task_class))


def _logit(probability: float) -> float:
    inner = min(max(probability, _LEAST), 1 - _LEAST)
    return log(inner / (1 - inner))


def _sentence(agent: str, drift: Drift) -> str:
    return f"{agent} does {drift} than it used to, so what was learned of it counts for {KEPT_AFTER_DRIFT:.0%} from now on"


def _check(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidRequest(f"{what} lies between 0 and 1, not at {value}", hint="an outcome that nobody knows is None")
