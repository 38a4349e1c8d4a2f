"""Influences on decisions from outside a single task: a budget or a floor of quality, exploration, shadow mode, and the session."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final

from ...protocols import ConfigError, Side
from ..budgets import Commitment
from ..task.decisions import AgentEstimate, ConsideredAgent, Estimate, EstimateSource, RouteDecision
from ..task.modes import Mode, Strategy
from ..task.routing_policy import DAY, RouterConfig
from .budget import HORIZON, SAMPLE, TOLERANCE, USUAL_WINDOW, DollarRateController, FarShareController, Sorted, check_observed
from .costs import RunningEstimates
from .exploration import Explorer, Prospect

OUT_OF_REACH: Final = 1e9
"""Utility that no agent is ahead by."""
_SIDES_IN_SHADOW: Final = (Side.NEAR, Side.FAR)
"""The order of mode `auto` without a router: the near side is free."""
UNKNOWN_DOLLARS: Final = 0.01
"""Dollars assumed for a task of unknown price if no other price is known either: not nothing."""
_LEAST_DOLLARS: Final = 1e-6
"""Dollars that a far agent without a price counts as, since the worth of a task is taken per dollar."""
_BURST_OF_A_DAY: Final = 0.5
"""Credit of a dollar rate per day that waits at most, over the day's dollars: what is earned at night is for the morning."""
_DOUBT: Final = 10.0
"""Outcomes that a correction by reported outcomes waits for: it moves half of the way after as many."""
_KEPT_SHARE: Final = 0.995
"""Share of its weight that an outcome keeps with each later one: about the last 200 count."""


class Bias:
    """How much better than expected reported outcomes were."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0.0

    def add(self, residual: float) -> None:
        """Take in a reported score less the probability that was expected."""
        self._sum = _KEPT_SHARE * self._sum + residual
        self._count = _KEPT_SHARE * self._count + 1

    @property
    def value(self) -> float:
        return self._sum / (self._count + _DOUBT)


class QualityController:
    """Holds the expected quality of the served tasks at a floor, with the highest multiplier that does: as few far tasks as possible.

    This is the dual of budget control (cascade routing, arXiv 2410.10347): the same multiplier over the gain per dollar, found so that the
    quality is kept rather than a budget spent.

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


BudgetController = FarShareController | DollarRateController | QualityController


@dataclass(frozen=True, slots=True)
class FarOption:
    """The far side of a task that may go to either side, compared with the near side."""

    advantage: float
    """Utility that it is ahead by."""
    near: float
    """Probability that the near side does the task right, by all that is known."""
    far: float
    """Probability that the far side does."""
    dollars: Estimate | None
    """Dollars that it is expected to take; None: unknown."""


