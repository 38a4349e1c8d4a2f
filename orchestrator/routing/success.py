"""How probable it is that an agent does a task right, as predicted for the prompt and corrected by outcomes, for each class of tasks.

The log-odds of a predicted probability are moved by the agent's offset for the class (`NestedOffsets`). An offset starts at 0: without
outcomes the prediction stands, and a class without any inherits from the wider ones. Each outcome is one step of assumed-density
filtering: the logistic likelihood is replaced by its quadratic approximation at the expected outcome (one Newton step, as in the extended
Kalman filter). A drift detector notices when an agent begins to do better or worse than predicted.

Where there is a head, prompt length predicts too, from each agent's mean outcome in training; both are corrected, and the outcomes
say how much each counts (`Familiarity`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import pairwise
from math import exp, log, log1p, sqrt
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pydantic import Field, FiniteFloat

from ...protocols import InvalidRequest, Side
from ...protocols.steps import Value
from ..task.decisions import Estimate, EstimateSource
from ..task.modes import AgentView
from ..util.embedding import MiniLmEmbedder
from .costs import lineage

if TYPE_CHECKING:
    from .outcomes import OutcomeStore
from .head import Head, read_card

DRIFT_TOLERANCE: Final = 0.1
"""Change of the mean residual that is let pass; about half of the smallest change that is worth an alarm."""
DRIFT_LIMIT: Final = 12.0
"""Sum of residuals beyond the tolerance at which there is an alarm. Where nothing changes, 2,000 outcomes of an agent that is right half of
the time, which vary the most, raise a false alarm in fewer than 1 of 30 cases. A change by 30 points is noticed after about 60 outcomes,
one by 20 points after about 150."""


class Drift(StrEnum):
    """In which direction an agent has drifted."""

    BETTER = "better"
    WORSE = "worse"


class DriftDetector:
    """Watches the residuals of one agent. Not for several threads at a time."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self.residuals = 0
        """Since the last alarm."""
        self._mean = 0.0
        self._rise = self._fall = 0.0
        """How far the residuals have lately summed up above, and below, their mean and the tolerance."""

    def observe(self, residual: float) -> Drift | None:
        """Take in a residual: the outcome less its predicted probability, from -1 to 1. After an alarm the detector starts over."""
        self.residuals += 1
        self._mean += (residual - self._mean) / self.residuals
        self._rise = max(self._rise + residual - self._mean - DRIFT_TOLERANCE, 0.0)
        self._fall = max(self._fall + self._mean - residual - DRIFT_TOLERANCE, 0.0)
        if max(self._rise, self._fall) <= DRIFT_LIMIT:
            return None
        drift = Drift.BETTER if self._rise > self._fall else Drift.WORSE
        self._start_over()
        return drift


Gaussian = tuple[float, float]
"""A Gaussian by its precision and its mean times the precision, so that what is independent adds up."""

_UNINFORMED: Final = (0.0, 0.0)


class OffsetEvidence(Value):
    """OffsetEvidence about the offset of a class from its own outcomes, without those of the classes inside it."""

    precision: float = Field(default=0.0, ge=0)
    shift: FiniteFloat = 0.0
    """The mean that they speak for, times the precision."""
    outcomes: int = Field(default=0, ge=0)
    """Faded or not."""

    def faded(self, kept: float) -> "OffsetEvidence":
        """Return the evidence with a share of its precision."""
        return OffsetEvidence(precision=kept * self.precision, shift=kept * self.shift, outcomes=self.outcomes)


