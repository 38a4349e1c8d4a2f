"""The agents that may serve a task, by rules, mode, strategy, sensitivity, capabilities and limits, and the order to try them in."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ...protocols import (
    Capabilities,
    ConfigError,
    InvalidRequest,
    PermissionDenied,
    PrivacyViolation,
    Sensitivity,
    Side,
    StoreUnavailable,
    Unsupported,
    Usage,
)
from ...protocols.steps import Value
from ..budgets import MEASURES, BudgetBook, BudgetScope, Spent
from ..task import Needs, Task
from ..task.decisions import AgentEstimate, ConsideredAgent, Estimate, EstimateSource
from ..task.modes import CLOUD_LIKE, FAR_FIRST, ONLY_TEXT, SUPERVISED, TEXT_ONLY, AgentView, Mode, Strategy, language_of, primary_language
from ..task.policy import Policy
from ..task.routing_policy import HOUR, AmountsConfig, LimitsConfig, ObjectiveConfig, RouterConfig
from ..task.rules import RESTRICTIONS, Ruling
from .steering import OUT_OF_REACH

if TYPE_CHECKING:
    from ..budgets.account import Account

SIDES_OF_MODE: dict[Mode, tuple[Side, ...]] = {
    Mode.ONLY_ON_DEVICE: (Side.NEAR,),
    Mode.PREFER_ON_DEVICE: (Side.NEAR, Side.FAR),
    Mode.AUTO: (Side.NEAR, Side.FAR),
    Mode.PREFER_IN_CLOUD: (Side.FAR, Side.NEAR),
    Mode.ONLY_IN_CLOUD: (Side.FAR,),
}


class SidesContradict(InvalidRequest, ConfigError):
    """Mode and strategy leave no side to work. A policy that says so itself is refused before, so the task's own options do."""


_NOT_NAMED: Final = "another agent is named as the only one that may answer"


@dataclass(slots=True)
class Eligible:
    """The agents that remain, in the order of their sides, and why others do not."""

    agents: list[AgentView]
    reasons: list[str]
    objections: dict[str, str] = field(default_factory=dict)
    """Why an agent was left out, by its name."""
    supervisor: str | None = None

    def leave_out(self, agent: AgentView, objection: str) -> None:
        self.agents.remove(agent)
        self.objections[agent.name] = objection
        self.reasons.append(f"{agent.name} left out: {objection}")

    def leave_out_of_all_roles(self, agent: AgentView, objection: str) -> None:
        """Leave an agent out as executor and as supervisor, because it may not be asked at all."""
        self.leave_out(agent, objection)
        is_alone = bool(self.agents) and self.agents[0].name == self.supervisor  # no agent supervises itself
        self.supervisor = None if is_alone or agent.name == self.supervisor else self.supervisor


def eligible(
    agents: Sequence[AgentView],
    *,
    strategy: Strategy,
    mode: Mode,
    sensitivity: Sensitivity,
    needs: Needs,
    executor: Side = Side.NEAR,
) -> Eligible:
    """Apply the hard rules. `executor` is the side that works under supervision.

    Raises `ConfigError` where strategy and mode contradict each other or no agent of the wanted side is configured,
    `PrivacyViolation` where only far agents remain for a private task, `Unsupported` where none has the capabilities, or the strategy
    works on text and the task carries more than that.
    """
    if strategy in TEXT_ONLY and (needs.images or needs.files):
        raise Unsupported(f"strategy {strategy}: {ONLY_TEXT}", hint="use device, cloud, route or cascade for images and documents")
    if strategy in SUPERVISED:
        return _assign_roles(agents, strategy=strategy, mode=mode, sensitivity=sensitivity, needs=needs, executor=executor)
    order = _order(strategy, mode)
    remaining = [agent for side in order for agent in agents if agent.side is side]
    found = Eligible(remaining, [f"strategy {strategy}, mode {mode}: {' then '.join(order)}"])
    if strategy is Strategy.MINIONS:
        _check_both_sides(remaining, order, mode)
    if not remaining or (strategy in CLOUD_LIKE and not _has(Side.FAR, remaining)):
        wanted = Side.FAR if strategy in CLOUD_LIKE else " or ".join(order)
        raise ConfigError(f"no {wanted} agent is configured", hint=f"strategy {strategy} with mode {mode} needs one")
    _note_sides(agents, order, found, mode)
    _keep_private(found, strategy, sensitivity)
    _keep_capable(found, needs)
    return found


