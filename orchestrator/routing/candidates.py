"""Candidates of a routing decision: their utility by the policy's objective, and the order in which they are tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...protocols import Side, Usage
from ..budgets.book import Spent
from ..task.modes import AgentView, Strategy
from ..task.results import AgentEstimate, ConsideredAgent, Estimate, EstimateSource
from ..task.routing_policy import ObjectiveConfig, RouterConfig
from .eligibility import Eligible

PLAN_TOKENS: Final = 300
"""Tokens of a plan."""


@dataclass(frozen=True, slots=True)
class JudgedAgent:
    """A candidate with what is expected of it."""

    agent: AgentView
    estimate: AgentEstimate
    utility: float


def utility_of(objective: ObjectiveConfig, estimate: AgentEstimate, unknown_dollars: float) -> float:
    """Return the policy's objective. An unknown price counts as the dearest known one, since it is not free."""
    dollars = unknown_dollars if estimate.dollars is None else estimate.dollars.value
    joules = 0.0 if estimate.joules is None else estimate.joules.value
    gain = objective.quality * estimate.success.value
    return gain - objective.dollars * dollars - objective.seconds * estimate.seconds.value - objective.joules * joules


def least_taken(judged: JudgedAgent, *, tokens: int) -> Spent:
    """Return the least that a task takes: the price of its prompt, and the measured costs of such tasks."""

    def measured(figure: Estimate | None) -> float:
        return figure.value if figure is not None and figure.source in (EstimateSource.MEASURED, EstimateSource.PROFILE) else 0.0

    estimate, prices = judged.estimate, judged.agent.prices
    prompt = 0.0 if prices is None else float(prices.dollars(Usage(input_tokens=tokens)))
    is_met = judged.agent.capabilities is not None  # else its price may be known once it is opened, and holds the call back then
    dollars = None if estimate.dollars is None and is_met else max(prompt, measured(estimate.dollars))
    joules = None if estimate.joules is None and judged.agent.side is Side.NEAR else measured(estimate.joules)
    return Spent(dollars, tokens, measured(estimate.seconds), joules)


def advantage_of(judged: Sequence[JudgedAgent]) -> float | None:
    """Return the utility of the best far candidate less that of the best near one; None if a side has no candidate."""
    best: Mapping[Side, float] = {
        side: max(each.utility for each in judged if each.agent.side is side) for side in {each.agent.side for each in judged}
    }
    return best[Side.FAR] - best[Side.NEAR] if len(best) == 2 else None


def far_dollars(judged: Sequence[JudgedAgent]) -> Estimate | None:
    """Return the expected dollars of the best far candidate; None if they are unknown or there is no far candidate."""
    best = max((each for each in judged if each.agent.side is Side.FAR), key=lambda each: each.utility, default=None)
    return None if best is None else best.estimate.dollars


def by_side(judged: Sequence[JudgedAgent], strategy: Strategy) -> list[JudgedAgent]:
    """Order candidates by side as given, the most useful agent of each side first. In a cascade the far side follows the first draft."""
    sides = list(dict.fromkeys(each.agent.side for each in judged))
    order = sorted(judged, key=lambda each: (sides.index(each.agent.side), -each.utility))
    return [*order[:1], *sorted(order[1:], key=lambda each: each.agent.side is Side.NEAR)] if strategy is Strategy.CASCADE else order


def by_utility(judged: Sequence[JudgedAgent], threshold: float, advantage: float | None) -> list[JudgedAgent]:
    """Put the best agent of the side that the advantage speaks for first, then the others by utility."""
    first = Side.FAR if advantage is not None and advantage > threshold else Side.NEAR
    ranked = sorted(judged, key=lambda each: -each.utility)
    best = next((each for each in ranked if each.agent.side is first), ranked[0])
    return [best, *(each for each in ranked if each is not best)]


def is_guess(judged: Sequence[JudgedAgent], settings: RouterConfig) -> bool:
    """Return True if no outcome of these agents is known, and no budget asks for some tasks to go far all the same."""
    return not settings.has_budget and all(each.estimate.success.source is EstimateSource.PRIOR for each in judged)


def as_considered(each: JudgedAgent) -> ConsideredAgent:
    return ConsideredAgent(each.agent.name, each.agent.side, each.estimate, each.utility)


def left_out(agents: Sequence[AgentView], remaining: Eligible) -> list[ConsideredAgent]:
    out = (agent for agent in agents if agent not in remaining.agents)
    return [ConsideredAgent(agent.name, agent.side, None, None, remaining.objections[agent.name]) for agent in out]


def reason_for(order: Sequence[JudgedAgent], advantage: float, threshold: float) -> str:
    first = order[0]
    expected = first.estimate.success
    relation = "above" if first.agent.side is Side.FAR else "not above"
    limit = f"{relation} the threshold of {threshold:.3g}"
    return (
        f"{first.agent.name} first: it is right with probability {expected.value:.2f} ({expected.source}), "
        f"and the far side is worth {advantage:+.3g} more than the near one, {limit}"
    )
