"""What tasks have spent, held against the limits of the policy."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from threading import Lock
from typing import Final, TypeVar

from ...protocols import AgentCard, BudgetExceeded, Prices, Side, StepRequest, Usage
from .settings import Amounts, Limits

_MEASURES: Final = ("dollars", "tokens", "seconds", "joules")
_NO_LIMITS: Final = Limits()
_LEAST_BYTES_PER_TOKEN: Final = 3
_USUAL_OUTPUT: Final = 8192
"""Tokens that an agent hardly ever goes beyond which states no bound."""
_SESSIONS: Final = 10_000
"""Kept; of more, those are forgotten that spent nothing for the longest time."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a call, a task or several have spent. None: unknown, which is not nothing.

    Of several, `joules` are those that somebody knows: what nobody measures is held against no limit.
    """

    dollars: float | None = 0.0
    tokens: int = 0
    seconds: float = 0.0
    joules: float | None = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            dollars=_sum(self.dollars, other.dollars),
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            joules=_known(self.joules, other.joules),
        )


class Spending:
    """Sums over the sessions and the day. Calls may come from any thread."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._day: tuple[date, Spent] = (clock().date(), Spent())
        self._sessions: OrderedDict[str, Spent] = OrderedDict()

    def add(self, spent: Spent, *, session: str | None) -> None:
        """Count what a call has spent."""
        with self._lock:
            self._day = (self._clock().date(), self._today() + spent)
            if session is not None:
                self._sessions[session] = self._sessions.pop(session, Spent()) + spent
                if len(self._sessions) > _SESSIONS:
                    self._sessions.popitem(last=False)

    def share_left(self, limits: Limits, *, session: str | None) -> float | None:
        """Of the limits for the session and the day, the share that is left where least is; None: there are none."""
        scopes = self._scopes(limits, session=session, task=Spent())
        shares = [_share_left(amounts, spent) for name, amounts, spent in scopes if name in ("session", "day")]
        return min((share for share in shares if share is not None), default=None)

    def objection(self, limits: Limits, expected: Spent, *, session: str | None, task: Spent, is_call: bool = False) -> str | None:
        """Why a further expense would go beyond a limit; None where it would not.

        Args:
            expected: what it is expected to be.
            task: what the task has spent so far.
            is_call: the expense is a single call, which has a limit of its own.
        """
        for name, amounts, spent in list(self._scopes(limits, session=session, task=task))[0 if is_call else 1 :]:
            for measure in _MEASURES:
                reason = _excess(measure, getattr(amounts, measure), getattr(spent, measure), getattr(expected, measure))
                if reason is not None:
                    return f"the limit for the {name}: {reason}"
        return None

    def left(self, limits: Limits, measure: str, *, session: str | None, task: Spent) -> float | None:
        """What may still be spent of one measure, by the tightest limit; None: there is no limit on it."""
        scopes = self._scopes(limits, session=session, task=task)
        known = [(getattr(amounts, measure), getattr(spent, measure)) for _, amounts, spent in scopes]
        return min((max(limit - (used or 0.0), 0.0) for limit, used in known if limit is not None), default=None)

    def _scopes(self, limits: Limits, *, session: str | None, task: Spent) -> Iterator[tuple[str, Amounts, Spent]]:
        with self._lock:
            of_session, of_day = Spent() if session is None else self._sessions.get(session, Spent()), self._today()
        yield "call", limits.call, Spent()
        yield "task", limits.task, task
        yield "session", limits.session, of_session
        yield "day", limits.day, of_day

    def _today(self) -> Spent:
        day, spent = self._day
        return spent if day == self._clock().date() else Spent()