class NestedOffsets:
    """The offsets of one agent, by the name of the class. Not for several threads at a time.

    Args:
        deviation: standard deviation of the difference between a class and the wider one, before any outcome.
        evidence: what is known from the start.
    """

    def __init__(self, deviation: float, evidence: Mapping[str, OffsetEvidence]) -> None:
        self.evidence: dict[str, OffsetEvidence] = {}
        self._variance = deviation**2
        self._inside: dict[str, Gaussian] = {}
        """Sum of what the classes inside each class tell it."""
        self._outcomes: Counter[str] = Counter()
        for name, known in evidence.items():
            self.put(name, known)

    def of(self, task_class: str) -> OffsetEvidence:
        """Return the evidence of a class; empty if the class was never met."""
        return self.evidence.get(task_class, _NO_EVIDENCE)

    def outcomes(self, task_class: str) -> int:
        """Return the number of outcomes of a class and those inside it."""
        return self._outcomes.get(task_class, 0)

    def belief(self, task_class: str) -> tuple[float, float]:
        """Return mean and variance of the offset of a class; one that was never met inherits from the wider ones."""
        path = _path(task_class)
        told = [*(self._told(name) for name in path[1:]), _UNINFORMED]
        mean = variance = 0.0
        for name, (counted, shifted) in zip(path, told, strict=True):
            variance += self._variance
            precision, shift = self._known(name)
            # What the class inside has told follows from its own evidence, which the next step brings in.
            precision, shift = precision - counted + 1 / variance, shift - shifted + mean / variance
            mean, variance = shift / precision, 1 / precision
        return mean, variance

    def put(self, task_class: str, evidence: OffsetEvidence) -> None:
        """Replace the evidence of a class."""
        path = _path(task_class)
        before = {name: self._told(name) for name in path}
        self._outcomes.update(dict.fromkeys(path, evidence.outcomes - self.of(task_class).outcomes))
        self.evidence[task_class] = evidence
        for wider, name in reversed(list(pairwise(path))):
            (precision, shift), old, new = self._inside.get(wider, _UNINFORMED), before[name], self._told(name)
            self._inside[wider] = (precision + new[0] - old[0], shift + new[1] - old[1])

    def _known(self, name: str) -> Gaussian:
        """Return the evidence about a class's offset from its outcomes and those of the classes inside it."""
        own = self.of(name)
        precision, shift = self._inside.get(name, _UNINFORMED)
        return own.precision + precision, own.shift + shift

    def _told(self, name: str) -> Gaussian:
        """Return the message of a class to the wider one: its evidence, weakened by how much the two may differ."""
        precision, shift = self._known(name)
        doubt = 1 + precision * self._variance
        return precision / doubt, shift / doubt


_NO_EVIDENCE: Final = OffsetEvidence()


def _path(task_class: str) -> tuple[str, ...]:
    """Return a class and those above it, the widest first; the class of all tasks has the empty name."""
    return ("", *lineage(task_class))


PRIOR: Final = 0.5
"""Probability of an agent of which nothing is predicted."""
_AFTER_DRIFT: Final = 5.0
"""Precision of what is known of each class that outlasts a drift: that of twenty outcomes of an agent that is right half of the time."""
_LEAST: Final = 1e-4
"""Probability as which a prediction of 0 counts; that of 1 likewise. Outcomes could never correct them."""
_MOST_LOGIT: Final = 14.0
"""Bound of corrected log-odds: a chance of one in a million."""


class CorrectionPolicy(Value):
    """How predictions are corrected."""

    deviation: float = Field(default=0.5, gt=0, le=2)
    """Standard deviation, in log-odds, of the difference between a class and the wider one, before any outcome. The smaller, the less a
    single outcome changes; by default not more than 6 points in a class of its own."""
    half_life: float = Field(default=2000.0, gt=0)
    """Outcomes of an agent in a class after which one counts half."""


class Corrected(NamedTuple):
    """A prediction in the light of outcomes."""

    probability: float
    """Above 0 and below 1."""
    deviation: float
    """How unsure the correction leaves it: a standard deviation, in probability."""
    outcomes: int
    """Outcomes of the agent on tasks of the class and of the classes inside it."""


class Correction:
    """The offsets of all agents. Calls may come from any thread.

    Args:
        policy: how much and for how long outcomes count.
    """

    def __init__(self, policy: CorrectionPolicy | None = None) -> None:
        self._policy = policy or CorrectionPolicy()
        self._agents: dict[str, _Agent] = {}
        self._lock = Lock()

    def corrected(self, agent: str, task_class: str, probability: float = PRIOR) -> Corrected:
        """Return the corrected probability that an agent gets a task right.

        Args:
            agent: its name; for an unknown agent the prediction is returned as it is.
            task_class: from coarse to fine, such as `search/hops`; empty: unknown.
            probability: that it gets the task right, as predicted without outcomes.

        Raises `InvalidRequest` for a probability outside 0 to 1.
        """
        _check("a probability", probability)
        known = self._agents.get(agent)
        if known is None:
            found = _moved(probability, 0.0)
            variance = self._policy.deviation**2 * (1 + len(lineage(task_class)))
            return Corrected(found, found * (1 - found) * sqrt(variance), 0)
        with self._lock:
            return known.corrected(task_class, probability)

    def offset(self, agent: str, task_class: str) -> float:
        """Return by how much outcomes move the log odds of an agent's predictions in a class; 0 for an unknown agent."""
        with self._lock:
            known = self._agents.get(agent)
            return 0.0 if known is None else known.offset(task_class)

    def learn(self, agent: str, task_class: str, probability: float, outcome: float | None) -> str | None:
        """Learn from the outcome of a task; an unknown outcome (None) teaches nothing. The other arguments are those of `correct`.

        Returns a sentence where the agent has drifted, so that what was learned of it counts for less from now on.
        Raises `InvalidRequest` for a probability or an outcome outside 0 to 1.
        """
        _check("a probability", probability)
        if outcome is None:
            return None
        _check("an outcome", outcome)
        with self._lock:
            known = self._agents.setdefault(agent, _Agent(self._policy.deviation))
            drift = known.learn(task_class, probability, outcome, kept=0.5 ** (1 / self._policy.half_life))
        return None if drift is None else _sentence(agent, drift)


