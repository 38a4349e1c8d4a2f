"""Amounts of what calls spend: in the units of the user, and in whole units, whose sums are exact."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

MEASURES: Final = ("dollars", "tokens", "seconds", "joules")
_UNITS: Final = (10**9, 1, 10**6, 10**6)
"""Whole units in one of each measure: nanodollars, tokens, microseconds and microjoules."""
_MOST: Final = 2**60
"""No amount is larger, so that sums of several fit 64 bits: about a billion dollars."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The amounts that a call, a task or several have spent. None means unknown, which is not zero.

    In a sum, `joules` holds the known ones only: unmeasured energy is not held against a limit.
    """

    dollars: float | None = 0.0
    tokens: int = 0
    seconds: float = 0.0
    joules: float | None = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            dollars=None if self.dollars is None or other.dollars is None else self.dollars + other.dollars,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            joules=None if self.joules is None and other.joules is None else (self.joules or 0.0) + (other.joules or 0.0),
        )

    @property
    def units(self) -> "Units":
        """Rounded up; what is unknown counts as nothing here."""
        dollars, tokens, seconds, joules = _UNITS
        return Units(
            _rounded_up(self.dollars, dollars),
            _rounded_up(self.tokens, tokens),
            _rounded_up(self.seconds, seconds),
            _rounded_up(self.joules, joules),
        )


class Units(NamedTuple):
    """An amount of each measure, in whole units."""

    dollars: int = 0
    tokens: int = 0
    seconds: int = 0
    joules: int = 0

    def plus(self, other: "Units") -> "Units":
        return Units(*(one + another for one, another in zip(self, other, strict=True)))

    def beyond(self, other: "Units") -> "Units":
        """Return the excess of this amount over another one, for each measure; at least 0."""
        return Units(*(max(one - another, 0) for one, another in zip(self, other, strict=True)))

    def within(self, other: "Units") -> "Units":
        """Return the smaller amount of each measure."""
        return Units(*map(min, self, other))

    def of(self, measure: str) -> float:
        """Return one measure in the user's units."""
        place = MEASURES.index(measure)
        return self[place] / _UNITS[place]

    @property
    def spent(self) -> Spent:
        return Spent(self.of("dollars"), self.tokens, self.of("seconds"), self.of("joules"))


class Caps(NamedTuple):
    """The limit of each measure, in whole units; None: unlimited."""

    dollars: int | None = None
    tokens: int | None = None
    seconds: int | None = None
    joules: int | None = None

    @classmethod
    def of(cls, *, dollars: float | None, tokens: int | None, seconds: float | None, joules: float | None) -> "Caps":
        given = (dollars, tokens, seconds, joules)
        return cls(*(None if cap is None else min(round(cap * unit), _MOST) for cap, unit in zip(given, _UNITS, strict=True)))


def _rounded_up(amount: float | None, unit: int) -> int:
    """Beyond a thousandth of a unit, which is what binary fractions may be off."""
    return 0 if not amount else min(math.ceil(round(amount * unit, 3)), _MOST)


@dataclass(frozen=True, slots=True)
class Commitment:
    """Dollars set aside for one task until its bill comes."""

    dollars: float
    """The most that it is expected to cost."""
    went_far: bool
    is_guess: bool = False
    """The cost was unknown when the task was routed."""
    expected: float = 0.0
    """The highest estimate when it was placed, before corrections by the cost of other tasks; 0: no estimate."""
