"""The choice under `pevr` and `eva`: let a supervisor far away plan and check a task, or let the near agent work alone.

It is made once a task, where the supervisor would first be asked, at the multiplier that the budget has at the moment.
"""

from typing import Final

from ...protocols import Prices, Usage
from ..budgets.book import Commitment
from ..task.decisions import Estimate, EstimateSource, RouteDecision
from ..task.routing_policy import RouterConfig
from ..task.task import Task, tokens_of
from .steering import OUT_OF_REACH, FarOption, Steering

PLAN_TOKENS: Final = 300
"""Tokens of a plan."""
MENDED: Final = 0.69
"""Probability that a far agent does right what a near one does wrong: mean over three recorded sets, function calls, predicted output of
code, and competition maths."""


def gain_of_supervision(decision: RouteDecision) -> float:
    """Return how much more probable a right outcome is with the supervisor, as far as the prompt tells.

    Outcomes of both agents, or a head, tell it; else it is the part that the far side mends of what the near agent is expected to do wrong.
    """
    near, far = _chance(decision, decision.candidates[0]), _chance(decision, decision.supervisor or "")
    known = EstimateSource.PRIOR not in (near.source, far.source)
    return far.value - near.value if known else MENDED * (1 - near.value)


class SupervisionChoice:
    """Chooses whether the supervisor of one task is asked, and lets the budget count that.

    A share of tasks counts a task as far where anything of it goes there; dollars are weighed against those of a plan.

    Args:
        steering: of the router.
        task: under supervision.
        decision: that placed the task.
        prices: of the supervisor; None: unknown.
        commitments: takes what a dollar rate sets aside, until the bill comes; None: no bill will come.
    """

    def __init__(
        self,
        steering: Steering,
        task: Task,
        decision: RouteDecision,
        *,
        prices: Prices | None,
        commitments: list[Commitment] | None = None,
    ) -> None:
        self._steering = steering
        self._settings: RouterConfig = task.policy.router
        self._objective = task.policy.objective
        self._near = _chance(decision, decision.candidates[0]).value
        self._gain = gain_of_supervision(decision)
        self._dollars = _plan_dollars(task, decision, prices)
        self._commitments = commitments

    @property
    def counts_tasks(self) -> bool:
        """The budget is over all tasks, so that each of them is weighed, and not only one in which the supervisor would be asked anyway."""
        return self._settings.dollar_rate is None

    @property
    def price(self) -> float:
        """The worth, in right outcomes, that a rate of dollars asks one call of the supervisor to bring."""
        if not self._objective.quality or self.counts_tasks or self._dollars is None:
            return 0.0
        multiplier = max(self._steering.dollar_multiplier(self._settings), -self._objective.dollars)
        return multiplier * self._dollars.value / self._objective.quality

    def buys(self, gain: float | None = None) -> bool:
        """Choose, and count the task.

        `gain`: by how much a right outcome becomes more probable if the supervisor is asked; None: the prompt tells it.
        """
        dollars = 0.0 if self._dollars is None else self._dollars.value
        advantage = self._objective.quality * (self._gain if gain is None else gain) - self._objective.dollars * dollars
        is_bought = advantage > self._steering.threshold(self._settings, self._dollars)
        self._count(advantage, went_far=is_bought)
        return is_bought

    def pass_by(self, *, went_far: bool) -> None:
        """Count a task that has ended without the choice. `went_far`: the far side was asked all the same, as about an act in doubt."""
        self._count(-OUT_OF_REACH, went_far=went_far)

    def correct(self, *, went_far: bool) -> None:
        """Count a task for the other side than it was counted for: a far agent was asked all the same, or was not asked after all."""
        self._steering.correct(self._settings, went_far=went_far)

    def _count(self, advantage: float, *, went_far: bool) -> None:
        far = min(max(self._near + self._gain, 0.0), 1.0)
        option = FarOption(advantage, near=self._near, far=far, dollars=self._dollars)
        self._steering.observe(self._settings, option, went_far=went_far, commitments=self._commitments)


def _chance(decision: RouteDecision, agent: str) -> Estimate:
    """Return the estimate that an agent does the task right by itself."""
    estimate = decision.estimate_of(agent)
    return Estimate(0.5, 0.5, EstimateSource.PRIOR) if estimate is None else estimate.success


def _plan_dollars(task: Task, decision: RouteDecision, prices: Prices | None) -> Estimate | None:
    """Return the dollars of one plan by the price list, else those that a task takes of the supervisor; None: unknown."""
    if prices is None:
        expected = decision.estimate_of(decision.supervisor or "")
        return None if expected is None else expected.dollars
    usage = Usage(input_tokens=tokens_of(task), output_tokens=PLAN_TOKENS)
    return Estimate(float(prices.dollars(usage)), 0.0, EstimateSource.PRIOR)