class _Agent:
    """Offsets and drift detector of one agent."""

    def __init__(self, deviation: float) -> None:
        self._offsets = NestedOffsets(deviation, {})
        self._detector = DriftDetector()

    def corrected(self, task_class: str, probability: float) -> Corrected:
        mean, variance = self._offsets.belief(task_class)
        found = _moved(probability, mean)
        return Corrected(found, found * (1 - found) * sqrt(variance), self._offsets.outcomes(task_class))

    def offset(self, task_class: str) -> float:
        return self._offsets.belief(task_class)[0]

    def learn(self, task_class: str, probability: float, outcome: float, *, kept: float) -> Drift | None:
        """Take an outcome in, of which the earlier ones of the class keep a share of their precision."""
        mean, _ = self._offsets.belief(task_class)
        expected = _moved(probability, mean)
        residual, curvature = outcome - expected, expected * (1 - expected)
        before = self._offsets.of(task_class).faded(kept)
        after = OffsetEvidence(
            precision=before.precision + curvature,
            shift=before.shift + curvature * mean + residual,
            outcomes=before.outcomes + 1,
        )
        self._offsets.put(task_class, after)
        drift = self._detector.observe(residual)
        if drift is not None:
            for name, evidence in list(self._offsets.evidence.items()):
                self._offsets.put(name, evidence.faded(_AFTER_DRIFT / max(evidence.precision, _AFTER_DRIFT)))
        return drift


def _moved(probability: float, offset: float) -> float:
    """Add an offset to the log-odds of a probability."""
    inner = min(max(probability, _LEAST), 1 - _LEAST)
    if not offset:
        return inner
    moved = min(max(log(inner / (1 - inner)) + offset, -_MOST_LOGIT), _MOST_LOGIT)
    return 1 / (1 + exp(-moved))


def _sentence(agent: str, drift: Drift) -> str:
    return f"{agent} does {drift} than it used to, so what was learned of it counts for little from now on"


