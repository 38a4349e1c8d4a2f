"""Figures of the last tasks: their quantiles and means, in which what is old fades."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable


class Recent:
    """The last values, in the order of time and of size. `most`: how many are kept."""

    def __init__(self, most: int, values: Iterable[float]) -> None:
        self._by_time: deque[float] = deque(values, maxlen=most)
        self._by_size = sorted(self._by_time)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self._by_time)

    def add(self, value: float) -> None:
        if len(self._by_time) == self._by_time.maxlen:
            del self._by_size[bisect_left(self._by_size, self._by_time[0])]
        self._by_time.append(value)
        insort(self._by_size, value)

    def threshold(self, share: float, *, takes_ties: bool) -> float:
        """Return the value that the given share of the next ones is expected to exceed; an infinity where all or none are to.

        `takes_ties`: equal values count as above, too.

        Between the values it is the quantile of Weibull's plotting positions: the next value is as likely to fall into each gap. Without
        any value it is 0: a task goes far where that is worth it by itself.
        """
        if not 0 < share < 1:
            return math.inf if share <= 0 else -math.inf
        if not self._by_size:
            return 0.0
        last = len(self._by_size) - 1
        place = (1 - share) * (last + 2) - 1
        if not 0 <= place <= last:
            return math.inf if place > last else -math.inf
        below = int(place)
        low, high = self._by_size[below], self._by_size[min(below + 1, last)]
        found = low + (place - below) * (high - low)
        return math.nextafter(found, -math.inf) if takes_ties else found


class Average:
    """A mean over about the last `most` values, in which what is old fades; `value`: where it begins, None: with the first one."""

    def __init__(self, value: float | None, most: float) -> None:
        self.value = value
        self._most = most
        self._count = 0.0 if value is None else most

    def add(self, value: float) -> None:
        self._count = min(self._count + 1, self._most)
        self.value = value if self.value is None else self.value + (value - self.value) / self._count
