"""Budget control: one multiplier over the gain per unit of budget, so that the far share or the dollar rate keeps to its target.

The *advantage* of a task is the utility of the far side less that of the near one, by what is known of it: the prompt alone, or the
evidence about a draft. Its *worth* is the advantage over the units of budget that the far side takes: 1 where tasks are counted, else
the expected dollars. A task goes far where its worth is above the controller's `threshold`, the Lagrange multiplier of the budget
(cascade routing, arXiv 2410.10347): one for all classes and all kinds of decisions, since a unit saved here buys as much there.
A multiplier calibrated offline misses its share by tens of points once traffic shifts. Here it is a quantile of recent worths, moved by
the debt: tasks that should have gone far by now and did not.

Ask for the threshold, decide, observe, in this order. Where several threads decide at the same moment, each may be over by one.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from threading import Lock
from typing import Final, Generic, TypeVar

from ...protocols import ConfigError, InvalidRequest
from ..budgets import Commitment
from ..task.routing_policy import HOUR

Item = TypeVar("Item", float, tuple[float, float], tuple[float, float, float])


class Sorted(Generic[Item]):
    """The last items, in the order of time and of size. `most`: how many are kept."""

    def __init__(self, most: int) -> None:
        self._by_time: deque[Item] = deque(maxlen=most)
        self.by_size: list[Item] = []
        """The smallest first."""

    def add(self, item: Item) -> None:
        if len(self._by_time) == self._by_time.maxlen:
            del self.by_size[bisect_left(self.by_size, self._by_time[0])]
        self._by_time.append(item)
        insort(self.by_size, item)


class Recent(Sorted[float]):
    """The last values, of which quantiles are taken."""

    def threshold(self, share: float, *, takes_ties: bool, luck: float) -> float:
        """Return the value that the given share of the next ones is expected to exceed; an infinity where all or none are to.

        Between the values it is the quantile of Weibull's plotting positions: the next value is as likely to fall into each gap. Where
        a share is smaller than a gap, as it is for all shares before the first value, chance decides whether the gap counts. So a
        share also holds over processes of one task each. Without any value it is 0: a task goes far where that is worth it by itself.

        Args:
            share: of the next values.
            takes_ties: equal values count as above, too.
            luck: a random number, at least 0 and below 1.
        """
        if not 0 < share < 1:
            return math.inf if share <= 0 else -math.inf
        last = len(self.by_size) - 1
        place = (1 - share) * (last + 2) - 1
        if place > last and luck >= share * (last + 2):
            return math.inf
        if not self.by_size:
            return 0.0
        if place < 0 and luck < -place:
            return -math.inf
        place = min(max(place, 0.0), float(last))
        below = int(place)
        low, high = self.by_size[below], self.by_size[min(below + 1, last)]
        found = low + (place - below) * (high - low)
        return math.nextafter(found, -math.inf) if takes_ties else found


class Average:
    """A mean over about the last `most` values, in which what is old fades."""

    def __init__(self, most: float) -> None:
        self.value: float | None = None
        self._most = most
        self._count = 0.0

    def add(self, value: float) -> None:
        self._count = min(self._count + 1, self._most)
        self.value = value if self.value is None else self.value + (value - self.value) / self._count


TOLERANCE: Final = 0.019
"""How far the share over any window may be from its target: a little less than two points."""
LEAST_WINDOW: Final = math.ceil(1 / TOLERANCE)
"""Tasks of the shortest window that can keep to the tolerance: in a shorter one a single task weighs more."""
SAMPLE: Final = 0.4
"""Worths remembered, over the window: fewer follow a shift sooner, more know the quantile better."""
HORIZON: Final = 0.08
"""Tasks over which debt is paid back, over the window. With `SAMPLE` chosen on simulated, normally distributed advantages."""
USUAL_WINDOW: Final = 500
_MOST: Final = 1.005
"""Bills of any period and what is set aside, over the dollars of the period: above 1 so that chance does not hold tasks back."""
_BURST: Final = 0.1
"""Credit that waits at most, over the dollars of the period, by default."""
_WAITING: Final = 0.3
"""Credit above which every task goes far that is worth it, over the most that waits: the quantile has asked for too few."""
_BILLS: Final = 15.0
"""Bills over which the price of a task that goes far is taken."""
_DOUBT: Final = 2.0
"""Factor for the amount set aside for a task of unknown cost: it multiplies the usual bill, or the dollars spent on the task so far."""
_SURPRISE: Final = 6.0
"""Times that the dollars expected of tasks under way count against the period until a rise is known: prices may rise meanwhile. Chosen on
simulated price steps."""
_DEAREST: Final = 16.0
"""Bound of how many times more than expected tasks are taken to cost: a single odd task does not hold others back for long."""
_RELIEF: Final = 0.2
"""Share of its excess that this factor loses with each bill that is lower."""
_HALF_LIFE: Final = 1800.0
"""Seconds in which it loses half of it where no bill comes: a factor that lets no task pass would never be corrected by one."""


class FarShareController:
    """Holds the share of tasks that go far.

    The share over any `window` tasks in a row is within `TOLERANCE` of the target, whatever the worths are: the debt never leaves
    the bounds of half a tolerance, since a task that would take it beyond goes to the other side, but for tasks that go far unasked.
    Within the bounds the highest worths go far. The share is over the tasks that were free to go either way; forced ones do not
    count. What could not be done, as while the far side was away, is forgiven beyond the bounds, so that no flood follows.

    Args:
        target: share of tasks that are to go far, from 0 to 1.
        window: tasks over which the share is held.
        seed: of the chance that decides while few worths are known; None: another one each time.

    Raises `ConfigError` for a target outside 0 to 1 or a window of less than `LEAST_WINDOW` tasks.
    """

    def __init__(self, target: float, window: int = USUAL_WINDOW, *, seed: int | None = 0) -> None:
        if not 0 <= target <= 1:
            raise ConfigError(f"a share of far tasks lies between 0 and 1, not at {target}", hint="0.3 sends three tasks in ten far")
        if window < LEAST_WINDOW:
            raise ConfigError(f"a share cannot be held over {window} tasks", hint=f"the window has at least {LEAST_WINDOW}")
        self._target = target
        self._bound = window * TOLERANCE / 2
        self._horizon = window * HORIZON
        self._recent = Recent(round(window * SAMPLE))
        self._random = Random(seed)
        self._luck = self._random.random()
        """Equal for all questions about one task."""
        self._debt = 0.0
        """Tasks that should have gone far by now, less those that did."""
        self._lock = Lock()

    def affords(self, dollars: float | None) -> bool:
        """Return True: a share of tasks does not limit dollars."""
        return True

    @property
    def threshold(self) -> float:
        """The worth above which a task goes far, an infinity where the share's bounds force a side."""
        with self._lock:
            if self._debt + self._target > self._bound:
                return -math.inf
            if self._debt + self._target - 1 < -self._bound:
                return math.inf
            return self._recent.threshold(self._target + self._debt / self._horizon, takes_ties=self._debt > 0, luck=self._luck)

    def observe(self, worth: float, *, went_far: bool, dollars: float | None = None, forced: bool = False) -> None:
        """Take a decision into account. Raises `InvalidRequest` for a worth that is no finite number, or negative dollars.

        Args:
            worth: of the task; a finite number.
            went_far: whether it did, also where that was not what the threshold asked for.
            dollars: what it costs, as far as known; None: unknown. They are checked and not used.
            forced: a rule had settled the side, as of a private task or one without a network, so it says nothing about the threshold.
        """
        check_observed(worth, dollars)
        if forced:
            return
        with self._lock:
            self._recent.add(worth)
            self._luck = self._random.random()
            self._owe(self._target - went_far, least=min(-self._bound, self._debt))

    def correct(self, *, counted_far: bool, went_far: bool | None) -> None:
        """Count a task again by what came of it. None: leave it out, since nothing was left to choose in the end.

        A task that went far unasked may take the debt to twice its bound: forgiven earlier, such tasks would add to the share.
        """
        with self._lock:
            self._owe(counted_far - (self._target if went_far is None else went_far), least=-2 * self._bound)

    def _owe(self, tasks: float, *, least: float) -> None:
        self._debt = min(max(self._debt + tasks, least), self._bound)