def _check(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidRequest(f"{what} lies between 0 and 1, not at {value}", hint="pass None for an unknown outcome")


_LENGTH: Final = (5.563373, 0.886987)
"""Mean and standard deviation of ln(1 + characters), over four kinds of recorded prompts."""
_GAIN: Final = 0.047979
"""P(far agent right) - P(near agent right), relative to an average prompt, for each standard deviation that a prompt is longer."""


def length_gain(prompt: str) -> float:
    """Return how much more the far side gains on a prompt of this length than on an average one, within -1 and 1."""
    mean, deviation = _LENGTH
    return min(max(_GAIN * (log1p(len(prompt)) - mean) / deviation, -1.0), 1.0)


def prior_probability(side: Side, gain: float) -> float:
    """Return the probability that an agent is right before any outcome: the sides differ by the gain, the difficulty is unknown."""
    return (1 + (gain if side is Side.FAR else -gain)) / 2


_ENOUGH: Final = 10
"""Outcomes of an agent from which an estimate is more than a guess."""


_NOTHING_LEARNED: Final = Correction()
"""Stands for the correction of a head whose predictions had no outcome yet."""
Predictor = Literal["head", "length", "none"]
UNFAMILIAR: Final = 0.05
"""Share of its usual weight that a head starts with on prompts unlike those of its training: outcomes show whether it knows them."""
SURE: Final = 0.5
"""Share from which the head counts as the predictor."""


@dataclass(frozen=True, slots=True)
class Success:
    """The expected success of each agent on one task."""

    estimates: Mapping[str, Estimate]
    predicted: Mapping[str, float]
    """Probabilities before the correction by outcomes."""
    predictor: Predictor = "none"
    """The predictor of the success; `none` where the prompt was not read."""
    similarity: float | None = None
    """Similarity of the prompt to those that the head was trained on."""
    reason: str = ""
    """An explanation of the estimate by length."""
    by_length: Mapping[str, float] = field(default_factory=dict)
    """Probabilities by prompt length, next to the head's, before the correction; empty: there is no head."""


class SuccessModel:
    """Predicts how well agents do a task, and corrects that by the store's outcomes. Calls may come from any thread."""

    def __init__(self, outcomes: "OutcomeStore") -> None:
        self._outcomes = outcomes
        self._heads: dict[Path, Head] = {}
        self._lock = Lock()

    def unread(self, agents: Sequence[AgentView], task_class: str) -> Success:
        """Estimate success without reading the prompt, for a task with only one possible agent."""
        predicted = {agent.name: PRIOR for agent in agents}
        return Success(self._unlearned(predicted, task_class), predicted)

    def success(self, prompt: str, task_class: str, agents: Sequence[AgentView], *, head: Path | None) -> Success:
        """Look at a prompt. Raises `ConfigError` where the folder holds no head, or one that was trained for other agents."""
        if head is not None:
            return self._by_head(head, prompt, task_class, agents)
        gain = length_gain(prompt)
        predicted = {agent.name: prior_probability(agent.side, gain) for agent in agents}
        size = "longer" if gain > 0 else "shorter"
        reason = f"there is no head, so only the length counts: {size} than most"
        return Success(self._unlearned(predicted, task_class), predicted, "length", reason=reason)

    def _by_head(self, folder: Path, prompt: str, task_class: str, agents: Sequence[AgentView]) -> Success:
        """Blend the corrected predictions of a head and of prompt length."""
        head = self._head(folder)
        head.require([agent.name for agent in agents])
        seen = head.predict(prompt, task_class)
        predicted = {agent.name: seen.probabilities[agent.name] for agent in agents}
        by_length = _by_length(head, agents, length_gain(prompt))
        start = head.card.trust if seen.is_familiar else head.card.trust * UNFAMILIAR
        record = self._outcomes.familiarity.get(folder)
        share = start if record is None else record.share(task_class, start)
        of_head = self._outcomes.corrections.get(folder, _NOTHING_LEARNED)
        of_length = self._outcomes.by_length.get(folder, _NOTHING_LEARNED)
        estimates = {
            name: _blended(of_head.corrected(name, task_class, chance), of_length.corrected(name, task_class, by_length[name]), share)
            for name, chance in predicted.items()
        }
        reason = "" if share >= SURE else f"the head counts {share:.0%} for such a prompt, and its length has the rest"
        predictor: Predictor = "head" if share >= SURE else "length"
        return Success(estimates, predicted, predictor, seen.similarity, reason, by_length)

    def _unlearned(self, predicted: Mapping[str, float], task_class: str) -> dict[str, Estimate]:
        """Return the corrected predictions of agents that no head knows."""
        correction = self._outcomes.corrections.get(None, _NOTHING_LEARNED)
        found = {agent: correction.corrected(agent, task_class, probability) for agent, probability in predicted.items()}
        return {agent: Estimate(each.probability, each.deviation, _source(each, correction, agent)) for agent, each in found.items()}

    def _head(self, folder: Path) -> Head:
        with self._lock:
            head = self._heads.get(folder)
            if head is None:
                head = self._heads[folder] = Head(folder, _embedder() if read_card(folder).embedder is not None else None)
            return head


def _by_length(head: Head, agents: Sequence[AgentView], gain: float) -> dict[str, float]:
    """Return what prompt length predicts: each agent's mean outcome in training, with the sides moved apart by the gain."""
    moves = {Side.NEAR: -gain / 2, Side.FAR: gain / 2}
    return {agent.name: min(max(head.base[agent.name] + moves[agent.side], 0.0), 1.0) for agent in agents}


def _blended(first: Corrected, second: Corrected, share: float) -> Estimate:
    """Return a blend of two predictions, of which the first, that of a head, has the share."""
    rest = 1 - share
    source = EstimateSource.MEASURED if first.outcomes >= _ENOUGH else EstimateSource.LEARNED
    probability = share * first.probability + rest * second.probability
    return Estimate(probability, share * first.deviation + rest * second.deviation, source)


def _source(found: Corrected, correction: Correction, agent: str) -> EstimateSource:
    """Return the source of an estimate without a head: measured on such tasks, learned from others, or a guess."""
    if found.outcomes >= _ENOUGH:
        return EstimateSource.MEASURED
    return EstimateSource.LEARNED if correction.corrected(agent, "").outcomes >= _ENOUGH else EstimateSource.PRIOR


@cache
def _embedder() -> MiniLmEmbedder:
    """Return the embedder, one for all heads of the process: it takes 25 MB."""
    return MiniLmEmbedder()
