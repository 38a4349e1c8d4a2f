"""Habits of agents, as outcomes tell them: how long they reason, and how often the near agent proposes the step that far takes.

A share of the usual reasoning is asked for: a relative budget adapts to difficulty, an absolute one does not (e1, arXiv 2510.27042).
Reasoning tokens are taken as log-normal, with running moments of their logarithms for each agent, class of task and length of prompt. A
step that was cut at a limit counts as what such a step would have taken on average (Dempster, Laird and Rubin 1977, censored data).

A proposal's odds are learned from counts: of all proposals of its kind, of those that near was as sure of, and of these in the same class
of tasks. Each group starts from the one around it (Beta distributions whose prior is the wider group's mean).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import erfc, exp, inf, log, log10, pi, prod, sqrt
from threading import Lock
from typing import Final, NamedTuple, Self

from pydantic import Field

from ...protocols import AgentCard, Effort, Side, StepRequest
from ...protocols.steps import MOST_TOKENS, Value
from ..task import Task, tokens_by_length
from ..task.results import STEP, AskedReasoning, Call, JudgedProposal, ToolOutcome
from .costs import Group, lineage, nested

_KEPT: Final = 0.98
"""Share of its weight that a step keeps with each later one: about the last 50 count."""
_WIDER: Final = 5.0
"""Steps that the wider group counts for."""
_PRIOR: Final = 0.5
"""Steps that the prior of the side counts for."""
_USUAL: Final[Mapping[Side, float]] = {Side.NEAR: 400.0, Side.FAR: 800.0}
"""Tokens, in the median, before any step was seen."""
_SPREAD: Final = 0.8
"""Standard deviation of their logarithm then."""
_LEAST_SPREAD: Final = 0.1
_OF_LEVEL: Final[Mapping[Effort | None, float]] = {Effort.LOW: 0.4, Effort.HIGH: 2.0}
"""Tokens of a level over the usual ones, before any step of it was seen."""
_WATCHED: Final = 20
"""First steps of an agent in a role, which reason as they usually do."""
_LOOK: Final = 20
"""One step in so many reasons as usual later, too: what is cut says little of how long it would have been."""
_LEAST: Final = 64
"""Tokens that a step may reason for in any case."""
_MADE_UP_IN: Final = 10.0
"""Steps within which too long or too short reasoning is made up for."""
_MOST_BEHIND: Final = 20.0
"""Steps' worth of tokens that is made up for at most."""
_PROPOSALS_PRIOR: Final = {False: 0.8, True: 0.3}
"""Shares of proposals that far is expected to confirm before any was judged: of calls that near proposes by itself, and of those that it is
made to propose in place of an answer. They are about those of the shipped models."""
_WEIGHT: Final = 2.0
"""Proposals that the expectation from the wider group counts for."""
_SHARE: Final = 0.2
"""Weight of the latest step in the mean duration of steps."""
_USUAL_AGREEMENT: Final = {Side.NEAR: 0.1, Side.FAR: 1.0}
"""Seconds of a step before any was seen."""
_LEAST_DOUBT: Final = 2e-4
_LONGEST: Final = 200
"""Characters of a result that may be guessed."""
_PROPOSALS_KEPT: Final = 1024
"""Tools, each of one user, whose last results are remembered."""


class LogNormal(NamedTuple):
    """A distribution of token counts: their logarithm is normal."""

    mean: float
    deviation: float

    def expected(self, most: float = inf) -> float:
        """Return the mean of the counts, each cut at `most` tokens."""
        whole = exp(self.mean + self.deviation**2 / 2)
        if most == inf:
            return whole
        standard = (log(most) - self.mean) / self.deviation
        return whole * (1 - _above(standard - self.deviation)) + most * _above(standard)

    def limit(self, target: float) -> float | None:
        """Return the limit at which counts have `target` as their mean; None: they have no more without one."""
        if target >= self.expected():
            return None
        low, high = 0.0, self.mean + 8 * self.deviation
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (middle, high) if self.expected(exp(middle)) < target else (low, middle)
        return exp(high)

    def beyond(self, least: float) -> tuple[float, float]:
        """Return the mean and the mean square of the logarithm of counts above `least`."""
        standard = (log(least) - self.mean) / self.deviation
        above = _above(standard)
        hazard = exp(-(standard**2) / 2) / sqrt(2 * pi) / above if above > 0 else standard
        mean = self.mean + self.deviation * hazard
        return mean, self.mean**2 + 2 * self.mean * self.deviation * hazard + self.deviation**2 * (1 + standard * hazard)

    def times(self, factor: float) -> Self:
        """Return the distribution of counts that are so many times as high."""
        return self._replace(mean=self.mean + log(factor))


def _above(standard: float) -> float:
    return erfc(standard / sqrt(2)) / 2


