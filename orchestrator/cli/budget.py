"""`nearfar budget` and `nearfar prices`: what was spent and what may be spent, and the prices of providers' models."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Column

from ...protocols import ConfigError
from ..budgets import MEASURES, Balance, BudgetBook, BudgetScope, open_budgets
from ..compose import import_price_table, imported_prices_day, known_prices
from ..compose.config import Config
from ..task.routing_policy import AmountsConfig, LimitsConfig
from . import options
from .running import Line, Note, report_errors, right, show, table

if TYPE_CHECKING:
    from ..compose import PriceLine

_SHOWN: Final = 20
"""Largest number of users, and of sessions, in the table: the last ones."""
_KINDS: Final = ("day", "user", "session", "task")
_OLD_DAYS: Final = 180
"""Age of a price, in days, after which a note suggests to correct it."""
app = typer.Typer(no_args_is_help=True)
prices_app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show_budgets(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print what the day, each user and each session have spent of their limits, and what is reserved for calls under way."""
    with report_errors(as_json=as_json), _open_book(config) as (loaded, book):
        found = _chosen_balances(book)
    limits = loaded.policy.limits
    data = {"scopes": [_describe(scope, balance, limits) for scope, balance in found]}
    show(data, _lines(found, limits), as_json=as_json)


@app.command("reset")
def reset_budget(
    scope: Annotated[str, typer.Argument(help="day, user:NAME, session:NAME or task:ID; the beginning of the id will do.")],
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Set what was spent in a scope back to zero. Calls under way are counted when they end."""
    with report_errors(as_json=as_json), _open_book(config) as (_, book):
        known = book.balances()
        wanted = _full_scope(_parse_scope(scope), known)
        balance = known.get(book.today() if wanted == BudgetScope("day") else wanted)
        if balance is None:
            raise ConfigError(f"nothing was ever spent in {scope}", hint="nearfar budget show lists the scopes")
        book.reset(wanted)
    told = f"{scope} is back at zero; it had spent {balance.spent.of('dollars'):.4g} dollars and {balance.spent.tokens} tokens"
    show({"scope": scope, "spent": _amounts(balance)}, [told], as_json=as_json)


@contextmanager
def _open_book(path: Path | None) -> Iterator[tuple[Config, BudgetBook]]:
    """Open the budget book of a configuration. Raises `ConfigError` without `[runs]`: each process then counts alone."""
    config = options.read_config(path)
    if config is None or config.runs is None:
        raise ConfigError("what was spent is not kept", hint="[runs] in nearfar.toml keeps it, for all processes together")
    with closing(open_budgets(config.runs)) as book:
        yield config, book


def _chosen_balances(book: BudgetBook) -> list[tuple[BudgetScope, Balance]]:
    """Return today's balance, those of users and sessions, and those of tasks with calls under way."""
    today = book.today()
    balances = {today: Balance(), **book.balances()}
    under_way = [(scope, balance) for scope, balance in balances.items() if scope.kind == "task" and any(balance.reserved)]
    lasting = [(scope, balance) for scope, balance in balances.items() if scope.kind in ("user", "session")]
    return [(today, balances[today]), *lasting, *under_way]


def _parse_scope(text: str) -> BudgetScope:
    kind, mark, name = text.partition(":")
    if kind not in _KINDS or (kind == "day") is bool(mark):
        raise ConfigError(f"there is no scope {text!r}", hint="it is day, user:NAME, session:NAME or task:ID")
    return BudgetScope(kind, name)


def _full_scope(scope: BudgetScope, known: Collection[BudgetScope]) -> BudgetScope:
    """Return the scope of the only task whose id begins like that; any other scope is returned as it is."""
    if scope.kind != "task" or not scope.name:
        return scope
    return BudgetScope("task", options.pick_id(scope.name, [each.name for each in known if each.kind == "task"], "task"))


def _lines(found: Sequence[tuple[BudgetScope, Balance]], limits: LimitsConfig) -> Iterator[Line]:
    yield table(("scope", *right(*MEASURES)), _rows(found, limits))
    for scope, balance in found:
        if balance.unpriced:
            yield Note(f"{_scope_text(scope)}: the price of {balance.unpriced} calls is unknown")


def _rows(found: Sequence[tuple[BudgetScope, Balance]], limits: LimitsConfig) -> Iterator[tuple[str, ...]]:
    for kind in _KINDS:
        for scope, balance in [each for each in found if each[0].kind == kind][-_SHOWN:]:
            caps = _caps(scope, limits)
            yield (_scope_text(scope), *(_cell(name, balance, getattr(caps, name)) for name in MEASURES))


def _scope_text(scope: BudgetScope) -> str:
    return f"day {scope.name}" if scope.kind == "day" else f"{scope.kind}:{scope.name}"


def _caps(scope: BudgetScope, limits: LimitsConfig) -> AmountsConfig:
    caps: AmountsConfig = getattr(limits, scope.kind)
    return caps


def _cell(name: str, balance: Balance, cap: float | None) -> str:
    spent, reserved = balance.spent.of(name), balance.reserved.of(name)
    form = ".4f" if name == "dollars" else ".0f" if name == "tokens" else ".1f"
    of = "" if cap is None else f" of {cap:{form}}"
    return f"{spent:{form}}{of}" + (f" (+ {reserved:{form}})" if reserved else "")


def _describe(scope: BudgetScope, balance: Balance, limits: LimitsConfig) -> dict[str, object]:
    return {
        "scope": scope.kind,
        "name": scope.name,
        "spent": _amounts(balance),
        "reserved": {name: balance.reserved.of(name) for name in MEASURES},
        "cap": _caps(scope, limits).model_dump(),
        "unpriced_calls": balance.unpriced,
    }


def _amounts(balance: Balance) -> dict[str, float]:
    return {name: balance.spent.of(name) for name in MEASURES}


@prices_app.command("show")
def show_prices(
    prefix: Annotated[str, typer.Argument(help="Only models whose names begin like this.")] = "", as_json: options.AsJson = False
) -> None:
    """Print prices in dollars per million tokens, with their age in days."""
    with report_errors(as_json=as_json):
        today = datetime.now(UTC).date()
        lines = _first_lines([line for line in known_prices() if line.holds_on(today)])
        found = [line for line in lines if any(name.startswith(prefix) for name in (line.model, *line.aliases))]
        imported = imported_prices_day()
        if not found:
            hint = "nearfar prices show lists all models"
            raise ConfigError(f"no price is known of a model whose name begins with {prefix!r}", hint=hint)
    described = [{**line.model_dump(mode="json"), "age_days": (today - line.as_of).days} for line in found]
    data = {"prices": described, "imported": None if imported is None else imported.isoformat()}
    show(data, _price_lines(found, today, imported), as_json=as_json)


@prices_app.command("import")
def import_prices(
    file: Annotated[Path, typer.Argument(help="A copy of LiteLLM's model_prices_and_context_window.json.")],
    as_of: Annotated[str, typer.Option(help="The day on which the prices held, as YYYY-MM-DD.")],
    source: Annotated[str, typer.Option(help="Where the file comes from.")] = "LiteLLM's model_prices_and_context_window.json",
    as_json: options.AsJson = False,
) -> None:
    """Keep the prices of a public table. They take precedence over those that nearfar ships. Nothing is fetched from the network."""
    with report_errors(as_json=as_json):
        count, path = import_price_table(file, source=source, as_of=_parse_day(as_of))
    show({"models": count, "path": str(path)}, [f"{count} models: {path}"], as_json=as_json)


def _parse_day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no day", hint="write it as YYYY-MM-DD") from None
    if day > datetime.now(UTC).date():
        raise ConfigError(f"{text} lies in the future", hint="--as-of is the day on which the prices held")
    return day


def _first_lines(lines: Sequence["PriceLine"]) -> list["PriceLine"]:
    """Return the first line of each model, which is the one that counts, by provider and name."""
    first: dict[tuple[str, str], PriceLine] = {}
    for line in lines:
        first.setdefault((line.provider, line.model), line)
    return [first[key] for key in sorted(first)]


def _price_lines(found: Sequence["PriceLine"], today: date, imported: date | None) -> Iterator[Line]:
    columns = [Column(name, no_wrap=True) for name in ("model", "provider")]
    columns += [Column(name, no_wrap=True, justify="right") for name in ("input", "cached", "stored", "output", "age")]
    yield table(columns, (row for line in found for row in _price_rows(line, today)))
    ages = [(today - line.as_of).days for line in found]
    since = "" if imported is None else f"; imported on {imported}"
    advice = "; correct old ones with [far.prices] or nearfar prices import" if max(ages) > _OLD_DAYS else ""
    yield Note(f"dollars per million tokens; {len(found)} models, {min(ages)} to {max(ages)} days old{since}{advice}")


def _price_rows(line: "PriceLine", today: date) -> Iterator[tuple[str, ...]]:
    """Yield the row of a model, and one for each tier of long prompts."""
    for name, rates in [(line.model, line), *((f"  above {tier.above:,} tokens", tier) for tier in line.long_prompts)]:
        figures = ("" if each is None else f"{each:f}" for each in (rates.input, rates.cached_input, rates.cache_write, rates.output))
        is_line = rates is line
        yield (name, line.provider if is_line else "", *figures, f"{(today - line.as_of).days} d" if is_line else "")
