"""Quality control: as few far tasks as possible, so that the expected quality of what is served keeps to a floor.

This is the dual of budget control (cascade routing, arXiv 2410.10347): the same multiplier over the gain per dollar, found so that the
quality is kept rather than a budget spent.
"""

import math
from threading import Lock
from typing import Final

from ...protocols import ConfigError, Side
from .budget import HORIZON, SAMPLE, TOLERANCE, USUAL_WINDOW, Sorted, check_observed

_DOUBT: Final = 10.0
"""Outcomes that a correction by reported outcomes waits for: it moves half of the way after as many."""
_KEPT: Final = 0.995
"""Share of its weight that an outcome keeps with each later one: about the last 200 count."""


class Bias:
    """How much better than expected reported outcomes were."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0.0

    def add(self, residual: float) -> None:
        """Take in a reported score less the probability that was expected."""
        self._sum = _KEPT * self._sum + residual
        self._count = _KEPT * self._count + 1

    @property
    def value(self) -> float:
        return self._sum / (self._count + _DOUBT)


class QualityController:
    """Holds the expected quality of the served tasks at a floor, with the highest multiplier that does.

    The quality of a task is the probability that the side which serves it is right, moved by how much better or worse reported outcomes
    of that side were than expected. The threshold is the highest worth at which the recent tasks would have kept the floor, and the debt
    over the next tasks: what the served tasks lack. A task never goes far where the far side is not expected to do better. Where even
    all of those do not reach the floor, all of them go far.

    Args:
        floor: the quality, between 0 and 1.

    Raises `ConfigError` for a floor outside 0 to 1.
    """

    def __init__(self, floor: float) -> None:
        if not 0 < floor < 1:
            raise ConfigError(f"a quality lies between 0 and 1, not at {floor}", hint="0.9: nine tasks in ten are done right")
        self._floor = floor
        self._recent: Sorted[tuple[float, float, float]] = Sorted(round(USUAL_WINDOW * SAMPLE))
        """Worth, and probability that the near side and the far side are right, as they were predicted."""
        self._biases = {side: Bias() for side in Side}
        self._debt = 0.0
        """Tasks that should have been right by now, less those that are expected to be."""
        self._threshold: float | None = None
        """The one that was found last; None: something has changed since."""
        self._lock = Lock()

    def affords(self, dollars: float | None) -> bool:
        """Return True: a floor of quality does not limit dollars."""
        return True

    @property
    def threshold(self) -> float:
        """The worth above which a task goes far; minus infinity where nothing is known yet, or the floor is out of reach, infinity where
        the near side keeps to it alone."""
        with self._lock:
            if self._threshold is None:
                self._threshold = self._found()
            return self._threshold

    def _found(self) -> float:
        tasks = self._recent.by_size
        near, far = (self._biases[side].value for side in (Side.NEAR, Side.FAR))
        kept = sum(_share(task[1] + near) for task in tasks)
        wanted = len(tasks) * (self._floor + self._debt / (USUAL_WINDOW * HORIZON))
        if tasks and kept >= wanted:
            return math.inf
        for worth, near_right, far_right in reversed(tasks):
            gain = _share(far_right + far) - _share(near_right + near)
            if gain <= 0:
                return worth
            if kept >= wanted:
                return math.nextafter(worth, -math.inf) if self._debt > 0 else worth
            kept += gain
        return -math.inf

    def observe(self, worth: float, *, went_far: bool, near: float, far: float) -> None:
        """Take a decision into account. Raises `InvalidRequest` for a worth that is no finite number.

        Args:
            worth: of the task; a finite number.
            went_far: whether it did.
            near: probability that the near side does it right.
            far: probability that the far side does.
        """
        check_observed(worth, None)
        with self._lock:
            self._threshold = None
            self._recent.add((worth, near, far))
            bias = self._biases[Side.FAR if went_far else Side.NEAR].value
            bound = USUAL_WINDOW * TOLERANCE / 2
            self._debt = min(max(self._debt + self._floor - _share((far if went_far else near) + bias), -bound), bound)

    def report(self, side: Side, expected: float, score: float) -> None:
        """Learn how good an answer of a side was, from 0 to 1, of which `expected` was the probability to be right."""
        with self._lock:
            self._threshold = None
            self._biases[side].add(score - expected)


def _share(value: float) -> float:
    return 0.0 if value < 0 else 1.0 if value > 1 else value
