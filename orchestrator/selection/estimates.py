"""What a configuration is expected to score and cost on a task, from the outcomes of wider and narrower groups of tasks.

Groups are nested: all tasks, the kind of tools, the class and those above it, the features within it. The estimate of each group starts
from the one around it, moved by how much easier or harder its tasks are for all configurations, and is replaced by the group's own
outcomes the faster, the more the groups were seen to differ (`Tallies.credibility`). A score is a share, so what is believed of its mean
is a Beta distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from .tallies import Tallies, Tally

PRIOR_SCORE: Final = 0.5
PRIOR_WEIGHT: Final = 2.0
"""Outcomes that the belief before any outcome counts for."""
_LEAST_MEAN: Final = 1e-6
"""A mean of exactly 0 or 1 has no Beta distribution."""


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


def estimate(tallies: Tallies, arm: str, groups: Sequence[str], *, prior: float = PRIOR_SCORE) -> Estimate:
    """The belief about a configuration on a task of these groups, the widest first; `prior` is its score before any outcome."""
    score, weight, dollars = prior, PRIOR_WEIGHT, None
    counted = [tallies.of(group).get(arm, Tally()) for group in groups]
    for depth, (group, tally) in enumerate(zip(groups, counted, strict=True)):
        inherited = weight
        if depth:
            inherited = min(weight, tallies.credibility(depth))
            score += tallies.shift(group, groups[depth - 1])
        score = min(max((inherited * score + tally.score) / (inherited + tally.outcomes), 0.0), 1.0)
        dollars = _shrunk_dollars(dollars, tally, inherited)
        weight = inherited + tally.outcomes
    return Estimate(score=score, weight=weight, dollars=dollars, outcomes=counted[0].outcomes, similar=counted[-1].outcomes)


def _shrunk_dollars(wider: float | None, tally: Tally, inherited: float) -> float | None:
    if not tally.priced:
        return wider
    if wider is None:
        return tally.dollars / tally.priced
    return (inherited * wider + tally.dollars) / (inherited + tally.priced)


def draw_score(mean: float, weight: float, random: Random) -> float:
    """One sample of a mean score from the Beta distribution that is believed of it, as Thompson sampling takes it (arXiv 1111.1797)."""
    inner = min(max(mean, _LEAST_MEAN), 1 - _LEAST_MEAN)
    return random.betavariate(inner * weight, (1 - inner) * weight)
