"""`Meter`: the energy that was drawn over an interval of time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from .look import EnergyReader


@dataclass(frozen=True, slots=True)
class Interval:
    """The time and energy of one interval."""

    seconds: float
    joules: float | None
    """None: not measured."""

    @property
    def watts(self) -> float | None:
        """The mean power; None if it is unknown."""
        return None if self.joules is None or not self.seconds else self.joules / self.seconds


class Meter:
    """Reads one reader at the ends of intervals, on a clock that never runs backwards."""

    def __init__(self, reader: EnergyReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._began = 0.0

    @property
    def least_seconds(self) -> float:
        """The shortest interval that can be measured."""
        return self._reader.least_seconds

    def start(self) -> None:
        """Begin an interval; what was drawn before it does not count."""
        self._began = self._clock()
        self._reader.lap()

    def stop(self) -> Interval:
        """End the interval. The next one begins at the same moment."""
        began, self._began = self._began, self._clock()
        return Interval(self._began - began, self._reader.lap())
