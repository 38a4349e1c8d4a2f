"""How probable it is that an agent does a task right: the learned head where the prompt is familiar, a prior elsewhere, both corrected."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from .correction import Correction, CorrectionPolicy
from .decision import Estimate, Source
from .learned.embedder import Embedder
from .learned.head import Head, read_card

logger = logging.getLogger(__name__)

PRIOR: Final = 0.5
"""Before anything is known, an agent is as likely to be right as wrong, whatever its side."""
_FREE: Final = 1.0
"""Standard deviation, in log-odds, of what outcomes may add to a prior."""
_ENOUGH: Final = 10
"""Outcomes of an agent on such tasks from which an estimate counts as measured."""


@dataclass(frozen=True, slots=True)
class Success:
    """What is expected of each agent on one task."""

    estimates: Mapping[str, Estimate]
    predicted: Mapping[str, float]
    """The same before they were corrected by outcomes."""
    similarity: float | None
    """Of the prompt to those that the head was trained on."""


class SuccessModel:
    """Predicts, and learns from outcomes. Calls may come from any thread."""

    def __init__(self) -> None:
        self._corrections: dict[Path | None, Correction] = {}
        self._heads: dict[Path, Head] = {}
        self._lock = Lock()

    def success(self, prompt: str, task_class: str, agents: Sequence[str], *, head: Path | None) -> Success:
        """Look at a prompt. Raises `ConfigError` where the folder holds no head, or one that was trained for other agents."""
        if head is None:
            return self._corrected(head, dict.fromkeys(agents, PRIOR), task_class, Source.PRIOR, similarity=None)
        known = self._head(head)
        known.require(agents)
        seen = known.predict(prompt, task_class)
        predicted = {agent: seen.probabilities[agent] for agent in agents}
        source = Source.LEARNED if seen.is_familiar else Source.PRIOR
        return self._corrected(head, predicted, task_class, source, similarity=seen.similarity)

    def learn(self, agent: str, task_class: str, *, predicted: float, outcome: float, head: Path | None) -> None:
        """Take in how an agent did on a task, 0 to 1, of which the head had predicted something."""
        drift = self._correction(head).learn(agent, task_class, predicted, outcome)
        if drift is not None:
            logger.warning("%s", drift)

    def _correction(self, head: Path | None) -> Correction:
        """Of what one head predicts. Without any head a prediction says nothing, so that outcomes may move it further."""
        with self._lock:
            if head not in self._corrections:
                self._corrections[head] = Correction(CorrectionPolicy(deviation=_FREE) if head is None else None)
            return self._corrections[head]

    def _corrected(
        self, head: Path | None, predicted: Mapping[str, float], task_class: str, source: Source, *, similarity: float | None
    ) -> Success:
        correction = self._correction(head)
        estimates = {}
        for agent, probability in predicted.items():
            found = correction.corrected(agent, task_class, probability)
            known = Source.MEASURED if found.outcomes >= _ENOUGH else source
            estimates[agent] = Estimate(found.probability, found.deviation, known)
        return Success(estimates, predicted, similarity)

    def _head(self, folder: Path) -> Head:
        with self._lock:
            if folder not in self._heads:
                self._heads[folder] = Head(folder, _embedder() if read_card(folder).embedder is not None else None)
            return self._heads[folder]


@cache
def _embedder() -> Embedder:
    """One for all heads of the process: it takes 25 MB."""
    return Embedder()