class DollarRateController:
    """Holds the dollars spent per period, by default an hour, at a target.

    The threshold is never below 0, so a task goes far only where that is worth it.

    Credit is earned with the time, and tasks spend it, forced ones included. The threshold is the one whose far share spends, at the
    recent pace of tasks and the recent bill of one that goes far, what is earned, and the credit over the next tasks. Credit beyond a
    tenth of a period's dollars lapses, so that no burst after a quiet time leaves the rest of the period without any.

    The cost of a task is known when it has ended. Until then `commit` sets aside the most that it is expected to cost, and `settle`
    replaces that by the bill. A task is not afforded where bills and what is set aside would come to more than `_MOST` of the
    dollars in the last period. Until the first bill is known, a task that goes far sets aside all that is left, so that
    no second task goes far before it. Where a task takes several times what was expected, as after a rise of prices, as
    many times more is set aside for all that are under way and for the next ones, until bills or time say otherwise:
    estimates are means over dozens of tasks, and follow too late.

    Args:
        dollars: the target; positive.
        now: seconds of a clock that never goes back, such as `time.monotonic`.
        billed: dollars of the last period in the shared budget book, those of this process included.
        seconds: the period.
        burst: credit that waits at most, over the dollars of the period.

    Raises `ConfigError` for a target that is not positive.
    """

    def __init__(
        self,
        dollars: float,
        *,
        now: Callable[[], float],
        billed: Callable[[], float] = lambda: 0.0,
        seconds: float = HOUR,
        burst: float = _BURST,
    ) -> None:
        if not (0 < dollars < math.inf):
            raise ConfigError(f"dollars of a budget are a positive number, not {dollars}", hint='mode = "only_on_device" spends none')
        self._target = dollars
        self._seconds = seconds
        self._burst = burst
        self._now = now
        self._billed = billed
        self._recent: Sorted[tuple[float, float]] = Sorted(round(USUAL_WINDOW * SAMPLE))
        """Worth of each task, and the dollars that it is expected to take if it goes far."""
        self._gap = Average(USUAL_WINDOW * HORIZON)
        """Mean seconds from one task to the next."""
        self._price = Average(_BILLS)
        """Mean dollars of a task that goes far."""
        self._foreseen = Average(_BILLS)
        """Mean dollars that such tasks were expected to take."""
        self._credit = 0.0
        self._earned_until = now()
        self._paid: deque[tuple[float, float]] = deque()
        """The bills of the last period, the oldest first: when, and dollars."""
        self._paid_sum = 0.0
        self._set_aside = 0.0
        self._expected = 0.0
        self._dearness = 1.0
        self._last_task: float | None = None
        self._lock = Lock()

    @property
    def threshold(self) -> float:
        """The worth above which a task goes far: 0 or more, infinite while the credit is overdrawn by more than a usual bill."""
        with self._lock:
            self._earn()
            price = self._price.value
            if self._credit < -(price or 0.0):
                return math.inf
            if not price or self._credit > _WAITING * self._burst * self._target:
                return 0.0
            affordable = self._target * (self._gap.value or 0.0) / self._seconds + self._credit / (USUAL_WINDOW * HORIZON)
            return max(self._worth_above(affordable * (self._foreseen.value or price) / price), 0.0)

    def _worth_above(self, dollars: float) -> float:
        """Return the worth above which the recent tasks are expected to take at most so many dollars per task."""
        left = dollars * (len(self._recent.by_size) + 1)
        for worth, expected in reversed(self._recent.by_size):
            left -= expected
            if left < 0:
                return math.nextafter(worth, -math.inf) if self._credit > 0 else worth
        return -math.inf

    @property
    def usual_bill(self) -> float | None:
        """The mean dollars of a task that goes far; None before the first bill."""
        return self._price.value

    def retarget(self, dollars: float) -> None:
        """Hold another target from now on. The bills of the last period and what is set aside count against it as they are."""
        with self._lock:
            if dollars == self._target:
                return
            self._earn()
            self._target = dollars
            self._credit = min(self._credit, self._burst * dollars)

    def affords(self, dollars: float | None) -> bool:
        """Return True if a task that may cost so many dollars fits what is left of this period. None: it counts as the usual bill."""
        with self._lock:
            self._earn()
            left, usual = self._left, self._price.value or 0.0  # once: it may have to be read from a database
            return left > 0 and left >= (usual if dollars is None else self._dearness * dollars)

    def observe(self, worth: float, *, went_far: bool, dollars: float | None = None, forced: bool = False) -> None:
        """Record a decision and its bill at once. Unknown dollars of a far task count as the usual bill, since it was not free."""
        usual = self._price.value if went_far and dollars is None else None
        committed = self.commit(worth, went_far=went_far, dollars=usual or dollars or 0.0, forced=forced)
        self._settle(committed, usual or dollars or 0.0, is_known=dollars is not None)

    def commit(
        self, worth: float, *, went_far: bool, dollars: float | None, forced: bool = False, far_dollars: float | None = None
    ) -> Commitment:
        """Record a decision and set aside the most that the task is expected to cost, until `settle` gets the bill.

        `dollars` is None where the cost is unknown. `far_dollars`: the most that it would cost on the far side, wherever it went; None:
        the usual bill. The other arguments are those of `FarShareController.observe`.
        """
        check_observed(worth, dollars)
        with self._lock:
            self._earn()
            expected = 0.0 if dollars is None else dollars
            most = self._unknown if dollars is None else self._dearness * expected
            self._expected += expected
            self._set_aside += most
            self._credit -= most
            if not forced:
                self._recent.add((worth, (self._price.value or 0.0) if far_dollars is None else far_dollars))
                if self._last_task is not None:
                    self._gap.add(self._earned_until - self._last_task)
                self._last_task = self._earned_until
        return Commitment(most, went_far, is_guess=dollars is None, expected=expected)

    def extend(self, committed: Commitment, dollars: float) -> Commitment:
        """Set more aside for a task that has taken so many dollars so far, where that is more than it was expected to take in all."""
        if dollars <= committed.dollars:
            return committed
        with self._lock:
            self._earn()
            self._learn_dearness(committed, dollars, is_final=False)
            most = _DOUBT * dollars
            self._set_aside += most - committed.dollars
            self._credit -= most - committed.dollars
        return replace(committed, dollars=most)

    def settle(self, committed: Commitment | None, dollars: float | None) -> None:
        """Put the bill of a task in the place of what was set aside for it.

        Args:
            committed: what `commit` returned; None: nothing was set aside.
            dollars: the bill, of failed tasks too; None: unknown, so that what was set aside counts, or the usual bill
                where that was a guess.

        Raises `InvalidRequest` for a negative bill.
        """
        check_observed(0.0, dollars)
        known = committed or Commitment(0.0, went_far=False)
        usual = (self._price.value or 0.0) if known.is_guess else known.dollars
        self._settle(known, usual if dollars is None else dollars, is_known=dollars is not None)

    @property
    def credit(self) -> float:
        """Dollars earned and neither spent nor set aside; negative: spent before they were earned."""
        with self._lock:
            self._earn()
            return self._credit

    @property
    def _left(self) -> float:
        """Dollars that may still be spent or set aside in this period."""
        under_way = max(self._set_aside, max(self._dearness, _SURPRISE) * self._expected)
        return _MOST * self._target - max(self._paid_sum, self._billed()) - under_way

    @property
    def _unknown(self) -> float:
        """Dollars to set aside for a task of unknown cost."""
        usual = self._price.value
        return max(self._left, 0.0) if usual is None else _DOUBT * usual

    def _settle(self, committed: Commitment, dollars: float, *, is_known: bool) -> None:
        with self._lock:
            self._earn()
            self._set_aside = max(self._set_aside - committed.dollars, 0.0)
            self._expected = max(self._expected - committed.expected, 0.0)
            if is_known:
                self._learn_dearness(committed, dollars, is_final=True)
            self._credit += committed.dollars - dollars
            if dollars:
                self._paid.append((self._earned_until, dollars))
                self._paid_sum += dollars
            if committed.went_far and is_known:
                self._price.add(dollars)
                self._foreseen.add(committed.expected or dollars)

    def _learn_dearness(self, committed: Commitment, dollars: float, *, is_final: bool) -> None:
        """Follow a task that takes more than was expected at once, and the bills of others step by step."""
        if not committed.expected:
            return
        times = min(max(dollars / committed.expected, 1.0), _DEAREST)
        if times >= self._dearness:
            self._dearness = times
        elif is_final:
            self._dearness -= _RELIEF * (self._dearness - times)

    def _earn(self) -> None:
        now = self._now()
        elapsed = now - self._earned_until
        self._credit = min(self._credit + self._target * elapsed / self._seconds, self._burst * self._target)
        self._dearness = 1 + (self._dearness - 1) * 0.5 ** (elapsed / _HALF_LIFE)
        self._earned_until = now
        while self._paid and self._paid[0][0] <= now - self._seconds:
            self._paid_sum -= self._paid.popleft()[1]
        if not self._paid:
            self._paid_sum = 0.0  # what rounding has left


def check_observed(worth: float, dollars: float | None) -> None:
    """Raise `InvalidRequest` for a worth that is no finite number, or dollars that nothing can cost."""
    if not math.isfinite(worth):
        raise InvalidRequest(f"the worth of a task is a finite number, not {worth}", hint="it is a difference of two utilities")
    if dollars is not None and not 0 <= dollars < math.inf:
        raise InvalidRequest(f"a task costs no {dollars} dollars", hint="pass None where the price is unknown")
