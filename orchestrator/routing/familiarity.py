"""How far a head is to be believed on tasks of a class, judged by the outcomes that arrive and not by how familiar a prompt looks.

A head and prompt length predict every outcome; the difference of their logarithmic losses says which of them was nearer. Two experts are
weighted by how well they predicted, as in Bayesian model averaging (Hoeting et al. 1999); here by a mean over outcomes, in which the wider
class counts for some, so that a few outcomes never decide and old ones fade.
"""

from dataclasses import dataclass, field
from math import exp, log
from threading import Lock
from typing import Final

from .costs import lineage

CREDIBILITY: Final = 20.0
"""Outcomes that the wider class counts for; of all tasks together, outcomes that tell neither for nor against the head."""
STRENGTH: Final = 30.0
"""Log-odds of the head's share for each nat by which it was nearer to an outcome, on average. A good head is some hundredths nearer."""
HALF_LIFE: Final = 2000.0
"""Outcomes after which one counts half."""
_LEAST: Final = 0.02
"""Least share that a head starts with, and 1 less the greatest."""
_LEAST_CHANCE: Final = 0.01
"""Probability as which one of 0 counts, so that a single surprise is bounded."""


@dataclass(slots=True)
class _Record:
    """Outcomes of a class and of those inside it."""

    outcomes: float = 0.0
    """Faded."""
    lead: float = 0.0
    """By how many nats the head was nearer, summed over them."""


@dataclass(slots=True)
class Familiarity:
    """The record of one head. Calls may come from any thread."""

    _records: dict[str, _Record] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def share(self, task_class: str, start: float) -> float:
        """Return the share of the head in a prediction, 0 to 1; prompt length has the rest. A class never met inherits from the wider one.

        `start`: its share before any outcome.
        """
        inner = min(max(start, _LEAST), 1 - _LEAST)
        odds = log(inner / (1 - inner)) + STRENGTH * self.lead(task_class)
        return 1 / (1 + exp(-odds))

    def lead(self, task_class: str) -> float:
        """Return by how many nats the head was nearer to an outcome of the class, on average; negative where length was."""
        mean = 0.0
        with self._lock:
            for name in _path(task_class):
                record = self._records.get(name, _NOTHING)
                mean = (CREDIBILITY * mean + record.lead) / (CREDIBILITY + record.outcomes)
        return mean

    def learn(self, task_class: str, *, by_head: float, by_length: float, outcome: float) -> None:
        """Take in the outcome of a task and the probability of success that each had predicted, all 0 to 1."""
        lead = _loss(by_length, outcome) - _loss(by_head, outcome)
        kept = 0.5 ** (1 / HALF_LIFE)
        with self._lock:
            for name in _path(task_class):
                record = self._records.setdefault(name, _Record())
                record.outcomes = kept * record.outcomes + 1
                record.lead = kept * record.lead + lead


_NOTHING: Final = _Record()


def _path(task_class: str) -> tuple[str, ...]:
    """Return a class and those above it, the widest first; the class of all tasks has the empty name."""
    return ("", *lineage(task_class))


def _loss(probability: float, outcome: float) -> float:
    """Return the logarithmic loss, in nats."""
    inner = min(max(probability, _LEAST_CHANCE), 1 - _LEAST_CHANCE)
    return -(outcome * log(inner) + (1 - outcome) * log(1 - inner))
