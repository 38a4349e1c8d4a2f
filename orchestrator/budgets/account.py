"""The budget of one task: every call of any agent in any role reserves the most that it can spend, and settles for what it spent."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, TypeVar
from uuid import uuid4

import anyio

from ...protocols import AgentCard, BudgetExceeded, Message, Prices, Side, StepRequest, StoreUnavailable
from ..compression.conversation import conversation_tokens, estimated_tokens
from ..task.routing_policy import AmountsConfig, LimitsConfig
from ..util.runtime import in_thread, shielded
from . import Balance, BudgetBook, BudgetScope, Caps, Claim, Commitment, Reservation, Shortage, Spent, Units, grant

logger = logging.getLogger(__name__)

USUAL_OUTPUT: Final = 8192
"""Tokens that a call may write where neither the task nor the agent states a bound and a limit holds."""
_USUAL_SECONDS: Final = 600.0
"""Seconds that a call may take where neither the task nor the agent states a bound and a limit holds."""
_USEFUL_OUTPUT: Final = 512
"""Tokens to write, for fewer of which a call rather waits until those under way have given back what they do not need."""
_USEFUL_SECONDS: Final = 10.0
_LONGEST_WAIT: Final = 30.0
"""Seconds of such waiting."""
_LEAST_BYTES_PER_TOKEN: Final = 3
_HINT: Final = "[policy.limits] sets the limits; nearfar budget show says what is spent"
_NO_LIMIT: Final = AmountsConfig()
_INSTANT: Final = 1e-6
"""Seconds, or joules: what a call takes in any case."""

T = TypeVar("T")


class Account:
    """The budget of one task: its limits, and what it has spent. Made by `Router.account`.

    Args:
        whole: the account of the task that this one is a part of; None where it is a task of its own.
        is_paced: its spending counts for the dollars of the last hour.
    """

    def __init__(
        self,
        book: BudgetBook,
        limits: LimitsConfig,
        *,
        task: str,
        session: str | None = None,
        user: str = "",
        whole: "Account | None" = None,
        is_paced: bool = False,
    ) -> None:
        self._book = book
        self._limits = limits
        self._task = BudgetScope("task", task)
        self._session = session
        self._user = user
        self._whole = whole
        self._is_paced = is_paced
        is_kept = whole is None and limits.task != _NO_LIMIT
        self.spent = book.balance(self._task).spent.spent if is_kept else Spent()
        self.commitments: list[Commitment] = [] if whole is None else whole.commitments
        """Dollars that the router has set aside for the task and its parts, until the bill comes."""

    def part(self, limits: LimitsConfig) -> "Account":
        """Return the account of a part of the task, whose own limit for the task is its share.

        It has spent nothing: if the task is resumed in another process, the shares are of what is left then.
        """
        return Account(self._book, limits, task=f"{self._task.name}/{uuid4().hex}", whole=self)

    def left_of_task(self) -> AmountsConfig:
        """Return the rest of the task's own limit. If the spent amount is unknown, nothing is left."""
        limit = self._limits.task
        dollars = None if limit.dollars is None else 0.0 if self.spent.dollars is None else max(limit.dollars - self.spent.dollars, 0.0)
        return AmountsConfig(dollars=dollars, tokens=None if limit.tokens is None else max(limit.tokens - self.spent.tokens, 1))

    async def reserve(self, request: StepRequest, card: AgentCard, *, is_extra: bool = False) -> "Allowance":
        """Reserve the most that the call can spend, or as much of it as the limits leave, and bound the request to that.

        If calls under way have reserved the rest, it waits for them. Raises `BudgetExceeded` where the limits do not even leave enough
        for the prompt and one token, and `StoreUnavailable` where there are limits and the spent amount cannot be read.

        Args:
            request: the call's.
            card: its agent's.
            is_extra: the task can do without it, so that half of what the limits leave is kept for a call that counts. Such a call raises
                `BudgetExceeded` where half is too little for an answer of ordinary length.
        """
        claims = self._claims
        demand = _Demand(request, card, (self._of_call, *claims))
        if not demand.is_limited and not self._book.is_shared:
            return Allowance(self, None, demand)
        demand.check_price(self._limits)
        most = self._within_call(demand)
        try:
            if is_extra and demand.is_limited:
                most = await self._half_of_rest(claims, demand, most)
            reservation = await self._waited_for(claims, demand, most)
        except StoreUnavailable as error:
            if demand.is_limited:
                raise
            logger.warning("a call of %s is not counted: %s", card.name, error)
            reservation = Reservation("", (), most)
        return Allowance(self, reservation, demand)

    def count(self, spent: Spent, *, is_unpriced: bool) -> None:
        """Count a call for which nothing was reserved, since nothing limits it and no other process looks at the book."""
        self._charge(spent)
        scopes = [claim.scope for claim in self._claims]
        self._book.count(scopes, spent.units, is_unpriced=is_unpriced and spent.dollars is None)

    async def settle(self, reservation: Reservation, spent: Spent) -> None:
        """Count a call that has ended, well or not. What cannot be written counts as the most it can be when this process has ended."""
        self._charge(spent)
        if not reservation.id:
            return
        is_unpriced = reservation.is_unpriced and spent.dollars is None
        try:
            with anyio.CancelScope(shield=True):
                await self._at_once(partial(self._book.settle, reservation, spent.units, is_unpriced=is_unpriced))
        except StoreUnavailable as error:
            logger.warning("what a call has spent could not be written down, and the most it can be stays reserved: %s", error)

    def _charge(self, spent: Spent) -> None:
        is_passed_over = spent.dollars is None and self._limits.unknown_price == "allow"
        self.spent += replace(spent, dollars=0.0) if is_passed_over else spent
        if self._whole is not None:
            self._whole._charge(spent)

    @cached_property
    def _of_call(self) -> Claim:
        return Claim(BudgetScope("call"), _caps(self._limits.call))

    @cached_property
    def _claims(self) -> tuple[Claim, ...]:
        """The scopes that a call of the task belongs to. A task without a limit of its own is not kept."""
        limits = self._limits
        allows = limits.unknown_price == "allow"
        own = () if limits.task == _NO_LIMIT else (Claim(self._task, _caps(limits.task), allows),)
        if self._whole is not None:
            return (*own, *self._whole._claims)
        scope = None if self._session is None else BudgetScope.of_session(self._session, self._user)
        session = () if scope is None else (Claim(scope, _caps(limits.session), allows),)
        user = (Claim(BudgetScope("user", self._user), _caps(limits.user), allows),) if self._user or limits.user != _NO_LIMIT else ()
        minute = (Claim(BudgetScope("minute"), allows_unpriced=True),) if self._is_paced else ()
        return (*own, *session, *user, Claim(BudgetScope("day"), _caps(limits.day), allows), *minute)

    def _within_call(self, demand: "_Demand") -> Units:
        """Return the most that the call may spend by the limit for a single call."""
        most = grant([(self._of_call, Balance())], demand.least, demand.most)
        if isinstance(most, Shortage):
            raise self._refusal(demand.card, most)
        return most

    async def _half_of_rest(self, claims: Sequence[Claim], demand: "_Demand", most: Units) -> Units:
        """Return half of what the limits leave, up to `most`. Raises `BudgetExceeded` where that is too little."""
        twice = most.plus(most)
        left = await self._at_once(lambda: grant([(claim, self._book.balance(claim.scope)) for claim in claims], Units(), twice))
        half = Units() if isinstance(left, Shortage) else Units(*(amount // 2 for amount in left))
        if half.within(demand.useful.within(most)) != demand.useful.within(most):
            message = f"{demand.card.name} was not asked ahead: the limits leave too little beside the calls that count"
            raise BudgetExceeded(message, hint=_HINT)
        return half

    async def _waited_for(self, claims: Sequence[Claim], demand: "_Demand", most: Units) -> Reservation:
        wait = min(_LONGEST_WAIT, demand.request.timeout or _LONGEST_WAIT)
        give_up, delay = anyio.current_time() + wait, 0.005
        while True:
            is_late = anyio.current_time() >= give_up
            found = await self._reserved(claims, demand, demand.useful.within(most), most)
            if isinstance(found, Shortage) and (is_late or not found.is_temporary):
                found = await self._reserved(claims, demand, demand.least, most)
            if isinstance(found, Reservation):
                return found
            if is_late or not found.is_temporary:
                raise self._refusal(demand.card, found)
            await anyio.sleep(delay)
            delay = min(2 * delay, 0.2)

    async def _reserved(self, claims: Sequence[Claim], demand: "_Demand", least: Units, most: Units) -> Reservation | Shortage:
        work = partial(self._book.reserve, claims, least=least, most=most, is_unpriced=demand.is_unpriced)
        return await self._at_once(work, undone=self._give_back)

    async def _at_once(self, work: Callable[[], T], *, undone: Callable[[T], None] | None = None) -> T:
        """Do the work at once if the book belongs to this process alone, else in a thread, since it may wait for another process.

        A thread always runs to its end. If the caller was cancelled meanwhile, `undone` is called with its result.
        """
        if not self._book.is_shared:
            return work()
        doing = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await shielded(doing)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([doing])
                if undone is not None and doing.exception() is None:
                    await in_thread(undone, doing.result())
            raise

    def _give_back(self, found: Reservation | Shortage) -> None:
        """Give back the reservation of a call that was cancelled before it was made."""
        try:
            if isinstance(found, Reservation):
                self._book.settle(found, Units())
        except StoreUnavailable as error:
            logger.warning("what was reserved for a call that was not made could not be given back: %s", error)

    def refusal_in_time(self, demand: "_Demand", seconds: float) -> BudgetExceeded:
        """Return the error for a call that did not finish within the seconds left by the limits."""
        message = f"{demand.card.name} was not done within the {seconds:.3g} seconds that the limits leave; the task has spent"
        return BudgetExceeded(f"{message} {_said(self.spent)}", hint=_HINT)

    def _refusal(self, card: AgentCard, shortage: Shortage) -> BudgetExceeded:
        message = f"{card.name} was not asked: {described(shortage)}; the task has spent {_said(self.spent)}"
        return BudgetExceeded(message, hint=_HINT)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The reserved budget of one call. `settle` it in any case."""

    _account: Account
    _reservation: Reservation | None
    """None: nothing limits the call."""
    _demand: "_Demand"

    @property
    def request(self) -> StepRequest:
        """With as much output and time as is reserved, where a limit holds; else as it was."""
        return self._demand.request if self._reservation is None else self._demand.bounded(self._reservation.granted)

    @property
    def is_cut(self) -> bool:
        """The limits leave it less to write than the task and the agent would."""
        bound, left = self._demand.bound, self.request.max_output_tokens
        return left is not None and (bound is None or left < bound)

    @property
    def out_of_time(self) -> BudgetExceeded | None:
        """The error for a call that was not done in its time, where that is a matter of the limits; else None."""
        seconds, wanted = self.request.timeout, self._demand.request.timeout
        if seconds is None or (wanted is not None and wanted <= seconds):
            return None
        return self._account.refusal_in_time(self._demand, seconds)

    @property
    def most(self) -> Spent:
        """The amount charged if the call's usage is never reported; dollars are None where the price is unknown."""
        granted = self._demand.most if self._reservation is None else self._reservation.granted
        return Spent(None if self._demand.is_unpriced else granted.of("dollars"), granted.tokens)

    async def settle(self, spent: Spent) -> None:
        """Count what the call has really taken."""
        if self._reservation is None:
            self._account.count(spent, is_unpriced=self._demand.is_unpriced)
        else:
            await self._account.settle(self._reservation, spent)


class _Demand:
    """The amounts that a call asks for."""

    def __init__(self, request: StepRequest, card: AgentCard, claims: Sequence[Claim]) -> None:
        self.request = request
        self.card = card
        self._limited = {name for claim in claims for name, cap in claim.caps._asdict().items() if cap is not None}
        self._dollar_limits = [claim for claim in claims if claim.caps.dollars is not None]
        self._stated = _least(request.max_output_tokens, card.limits.max_output_tokens)
        self.bound = _least(self._stated, card.limits.context_tokens)
        """Tokens that it may write, regardless of cost; None if no bound is stated."""
        self.is_unpriced = card.prices is None and card.side is Side.FAR

    # Counting a prompt's tokens takes longer than the rest, and where nothing is limited only a lost call asks for it.

    @cached_property
    def _prompt(self) -> int:
        return most_prompt_tokens(self.request)

    @cached_property
    def _longest_output(self) -> int:
        return _least(USUAL_OUTPUT if self._stated is None else self._stated, self.card.limits.context_tokens) or 0

    @cached_property
    def least(self) -> Units:
        """The amounts for the prompt and one token of output."""
        return self._units(1, _INSTANT)

    @cached_property
    def most(self) -> Units:
        """The amounts if the agent writes as much as it may, for as long as it may."""
        return self._units(self._longest_output, self.request.timeout or _USUAL_SECONDS)

    @cached_property
    def useful(self) -> Units:
        """The amounts for an answer of ordinary length."""
        return self._units(min(self._longest_output, _USEFUL_OUTPUT), _USEFUL_SECONDS).within(self.most)

    @property
    def is_limited(self) -> bool:
        return bool(self._limited)

    def check_price(self, limits: LimitsConfig) -> None:
        """Raise `BudgetExceeded` where dollars are limited and this call's are unknown, unless the policy allows that."""
        if self.is_unpriced and self._dollar_limits and limits.unknown_price == "refuse":
            claim = self._dollar_limits[0]
            cap = Units(dollars=claim.caps.dollars or 0).of("dollars")
            reason = f"the limit for the {claim.scope.kind}: the price is unknown, and no more than {cap:g} dollars may be spent"
            hint = 'give its prices in nearfar.toml, or say [policy.limits] unknown_price = "allow"'
            raise BudgetExceeded(f"{self.card.name} was not asked: {reason}", hint=hint)

    def bounded(self, amounts: Units) -> StepRequest:
        """Return the request, bounded so that it spends no more than these amounts of the limited measures.

        A request with less output than usual is another request to the server, which would refuse it under the same key.
        """
        changes: dict[str, object] = {}
        if self._limited & {"dollars", "tokens"}:
            output = changes["max_output_tokens"] = max(self._output(amounts), 1)
            if output < self._output(self.most):
                changes["idempotency_key"] = f"{self.request.idempotency_key}/{output}"
        if "seconds" in self._limited:
            changes["timeout"] = amounts.of("seconds")
        return self.request.model_copy(update=changes) if changes else self.request

    def _output(self, amounts: Units) -> int:
        """Return how many tokens may be written, which cost more than those read."""
        tokens, prices = amounts.tokens - self._prompt, self.card.prices
        if not prices or not prices.highest(self._prompt).output:
            return tokens
        left = amounts.dollars - Spent(_most_dollars(prices, self._prompt, 0)).units.dollars
        rate = prices.highest(self._prompt).output
        return min(tokens, int(left / (float(rate) * 1000)))  # nanodollars, by the dollars for a million tokens

    def _units(self, output: int, seconds: float) -> Units:
        joules = _INSTANT if self.card.side is Side.NEAR else 0.0
        return Spent(_most_dollars(self.card.prices, self._prompt, output), self._prompt + output, seconds, joules).units


def described(shortage: Shortage) -> str:
    """Return a sentence about an exceeded limit, with the spent amount and the limit."""
    name, balance = shortage.measure, shortage.balance
    cap, spent = Units(**{name: shortage.cap}).of(name), balance.spent.of(name)
    limit = f"the limit for the {shortage.kind}"
    if not shortage.cap:
        return f"{limit}: it may spend no {name}, so that only what takes none may serve"
    if shortage.is_unknown:
        return f"{limit}: the price is unknown of {balance.unpriced} earlier calls, and no more than {cap:g} dollars may be spent"
    reserved = f", {balance.reserved.of(name):.4g} are reserved for calls under way" if balance.reserved.of(name) else ""
    return f"{limit}: {spent:.4g} of {cap:g} {name} are spent{reserved}, and {shortage.least.of(name):.4g} more would be"


def most_prompt_tokens(request: StepRequest) -> int:
    """Return an upper estimate of the prompt's tokens, as agents count differently: the higher one of two estimates."""
    plain = (message.without_attachments for message in request.messages)
    attached = sum(attachment.most_tokens for message in request.messages for attachment in message.attachments)
    messages = tuple(message if message.state is None else Message.assistant(state=message.state) for message in plain)
    sent = request.model_copy(update={"messages": messages})  # what a provider sent holds the turn's text and calls already
    form = sent.model_dump_json(include={"messages", "tools", "output_schema"}, exclude_defaults=True)
    rest = request.model_dump_json(include={"tools", "output_schema"}, exclude_defaults=True)
    by_words = conversation_tokens(request.messages) + estimated_tokens(rest)
    return max(len(form.encode()) // _LEAST_BYTES_PER_TOKEN + attached, by_words)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _most_dollars(prices: Prices | None, read: int, written: int) -> float:
    return 0.0 if prices is None else float(prices.most_dollars(read, written))


def _caps(amounts: AmountsConfig) -> Caps:
    return Caps.of(dollars=amounts.dollars, tokens=amounts.tokens, seconds=amounts.seconds, joules=amounts.joules)


def _said(spent: Spent) -> str:
    dollars = "an unknown number of dollars" if spent.dollars is None else f"{spent.dollars:.4g} dollars"
    return f"{dollars}, {spent.tokens} tokens and {spent.seconds:.3g} seconds"