class Steering:
    """One for each router. Calls may come from any thread.

    Args:
        seed: of what is explored; None: another one each time.
        monotonic: seconds that never run backwards.
        billed: returns the dollars of the last so many seconds, of this process and of others that keep account with it.
    """

    def __init__(self, seed: int | None, monotonic: Callable[[], float], billed: Callable[[float], float] = lambda _seconds: 0.0) -> None:
        self._seed = seed
        self._monotonic = monotonic
        self._billed = billed
        self._lock = Lock()
        self._shares: dict[float, FarShareController] = {}
        self._floors: dict[float, QualityController] = {}
        self._rates: dict[float, DollarRateController] = {}
        """By the period; one for each, whatever the target: what was spent under another target is spent."""
        self._explorers: dict[float, Explorer] = {}
        self.supervision = RunningEstimates()
        """Costs of agents as supervisors: the plan and the checks of a task together."""

    def threshold(self, settings: RouterConfig, far: Estimate | None = None) -> float:
        """Return the utility by which a far agent has to be ahead at the moment; finite, since JSON has no infinity.

        `far`: dollars that the far agent is expected to take; None: unknown.
        """
        controller = self._controller(settings)
        if controller is None:
            return settings.threshold
        if not controller.affords(_most(far)):
            return OUT_OF_REACH
        return _within_reach(controller.threshold * _units(controller, far))

    def dollar_multiplier(self, settings: RouterConfig) -> float:
        """Return the utility that a dollar has to bring at the moment, beyond its weight in the objective; 0 if dollars are no budget."""
        controller = self._controller(settings)
        if controller is None or isinstance(controller, FarShareController):
            return 0.0
        return _within_reach(controller.threshold) if controller.affords(None) else OUT_OF_REACH

    def extend(self, settings: RouterConfig, commitments: list[Commitment], dollars: float | None, *, is_far: bool) -> None:
        """Set more aside for a task under way that has already taken more than was expected. None: unknown dollars.

        `is_far`: a far agent is at work. Where nothing was set aside for it, as where it took over from one that failed, it is from now.
        """
        controller = self._rate(settings)
        if controller is None or not dollars:
            return
        if not commitments and is_far:
            commitments.append(controller.commit(0.0, went_far=True, dollars=dollars, forced=True))
        elif len(commitments) == 1:
            commitments[0] = controller.extend(commitments[0], dollars)

    def settle(self, settings: RouterConfig, commitments: Sequence[Commitment], dollars: float | None) -> None:
        """Count the bill of a task in the place of what was set aside for it and its parts. None: the bill is unknown."""
        controller = self._rate(settings)
        if controller is None:
            return
        first, *rest = commitments or (None,)
        controller.settle(first, dollars)
        for more in rest:
            controller.settle(more, None if dollars is None else 0.0)

    def report(self, settings: RouterConfig, side: Side, *, expected: float, score: float) -> None:
        """Let `least_quality` learn how good an answer was, of which `expected` was the probability to be right."""
        controller = self._controller(settings)
        if isinstance(controller, QualityController):
            controller.report(side, expected, score)

    def steer(
        self, decision: RouteDecision, settings: RouterConfig, *, quality: float, commitments: list[Commitment] | None = None
    ) -> RouteDecision:
        """Return the decision as it is carried out, which the budget takes into account. A draft is counted when it is judged, and a
        supervised task where its supervisor would first be asked.

        Args:
            quality: what the objective gives for success.
            commitments: takes what is set aside until `settle`; None: no bill will come, so the estimate counts as spent.
        """
        is_free = decision.mode is Mode.AUTO and not decision.is_bound
        if decision.strategy is Strategy.ROUTE and is_free and settings.explore_share and not settings.shadow:
            decision = self._explored(decision, settings, quality)
        if not _is_draft(decision) and not is_supervision_weighed(settings, decision):
            self._observe_first(decision, settings, commitments, is_free=is_free and decision.strategy in _FREE)
        return _in_shadow(decision) if settings.shadow else decision

    def observe(
        self,
        settings: RouterConfig,
        option: FarOption,
        *,
        went_far: bool,
        is_forced: bool = False,
        commitments: list[Commitment] | None = None,
    ) -> None:
        """Count a decision between the sides.

        Args:
            option: its dollars are set aside if the task went far.
            is_forced: something else than the budget has settled the side, so that only the dollars count.
            commitments: as for `steer`.
        """
        controller = self._controller(settings)
        if controller is None:
            return
        worth = _within_reach(option.advantage / _units(controller, option.dollars))
        if isinstance(controller, QualityController):
            if not is_forced:
                controller.observe(worth, went_far=went_far, near=option.near, far=option.far)
        elif isinstance(controller, DollarRateController) and commitments is not None:
            most = _most(option.dollars)
            dollars = most if went_far else 0.0
            commitments.append(controller.commit(worth, went_far=went_far, dollars=dollars, forced=is_forced, far_dollars=most))
        else:
            known = None if option.dollars is None else option.dollars.value
            controller.observe(worth, went_far=went_far, dollars=known if went_far else 0.0, forced=is_forced)

    def correct(self, settings: RouterConfig, *, counted_far: bool, went_far: bool | None) -> None:
        """Count a task again by what came of it; None: leave it out. Budgets of dollars and qualities are told by bills and reports."""
        controller = self._controller(settings)
        if isinstance(controller, FarShareController):
            controller.correct(counted_far=counted_far, went_far=went_far)

    def _explored(self, decision: RouteDecision, settings: RouterConfig, quality: float) -> RouteDecision:
        prospects = [_prospect(each, decision.threshold or 0.0, quality) for each in decision.considered if each.objection is None]
        best = decision.candidates[0]
        drawn = self._explorer(settings).choose(prospects, best=best)
        chosen, decision = drawn.agent, decision.model_copy(update={"propensity": drawn.propensity})
        if chosen == best:
            return decision
        candidates = (chosen, *(agent for agent in decision.candidates if agent != chosen))
        note = f"exploring: {chosen} tries first, to learn about it; the best known is {best}"
        considered = _in_order(decision.considered, candidates)
        changes = {"candidates": candidates, "considered": considered, "explored": True, "reasons": (*decision.reasons, note)}
        return decision.model_copy(update=changes)

    def _observe_first(
        self, decision: RouteDecision, settings: RouterConfig, commitments: list[Commitment] | None, *, is_free: bool
    ) -> None:
        """Count the choice of the first agent."""
        went_far = decision.considered[0].side is Side.FAR
        near, best = (_best(decision, side) for side in Side)
        far = decision.considered[0].estimate if went_far else best
        option = FarOption(
            advantage=decision.advantage or 0.0,
            near=0.0 if near is None else near.success.value,
            far=0.0 if far is None else far.success.value,
            dollars=None if far is None else far.dollars,
        )
        is_forced = not is_free or decision.advantage is None
        self.observe(settings, option, went_far=went_far, is_forced=is_forced, commitments=commitments)

    def _explorer(self, settings: RouterConfig) -> Explorer:
        with self._lock:
            return self._explorers.setdefault(settings.explore_share, Explorer(settings.explore_share, seed=self._seed))

    def _controller(self, settings: RouterConfig) -> BudgetController | None:
        """Return the controller of a task that is being placed. A target that was not used before starts without a history."""
        rate = self._rate(settings)
        if rate is not None and settings.dollar_rate is not None:
            rate.retarget(settings.dollar_rate[0])
            return rate
        with self._lock:
            if settings.least_quality is not None:
                return self._floors.get(settings.least_quality) or self._floors.setdefault(
                    settings.least_quality, QualityController(settings.least_quality)
                )
            if settings.far_share is not None:
                return self._shares.get(settings.far_share) or self._shares.setdefault(
                    settings.far_share, FarShareController(settings.far_share, seed=self._seed)
                )
        return None

    def _rate(self, settings: RouterConfig) -> DollarRateController | None:
        """Return the controller of the dollar rate. It keeps its target, since a task that ends may have begun under an older policy."""
        if settings.dollar_rate is None:
            return None
        dollars, seconds = settings.dollar_rate
        with self._lock:
            if seconds not in self._rates:
                burst = {"burst": _BURST_OF_A_DAY} if seconds == DAY else {}
                billed = partial(self._billed, seconds)
                self._rates[seconds] = DollarRateController(dollars, now=self._monotonic, billed=billed, seconds=seconds, **burst)
            return self._rates[seconds]