def _note_sides(agents: Sequence[AgentView], sides: Sequence[Side], found: Eligible, mode: Mode) -> None:
    """Record why agents were left out by mode and strategy; the first reason of the decision says it already."""
    for agent in agents:
        if agent.side not in sides:
            found.objections[agent.name] = f"mode {mode} and the strategy leave the {agent.side} side out"


def _assign_roles(
    agents: Sequence[AgentView], *, strategy: Strategy, mode: Mode, sensitivity: Sensitivity, needs: Needs, executor: Side
) -> Eligible:
    """Assign executor and supervisor. The executor's side must be allowed; a supervisor that is not allowed is left out."""
    other = Side.FAR if executor is Side.NEAR else Side.NEAR
    allowed = SIDES_OF_MODE[mode]
    if executor not in allowed:
        hint = "change the mode, or supervision.executor"
        raise SidesContradict(f"the {executor} side is to work, which contradicts mode {mode}", hint=hint)
    if not _has(executor, agents):
        raise ConfigError(f"no {executor} agent is configured", hint=f"strategy {strategy} needs one to work")
    if executor is Side.FAR and sensitivity is not Sensitivity.PUBLIC:
        raise leaves_the_device()
    found = Eligible(
        [agent for side in (executor, other) for agent in agents if agent.side is side and side in allowed],
        [f"strategy {strategy}, mode {mode}: {executor} works, {other} supervises"],
    )
    if other not in allowed:
        found.reasons.append(f"{executor} works alone: mode {mode} keeps the {other} side out")
    _note_sides(agents, allowed, found, mode)
    _keep_private(found, strategy, sensitivity)
    found.supervisor = next((agent.name for agent in found.agents if agent.side is other), None)
    if found.supervisor is None and other in allowed and not _has(other, agents):
        raise ConfigError(f"no {other} agent is configured", hint=f"strategy {strategy} needs one to supervise")
    _keep_capable(found, needs)
    if found.agents[0].side is not executor:
        found.supervisor = None  # no agent supervises itself
    return found


def _order(strategy: Strategy, mode: Mode) -> tuple[Side, ...]:
    """Return the sides to try, in order."""
    allowed = SIDES_OF_MODE[mode]
    first = Side.NEAR if strategy is Strategy.DEVICE else Side.FAR if strategy in CLOUD_LIKE else None
    if first is not None and first not in allowed:
        raise SidesContradict(f"strategy {strategy} contradicts mode {mode}", hint="change one of the two")
    if strategy is Strategy.DEVICE:
        return (Side.NEAR,)
    if strategy in FAR_FIRST:
        return tuple(sorted(allowed, key=lambda side: side is not Side.FAR))
    if strategy is Strategy.CASCADE:
        return tuple(sorted(allowed, key=lambda side: side is not Side.NEAR))
    return allowed


def _check_both_sides(agents: Sequence[AgentView], order: Sequence[Side], mode: Mode) -> None:
    """Check the sides that minions need. The near side reads the context; the far side writes the jobs, unless the mode forbids it."""
    if Side.NEAR not in order:
        raise SidesContradict(f"strategy {Strategy.MINIONS} contradicts mode {mode}", hint="its context is read on this device")
    for side in order:
        if not _has(side, agents):
            hint = f"strategy {Strategy.MINIONS} needs both sides; with mode {Mode.ONLY_ON_DEVICE} the near one does it alone"
            raise ConfigError(f"no {side} agent is configured", hint=hint)


def _has(side: Side, agents: Sequence[AgentView]) -> bool:
    return any(agent.side is side for agent in agents)


