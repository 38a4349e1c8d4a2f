"""Belief the score and dollars of a configuration on a task, from the outcomes of wider and narrower groups of tasks.

Groups are nested: all tasks, the kind of tools, the class and those above it, the features within it. The estimate of each group starts
from the one around it, moved by how much easier or harder its tasks are for all configurations, and is replaced by the group's own
outcomes the faster, the more the groups were seen to differ (`Tallies.credibility`). A score is a share, so the belief about
its mean is a Beta distribution.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from random import Random
from typing import Final

from ....protocols import Side
from ...task.modes import Strategy
from ...task.results import Arm

USUAL_CREDIBILITY: Final = 20.0
"""Outcomes that the wider group counts for, before anything is known of how groups differ."""
MOST_CREDIBILITY: Final = 10_000.0
"""Upper bound of the credibility, reached where groups do not differ in which configuration is better."""
_PRIOR_OUTCOMES: Final = 400.0
"""Outcomes by which the usual credibility is outweighed by what the groups show."""
_GROWTH: Final = 1.2
"""Growth of the number of outcomes after which the credibility is computed again."""

Group = tuple[str, ...]
"""A group of tasks by the path to it: `("shape: a prompt alone", "class: search")` lies in `("shape: a prompt alone",)`."""


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

    def less(self, part: "Tally") -> "Tally":
        """Return the tally without a part of it. Sums are rounded, so that a difference of nothing may come out below 0."""
        score, dollars = max(self.score - part.score, 0.0), max(self.dollars - part.dollars, 0.0)
        return Tally(self.outcomes - part.outcomes, score, self.priced - part.priced, dollars)

    @property
    def mean(self) -> float:
        return self.score / self.outcomes


@dataclass(slots=True)
class _Differences:
    """Evidence from the groups of one depth about how much the advantage of a configuration depends on the group."""

    between: float = 0.0
    """Squared differences, less what chance alone would make, weighted by outcomes."""
    within: float = 0.0
    """Variance of single outcomes, weighted by outcomes."""
    outcomes: float = 0.0

    @property
    def credibility(self) -> float:
        """Bühlmann's k: the variance of outcomes over the variance between groups."""
        if not self.outcomes or not self.within:
            return USUAL_CREDIBILITY
        within = self.within / self.outcomes
        usual = within / USUAL_CREDIBILITY
        between = (self.between + _PRIOR_OUTCOMES * usual) / (self.outcomes + _PRIOR_OUTCOMES)
        return min(within / max(between, 1e-12), MOST_CREDIBILITY)


@dataclass(slots=True)
class Tallies:
    """The outcomes of all configurations in all groups.

    Groups that differ little in which configuration is better are hardly told apart by few outcomes: choosing the best of many by them
    means choosing the luckiest. How much they differ is estimated from the outcomes, by depth (Bühlmann's credibility theory, the
    empirical-Bayes form of shrinkage).
    """

    _groups: dict[Group, dict[str, Tally]] = field(default_factory=dict)
    _outcomes: int = 0
    _fitted: int = 0
    """Outcomes when the credibility was computed."""
    _credibility: dict[int, float] = field(default_factory=dict)

    def add(self, arm: str, groups: Sequence[Group], *, score: float, dollars: float | None) -> None:
        """Count an outcome in each of its groups, the widest first."""
        self._outcomes += 1
        for group in groups:
            self._groups.setdefault(group, {}).setdefault(arm, Tally()).add(score, dollars)

    def of(self, group: Group, *, without: Group | None = None) -> Mapping[str, Tally]:
        """Return the tallies of a group by configuration, without those of a group inside it."""
        whole = self._groups.get(group, {})
        if without is None or without not in self._groups:
            return whole
        inner = self._groups[without]
        return {arm: tally.less(inner[arm]) if arm in inner else tally for arm, tally in whole.items()}

    def shift(self, group: Group, parent: Group) -> float:
        """Return how much better the tasks of a group go than the others around it, whatever the configuration."""
        pairs = [(_comparable(own, other), own.mean - other.mean) for own, other in self._pairs(group, parent).values()]
        outcomes = sum(count for count, _ in pairs)
        return sum(count * difference for count, difference in pairs) / (outcomes + USUAL_CREDIBILITY)

    def credibility(self, depth: int) -> float:
        """Return the number of outcomes that the wider group counts for in the groups of a depth."""
        if self._outcomes > _GROWTH * self._fitted:
            self._fit()
        return self._credibility.get(depth, USUAL_CREDIBILITY)

    def _fit(self) -> None:
        differences: defaultdict[int, _Differences] = defaultdict(_Differences)
        for group in filter(None, self._groups):
            found = differences[len(group)]
            for between, within, outcomes in self._residuals(group, group[:-1]):
                found.between += between * outcomes
                found.within += within * outcomes
                found.outcomes += outcomes
        self._credibility = {depth: found.credibility for depth, found in differences.items()}
        self._fitted = self._outcomes

    def _residuals(self, group: Group, parent: Group) -> Iterator[tuple[float, float, float]]:
        """Yield for each configuration the squared interaction less its noise, the variance of its outcomes, and their comparable
        number."""
        pairs, shift = self._pairs(group, parent), self.shift(group, parent)
        if len(pairs) < 2:
            return
        for own, other in pairs.values():
            mean = (own.score + other.score) / (own.outcomes + other.outcomes)
            within = mean * (1 - mean)  # the most that it can be: scores lie between 0 and 1
            outcomes = _comparable(own, other)
            noise = (1 - 1 / len(pairs)) * within / outcomes
            yield (own.mean - other.mean - shift) ** 2 - noise, within, outcomes

    def _pairs(self, group: Group, parent: Group) -> dict[str, tuple[Tally, Tally]]:
        """Return the configurations that were measured both in a group and in the rest of the one around it, with both tallies."""
        rest = self.of(parent, without=group)
        return {arm: (own, rest[arm]) for arm, own in self.of(group).items() if rest[arm].outcomes}