_FREE: Final = frozenset({Strategy.ROUTE, Strategy.CASCADE})
"""Strategies in which the budget settles which side serves."""


def _units(controller: BudgetController, far: Estimate | None) -> float:
    """Return how much of the budget a task takes that goes far."""
    if isinstance(controller, FarShareController):
        return 1.0
    usual = controller.usual_bill if isinstance(controller, DollarRateController) else None
    return max((usual or UNKNOWN_DOLLARS) if far is None else far.value, _LEAST_DOLLARS)


def _within_reach(utility: float) -> float:
    return min(max(utility, -OUT_OF_REACH), OUT_OF_REACH)


def _is_draft(decision: RouteDecision) -> bool:
    """Return whether the first agent's draft is judged, and a far agent may take over: the task is placed by then."""
    following = decision.considered[1:2]
    return decision.judged and decision.mode is Mode.AUTO and any(each.side is Side.FAR and each.objection is None for each in following)


def is_supervision_weighed(settings: RouterConfig, decision: RouteDecision) -> bool:
    """Return whether a budget chooses if the supervisor is asked: a far one, under which a near agent works."""
    is_free = decision.mode is Mode.AUTO and settings.has_budget and not settings.shadow
    return is_free and any(each.agent == decision.supervisor and each.side is Side.FAR for each in decision.considered)


