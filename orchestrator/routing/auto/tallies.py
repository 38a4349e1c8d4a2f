"""Outcomes counted by configuration and by nested groups of tasks, and how much a group's own outcomes are to be trusted."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

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