class Account:
    """What one task may spend, and has: every call of any agent in any role is held against it. Made by `Router.account`.

    `whole` is the account of the task that this one is a part of; None where it is a task of its own.
    """

    def __init__(self, spending: Spending, limits: Limits, *, session: str | None, whole: "Account | None" = None) -> None:
        self.spent = Spent()
        self._spending = spending
        self._limits = limits
        self._session = session
        self._whole = whole

    def part(self, limits: Limits) -> "Account":
        """The account of a part of the task, whose own limit for the task is its share."""
        return Account(self._spending, limits, session=self._session, whole=self)

    def left_of_task(self) -> Amounts:
        """What the task's own limit leaves it. What is unknown has left nothing."""
        limit = self._limits.task
        dollars = None if limit.dollars is None else 0.0 if self.spent.dollars is None else max(limit.dollars - self.spent.dollars, 0.0)
        return Amounts(dollars=dollars, tokens=None if limit.tokens is None else max(limit.tokens - self.spent.tokens, 1))

    def bounded(self, request: StepRequest, card: AgentCard) -> StepRequest:
        """The request, with as much output and time as the limits leave it.

        Raises `BudgetExceeded` where the prompt alone would go beyond one.
        """
        if self._limits == _NO_LIMITS:
            return request
        prompt = _most_prompt_tokens(request)
        dollars = 0.0 if card.side is Side.NEAR else _dollars(card.prices, prompt)
        self._require(card, Spent(dollars, prompt, 0.0, None if card.side is Side.NEAR else 0.0))
        changes = {
            "max_output_tokens": _least(request.max_output_tokens, self._output_tokens(card.prices, prompt)),
            "timeout": _least(request.timeout, self._left("seconds")),
        }
        return request.model_copy(update=changes)

    def most_dollars(self, request: StepRequest, card: AgentCard) -> float | None:
        """What a call may well have cost of which nobody heard the end; None where prices are unknown."""
        most = min(request.max_output_tokens or _USUAL_OUTPUT, card.limits.max_output_tokens or _USUAL_OUTPUT)
        usage = Usage(input_tokens=_most_prompt_tokens(request), output_tokens=most)
        return None if card.prices is None else float(card.prices.dollars(usage))

    def charge(self, spent: Spent) -> None:
        """Count a call that has ended, well or not."""
        self.spent += spent
        if self._whole is not None:
            self._whole.charge(spent)
        else:
            self._spending.add(spent, session=self._session)

    def _require(self, card: AgentCard, expected: Spent) -> None:
        reason = self._spending.objection(self._limits, expected, session=self._session, task=self.spent, is_call=True)
        if reason is not None:
            raise BudgetExceeded(f"{card.name} was not asked: {reason}", hint="[policy.limits] sets the limits")
        if self._whole is not None:
            self._whole._require(card, expected)

    def _output_tokens(self, prices: Prices | None, prompt: int) -> int | None:
        """How many tokens may be written, which cost more than those read."""
        tokens, dollars = self._left("tokens"), self._left("dollars")
        bounds = [] if tokens is None else [int(tokens) - prompt]
        if dollars is not None and prices is not None and prices.output:
            bounds.append(int((dollars - (_dollars(prices, prompt) or 0.0)) * 1e6 / float(prices.output)))
        return max(min(bounds), 1) if bounds else None

    def _left(self, measure: str) -> float | None:
        """Of the tightest limit, also of the whole that this is a part of; None: there is none."""
        own = self._spending.left(self._limits, measure, session=self._session, task=self.spent)
        return own if self._whole is None else _least(own, self._whole._left(measure))


def _most_prompt_tokens(request: StepRequest) -> int:
    """What the prompt hardly exceeds: texts, tools and schema as JSON, at 3 bytes a token. Agents count in their own ways."""
    return (
        len(request.model_dump_json(include={"messages", "tools", "output_schema"}, exclude_defaults=True).encode())
        // _LEAST_BYTES_PER_TOKEN
    )


def _dollars(prices: Prices | None, input_tokens: int) -> float | None:
    return None if prices is None else float(prices.dollars(Usage(input_tokens=input_tokens)))


N = TypeVar("N", int, float)


def _least(one: N | None, other: N | None) -> N | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _known(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


def _share_left(amounts: Amounts, spent: Spent) -> float | None:
    shares = []
    for measure in _MEASURES:
        limit, used = getattr(amounts, measure), getattr(spent, measure)
        if limit is not None:
            shares.append(max(1 - used / limit, 0.0) if used is not None and limit else 0.0)
    return min(shares, default=None)


def _excess(measure: str, limit: float | None, spent: float | None, expected: float | None) -> str | None:
    """Joules that nobody measures are let pass; dollars that nobody knows are not, since they are not free."""
    if limit is None or (measure in ("dollars", "joules") and expected == 0):
        return None  # what is free may follow when all is spent, or nobody knows how much
    if measure == "joules":
        spent, expected = spent or 0.0, expected or 0.0
    if spent is None or expected is None:
        return f"the price is unknown, and no more than {limit:g} {measure} may be spent"
    if spent + expected > limit or spent >= limit:
        return f"{spent:.4g} of {limit:g} {measure} are spent, and about {expected:.4g} more would be"
    return None
