"""Spending as the router sees it: whether an agent is expected to exceed a limit, and how much of the limits is left."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...protocols import StoreUnavailable
from ..budgets.book import MEASURES, BudgetBook, Scope, Spent
from ..task.routing_policy import AmountsConfig, LimitsConfig
from ..task.task import Task

if TYPE_CHECKING:
    from ..budgets.account import Account

logger = logging.getLogger(__name__)


class Spending:
    """The balances of a book, held against the limits of a policy. Calls may come from any thread."""

    def __init__(self, book: BudgetBook) -> None:
        self._book = book

    def account(self, task: Task) -> "Account":
        """Return the account that the task spends from."""
        from ..budgets.account import Account  # it waits for others, which deciding and explaining never do

        is_paced = task.policy.router.dollars_per_hour is not None and self._book.is_shared
        limits = task.policy.limits
        return Account(self._book, limits, task=task.idempotency_key, session=task.session, user=task.user, is_paced=is_paced)

    def dollars_of_last_hour(self) -> float:
        """Return the dollars that tasks under `dollars_per_hour` took in the last hour, of all processes; 0 if the book is not shared."""
        try:
            return self._book.dollars_of_last_hour() if self._book.is_shared else 0.0
        except StoreUnavailable as error:
            logger.warning("what other processes have spent in the last hour is not known: %s", error)
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


def _limited(limits: LimitsConfig, task: Task) -> Iterator[tuple[Scope, AmountsConfig]]:
    session = () if task.session is None else ((Scope("session", task.session), limits.session),)
    for scope, amounts in (*session, (Scope("user", task.user), limits.user), (Scope("day"), limits.day)):
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
