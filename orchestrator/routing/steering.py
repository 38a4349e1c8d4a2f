"""Influences on decisions from outside a single task: the budget's threshold, exploration, shadow mode, and the session."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from threading import Lock
from typing import Final

from ...protocols import ConfigError, Side
from ..budgets.book import Commitment
from ..task.modes import Mode, Strategy
from ..task.results import ConsideredAgent, Estimate, EstimateSource, RouteDecision
from ..task.routing_policy import RouterConfig
from .budget import BudgetController, DollarRateController, FarShareController
from .propensity import chance_of_greatest


@dataclass(frozen=True, slots=True)
class Prospect:
    """An agent that the task may have."""

    agent: str
    utility: float
    """Predicted."""
    deviation: float
    """Standard deviation of the utility: that of the probability times what success is worth."""
    propensity: float = 1.0
    """Probability with which it was chosen, given all that came before; 1 where nothing was explored."""


class Explorer:
    """Chooses among agents, mostly the best one known. Calls may come from any thread.

    Args:
        explore_share: largest share of decisions, at any time, that may be for another agent than the best one; 0 never explores.
        seed: of the draws; None: another one each time.

    Raises `ConfigError` for a share outside 0 to 1.
    """

    def __init__(self, explore_share: float = 0.0, *, seed: int | None = None) -> None:
        if not 0 <= explore_share <= 1:
            raise ConfigError(f"explore_share lies between 0 and 1, not at {explore_share}", hint="0.02 explores with one task in fifty")
        self._share = explore_share
        self._random = Random(seed)
        self.decisions = 0
        self.explored = 0
        """Decisions for another agent than the best one known."""
        self._lock = Lock()

    def choose(self, prospects: Sequence[Prospect], *, best: str | None = None) -> Prospect:
        """Return the best prospect or, when exploration is due, the one that is best in one draw from the beliefs: Thompson sampling
        (arXiv 1111.1797).

        Args:
            prospects: at least one, all of which the task may have; of equals the first counts as the best.
            best: the agent that would serve without exploration; None: the one with the highest utility.
        """
        named = (prospect for prospect in prospects if prospect.agent == best)
        known = next(named, None) or max(prospects, key=lambda prospect: prospect.utility)
        with self._lock:
            self.decisions += 1
            is_due = self.explored + 1 <= self._share * self.decisions
            chosen = max(prospects, key=self._drawn) if is_due else known
            self.explored += chosen is not known
        return replace(chosen, propensity=_propensity(prospects, chosen)) if is_due else chosen

    def _drawn(self, prospect: Prospect) -> float:
        return self._random.gauss(prospect.utility, prospect.deviation)


def _propensity(prospects: Sequence[Prospect], chosen: Prospect) -> float:
    means, deviations = zip(*((each.utility, each.deviation) for each in prospects), strict=True)
    return chance_of_greatest(means, deviations, prospects.index(chosen))


_OUT_OF_REACH: Final = 1e9
"""Utility that no agent is ahead by."""
_SIDES_IN_SHADOW: Final = (Side.NEAR, Side.FAR)
"""The order of mode `auto` without a router: the near side is free."""


class Steering:
    """One for each router. Calls may come from any thread.

    Args:
        seed: of what is explored; None: another one each time.
        monotonic: seconds that never run backwards.
        billed: dollars of the last hour, of this process and of others that keep account with it.
    """

    def __init__(self, seed: int | None, monotonic: Callable[[], float], billed: Callable[[], float] = lambda: 0.0) -> None:
        self._seed = seed
        self._monotonic = monotonic
        self._billed = billed
        self._lock = Lock()
        self._shares: dict[float, FarShareController] = {}
        self._dollars: DollarRateController | None = None
        """The only one, whatever the target: what was spent under another target is spent."""
        self._target: float | None = None
        """Dollars per hour that it holds now."""
        self._explorers: dict[float, Explorer] = {}

    def threshold(self, settings: RouterConfig, far: Estimate | None = None) -> float:
        """Return by how much a far agent has to be ahead at the moment; finite, since JSON has no infinity.

        `far`: dollars that the far agent is expected to take; None: unknown.
        """
        controller = self._controller(settings)
        if controller is None:
            return settings.threshold
        if not controller.affords(_most(far)):
            return _OUT_OF_REACH
        return min(max(controller.threshold, -_OUT_OF_REACH), _OUT_OF_REACH)

    def extend(self, settings: RouterConfig, commitments: list[Commitment], dollars: float | None) -> None:
        """Set more aside for a task under way that has already taken more than was expected. None: unknown dollars."""
        controller = self._rate(settings)
        if controller is not None and dollars is not None and len(commitments) == 1:
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

    def steer(
        self, decision: RouteDecision, settings: RouterConfig, *, quality: float, commitments: list[Commitment] | None = None
    ) -> RouteDecision:
        """Return the decision as it is carried out, which the budget takes into account.

        Args:
            quality: what the objective gives for success.
            commitments: takes what is set aside until `settle`; None: no bill will come, so the estimate counts as spent.
        """
        is_free = decision.strategy is Strategy.ROUTE and decision.mode is Mode.AUTO and not decision.is_bound
        if is_free and settings.explore_share and not settings.shadow:
            decision = self._explored(decision, settings, quality)
        self._observe(decision, settings, commitments, is_forced=not is_free)
        return _in_shadow(decision) if settings.shadow else decision

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

    def _observe(self, decision: RouteDecision, settings: RouterConfig, commitments: list[Commitment] | None, *, is_forced: bool) -> None:
        controller = self._controller(settings)
        if controller is None:
            return
        first = decision.considered[0]
        dollars = first.estimate.dollars if first.estimate is not None else None
        went_far, advantage = first.side is Side.FAR, decision.advantage or 0.0
        is_forced = is_forced or decision.advantage is None
        if commitments is not None and isinstance(controller, DollarRateController):
            most = _most(dollars) if went_far else 0.0
            commitments.append(controller.commit(advantage, went_far=went_far, dollars=most, forced=is_forced))
            return
        controller.observe(advantage, went_far=went_far, dollars=None if dollars is None else dollars.value, forced=is_forced)

    def _explorer(self, settings: RouterConfig) -> Explorer:
        with self._lock:
            return self._explorers.setdefault(settings.explore_share, Explorer(settings.explore_share, seed=self._seed))

    def _controller(self, settings: RouterConfig) -> BudgetController | None:
        """Return the controller of a task that is being placed. A share that was not used before starts without a history."""
        rate = self._rate(settings)
        if rate is not None:
            self._retarget(rate, settings.dollars_per_hour)
            return rate
        if settings.far_share is None:
            return None
        with self._lock:
            return self._shares.setdefault(settings.far_share, FarShareController(settings.far_share))

    def _rate(self, settings: RouterConfig) -> DollarRateController | None:
        """Return the controller of the dollar rate. It keeps its target, since a task that ends may have begun under an older policy."""
        if settings.dollars_per_hour is None:
            return None
        with self._lock:
            if self._dollars is None:
                self._target = settings.dollars_per_hour
                self._dollars = DollarRateController(self._target, now=self._monotonic, billed=self._billed)
            return self._dollars

    def _retarget(self, rate: DollarRateController, dollars_per_hour: float | None) -> None:
        with self._lock:
            if dollars_per_hour is not None and dollars_per_hour != self._target:
                rate.retarget(dollars_per_hour)
                self._target = dollars_per_hour


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

    def keep(self, session: str, agent: str, *, user: str = "") -> None:
        """Remember which agent answered in a user's session."""
        with self._lock:
            self._served.pop((user, session), None)
            self._served[user, session] = (agent, self._clock())
            if len(self._served) > _KEPT:
                self._served.popitem(last=False)

    def forget(self, session: str, *, user: str = "") -> None:
        """Forget which agent answered, so that the next task of the session is routed by itself."""
        with self._lock:
            self._served.pop((user, session), None)

    def agent_of(self, session: str, *, seconds: float, user: str = "") -> str | None:
        """Return the agent that answered last, at most so many seconds ago; None if there is none."""
        with self._lock:
            agent, when = self._served.get((user, session), ("", float("-inf")))
            return agent if agent and self._clock() - when <= seconds else None