def _best(decision: RouteDecision, side: Side) -> AgentEstimate | None:
    """Return the estimate for the most useful candidate of a side; None if there is none."""
    known = [each for each in decision.considered if each.side is side and each.objection is None]
    best = max(known, key=lambda each: each.utility or 0.0, default=None)
    return None if best is None else best.estimate


def _most(dollars: Estimate | None) -> float | None:
    """Return the most that a task is likely to cost; None where no such task was ever billed."""
    return None if dollars is None or dollars.source is EstimateSource.PRIOR else dollars.value + dollars.deviation


def _prospect(each: ConsideredAgent, threshold: float, quality: float) -> Prospect:
    assert each.estimate is not None, "every candidate is judged"
    assert each.utility is not None, "every candidate is judged"
    handicap = threshold if each.side is Side.FAR else 0.0
    return Prospect(each.agent, each.utility - handicap, quality * each.estimate.success.deviation)


def _in_order(considered: Sequence[ConsideredAgent], candidates: Sequence[str]) -> tuple[ConsideredAgent, ...]:
    """Return the candidates in their order, then the agents that were left out."""
    by_name = {each.agent: each for each in considered}
    return (*(by_name[agent] for agent in candidates), *(each for each in considered if each.objection is not None))


def _in_shadow(decision: RouteDecision) -> RouteDecision:
    """Return the decision that would be made without the router, and record what the router would have done."""
    if decision.strategy is not Strategy.ROUTE or decision.mode is not Mode.AUTO or decision.is_bound:
        return decision
    sides = {each.agent: each.side for each in decision.considered}
    plain = tuple(sorted(decision.candidates, key=lambda agent: _SIDES_IN_SHADOW.index(sides[agent])))
    note = f"in shadow: the router would try {' then '.join(decision.candidates)}"
    changes = {"candidates": plain, "considered": _in_order(decision.considered, plain), "shadowed": decision.candidates}
    return decision.model_copy(update={**changes, "reasons": (*decision.reasons, note)})


_KEPT: Final = 10_000
"""Sessions; of more, those are forgotten that were silent for the longest time."""


class Sessions:
    """Calls may come from any thread.

    Args:
        clock: seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._served: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._called: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def keep(self, session: str, agent: str, *, user: str = "") -> None:
        """Remember which agent answered in a user's session."""
        with self._lock:
            self._served.pop((user, session), None)
            self._served[user, session] = (agent, self._clock())
            if len(self._served) > _KEPT:
                self._served.popitem(last=False)

    def keep_calls(self, session: str, calls: Sequence[str], agent: str, *, user: str = "") -> None:
        """Remember which agent made the calls of these ids, whose results will come with a later turn."""
        with self._lock:
            self._called.update({(user, session, call): agent for call in calls})
            while len(self._called) > _KEPT:
                self._called.popitem(last=False)

    def agent_of_call(self, session: str, call: str, *, user: str = "") -> str | None:
        """Return the agent that made a call in a user's session, by the call's id; None if it is not known."""
        with self._lock:
            return self._called.get((user, session, call))

    def forget(self, session: str, *, user: str = "") -> None:
        """Forget which agent answered, so that the next task of the session is routed by itself."""
        with self._lock:
            self._served.pop((user, session), None)
            for known in [known for known in self._called if known[:2] == (user, session)]:
                del self._called[known]

    def agent_of(self, session: str, *, seconds: float, user: str = "") -> str | None:
        """Return the agent that answered last, at most so many seconds ago; None if there is none."""
        with self._lock:
            agent, when = self._served.get((user, session), ("", float("-inf")))
            return agent if agent and self._clock() - when <= seconds else None