@dataclass(slots=True)
class _Moments:
    """Mean and mean square of logarithms, in which old ones fade."""

    weight: float = 0.0
    mean: float = 0.0
    square: float = 0.0

    def add(self, value: float, square: float) -> None:
        self.weight = _KEPT * self.weight + 1
        self.mean += (value - self.mean) / self.weight
        self.square += (square - self.square) / self.weight


@dataclass(frozen=True, slots=True)
class StepKind:
    """A kind of step, as far as it is known before it is taken."""

    agent: str
    side: Side
    role: str
    task_class: str
    prompt_tokens: int
    """Estimated, or counted."""

    def groups(self, level: Effort | None) -> tuple[Group, ...]:
        """Return the kinds of steps that hold this one and itself, the widest first. Prompts of one kind differ by a factor of four."""
        size = f"size {self.prompt_tokens.bit_length() // 2}"
        return nested((self.agent, level or "usual", self.role, *lineage(self.task_class), size))[3:]


class ReasonedStep(Value):
    """One step that has reasoned: a part of a line of the router's log."""

    agent: str
    side: Side
    role: str
    task_class: str = ""
    prompt_tokens: int = Field(ge=0)
    tokens: int = Field(gt=0, le=MOST_TOKENS)
    """Reasoning tokens that it took."""
    asked: AskedReasoning = AskedReasoning()

    @property
    def kind(self) -> StepKind:
        return StepKind(self.agent, self.side, self.role, self.task_class, self.prompt_tokens)


def reasoned_steps(task: Task, calls: Iterable[Call]) -> Iterator[ReasonedStep]:
    """Yield the calls of a task that say how long they have reasoned. Answers of a cache say nothing."""
    level = task.policy.effort if isinstance(task.policy.effort, Effort) else None
    for call in calls:
        if call.usage.reasoning_tokens and call.error is None and call.saved is None:
            yield ReasonedStep(
                agent=call.agent,
                side=call.side,
                role=STEP if call.took_step else call.role,
                task_class=task.task_class,
                prompt_tokens=call.usage.input_tokens,
                tokens=call.usage.reasoning_tokens,
                asked=call.reasoning or AskedReasoning(level=level),
            )


@dataclass(slots=True)
class _Account:
    """The steps of one agent in one role."""

    steps: int = 0
    asked: int = 0
    behind: float = 0.0
    """Tokens that were asked for and not used."""


@dataclass(slots=True)
class Efforts:
    """The usual reasoning of each kind of step, and what was asked. Calls may come from any thread."""

    _moments: dict[Group, _Moments] = field(default_factory=dict)
    _accounts: dict[tuple[str, str], _Account] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def usual(self, kind: StepKind, level: Effort | None = None) -> LogNormal:
        """Return the reasoning tokens to expect of a step at a level of effort; None: at the agent's own."""
        if level is None:
            known = LogNormal(log(_USUAL[kind.side]), _SPREAD)
        else:
            known = self.usual(kind).times(_OF_LEVEL.get(level, 1.0))
        mean, square, wider = known.mean, known.deviation**2 + known.mean**2, _PRIOR
        for moments in filter(None, map(self._moments.get, kind.groups(level))):
            whole = moments.weight + wider
            mean = (moments.weight * moments.mean + wider * mean) / whole
            square = (moments.weight * moments.square + wider * square) / whole
            wider = _WIDER
        return LogNormal(mean, max(sqrt(max(square - mean**2, 0.0)), _LEAST_SPREAD))

    def bounded(
        self, request: StepRequest, card: AgentCard, step: tuple[str, str, str], share: float
    ) -> tuple[StepRequest, AskedReasoning]:
        """Return a request that is to reason for a share of what is usual, and what that asks. A bound makes it another request.

        `step`: the agent, its role, and the class of the task.
        """
        agent, role, task_class = step
        tokens = sum(tokens_by_length(message.text) for message in request.messages)
        kind = StepKind(agent, card.side, role, task_class, tokens)
        asked = self.ask(kind, share, can_limit=card.capabilities.reasoning_limit)
        if asked.most is None and asked.level is None:
            return request, asked
        key = f"{request.idempotency_key}/{asked.level or asked.most}"
        changes = {"max_reasoning_tokens": asked.most, "effort": asked.level, "idempotency_key": key}
        return request.model_copy(update=changes), asked

    def ask(self, kind: StepKind, share: float, *, can_limit: bool) -> AskedReasoning:
        """Return what to ask of a step that is to reason for a share of what is usual.

        `can_limit`: the agent ends its reasoning at a number of tokens; any other is asked for a level of effort, now a lower and now a
        higher one, so that the mean is right.
        """
        with self._lock:
            account = self._account(kind)
            if account.steps < _WATCHED:
                return AskedReasoning()
            account.asked += 1
            usual = self.usual(kind)
            wanted = share * usual.expected()
            if account.asked % _LOOK == 0:
                return AskedReasoning(tokens=wanted)
            if not can_limit:
                return AskedReasoning(tokens=wanted, level=self._level(kind, wanted + account.behind, share))
            limit = usual.limit(max(wanted + account.behind / _MADE_UP_IN, wanted / 2))
            return AskedReasoning(tokens=wanted, most=None if limit is None else max(round(limit), _LEAST))

    def learn(self, step: ReasonedStep) -> None:
        """Take in how long a step has reasoned."""
        with self._lock:
            level, most = step.asked.level, step.asked.most
            if most is not None and step.tokens >= most:
                value, square = self.usual(step.kind, level).beyond(most)
            else:
                value = log(step.tokens)
                square = value**2
            for group in step.kind.groups(level):
                self._moments.setdefault(group, _Moments()).add(value, square)
            account = self._account(step.kind)
            account.steps += 1
            if (wanted := step.asked.tokens) is not None:
                most_behind = _MOST_BEHIND * wanted
                account.behind = min(max(account.behind + wanted - step.tokens, -most_behind), most_behind)

    def _account(self, kind: StepKind) -> _Account:
        return self._accounts.setdefault((kind.agent, kind.role), _Account())

    def _level(self, kind: StepKind, target: float, share: float) -> Effort | None:
        other = Effort.LOW if share < 1 else Effort.HIGH
        return min((None, other), key=lambda level: abs(self.usual(kind, level).expected() - target))


