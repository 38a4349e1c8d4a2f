"""The page of money: what was spent of each limit, by which agent, and what near agents have saved against far alone."""

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from ...protocols import Side
from ..budgets.book import MEASURES, Balance, BudgetScope
from ..hybrid.turns import saved_against_far
from ..runs.run import RunState, parse_record
from ..runs.store import RunStore
from ..task.results import Result
from ..util.runtime import in_thread
from .charts import bars
from .html import Html, join, table, tag, text
from .live import Fragments
from .view import Page, PageContent, View, live

_RUNS: Final = 200
"""Newest runs whose costs are counted by agent."""


async def _show(view: View) -> PageContent:
    return PageContent("Money", live("money", await _body(view)), live="/live/money")


async def _renew(view: View) -> Fragments:
    return {"money": await _body(view)}


async def _body(view: View) -> Html:
    console = view.console
    balances = await in_thread(console.budgets.balances)
    today = await in_thread(console.budgets.today)
    results = await in_thread(newest_results, console.hybrid.runs)
    return join([_headline(view, results), _by_agent(results), _limits(view, {today: Balance(), **balances})])


def newest_results(runs: RunStore) -> list[Result]:
    """Return the results of the newest runs that have one, the newest first."""
    outcomes = ((run.id, runs.outcome(run.id)) for run in runs.list(state=RunState.DONE, limit=_RUNS))
    return [parse_record(Result, run, outcome) for run, outcome in outcomes if isinstance(outcome, str)]


def _headline(view: View, results: Sequence[Result]) -> Html:
    if not results:
        return tag("p", "No task has an answer yet.", class_="empty")
    spent = sum((result.dollars for result in results if result.dollars is not None), Decimal())
    saved = [amount for result in results if (amount := saved_against_far(result, view.console.hybrid.pool)) is not None]
    unknown = sum(result.dollars is None for result in results)
    told = f"The newest {len(results)} answers cost {_dollars(spent)}"
    told += f"; by the list prices of the far agent, near agents saved {_dollars(sum(saved, Decimal()))} (estimated)." if saved else "."
    return tag("p", told + (f" The price of {unknown} answers is unknown." if unknown else ""), class_="lead")


def _by_agent(results: Sequence[Result]) -> Html:
    spent: dict[tuple[str, Side], Decimal] = defaultdict(Decimal)
    calls: dict[tuple[str, Side], int] = defaultdict(int)
    tokens: dict[tuple[str, Side], int] = defaultdict(int)
    for call in (call for result in results for call in result.calls):
        key = (call.agent, call.side)
        spent[key] += call.dollars or 0
        calls[key] += 1
        tokens[key] += call.usage.total_tokens
    rows = [
        [text(agent), str(side), f"{calls[agent, side]:,}", f"{tokens[agent, side]:,}", _dollars(amount)]
        for (agent, side), amount in sorted(spent.items())
    ]
    shown = {agent: float(amount) for (agent, _), amount in spent.items() if amount}
    chart = bars("Dollars by agent", shown, unit="dollars") if shown else Html()
    return join([tag("h2", "By agent"), chart, table("Calls of agents", ("agent", "side", "calls", "tokens", "dollars"), rows)])


def _limits(view: View, balances: dict[BudgetScope, Balance]) -> Html:
    limits = view.console.hybrid.policy.limits
    rows = []
    for scope, balance in balances.items():
        if scope.kind == "task" and not any(balance.reserved):
            continue
        caps = getattr(limits, scope.kind)
        cells = []
        for name in MEASURES:
            cap, spent, reserved = getattr(caps, name), balance.spent.of(name), balance.reserved.of(name)
            form = ".4f" if name == "dollars" else ",.0f" if name == "tokens" else ",.1f"
            cells.append(
                f"{spent:{form}}"
                + (f" of {cap:{form}}" if cap is not None else "")
                + (f" (+ {reserved:{form}} reserved)" if reserved else "")
            )
        rows.append([text(f"{scope.kind} {scope.name}"), *cells])
    return join([tag("h2", "Limits"), table("Spent of each limit", ("scope", *MEASURES), rows)])


def _dollars(amount: Decimal) -> str:
    return f"${amount:.6f}".rstrip("0").rstrip(".")


MONEY: Final = Page("/money", "Money", _show, renew=_renew, period=3.0)
