"""Tune the number of threads of a pass through the model while working.

llama.cpp's threads wait for each other by spinning. On idle cores, all of them together are fastest. If another process has a core, they
spin for a partner that is not running, and one thread alone can be five times faster. Which of the two holds changes while we run.
"""

from dataclasses import dataclass, field
from typing import Final

_MEASURED: Final = 3
_SHORTEST_REST: Final = 64
_LONGEST_REST: Final = 4096
_CLEARLY: Final = 0.95
_HOPELESS: Final = 1.5


@dataclass(slots=True)
class _Contest:
    """Two numbers of threads for passes of similar size: one is in use, the other is tried now and then."""

    used: int
    other: int
    times: list[float] = field(default_factory=list)
    """Seconds per token of the latest passes with `used`."""
    trial_times: list[float] = field(default_factory=list)
    """Seconds per token of passes with `other`, during a trial."""
    rest: int = 0
    """Passes until the next trial."""
    next_rest: int = _SHORTEST_REST

    @property
    def on_trial(self) -> bool:
        return self.rest == 0 and len(self.times) == _MEASURED

    def report(self, seconds: float) -> None:
        if not self.on_trial:
            self.times = [*self.times, seconds][-_MEASURED:]
            self.rest = max(self.rest - 1, 0)
            return
        self.trial_times.append(seconds)
        fastest = min(self.times)
        # A number that is this slow at once will not win, and further passes with it would be wasted.
        if min(self.trial_times) > _HOPELESS * fastest or len(self.trial_times) == _MEASURED:
            self._decide(wins=min(self.trial_times) < _CLEARLY * fastest)

    def _decide(self, *, wins: bool) -> None:
        if wins:
            self.used, self.other, self.times = self.other, self.used, self.trial_times
        self.next_rest = _SHORTEST_REST if wins else min(2 * self.next_rest, _LONGEST_REST)
        self.rest, self.trial_times = self.next_rest, []


class ThreadTuner:
    """Chooses between `few` and `many` threads for passes of several tokens, separately for each order of size."""

    def __init__(self, *, few: int, many: int) -> None:
        self._few = few
        self._many = many
        self._contests: dict[int, _Contest] = {}

    def threads(self, tokens: int) -> int:
        """Return the number of threads for the next pass, which has `tokens` tokens."""
        contest = self._contest(tokens)
        return contest.other if contest.on_trial else contest.used

    def report(self, tokens: int, seconds: float) -> None:
        """Take note of the duration of the pass for which `threads` was asked last."""
        self._contest(tokens).report(seconds / tokens)

    def _contest(self, tokens: int) -> _Contest:
        size = tokens.bit_length()
        contest = self._contests.get(size)
        if contest is None:
            contest = self._contests[size] = self._opened(size)
        return contest

    def _opened(self, size: int) -> _Contest:
        """Begin with the number that is in use for the nearest size: other programs leave the same cores to passes of all sizes."""
        nearest = min(self._contests, key=lambda known: abs(known - size), default=None)
        if nearest is None or self._contests[nearest].used == self._few:
            return _Contest(used=self._few, other=self._many)
        return _Contest(used=self._many, other=self._few)
