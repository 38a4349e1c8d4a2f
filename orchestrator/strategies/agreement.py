"""How often the near agent proposes the step that far takes, and how far ahead it pays to go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

from ...protocols import Side

Group = tuple[str, str]
"""Class of the task, and the tool that ran last; empty where none did."""

_PRIOR: Final = (1.2, 0.8)
"""Confirmed and refuted proposals that each group begins with: those of an agreement of 0.6, as good as two proposals."""
_SHARE: Final = 0.2
"""Weight of the latest step in the mean duration of steps."""
_FORGOTTEN: Final = 0.02
"""Share of what is known of near's steps that each step of far makes forget."""
_USUAL: Final[Mapping[Side, float]] = {Side.NEAR: 0.1, Side.FAR: 1.0}
"""Seconds of a step before any was seen."""


@dataclass
class AgreementRates:
    """Counts of confirmed and refuted proposals, from which the next look-ahead is chosen."""

    counts: dict[Group, tuple[float, float]] = field(default_factory=dict)
    seconds: dict[Side, float] = field(default_factory=lambda: dict(_USUAL))

    def rate(self, group: Group) -> float:
        """Return the expected share of confirmed proposals: the mean of the Beta distribution of the group's counts."""
        confirmed, refuted = self.counts.get(group, _PRIOR)
        return confirmed / (confirmed + refuted)

    def learn(self, group: Group, *, was_confirmed: bool) -> None:
        """Count one proposal that far has judged."""
        confirmed, refuted = self.counts.get(group, _PRIOR)
        self.counts[group] = (confirmed + was_confirmed, refuted + (not was_confirmed))

    def time(self, side: Side, seconds: float) -> None:
        """Note how long one step of a side took, in seconds."""
        self.seconds[side] += _SHARE * (seconds - self.seconds[side])
        if side is Side.FAR:  # near may have been slow only once, as while its model was loaded: some time it is tried again
            self.seconds[Side.NEAR] += _FORGOTTEN * (_USUAL[Side.NEAR] - self.seconds[Side.NEAR])

    def is_worth_it(self, groups: tuple[Group, ...], thrift: float) -> bool:
        """Return whether far should be asked about a step that counts only if the proposals of all `groups` are confirmed."""
        return prod(map(self.rate, groups)) >= self.least_odds(thrift)

    def least_odds(self, thrift: float) -> float:
        """Return the odds at which a further far call pays.

        With odds P it saves far's step less near's, and with 1 - P it is wasted: `(1 - thrift) P (1 - a/t) >= thrift (1 - P)`, solved for
        P. More than 1: it never pays.
        """
        saved = (1 - thrift) * (1 - self.seconds[Side.NEAR] / self.seconds[Side.FAR])
        return thrift / (thrift + saved) if saved > 0 else 2.0
