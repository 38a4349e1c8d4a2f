"""Estimate the score and dollars of a configuration on a task, from the outcomes of wider and narrower groups of tasks.

Groups are nested: all tasks, the kind of tools, the class and those above it, the features within it. The estimate of each group starts
from the one around it, moved by how much easier or harder its tasks are for all configurations, and is replaced by the group's own
outcomes the faster, the more the groups were seen to differ (`Tallies.credibility`). A score is a share, so the belief about
its mean is a Beta distribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from typing import Final

from .tallies import Group, Tallies, Tally

PRIOR_SCORE: Final = 0.5
PRIOR_WEIGHT: Final = 2.0
"""Outcomes that the belief before any outcome counts for."""
_NOTHING: Final = Tally()
_LEAST_MEAN: Final = 1e-6
"""A mean of exactly 0 or 1 has no Beta distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The belief about a configuration on a task."""

    score: float
    """Expected, between 0 and 1."""
    weight: float
    """Outcomes that the belief is worth: the more, the surer."""
    dollars: float | None
    """Expected; None where no outcome has a known price."""
    outcomes: int
    """Recorded for the configuration, on whatever tasks."""
    similar: int
    """Outcomes of the configuration in the narrowest groups that the task is in."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the Beta distribution of the mean score."""
        return sqrt(self.score * (1 - self.score) / (self.weight + 1))


def estimates(tallies: Tallies, priors: Mapping[str, float], groups: Sequence[Group]) -> dict[str, Estimate]:
    """Return the belief about each configuration on a task of these groups, the widest first.

    `priors` are the scores expected before any outcome. Each outcome counts once, in the narrowest group that it shares with the task.
    """
    levels = [_Level.of(tallies, groups, depth) for depth in range(len(groups))]
    return {arm: _estimate(tallies, levels, groups, arm=arm, prior=prior) for arm, prior in priors.items()}


def mixed(beliefs: Sequence[tuple[float, Mapping[str, Estimate]]]) -> dict[str, Estimate]:
    """Return the belief about each configuration on a task that may be of several classes, each with its share of 1.

    It is a belief about the mean over such tasks, so that not knowing the class of this one does not make it less sure.
    """
    (_, first), *_ = beliefs
    return {arm: _mixed([(share, belief[arm]) for share, belief in beliefs]) for arm in first}


def _mixed(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    prices = [(share, part.dollars) for share, part in parts]
    known = [share * dollars for share, dollars in prices if dollars is not None]
    return Estimate(
        score=min(sum(share * part.score for share, part in parts), 1.0),  # shares are rounded
        weight=sum(share * part.weight for share, part in parts),
        dollars=sum(known) if len(known) == len(parts) else None,
        outcomes=parts[0][1].outcomes,
        similar=sum(part.similar for _, part in parts),
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """The contribution of one of the nested groups to an estimate."""

    tallies: Mapping[str, Tally]
    """Tallies of the group's outcomes outside the next narrower group."""
    shift: float
    """How much better its tasks go than the others around it."""
    credibility: float
    """Outcomes that the belief from the wider groups counts for at most."""

    @classmethod
    def of(cls, tallies: Tallies, groups: Sequence[Group], depth: int) -> "_Level":
        inner = groups[depth + 1] if depth + 1 < len(groups) else None
        shift = tallies.shift(groups[depth], groups[depth - 1]) if depth else 0.0
        return cls(tallies.of(groups[depth], without=inner), shift, tallies.credibility(depth) if depth else PRIOR_WEIGHT)


def _estimate(tallies: Tallies, levels: Sequence[_Level], groups: Sequence[Group], *, arm: str, prior: float) -> Estimate:
    score, weight, dollars = prior, PRIOR_WEIGHT, None
    for level in levels:
        tally = level.tallies.get(arm, _NOTHING)
        inherited = min(weight, level.credibility)
        score = min(max((inherited * (score + level.shift) + tally.score) / (inherited + tally.outcomes), 0.0), 1.0)
        dollars = _shrunk_dollars(dollars, tally, inherited)
        weight = inherited + tally.outcomes
    recorded, similar = (tallies.of(group).get(arm, _NOTHING).outcomes for group in (groups[0], groups[-1]))
    return Estimate(score=score, weight=weight, dollars=dollars, outcomes=recorded, similar=similar)


def _shrunk_dollars(wider: float | None, tally: Tally, inherited: float) -> float | None:
    if not tally.priced:
        return wider
    if wider is None:
        return tally.dollars / tally.priced
    return (inherited * wider + tally.dollars) / (inherited + tally.priced)


def draw_score(mean: float, weight: float, random: Random) -> float:
    """Draw a mean score from the Beta distribution of the belief, as in Thompson sampling (arXiv 1111.1797)."""
    inner = min(max(mean, _LEAST_MEAN), 1 - _LEAST_MEAN)
    return random.betavariate(inner * weight, (1 - inner) * weight)
