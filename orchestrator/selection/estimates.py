"""What a configuration is expected to score and cost on a task, from the outcomes of wider and narrower groups of tasks.

Groups are nested: all tasks, the kind of tools, the class and those above it, the features within it. The estimate of each group starts
from the one around it, which counts for at most `shrinkage` outcomes (empirical-Bayes shrinkage): a few outcomes move it a little, many
replace it. A score is a share, so what is believed of its mean is a Beta distribution.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

PRIOR_SCORE: Final = 0.5
PRIOR_WEIGHT: Final = 2.0
"""Outcomes that the belief before any outcome counts for."""


@dataclass(slots=True)
class Tally:
    """Sums over the outcomes of one configuration in one group."""

    outcomes: int = 0
    score: float = 0.0
    priced: int = 0
    """Outcomes whose dollars are known."""
    dollars: float = 0.0

    def add(self, score: float, dollars: float | None) -> None:
        self.outcomes += 1
        self.score += score
        if dollars is not None:
            self.priced += 1
            self.dollars += dollars


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is believed of a configuration on a task."""

    score: float
    """Expected, between 0 and 1."""
    weight: float
    """Outcomes that the belief is worth: the more, the surer."""
    dollars: float | None
    """Expected; None where no outcome has a known price."""
    outcomes: int
    """Recorded for the configuration, on whatever tasks."""
    similar: int
    """Of those, on tasks of the narrowest group."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the Beta distribution of the mean score."""
        return (self.score * (1 - self.score) / (self.weight + 1)) ** 0.5

    def draw(self, random: Random) -> float:
        """A mean score that it may well have: one sample, as Thompson sampling takes it (arXiv 1111.1797)."""
        # Scores of exactly 0 or 1 have no Beta distribution.
        mean = min(max(self.score, 1e-6), 1 - 1e-6)
        return random.betavariate(mean * self.weight, (1 - mean) * self.weight)


class Estimates:
    """The outcomes of all configurations, by group."""

    def __init__(self, *, shrinkage: float) -> None:
        self._shrinkage = shrinkage
        self._tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)

    def add(self, arm: str, groups: Sequence[str], *, score: float, dollars: float | None) -> None:
        """Count an outcome in each of the task's groups."""
        for group in groups:
            self._tallies[arm, group].add(score, dollars)

    def estimate(self, arm: str, groups: Sequence[str], *, prior: float = PRIOR_SCORE) -> Estimate:
        """The belief about a configuration on a task of these groups, the widest first; `prior` is its score before any outcome."""
        score, weight, dollars = prior, PRIOR_WEIGHT, None
        tallies = [self._tallies.get((arm, group), Tally()) for group in groups]
        for tally in tallies:
            inherited = min(weight, self._shrinkage)
            score = (inherited * score + tally.score) / (inherited + tally.outcomes)
            dollars = _shrunk_dollars(dollars, tally, inherited)
            weight = inherited + tally.outcomes
        return Estimate(score=score, weight=weight, dollars=dollars, outcomes=tallies[0].outcomes, similar=tallies[-1].outcomes)


def _shrunk_dollars(wider: float | None, tally: Tally, inherited: float) -> float | None:
    if not tally.priced:
        return wider
    if wider is None:
        return tally.dollars / tally.priced
    return (inherited * wider + tally.dollars) / (inherited + tally.priced)