def _comparable(own: Tally, other: Tally) -> float:
    """Return the number of outcomes whose mean is as uncertain as the difference of the two means."""
    return 1 / (1 / own.outcomes + 1 / other.outcomes)


PRIOR_SCORE: Final = 0.5
PRIOR_WEIGHT: Final = 2.0
"""Outcomes that the belief before any outcome counts for."""
_NOTHING: Final = Tally()
_LEAST_MEAN: Final = 1e-6
"""A mean of exactly 0 or 1 has no Beta distribution."""


@dataclass(frozen=True, slots=True)
class Belief:
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


def beliefs_about(tallies: Tallies, priors: Mapping[str, float], groups: Sequence[Group]) -> dict[str, Belief]:
    """Return the belief about each configuration on a task of these groups, the widest first.

    `priors` are the scores expected before any outcome. Each outcome counts once, in the narrowest group that it shares with the task.
    """
    levels = [_Level.of(tallies, groups, depth) for depth in range(len(groups))]
    return {arm: _estimate(tallies, levels, groups, arm=arm, prior=prior) for arm, prior in priors.items()}


def mix_beliefs(beliefs: Sequence[tuple[float, Mapping[str, Belief]]]) -> dict[str, Belief]:
    """Return the belief about each configuration on a task that may be of several classes, each with its share of 1.

    It is a belief about the mean over such tasks, so that not knowing the class of this one does not make it less sure.
    """
    (_, first), *_ = beliefs
    return {arm: _mixed([(share, belief[arm]) for share, belief in beliefs]) for arm in first}


def _mixed(parts: Sequence[tuple[float, Belief]]) -> Belief:
    prices = [(share, part.dollars) for share, part in parts]
    known = [share * dollars for share, dollars in prices if dollars is not None]
    return Belief(
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


def _estimate(tallies: Tallies, levels: Sequence[_Level], groups: Sequence[Group], *, arm: str, prior: float) -> Belief:
    score, weight, dollars = prior, PRIOR_WEIGHT, None
    for level in levels:
        tally = level.tallies.get(arm, _NOTHING)
        inherited = min(weight, level.credibility)
        score = min(max((inherited * (score + level.shift) + tally.score) / (inherited + tally.outcomes), 0.0), 1.0)
        dollars = _shrunk_dollars(dollars, tally, inherited)
        weight = inherited + tally.outcomes
    recorded, similar = (tallies.of(group).get(arm, _NOTHING).outcomes for group in (groups[0], groups[-1]))
    return Belief(score=score, weight=weight, dollars=dollars, outcomes=recorded, similar=similar)


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


SideDollars = Mapping[Side, float | None]
"""Dollars that a whole task was seen to take of the agent of each side; None: unknown."""

FAR_SHARES: Final[Mapping[Strategy, float]] = {
    Strategy.DEVICE: 0.0,
    Strategy.CLOUD: 1.0,
    Strategy.CASCADE: 1.0,
    Strategy.ROUTE: 0.5,
    Strategy.PEVR: 0.5,
    Strategy.EVA: 0.5,
    Strategy.MINIONS: 0.5,
    Strategy.SUBTASKS: 0.5,
}
"""Dollars of a strategy over those of far alone. Half is what the hybrids of docs/hybrid-study.md take in the dearer world; a cascade may
end with far doing everything."""
_UNKNOWN_FAR: Final = 0.01
"""Dollars of a task that far does alone, where nothing at all tells: not nothing."""


def unmeasured_dollars(arms: Mapping[str, Arm], measured: Mapping[str, float], sides: SideDollars) -> dict[str, float]:
    """Return the dollars to expect of each configuration that is not among the `measured` ones, by key.

    Where nothing was measured, all are 0: there is no outcome yet that dollars could be weighed against, and the default serves.
    """
    unknown = {key: arm for key, arm in arms.items() if key not in measured}
    if not measured:
        return dict.fromkeys(unknown, 0.0)
    near = measured.get(Strategy.DEVICE, sides.get(Side.NEAR)) or 0.0
    far = _far(arms, measured, sides, near)
    return {key: (near if arm.strategy is not Strategy.CLOUD else 0.0) + FAR_SHARES[arm.strategy] * far for key, arm in unknown.items()}


def _far(arms: Mapping[str, Arm], measured: Mapping[str, float], sides: SideDollars, near: float) -> float:
    """Return the dollars of a task that far does alone: as measured, as its agent was seen to take, or as hybrids make likely."""
    known = measured.get(Strategy.CLOUD, sides.get(Side.FAR))
    if known is not None:
        return known
    hybrids = [(arms[key].strategy, dollars) for key, dollars in measured.items()]
    likely = [max(dollars - near, 0.0) / FAR_SHARES[strategy] for strategy, dollars in hybrids if FAR_SHARES.get(strategy)]
    return max(likely, default=_UNKNOWN_FAR)
