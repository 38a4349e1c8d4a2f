"""The prior: how much the far side is likely to gain on a prompt that no head was trained for, and what is learned from outcomes.

The gain is linear in the prompt's measures, with weights that were fitted to several kinds of prompts at once. Where most of the traffic
looks unlike all of them, the weights say nothing of it, and the length of a prompt alone counts. On top of it each agent has a Bayesian
linear regression of its outcomes on the measures (Bishop 2006, section 3.3), one outcome after the other: recursive least squares, tens of
microseconds of pure Python each.
"""

from functools import cache
from importlib.resources import files
from operator import mul
from threading import Lock
from typing import Final

from pydantic import Field

from ....protocols import InvalidRequest, Side
from ....protocols.messages import Value
from ...task.route_decision import Impression
from ..head import MEASURES, measures

NUMBERS: Final = "models/prior.json"
MOST_DEVIATIONS: Final = 5.0
"""Bound of a measure, in standard deviations: one that is still further out would decide alone."""
TRAFFIC: Final = 100
"""Prompts over which it is judged whether the traffic is familiar."""
_NAMED: Final = 2
"""Measures that a reason names."""


class PriorNumbers(Value):
    """A fitted prior. Each list holds one number for each of `MEASURES`."""

    centre: tuple[float, ...] = Field(min_length=len(MEASURES), max_length=len(MEASURES))
    scale: tuple[float, ...] = Field(min_length=len(MEASURES), max_length=len(MEASURES))
    """Mean and standard deviation that measures are standardised with."""
    weights: tuple[float, ...] = Field(min_length=len(MEASURES), max_length=len(MEASURES))
    """Gain, in probability, for each standard deviation of a measure."""
    length: float = Field(gt=0)
    """Gain for each standard deviation of the number of characters, used where the weights are not."""
    farthest: float = Field(gt=0)
    """Standard deviations from the centre, beyond which a single measure makes a prompt unlike those that the prior was fitted to."""


class Prior:
    """The prior, and whether the traffic is familiar to it. Calls may come from any thread.

    Args:
        numbers: a fitted prior; None: the one that ships.
    """

    def __init__(self, numbers: PriorNumbers | None = None) -> None:
        self._numbers = numbers or shipped()
        self._unfamiliar = 0.0
        """Share of the traffic."""
        self._seen = 0
        self._lock = Lock()

    def look(self, prompt: str) -> Impression:
        """Look at a prompt. Nothing is remembered of it."""
        numbers = self._numbers
        standardised = [(value - mean) / scale for value, mean, scale in zip(measures(prompt), numbers.centre, numbers.scale, strict=True)]
        is_familiar = max(map(abs, standardised)) <= numbers.farthest
        deviations = tuple(min(max(each, -MOST_DEVIATIONS), MOST_DEVIATIONS) for each in standardised)
        by_length = self._share_with(is_familiar) > 1 / 2
        # The length is not bounded: prompts that are longer still would not be told apart.
        gain = numbers.length * standardised[0] if by_length else sum(map(mul, numbers.weights, deviations))
        return Impression(deviations, min(max(gain, -1.0), 1.0), is_familiar, by_length)

    def observe(self, seen: Impression) -> None:
        """Count a prompt that was really served to the traffic."""
        with self._lock:
            self._unfamiliar = self._share_with(seen.is_familiar)
            self._seen += 1

    def reason(self, seen: Impression) -> str:
        """Explain the gain of a prompt in a sentence."""
        size = "longer" if seen.deviations[0] > 0 else "shorter"
        if seen.by_length:
            return f"prompts like these are new, so only the length counts: {size} than most"
        parts = list(map(mul, self._numbers.weights, seen.deviations))
        sign = 1 if seen.gain > 0 else -1
        strongest = sorted(range(len(parts)), key=lambda place: -sign * parts[place])[:_NAMED]
        named = " and ".join(f"{'more' if seen.deviations[place] > 0 else 'fewer'} {MEASURES[place]}" for place in strongest)
        return f"{named} than most: the far side is {'more' if sign > 0 else 'less'} likely to gain than on average"

    def _share_with(self, is_familiar: bool) -> float:
        """Return the share of the traffic that is unfamiliar, with one more prompt."""
        return self._unfamiliar + ((not is_familiar) - self._unfamiliar) / min(self._seen + 1, TRAFFIC)


@cache
def shipped() -> PriorNumbers:
    """Read the prior that ships."""
    return PriorNumbers.model_validate_json((files(__package__) / NUMBERS).read_bytes())


WEIGHT: Final = 0.1
"""Standard deviation of a weight before any outcome, relative to that of an outcome around what is expected."""
LEVEL: Final = 1.4
"""Standard deviation of the share of prompts that an agent gets right, before any outcome, relative to the noise of an outcome."""


class AdaptivePrior:
    """Expected outcome of every agent by prompt, learned from outcomes so far. Calls may come from any thread."""

    def __init__(self) -> None:
        self._agents: dict[str, _Regression] = {}
        self._lock = Lock()

    def probability(self, agent: str, side: Side, seen: Impression) -> float:
        """Return the probability that an agent gets a prompt right, between 0 and 1."""
        return min(max(self.score(agent, side, seen), 0.0), 1.0)

    def score(self, agent: str, side: Side, seen: Impression) -> float:
        """Return the expected outcome without the cut at 0 and 1, so that prompts beyond either can still be told apart."""
        with self._lock:
            return _believed(side, seen) + self._of(agent).correction(seen.deviations)

    def learn(self, agent: str, side: Side, seen: Impression, outcome: float | None) -> None:
        """Learn from the outcome of a prompt; an unknown one (None) teaches nothing. Raises `InvalidRequest` for an outcome outside 0 to
        1."""
        if outcome is None:
            return
        if not 0 <= outcome <= 1:
            raise InvalidRequest(f"an outcome lies between 0 and 1, not at {outcome}", hint="pass None for an unknown outcome")
        with self._lock:
            known = self._agents[agent] = self._of(agent)
            known.learn(seen.deviations, outcome - _believed(side, seen))

    def _of(self, agent: str) -> "_Regression":
        return self._agents.get(agent) or _Regression()


class _Regression:
    """Weights of the measures and of a constant, as a Gaussian: their means, and their covariance relative to the noise of outcomes."""

    def __init__(self) -> None:
        deviations = [*(len(MEASURES) * [WEIGHT]), LEVEL]
        places = range(len(deviations))
        self._means = len(deviations) * [0.0]
        self._covariance = [[deviations[row] ** 2 if row == column else 0.0 for column in places] for row in places]

    def correction(self, deviations: tuple[float, ...]) -> float:
        found: float = sum(map(mul, self._means, (*deviations, 1.0)))
        return found

    def learn(self, deviations: tuple[float, ...], difference: float) -> None:
        inputs = (*deviations, 1.0)
        spread = [sum(map(mul, row, inputs)) for row in self._covariance]
        certainty = 1 / (1 + sum(map(mul, spread, inputs)))
        surprise = difference - sum(map(mul, self._means, inputs))
        self._means = [mean + each * certainty * surprise for mean, each in zip(self._means, spread, strict=True)]
        for row, each in zip(self._covariance, spread, strict=True):
            part = each * certainty
            row[:] = [value - part * other for value, other in zip(row, spread, strict=True)]


def _believed(side: Side, seen: Impression) -> float:
    """Return the outcome that the prior alone expects: the sides differ by the gain, and the difficulty of the prompts is unknown."""
    return (1 + (seen.gain if side is Side.FAR else -seen.gain)) / 2