def _keep_private(found: Eligible, strategy: Strategy, sensitivity: Sensitivity) -> None:
    if sensitivity is Sensitivity.PUBLIC:
        return
    far = [agent for agent in found.agents if agent.side is Side.FAR]
    for agent in far:
        found.leave_out(agent, "the task is private and stays on this device")
    # A user who asks for the cloud by name should get an error rather than the device's answer.
    if not found.agents or (far and strategy in {*CLOUD_LIKE, Strategy.MINIONS}):
        raise leaves_the_device()


def only_agent(agents: Sequence[AgentView], name: str, *, strategy: Strategy, mode: Mode, sensitivity: Sensitivity) -> list[AgentView]:
    """Return the one agent that may answer, by name.

    Raises `PrivacyViolation` for a far one and a private task, `InvalidRequest` for one that mode or strategy leave out, or that there is
    not.
    """
    found = [agent for agent in agents if agent.name == name]
    if not found:
        raise InvalidRequest(f"there is no agent {name!r}", hint=f"the agents are {', '.join(agent.name for agent in agents)}")
    if found[0].side is Side.FAR and sensitivity is Sensitivity.PRIVATE:
        raise leaves_the_device()
    other = {Strategy.DEVICE: Side.FAR, Strategy.CLOUD: Side.NEAR}.get(strategy)
    if found[0].side not in SIDES_OF_MODE[mode] or found[0].side is other:
        raise InvalidRequest(f"{name} alone may answer, which contradicts mode {mode} or strategy {strategy}", hint="change one of them")
    return found


def leaves_the_device() -> PrivacyViolation:
    """Return the error for a private task that no near agent is left for."""
    return PrivacyViolation(
        "the task is private and was to be served by a far agent",
        hint='pass sensitivity="public" (--public) if its text may leave this device',
    )


def _keep_capable(found: Eligible, needs: Needs) -> None:
    for agent in list(found.agents):
        missing = _missing(needs, agent.capabilities)
        if missing:
            found.leave_out(agent, f"it lacks {' and '.join(missing)}")
    if not found.agents:
        raise Unsupported("no agent has the capabilities that the task needs", hint="; ".join(found.reasons[1:]))


def _missing(needs: Needs, capabilities: Capabilities | None) -> list[str]:
    """Return the missing capabilities. A far agent that was not opened yet may have any; opening it finds out."""
    return needs.missing_in(capabilities) if capabilities is not None else []


class PolicyFinding(Value):
    """Something about a policy that its author should know."""

    kind: Literal["error", "warning"]
    """With an error the policy cannot be used."""
    where: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f" ({self.hint})" if self.hint else "")


def unknown_prices(policy: Policy, models: Mapping[str, str]) -> Iterator[PolicyFinding]:
    """Warn of each far agent of unknown price where dollars are limited. `models`: their models, by the agents' names."""
    limits, rate = policy.limits, policy.router.dollar_rate
    scopes = ("call", "task", "session", "user", "day")
    limited = [f"{name} (${most:g})" for name in scopes if (most := getattr(limits, name).dollars) is not None]
    if not limited and rate is None:
        return
    period = "" if rate is None else "hour" if rate[1] == HOUR else "day"
    where = "policy.limits" if limited else f"policy.router.dollars_per_{period}"
    said = ", ".join([*limited, *([] if rate is None else [f"{period} (${rate[0]:g})"])])
    outcome = "not counted" if not limited or limits.unknown_price == "allow" else "refused"
    for agent, model in models.items():
        problem = f"dollars are limited per {said}, and the price of {agent} (model {model!r}) is unknown: its calls are {outcome}"
        yield PolicyFinding(
            kind="warning",
            where=where,
            problem=problem,
            hint="state its prices, as in [far.prices], or import a table: nearfar prices import",
        )


logger = logging.getLogger(__name__)


