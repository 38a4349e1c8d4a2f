"""`Router`: decides which agent serves each task and subtask, and learns from what comes of it."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from ...protocols import (
    BudgetExceeded,
    ConfigError,
    DeviceState,
    DeviceStateSource,
    PermissionDenied,
    Sensitivity,
    Side,
    ToolSpec,
    Unavailable,
)
from ..agents import PaceSource, Prefixes, no_pace
from ..agents.breaker import Health
from ..budgets import BudgetBook, Commitment, Spent
from ..budgets.storage import MemoryStorage
from ..task import Task, last_words, tokens_of
from ..task.decisions import AgentEstimate, ConsideredAgent, EstimateSource, RouteDecision, SelectionDecision
from ..task.modes import AgentView, Mode, Situation, Strategy
from ..task.policy import Policy
from ..task.results import Call, Result
from ..task.routing_policy import RouterConfig
from ..task.rules import Ruling, ruling
from .auto import Selector
from .costs import TaskKind, TaskTaken
from .drafts import Drafts, expected_quality
from .eligibility import (
    Eligible,
    JudgedAgent,
    Spending,
    advantage_of,
    as_considered,
    by_side,
    by_utility,
    contradiction,
    eligible,
    far_dollars,
    is_guess,
    languages_of,
    least_taken,
    left_out,
    mode_under_rules,
    only_agent,
    reason_for,
    sensitivity_under_rules,
    strategy_under_rules,
    utility_of,
)
from .habits import reasoned_steps
from .outcome_records import ReportedFault, escalated_drafts, reported_drafts
from .outcomes import OutcomeStore
from .steering import UNKNOWN_DOLLARS, Sessions, Steering
from .success import Success, SuccessModel
from .traces import Known, ScoredAnswer, log_arbitration, log_score, log_task

logger = logging.getLogger(__name__)

_CHOOSING = frozenset({Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.SPECULATE})
"""Strategies in which any agent may come first: in the others each has a role."""
_NO_RULING = Ruling()
_GUESS = "nothing is known yet of how these agents do, so the near side goes first, since it is free"


class Router:
    """Decides, learns and keeps account, for all tasks of one `Hybrid`. Calls may come from any thread.

    Args:
        device_state: looks at the device.
        now: local time.
        monotonic: seconds that never run backwards.
        seed: seed of the exploration; None: a new one each time.
        paces: returns the pace of an agent measured before this process began, by its name.
        budgets: the budget book; None: spending is counted in this process only.
        health: returns the health of an agent by its name; None if it is not tracked.
        ahead: returns the calls that have to end before another one of an agent is worked on, by its name.
    """

    def __init__(
        self,
        *,
        device_state: DeviceStateSource = DeviceState,
        now: Callable[[], datetime] = datetime.now,
        monotonic: Callable[[], float] = time.monotonic,
        seed: int | None = None,
        paces: PaceSource = no_pace,
        budgets: BudgetBook | None = None,
        health: Callable[[str], Health | None] = lambda _agent: None,
        ahead: Callable[[str], int] = lambda _agent: 0,
    ) -> None:
        self.outcomes = OutcomeStore(paces=paces)
        self.running = self.outcomes.running
        self.auto = Selector(self.outcomes)
        self.success = SuccessModel(self.outcomes)
        self.spending = Spending(budgets or BudgetBook(MemoryStorage(), now))
        self.sessions = Sessions(monotonic)
        self.prefixes = Prefixes(monotonic)
        self.steering = Steering(seed, monotonic, self.spending.dollars_of_last)
        self.drafts = Drafts(self.steering)
        self._device_state = device_state
        self._health = health
        self._ahead = ahead
        self._now = now

    def apply_rules(self, task: Task, *, tools: Collection[str] = ()) -> Task:
        """Return the task with the rules' decision, and the mode and the strategy that they give it. A task that has one stays as it is.

        A task that they keep on the device becomes private, so that every agent in the cloud refuses it as well.

        Raises `PermissionDenied` where a rule denies it, `PrivacyViolation` where it was to leave the device and a rule keeps it there.
        """
        if not task.policy.rules or task.ruling is not None:
            return task
        found = self._ruling(task, tools)
        changes: dict[str, object] = {"mode": mode_under_rules(task, found), "sensitivity": sensitivity_under_rules(task, found)}
        if found.strategy is not None and "strategy" not in task.stated:  # a strategy that was not chosen stays open
            changes["strategy"] = found.strategy
        return task.model_copy(update={"policy": task.policy.model_copy(update=changes), "ruling": found})

    def with_strategy(self, task: Task, agents: Sequence[AgentView], *, tools: Collection[str] = ()) -> Task:
        """Return a task whose strategy is `auto` with the one that is chosen for it. Raises what `Selector.settle` raises."""
        if task.policy.strategy is not Strategy.AUTO:
            return task
        dollars = self._dollars_by_side(task, agents, tools)
        price = self._dollar_price(task.policy)
        return self.auto.settle(task, tools=list(tools), sides={agent.side for agent in agents}, dollars=dollars, dollar_price=price)

    def explain_strategy(self, task: Task, agents: Sequence[AgentView], *, tools: Collection[str] = ()) -> SelectionDecision:
        """Return what `auto` would choose for the task, and why, whatever its strategy."""
        task = self.apply_rules(task, tools=tools)
        dollars = self._dollars_by_side(task, agents, tools)
        price = self._dollar_price(task.policy)
        return self.auto.explain(task, tools=list(tools), sides={agent.side for agent in agents}, dollars=dollars, dollar_price=price)

    def explain(self, task: Task, agents: Sequence[AgentView], *, tools: Collection[str] = (), spent: Spent = Spent()) -> RouteDecision:  # noqa: B008 - immutable
        """Return the decision for a task without learning from it and without exploring. Raises what `decide` raises."""
        policy = task.policy
        if policy.router.log is not None and policy.router.learn:
            self.outcomes.read(policy.router.log, may_be_missing=True)
        found = self._ruling(task, tools)
        mode = mode_under_rules(task, found)
        sensitivity = sensitivity_under_rules(task, found)
        remaining = eligible(
            only_agent(agents, task.agent, strategy=policy.strategy, mode=mode, sensitivity=sensitivity) if task.agent else agents,
            strategy=policy.strategy,
            mode=mode,
            sensitivity=sensitivity,
            needs=task.needs(has_tools=bool(tools)),
            executor=policy.supervision.executor,
        )
        remaining.reasons[:0] = [*task.reasons, *found.reasons]
        self._check_breakers(policy, remaining)
        success, judged = self._judged(task, remaining, tools)
        if policy.limits.model_fields_set:
            self._hold_limits(task, remaining, judged, spent)
            judged = [each for each in judged if each.agent in remaining.agents]
        return self._decision(task, mode, found, remaining, judged, agents=agents, success=success)

    def refusal(self, task: Task, agents: Sequence[AgentView], *, tools: Collection[str] = ()) -> RouteDecision | None:
        """Explain a task that the rules deny: every agent is left out. None where they do not deny it."""
        found = self._found(task, tools)
        if found.denied is None and not found.sides_contradict:
            return None
        objection = found.denied or contradiction(found)
        left_out = tuple(ConsideredAgent(agent.name, agent.side, None, None, f"denied: {objection}") for agent in agents)
        return RouteDecision(
            strategy=strategy_under_rules(task, found),
            mode=found.mode or task.policy.mode,
            candidates=(),
            judged=False,
            reasons=found.reasons,
            denied=objection,
            considered=left_out,
            task_class=task.task_class,
        )

    def decide(
        self,
        task: Task,
        agents: Sequence[AgentView],
        *,
        tools: Collection[str] = (),
        spent: Spent = Spent(),  # noqa: B008 - immutable
        commitments: list[Commitment] | None = None,
    ) -> RouteDecision:
        """Settle who serves a task.

        Args:
            tools: names of those that it may call.
            spent: by the task so far.
            commitments: takes what a dollar rate sets aside for the task, until `settle`; None: no bill will come, so that the
                estimate counts as spent.

        Raises `ConfigError` where policy, strategy and agents contradict each other, `PermissionDenied` where a rule denies the task,
        `PrivacyViolation` where only far agents remain for one that has to stay, `Unsupported` where none has the capabilities,
        `Unavailable` where the circuit breakers of all are open, and `BudgetExceeded` where every one would go beyond a limit.
        """
        decision = self.explain(task, agents, tools=tools, spent=spent)
        if not _steers(task.policy.router):
            return decision
        quality = task.policy.objective.quality
        return self.steering.steer(decision, task.policy.router, quality=quality, commitments=commitments)

    def extend(self, task: Task, commitments: list[Commitment], dollars: float | None, *, is_far: bool) -> None:
        """Tell what a task under way has taken so far, so that a dollar rate knows early where it is dearer than expected."""
        if task.policy.router.has_budget:
            self.steering.extend(task.policy.router, commitments, dollars, is_far=is_far)

    def settle(self, task: Task, commitments: Sequence[Commitment], dollars: float | None) -> None:
        """Count what a task was billed, whether it was answered or not, against a dollar rate. None: the bill is unknown."""
        if task.policy.router.has_budget:
            self.steering.settle(task.policy.router, commitments, dollars)

    def learn_costs(self, task: Task, agent: str, calls: Sequence[Call], *, tools: Collection[str]) -> None:
        """Learn what a task took of an agent, over all the calls of its attempt. Answers of a cache say nothing of the agent."""
        tokens = sum(call.usage.total_tokens for call in calls)
        if any(call.saved is not None for call in calls) or not (tokens or any(call.dollars for call in calls)):
            return
        kind = TaskKind(task.task_class, bool(tools), is_follow_up=agent in self.prefixes.holders(task.messages))
        self.running.add_task(agent, TaskTaken.of(calls, prompt_tokens=tokens_of(task)), kind=kind)

    def learn(self, task: Task, decision: RouteDecision, agent: str, *, score: float) -> None:
        """Take in how well an agent did a task, 0 to 1, unless the policy wants nothing learned. Unknown outcomes are not reported here."""
        if task.policy.router.learn:
            self.outcomes.add(ScoredAnswer(decision, agent, score, task.policy.router.head))

    def conclude(self, task: Task, result: Result, *, tools: Sequence[ToolSpec]) -> None:
        """Take note of a task that was answered."""
        if task.policy.router.learn and (len(result.attempts) > 1 or result.has_reasoned):
            learned: list[Known] = [*escalated_drafts(result.attempts), *reasoned_steps(task, result.calls)]
            for each in learned:
                self.outcomes.add(each)
        if task.session is not None and not _is_escalated_under_a_budget(task, result):
            self.sessions.keep(task.session, result.agent, user=task.user)
        if task.session is not None and task.caller is not None and result.messages:
            self.sessions.keep_calls(task.session, [call.id for call in result.messages[-1].tool_calls], result.agent, user=task.user)
        self.prefixes.note(task.messages, [attempt.agent for attempt in result.attempts if attempt.steps])
        if task.policy.router.log is not None:
            try:
                log_task(task.policy.router.log, task, result, tools=tools, time=self._now())
                log_arbitration(task.policy.router.log, result)
            except ConfigError as error:  # the answer is paid for, and stands without its record
                logger.warning("a decision is not on record: %s", error)

    def report(self, result: Result, policy: Policy, *, score: float, task_class: str = "", because: str = "") -> None:
        """Learn how good an answer was, 0 to 1, and why, and with it the strategy that `auto` chose. Raises `ConfigError` where a file
        cannot be written."""
        is_public = result.label.sensitivity is Sensitivity.PUBLIC
        settings = policy.router
        if settings.least_quality is not None and (expected := expected_quality(result)) is not None:
            self.steering.report(settings, result.side, expected=expected, score=score)
        if settings.learn:
            if settings.log is not None:  # before this score is in it, which would count twice
                self.outcomes.read(settings.log, may_be_missing=True)
            known_class = task_class or result.decision.task_class
            for draft in reported_drafts(result.attempts, result.agent, score, known_class):
                self.outcomes.add(draft)
            self.outcomes.add(ScoredAnswer(result.decision, result.agent, score, settings.head, task_class))
            if because:
                self.outcomes.add(ReportedFault(known_class, because, result.label.tier, result.user))
        if settings.log is not None:
            log_score(settings.log, result, score, task_class=task_class, because=because if is_public else "")
        if result.selection is not None:
            self.auto.report(result, policy.auto, score=score, task_class=task_class)

    def _dollars_by_side(self, task: Task, agents: Sequence[AgentView], tools: Collection[str]) -> dict[Side, float | None]:
        """Return the dollars that such a task was seen to take of the cheapest agent of each side. None: no such task was billed.

        Near agents without a price are free.
        """
        tokens, kind = tokens_of(task), TaskKind(task.task_class, bool(tools))
        found: dict[Side, float | None] = {}
        for agent in agents:
            dollars = self.running.costs(agent.name, agent.side, tokens=tokens, prices=agent.prices, kind=kind).dollars
            is_known = dollars is not None and (dollars.source is not EstimateSource.PRIOR or not dollars.value)
            value, other = dollars.value if dollars is not None and is_known else None, found.get(agent.side)
            found[agent.side] = value if other is None else other if value is None else min(value, other)
        return found

    def _ruling(self, task: Task, tools: Collection[str]) -> Ruling:
        found = self._found(task, tools)
        if found.denied is not None:
            raise PermissionDenied(
                f"the policy refuses this task: {found.denied}", hint="nearfar policy explain prints every rule that applies"
            )
        if found.sides_contradict:
            raise PermissionDenied(contradiction(found), hint="nearfar policy check finds such rules")
        return found

    def _found(self, task: Task, tools: Collection[str]) -> Ruling:
        if task.ruling is not None:
            return task.ruling
        return ruling(task.policy.rules, self._situation(task, tools)) if task.policy.rules else _NO_RULING

    def _situation(self, task: Task, tools: Collection[str]) -> Situation:
        policy = task.policy
        asks = any(rule.when.language for rule in policy.rules)
        return Situation(
            sensitivity=policy.sensitivity,
            tokens=tokens_of(task),
            now=self._now(),
            task_class=task.task_class,
            role=task.role,
            tools=frozenset(tools),
            tags=frozenset(task.tags),
            languages=languages_of(task) if asks else frozenset({None}),
            device=self._device_state(),
            budget_left=self.spending.share_left(task),
        )

    def _judged(self, task: Task, remaining: Eligible, tools: Collection[str]) -> tuple[Success, list[JudgedAgent]]:
        """Estimate success, costs and utility of each remaining agent. The prompt is read only if there is a choice."""
        agents = remaining.agents
        is_weighed = remaining.supervisor is not None and task.policy.router.has_budget
        if len(agents) > 1 and (is_weighed or task.policy.strategy in _CHOOSING):
            success = self.success.success(last_words(task.messages), task.task_class, agents, head=task.policy.router.head)
        else:
            success = self.success.unread(agents, task.task_class)
        tokens, holders = tokens_of(task), self.prefixes.holders(task.messages)
        kind = TaskKind(task.task_class, bool(tools))
        later = kind._replace(is_follow_up=True) if holders else kind
        estimates = [self._estimate(agent, success, tokens, later if agent.name in holders else kind) for agent in agents]
        dearest = max((each.dollars.value for each in estimates if each.dollars is not None), default=0.0) or UNKNOWN_DOLLARS
        utilities = [utility_of(task.policy.objective, each, dearest) for each in estimates]
        return success, list(map(JudgedAgent, agents, estimates, utilities))

    def _estimate(self, agent: AgentView, success: Success, tokens: int, kind: TaskKind) -> AgentEstimate:
        costs = self.running.costs(agent.name, agent.side, tokens=tokens, prices=agent.prices, kind=kind, ahead=self._ahead(agent.name))
        return AgentEstimate(
            success=success.estimates[agent.name],
            predicted=success.predicted[agent.name],
            by_length=success.by_length.get(agent.name),
            first_token_seconds=costs.first_token_seconds,
            seconds=costs.seconds,
            dollars=costs.dollars,
            joules=costs.joules,
            queue_seconds=costs.queue_seconds,
            cached_share=costs.cached_share,
        )

    def _check_breakers(self, policy: Policy, remaining: Eligible) -> None:
        """Leave out agents whose circuit breaker is open. Raises `Unavailable` if no agent is left."""
        waits: list[float] = []
        for agent in tuple(remaining.agents):
            health = self._health(agent.name)
            if health is None:
                continue
            health.settings = policy.breakers
            if (objection := health.objection()) is not None:
                remaining.leave_out_of_all_roles(agent, objection.reason)
                waits.append(objection.retry_after)
            elif (note := health.note) is not None:
                remaining.reasons.append(note)
        if not remaining.agents:
            objections = "; ".join(f"{name}: {reason}" for name, reason in remaining.objections.items())
            hint = "[policy.breakers] sets when circuit breakers open"
            raise Unavailable(f"no agent may be asked now: {objections}", hint=hint, retry_after=min(waits))

    def _hold_limits(self, task: Task, remaining: Eligible, judged: Sequence[JudgedAgent], spent: Spent) -> None:
        """Leave out agents that would exceed a limit, judged by measured costs and by the price of the prompt alone."""
        for each in judged:
            expected = least_taken(each, tokens=tokens_of(task))
            reason = self.spending.objection(task, expected, spent=spent)
            if reason is not None:
                remaining.leave_out_of_all_roles(each.agent, reason)
        if not remaining.agents:
            objections = "; ".join(f"{name}: {reason}" for name, reason in remaining.objections.items())
            raise BudgetExceeded(f"no agent is left within the limits: {objections}", hint="[policy.limits] sets them")

    def _decision(
        self,
        task: Task,
        mode: Mode,
        found: Ruling,
        remaining: Eligible,
        judged: Sequence[JudgedAgent],
        *,
        agents: Sequence[AgentView],
        success: Success,
    ) -> RouteDecision:
        policy = task.policy
        settings = policy.router
        threshold = self.steering.threshold(settings, far_dollars(judged)) if _steers(settings) else settings.threshold
        order, is_bound = list(judged), False
        advantage = advantage_of(judged)
        if policy.strategy in _CHOOSING:
            is_free = policy.strategy is Strategy.ROUTE and mode is Mode.AUTO
            is_blind = is_free and is_guess(judged, policy.router)
            order = by_utility(judged, threshold, advantage) if is_free and not is_blind else by_side(judged, policy.strategy)
            order, is_bound = self._preferred(task, order, found, remaining)
            if policy.strategy is Strategy.CASCADE and mode is Mode.AUTO and not is_bound:
                order = self._without_draft(policy, order, threshold, remaining)
            if is_free and advantage is not None and not is_bound:
                remaining.reasons.append(_GUESS if is_blind else reason_for(order, advantage, threshold))
                remaining.reasons.extend([success.reason] * bool(success.reason))
        return RouteDecision(
            strategy=policy.strategy,
            mode=mode,
            candidates=tuple(each.agent.name for each in order),
            judged=policy.strategy is Strategy.CASCADE and order[0].agent.side is Side.NEAR,
            reasons=tuple(remaining.reasons),
            supervisor=remaining.supervisor,
            considered=(*map(as_considered, order), *left_out(agents, remaining)),
            advantage=advantage,
            threshold=threshold,
            similarity=success.similarity,
            predictor=success.predictor,
            is_bound=is_bound,
            task_class=task.task_class,
        )

    def _without_draft(self, policy: Policy, order: list[JudgedAgent], threshold: float, remaining: Eligible) -> list[JudgedAgent]:
        """Put the far agent of a cascade first where a draft is not worth its price."""
        if policy.router.shadow or [each.agent.side for each in order[:2]] != [Side.NEAR, Side.FAR]:
            return order
        near, far, *rest = order
        quality = policy.objective.quality
        chances = [each.estimate.success.value for each in (near, far)]
        near_price, far_price = (quality * chance - each.utility for chance, each in zip(chances, (near, far), strict=True))
        saves = self.drafts.saves_the_draft(
            chances[1] - chances[0], quality=quality, far_price=far_price + threshold, near_price=near_price
        )
        if not saves:
            return order
        remaining.reasons.append(f"{far.agent.name} at once: a draft of {near.agent.name} takes more than it is likely to save")
        return [far, near, *rest]

    def _dollar_price(self, policy: Policy) -> float:
        """Return the worth of a right answer that a dollar has to bring at the moment, beyond its weight in the objective."""
        quality = policy.objective.quality
        if not quality or not policy.router.has_budget:
            return 0.0
        return max(self.steering.dollar_multiplier(policy.router), -policy.objective.dollars) / quality

    def _preferred(self, task: Task, order: list[JudgedAgent], found: Ruling, remaining: Eligible) -> tuple[list[JudgedAgent], bool]:
        """Apply rules, session and order of fallback to the order. Return it, and True if rules or session settled the first agent."""
        names = [each.agent.name for each in order]
        first = self._first(task, names, found, remaining)
        if first is None and not task.policy.fallback.order:
            return order, False
        rest = [name for name in (first, *names[:1], *task.policy.fallback.order, *names) if name in names]
        by_name = {each.agent.name: each for each in order}
        return [by_name[name] for name in dict.fromkeys(rest)], first is not None

    def _first(self, task: Task, names: Sequence[str], found: Ruling, remaining: Eligible) -> str | None:
        """Return the agent that a rule or the session puts first, whatever its utility; None if neither does.

        Results of calls that the caller of a turn has run go to the agent that made the calls, whatever the policy says of follow-ups.
        """
        if found.agent is not None:
            if found.agent in names:
                return found.agent
            remaining.reasons.append(f"the rules name {found.agent}, which may not serve this task")
        stickiness = task.policy.stickiness
        if task.session is None or task.unstick:
            return None
        result = task.messages[-1].tool_result
        made = None if result is None else self.sessions.agent_of_call(task.session, result.call_id, user=task.user)
        if made in names:
            remaining.reasons.append(f"{made} made the call whose result is the last message")
            return made
        if not stickiness.follow_ups:
            return None
        agent = self.sessions.agent_of(task.session, seconds=stickiness.seconds, user=task.user)
        if agent is None or agent not in names:
            return None
        remaining.reasons.append(f"{agent} answered last in this session")
        return agent


def _steers(settings: RouterConfig) -> bool:
    """Return whether anything but the task itself decides: a budget, exploration, or shadow mode."""
    return settings.shadow or bool(settings.explore_share) or settings.has_budget


def _is_escalated_under_a_budget(task: Task, result: Result) -> bool:
    """Return whether the far agent answered in place of a weighed draft. If that stuck to the session, all later turns would go far."""
    return result.decision.judged and result.agent != result.decision.candidates[0] and task.policy.router.has_budget
