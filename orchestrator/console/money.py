"""The pages of money: what was spent and saved, and the trade-off, what a better score costs and where the policy stands."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ...protocols import ConfigError, Side
from ..budgets import MEASURES, Balance, BudgetScope
from ..routing.outcome_records import arm_of
from ..runs import RunState, parse_record
from ..runs.store import RunStore
from ..task.modes import Strategy
from ..task.policy import Policy
from ..task.results import Result
from ..util.runtime import in_thread
from .html import Html, Mark, bars, join, scatter, table, tag, text
from .view import ROOT, Fragments, Page, PageContent, View, failure, live

if TYPE_CHECKING:
    from ..lab.statistics import IntervalEstimate
    from ..lab.study.outcomes import Outcomes

_RUNS: Final = 200
"""Newest runs whose costs are counted by agent."""
_COSTS: Final = ("dollars", "seconds", "joules")
_MOST_DRAWN: Final = 14
"""Configurations in a chart: the front, the sides alone, where the policy stands, and the best of the others."""


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
    saved = [amount for result in results if (amount := view.console.hybrid.pool.saved_against_far(result)) is not None]
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


class _Costed(NamedTuple):
    """A configuration with its score and cost, as means per task."""

    label: str
    score: "IntervalEstimate"
    costs: Mapping[str, "IntervalEstimate | None"]
    css: str

    def mark(self, measure: str) -> Mark | None:
        """Return its point; None where the cost is unknown."""
        cost = self.costs[measure]
        if cost is None:
            return None
        return Mark(self.label, cost.value, self.score.value, (cost.low, cost.high), (self.score.low, self.score.high), self.css)


async def _show_tradeoff(view: View) -> PageContent:
    measure = view.query.get("by", _COSTS[0])
    measure = measure if measure in _COSTS else _COSTS[0]
    recorded = view.console.hybrid.policy.auto.outcomes
    if find_spec("numpy") is None:
        return PageContent("Trade-off", failure("Intervals need numpy.", "pip install 'nearfar[study]'"))
    swept = await _swept(view, recorded, measure)
    results = await in_thread(newest_results, view.console.hybrid.runs)
    return PageContent("Trade-off", join([swept, await in_thread(_own, results)]))


async def _swept(view: View, recorded: Path | None, measure: str) -> Html:
    if recorded is None or not recorded.exists():
        begin, key = tag("code", "nearfar sweep --out sweep"), tag("code", '[policy.auto] outcomes = "sweep/runs.jsonl"')
        return tag("p", "To see what each strategy reaches at which cost, run ", begin, " and name its runs by ", key, ".", class_="empty")
    try:
        return await in_thread(_worlds, recorded, view.console.hybrid.policy, measure)
    except ConfigError as error:
        return failure(error.message, error.hint)


def _worlds(recorded: Path, policy: Policy, measure: str) -> Html:
    from ..lab.study.outcomes import Outcomes
    from ..lab.study.sweep import read_records

    outcomes = Outcomes(read_records(recorded))
    links = [tag("a", name, href=f"{ROOT}/tradeoff?by={quote(name)}", aria_current="true" if name == measure else None) for name in _COSTS]
    choice = tag("nav", links, aria_label="Cost to show", class_="tabs")
    lead = f"Up and left is better. Measured by a sweep of {len(outcomes.records):,} runs; bars are 95 % intervals over tasks."
    return join([tag("p", lead, class_="lead"), choice, *(_world(outcomes, world, policy, measure) for world in outcomes.worlds)])


def _world(outcomes: "Outcomes", world: str, policy: Policy, measure: str) -> Html:
    here, told = _like(outcomes, world, policy)
    found = list(_costed(outcomes, world, here))
    marks = [mark for each in found if (mark := each.mark(measure)) is not None]
    front = _front(marks)
    drawn = _most_telling(marks, front)
    title = f"Score against {measure} per task, world {world}; the dashed line joins what nothing beats in both"
    chart = scatter(title, drawn, across=f"{measure} per task", up="score", front=[(mark.across, mark.up) for mark in front])
    rows = [_cells(each) for each in sorted(found, key=lambda each: -each.score.value)]
    figures = table(f"Means per task in the world {world}", ("configuration", "score", *_COSTS), rows)
    return join([tag("h2", f"World {world}"), tag("p", text(told)), chart, figures])


def _costed(outcomes: "Outcomes", world: str, here: Sequence[str]) -> Iterator[_Costed]:
    for label in outcomes.configurations(world):
        score, record = outcomes.estimate(world, label, "score"), outcomes.first(world, label)
        if score is not None and not record.oracle and not outcomes.is_shadow(world, label):
            costs = {measure: outcomes.estimate(world, label, measure) for measure in _COSTS}
            side = {Strategy.DEVICE: "near", Strategy.CLOUD: "far"}.get(Strategy(record.strategy), "")
            yield _Costed(label, score, costs, "here" if label in here else side)


def _like(outcomes: "Outcomes", world: str, policy: Policy) -> tuple[list[str], str]:
    """Return the configurations that serve tasks as the policy does, or else those of its strategy, and a sentence that names them."""
    of_strategy = {
        label: arm for label in outcomes.configurations(world) if (arm := arm_of(outcomes.first(world, label))).strategy is policy.strategy
    }
    settings = policy.model_dump(mode="json")
    exact = [label for label, arm in of_strategy.items() if _agrees({**arm.knobs, "mode": settings["mode"]}, settings)]
    if exact:
        return exact, f"You are here: {', '.join(exact)}, the large point."
    if of_strategy:
        return [*of_strategy], f"You are near {', '.join(of_strategy)}, the large points: your strategy, with other settings."
    if policy.strategy is Strategy.AUTO:
        return [], "Strategy auto chooses one of these for each task."
    return [], f"The sweep has no configuration with your strategy, {policy.strategy}."


def _agrees(knobs: Mapping[str, Any], policy: Mapping[str, Any]) -> bool:
    return all(
        _agrees(value, policy[name]) if isinstance(value, Mapping) and isinstance(policy.get(name), Mapping) else policy.get(name) == value
        for name, value in knobs.items()
    )


def _front(marks: Sequence[Mark]) -> list[Mark]:
    from ..lab.statistics import pareto_front

    return [marks[place] for place in pareto_front([(mark.across, mark.up) for mark in marks])]


def _most_telling(marks: Sequence[Mark], front: Sequence[Mark]) -> list[Mark]:
    first = [mark for mark in marks if mark in front or mark.css]
    others = sorted((mark for mark in marks if mark not in first), key=lambda mark: -mark.up)
    return [*first, *others][:_MOST_DRAWN]


def _cells(each: _Costed) -> tuple[Html | str, ...]:
    label = tag("strong", text(f"{each.label} (you are here)")) if each.css == "here" else text(each.label)
    return (label, _interval(each.score, "score"), *(_interval(each.costs[measure], measure) for measure in _COSTS))


_FORMS: Final = {"score": ".1%", "dollars": ".5f", "seconds": ".2f", "joules": ".3g"}


def _interval(figure: "IntervalEstimate | None", measure: str) -> str:
    form = _FORMS[measure]
    if figure is not None and not any((figure.value, figure.low, figure.high)):
        return "0"
    return "unknown" if figure is None else f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]"


def _own(results: Sequence[Result]) -> Html:
    """Return what the newest tasks took, by strategy and side: their scores are only known where the app reports them."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((str(result.decision.strategy), str(result.side)), []).append(result)
    rows = [(strategy, side, f"{len(found):,}", *_means(found)) for (strategy, side), found in sorted(groups.items())]
    head = ("strategy", "answered by", "tasks", *_COSTS)
    caption = f"Means of the newest {len(results):,} answers, with 95 % intervals; joules are this device's"
    return join(
        [tag("h2", "Your own tasks"), table(caption, head, rows, empty="No task has an answer yet. Ask something on the page Chat.")]
    )


def _means(results: Sequence[Result]) -> Iterator[str]:
    from ..lab.statistics import mean

    for measure in _COSTS:
        values = {str(place): [each] for place, result in enumerate(results) if (each := _value(result, measure)) is not None}
        yield _interval(mean(values) if values else None, measure)


def _value(result: Result, measure: str) -> float | None:
    if measure == "joules":
        return result.energy.joules
    return result.seconds if measure == "seconds" else None if result.dollars is None else float(result.dollars)


MONEY: Final = Page("/money", "Money", _show, renew=_renew, period=3.0)
TRADEOFF: Final = Page("/tradeoff", "Trade-off", _show_tradeoff)