class Spending:
    """The balances of a book, held against the limits of a policy. Calls may come from any thread."""

    def __init__(self, book: BudgetBook) -> None:
        self._book = book

    def account(self, task: Task) -> "Account":
        """Return the account that the task spends from."""
        from ..budgets.account import Account  # it waits for others, which deciding and explaining never do

        router = task.policy.router
        is_paced = self._book.is_shared and router.dollar_rate is not None
        limits = task.policy.limits
        return Account(self._book, limits, task=task.idempotency_key, session=task.session, user=task.user, is_paced=is_paced)

    def left_of_day(self, limits: LimitsConfig) -> dict[str, float]:
        """Return what the limits for the day leave, by measure; nothing for a measure without a limit. Raises `StoreUnavailable`."""
        spent = self._book.balance(BudgetScope("day")).spent
        caps = {measure: getattr(limits.day, measure) for measure in MEASURES}
        return {measure: max(cap - spent.of(measure), 0.0) for measure, cap in caps.items() if cap is not None}

    def dollars_of_last(self, seconds: float) -> float:
        """Return the dollars that tasks under a dollar rate took lately, of all processes; 0 if the book is not shared."""
        try:
            return self._book.dollars_of_last(round(seconds / 60)) if self._book.is_shared else 0.0
        except StoreUnavailable as error:
            logger.warning("what other processes have spent lately is not known: %s", error)
            return 0.0

    def share_left(self, task: Task) -> float | None:
        """Return the smallest share left of the limits for the session, the user and the day; None if there are no such limits."""
        shares = [_share_left(amounts, spent) for _, amounts, spent in self._scopes(task)]
        return min((share for share in shares if share is not None), default=None)

    def objection(self, task: Task, expected: Spent, *, spent: Spent) -> str | None:
        """Return why the expected cost of the task would exceed a limit; None if it would not. `spent`: by the task so far.

        What is reserved for calls under way is passed over here: most of it comes back before the call is made.
        """
        limits = task.policy.limits
        for name, amounts, already in (("task", limits.task, spent), *self._scopes(task)):
            for measure in MEASURES:
                reason = _excess(measure, amounts, already, expected, allows_unknown=limits.unknown_price == "allow")
                if reason is not None:
                    return f"the limit for the {name}: {reason}"
        return None

    def _scopes(self, task: Task) -> Iterator[tuple[str, AmountsConfig, Spent]]:
        """Yield the scopes that have a limit, with the limit and what is spent."""
        for scope, amounts in _limited(task.policy.limits, task):
            balance = self._book.balance(scope)
            spent = balance.spent.spent
            is_known = not balance.unpriced or task.policy.limits.unknown_price == "allow"
            yield scope.kind, amounts, Spent(spent.dollars if is_known else None, spent.tokens, spent.seconds, spent.joules)


def _limited(limits: LimitsConfig, task: Task) -> Iterator[tuple[BudgetScope, AmountsConfig]]:
    session = () if task.session is None else ((BudgetScope.of_session(task.session, task.user), limits.session),)
    for scope, amounts in (*session, (BudgetScope("user", task.user), limits.user), (BudgetScope("day"), limits.day)):
        if amounts != AmountsConfig():
            yield scope, amounts


def _share_left(amounts: AmountsConfig, spent: Spent) -> float | None:
    shares = []
    for measure in MEASURES:
        limit, used = getattr(amounts, measure), getattr(spent, measure)
        if limit is not None:
            shares.append(max(1 - used / limit, 0.0) if used is not None and limit else 0.0)
    return min(shares, default=None)


def _excess(measure: str, amounts: AmountsConfig, already: Spent, more: Spent, *, allows_unknown: bool) -> str | None:
    """Return why a measure would exceed its limit, or None. Unknown joules pass; unknown dollars do not, since they are not free."""
    limit, spent, expected = getattr(amounts, measure), getattr(already, measure), getattr(more, measure)
    if limit is None or (measure in ("dollars", "joules") and expected == 0):
        return None  # free agents may serve when all is spent, and when spending is unknown
    if measure == "joules" or allows_unknown:
        spent, expected = spent or 0.0, expected or 0.0
    if spent is None or expected is None:
        return f"the price is unknown, and no more than {limit:g} {measure} may be spent"
    if limit == 0:
        return f"it may spend no {measure}, so that only what takes none may serve"
    if spent + expected > limit or spent >= limit:
        return f"{spent:.4g} of {limit:g} {measure} are spent, and about {expected:.4g} more would be"
    return None


