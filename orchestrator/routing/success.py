"""How probable it is that an agent does a task right: the learned head where the prompt is familiar, a prior elsewhere, both corrected."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final, Literal

from ..task.modes import AgentView
from ..task.results import Estimate, EstimateSource, Impression, RouteDecision
from ..util.embedding.embedder import Embedder
from .correction import PRIOR, Corrected, Correction
from .learned.head import Head, read_card
from .learned.prior import AdaptivePrior, Prior

logger = logging.getLogger(__name__)

_ENOUGH: Final = 10
"""Outcomes of an agent from which an estimate is more than a guess."""


@dataclass(frozen=True, slots=True)
class Success:
    """The expected success of each agent on one task."""

    estimates: Mapping[str, Estimate]
    predicted: Mapping[str, float]
    """Probabilities before the correction by outcomes."""
    is_learned: bool = False
    """A head predicted it."""
    similarity: float | None = None
    """Similarity of the prompt to those that the head was trained on."""
    impression: Impression | None = None
    """Impression of the prior; None where the head knew the prompt, or the prompt was not read."""
    reason: str = ""
    """The prior's explanation of its estimate."""

    @property
    def predictor(self) -> Literal["head", "prior", "nobody"]:
        """The model that read the prompt; `nobody` where it was not read."""
        return "prior" if self.impression is not None else "head" if self.is_learned else "nobody"


class SuccessModel:
    """Predicts, and learns from outcomes. Calls may come from any thread."""

    def __init__(self) -> None:
        self._corrections: dict[Path | None, Correction] = {}
        self._heads: dict[Path, Head] = {}
        self._prior = Prior()
        self._adaptive = AdaptivePrior()
        self._lock = Lock()

    def unread(self, agents: Sequence[AgentView], task_class: str) -> Success:
        """Estimate success without reading the prompt, for a task with only one possible agent."""
        return self._corrected(None, {agent.name: PRIOR for agent in agents}, task_class)

    def success(self, prompt: str, task_class: str, agents: Sequence[AgentView], *, head: Path | None) -> Success:
        """Look at a prompt. Raises `ConfigError` where the folder holds no head, or one that was trained for other agents."""
        similarity = None
        if head is not None:
            known = self._head(head)
            known.require([agent.name for agent in agents])
            seen = known.predict(prompt, task_class)
            if seen.is_familiar:
                predicted = {agent.name: seen.probabilities[agent.name] for agent in agents}
                return self._corrected(head, predicted, task_class, similarity=seen.similarity)
            similarity = seen.similarity
        impression = self._prior.look(prompt)
        believed = {agent.name: self._adaptive.probability(agent.name, agent.side, impression) for agent in agents}
        return self._corrected(None, believed, task_class, similarity=similarity, impression=impression)

    def observe(self, impression: Impression) -> None:
        """Count a prompt that is really served to the traffic that the prior is judged by."""
        self._prior.observe(impression)

    def learn(self, decision: RouteDecision, agent: str, *, outcome: float, head: Path | None, task_class: str = "") -> None:
        """Take in how an agent did on a task, 0 to 1.

        Args:
            decision: by which it was served, with what was predicted.
            head: of the policy.
            task_class: as it is known by now; empty: as it was known then.
        """
        expected = next((each for each in decision.considered if each.agent == agent and each.estimate is not None), None)
        if expected is None or expected.estimate is None:
            return
        basis = head if decision.predictor == "head" else None
        drift = self._correction(basis).learn(agent, task_class or decision.task_class, expected.estimate.predicted, outcome)
        if decision.impression is not None:
            self._adaptive.learn(agent, expected.side, decision.impression, outcome)
        if drift is not None:
            logger.warning("%s", drift)

    def _correction(self, basis: Path | None) -> Correction:
        """Return the correction of the predictions of one head, or of the prior."""
        with self._lock:
            if basis not in self._corrections:
                self._corrections[basis] = Correction()
            return self._corrections[basis]

    def _corrected(
        self,
        basis: Path | None,
        predicted: Mapping[str, float],
        task_class: str,
        *,
        similarity: float | None = None,
        impression: Impression | None = None,
    ) -> Success:
        correction = self._correction(basis)
        found = {agent: correction.corrected(agent, task_class, probability) for agent, probability in predicted.items()}
        learned = EstimateSource.LEARNED if basis is not None else EstimateSource.PRIOR
        estimates = {
            agent: Estimate(each.probability, each.deviation, _source(each, correction, agent, learned)) for agent, each in found.items()
        }
        reason = "" if impression is None else self._prior.reason(impression)
        return Success(estimates, predicted, basis is not None, similarity, impression, reason)

    def _head(self, folder: Path) -> Head:
        with self._lock:
            if folder not in self._heads:
                self._heads[folder] = Head(folder, _embedder() if read_card(folder).embedder is not None else None)
            return self._heads[folder]


def _source(found: Corrected, correction: Correction, agent: str, learned: EstimateSource) -> EstimateSource:
    """Return the source of an estimate: measured on such tasks, learned from others, or a guess."""
    if found.outcomes >= _ENOUGH:
        return EstimateSource.MEASURED
    if learned is EstimateSource.PRIOR and correction.corrected(agent, "").outcomes >= _ENOUGH:
        return EstimateSource.LEARNED
    return learned


@cache
def _embedder() -> Embedder:
    """Return the embedder, one for all heads of the process: it takes 25 MB."""
    return Embedder()
