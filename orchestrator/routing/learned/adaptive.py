"""Learning from outcomes which of the prompts that no head was trained for an agent gets right, starting from what the prior believes.

Each agent has a Bayesian linear regression of its outcomes on the measures of the prompts (Bishop 2006, section 3.3), one outcome after the
other: recursive least squares, tens of microseconds of pure Python each.
"""

from operator import mul
from threading import Lock
from typing import Final

from ....protocols import InvalidRequest, Side
from ...task.route_decision import Impression
from .measures import MEASURES

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