def contradiction(found: Ruling) -> str:
    """Return why rules that contradict each other leave no side for a task."""
    return f"rules leave no side for this task: {'; '.join(found.reasons)}"


def mode_under_rules(task: Task, found: Ruling) -> Mode:
    """Return the mode of a task: a rule's restriction always holds; a rule's preference yields to the task's own mode and to
    restrictions."""
    own = task.policy.mode
    if found.mode is None:
        return own
    if found.mode not in RESTRICTIONS:
        return own if own in RESTRICTIONS or "mode" in task.stated else found.mode
    if own is found.mode or own not in RESTRICTIONS:
        return found.mode
    if own is Mode.ONLY_IN_CLOUD and "mode" not in task.stated:
        return found.mode  # the policy's own mode is what holds where no rule says otherwise
    error = PrivacyViolation if found.mode is Mode.ONLY_ON_DEVICE else PermissionDenied
    raise error(f"the task has mode {own}, but the policy says otherwise: {'; '.join(found.reasons)}")


def sensitivity_under_rules(task: Task, found: Ruling) -> Sensitivity:
    """Return the sensitivity of a task: rules that keep it on the device make it private."""
    return Sensitivity.PRIVATE if found.mode is Mode.ONLY_ON_DEVICE else task.policy.sensitivity


def strategy_under_rules(task: Task, found: Ruling) -> Strategy:
    """Return the strategy of a task: the one stated with it, else that of the rules, else its policy's."""
    return task.policy.strategy if found.strategy is None or "strategy" in task.stated else found.strategy


def languages_of(task: Task) -> frozenset[str | None]:
    """Return the languages of the user's messages and context, or the one that the app states."""
    if task.language is not None:
        return frozenset({primary_language(task.language)})
    texts = [message.text for message in task.messages if message.role == "user"]
    return frozenset(language_of(text) for text in [*texts, *([task.context] if task.context else [])] if text.strip())


class JudgedAgent(NamedTuple):
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
    near, far = ([each.utility for each in judged if each.agent.side is side] for side in (Side.NEAR, Side.FAR))
    return max(far) - max(near) if near and far else None


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
    ranked = sorted(judged, key=attrgetter("utility"), reverse=True)
    best = next((each for each in ranked if each.agent.side is first), ranked[0])
    return [best, *(each for each in ranked if each is not best)]


def is_guess(judged: Sequence[JudgedAgent], settings: RouterConfig) -> bool:
    """Return True if no outcome of these agents is known, and no budget asks for some tasks to go far all the same."""
    return not settings.has_budget and all(each.estimate.success.source is EstimateSource.PRIOR for each in judged)


def as_considered(each: JudgedAgent) -> ConsideredAgent:
    return ConsideredAgent(each.agent.name, each.agent.side, each.estimate, each.utility)


def left_out(agents: Sequence[AgentView], remaining: Eligible) -> list[ConsideredAgent]:
    names = {agent.name for agent in remaining.agents}
    return [
        ConsideredAgent(agent.name, agent.side, None, None, remaining.objections.get(agent.name, _NOT_NAMED))
        for agent in agents
        if agent.name not in names
    ]


def reason_for(order: Sequence[JudgedAgent], advantage: float, threshold: float) -> str:
    first = order[0]
    expected = first.estimate.success
    relation = "above" if first.agent.side is Side.FAR else "not above"
    limit = f"{relation} the threshold of {threshold:.3g}"
    if abs(threshold) >= OUT_OF_REACH:
        limit = "and the budget has no room at the moment" if threshold > 0 else "and the budget has room to spend"
    return (
        f"{first.agent.name} first: it is right with probability {expected.value:.2f} ({expected.source}), "
        f"and the far side is worth {advantage:+.3g} more than the near one, {limit}"
    )
