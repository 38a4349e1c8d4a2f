"""The prior: how much the far side is likely to gain on a prompt that no head was trained for, judged by the prompt's surface.

The gain is linear in the prompt's measures, with weights that were fitted to several kinds of prompts at once. Where most of the traffic
looks unlike all of them, the weights say nothing of it, and the length of a prompt alone counts.
"""

from functools import cache
from importlib.resources import files
from operator import mul
from threading import Lock
from typing import Final

from pydantic import Field

from ....protocols.messages import Value
from ...task.route_decision import Impression
from .measures import MEASURES, measures

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