class AgreementRates:
    """Counts of judged proposals and durations of steps, from which the odds and the price of asking ahead follow."""

    def __init__(self) -> None:
        self._judged: Counter[Group] = Counter()
        self._confirmed: Counter[Group] = Counter()
        self._seconds = dict(_USUAL_AGREEMENT)
        self._said: dict[tuple[str, str], tuple[ToolOutcome, bool]] = {}
        """By user and tool: the last call, and whether its result is the usual one."""

    def odds(self, proposals: Sequence[JudgedProposal]) -> float:
        """Return the odds that far confirms all of these, whatever they say of themselves."""
        return prod(map(self._rate, proposals))

    def _rate(self, proposal: JudgedProposal) -> float:
        rate = _PROPOSALS_PRIOR[proposal.is_instead]
        for group in _groups(proposal):
            rate = (self._confirmed[group] + _WEIGHT * rate) / (self._judged[group] + _WEIGHT)
        return rate

    def learn(self, proposal: JudgedProposal) -> None:
        """Count a proposal that far has judged."""
        for group in _groups(proposal):
            self._judged[group] += 1
            self._confirmed[group] += proposal.confirmed

    def time(self, side: Side, seconds: float) -> None:
        """Note how long one step of a side took, in seconds."""
        self._seconds[side] += _SHARE * (seconds - self._seconds[side])

    def least_odds(self, thrift: float) -> float:
        """Return the odds at which a further far call pays.

        With odds P it saves far's step less near's, and with 1 - P it is wasted: `(1 - thrift) P (1 - a/t) >= thrift (1 - P)`, solved for
        P. More than 1: it never pays.
        """
        saved = (1 - thrift) * (1 - self._seconds[Side.NEAR] / self._seconds[Side.FAR])
        return thrift / (thrift + saved) if saved > 0 else 2.0

    def note_results(self, user: str, outcomes: Sequence[ToolOutcome]) -> None:
        """Remember what the tools of a user have said last."""
        for outcome in outcomes:
            key = user, outcome.call.name
            last, was_usual = self._said.pop(key, (outcome, False))
            is_usual = last.result == outcome.result and (was_usual or last.call.arguments != outcome.call.arguments)
            if outcome.outcome == "done" and len(outcome.result) <= _LONGEST:
                self._said[key] = outcome, is_usual
        while len(self._said) > _PROPOSALS_KEPT:
            del self._said[next(iter(self._said))]

    def usual_result(self, user: str, tool: str) -> str | None:
        """Return the text that the last two calls of a user's tool have returned, with different arguments; None: they differ."""
        last, is_usual = self._said.get((user, tool), (None, False))
        return last.result if last is not None and is_usual else None


def _groups(proposal: JudgedProposal) -> tuple[Group, ...]:
    """Return the nested groups that a proposal is in, the widest first."""
    grades = 1 if proposal.is_instead else 2
    doubts = "/".join(_doubt(each, grades) for each in (proposal.confidence, proposal.answer_confidence))
    return nested(("instead" if proposal.is_instead else "call", doubts, proposal.task_class))[1:]


def _doubt(confidence: float | None, grades: int) -> str:
    """Return the number of powers of ten, or of parts of them, by which an agent's doubt is below 1."""
    return "" if confidence is None else str(int(-grades * log10(max(1 - confidence, _LEAST_DOUBT))))
