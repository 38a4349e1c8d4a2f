"""`nearfar budget`: show what was spent, what is reserved for calls under way, and what may be spent."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from ...protocols import ConfigError
from ..budgets.book import MEASURES, Balance, BudgetBook, Scope, open_budgets
from ..compose.config import Config
from ..task.routing_policy import AmountsConfig, LimitsConfig
from . import options
from .printing import Line, Note, right, show, table
from .running import report_errors

_SHOWN: Final = 20
"""Largest number of users, and of sessions, in the table: the last ones."""
_KINDS: Final = ("day", "user", "session", "task")

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show_budgets(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print what the day, each user and each session have spent of their limits, and what is reserved for calls under way."""
    with report_errors(as_json=as_json), _open_book(config) as (loaded, book):
        found = _chosen_balances(book)
    limits = loaded.policy.limits
    data = {"scopes": [_described(scope, balance, limits) for scope, balance in found]}
    show(data, _lines(found, limits), as_json=as_json)


@app.command("reset")
def reset_budget(
    scope: Annotated[str, typer.Argument(help="day, user:NAME, session:NAME or task:ID.")],
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Set what was spent in a scope back to zero. Calls under way are counted when they end."""
    with report_errors(as_json=as_json), _open_book(config) as (_, book):
        wanted = _parse_scope(scope)
        balance = book.balances().get(book.today() if wanted == Scope("day") else wanted)
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


def _chosen_balances(book: BudgetBook) -> list[tuple[Scope, Balance]]:
    """Return today's balance, those of users and sessions, and those of tasks with calls under way."""
    today = book.today()
    balances = {today: Balance(), **book.balances()}
    under_way = [(scope, balance) for scope, balance in balances.items() if scope.kind == "task" and any(balance.reserved)]
    lasting = [(scope, balance) for scope, balance in balances.items() if scope.kind in ("user", "session")]
    return [(today, balances[today]), *lasting, *under_way]


def _parse_scope(text: str) -> Scope:
    kind, mark, name = text.partition(":")
    if kind not in _KINDS or (kind == "day") is bool(mark):
        raise ConfigError(f"there is no scope {text!r}", hint="it is day, user:NAME, session:NAME or task:ID")
    return Scope(kind, name)


def _lines(found: Sequence[tuple[Scope, Balance]], limits: LimitsConfig) -> Iterator[Line]:
    yield table(("scope", *right(*MEASURES)), _rows(found, limits))
    for scope, balance in found:
        if balance.unpriced:
            yield Note(f"{_scope_text(scope)}: the price of {balance.unpriced} calls is unknown")


def _rows(found: Sequence[tuple[Scope, Balance]], limits: LimitsConfig) -> Iterator[tuple[str, ...]]:
    for kind in _KINDS:
        for scope, balance in [each for each in found if each[0].kind == kind][-_SHOWN:]:
            caps = _caps(scope, limits)
            yield (_scope_text(scope), *(_cell(name, balance, getattr(caps, name)) for name in MEASURES))


def _scope_text(scope: Scope) -> str:
    return f"day {scope.name}" if scope.kind == "day" else f"{scope.kind}:{scope.name}"


def _caps(scope: Scope, limits: LimitsConfig) -> AmountsConfig:
    caps: AmountsConfig = getattr(limits, scope.kind)
    return caps


def _cell(name: str, balance: Balance, cap: float | None) -> str:
    spent, reserved = balance.spent.of(name), balance.reserved.of(name)
    form = ".4f" if name == "dollars" else ".0f" if name == "tokens" else ".1f"
    of = "" if cap is None else f" of {cap:{form}}"
    return f"{spent:{form}}{of}" + (f" (+ {reserved:{form}})" if reserved else "")


def _described(scope: Scope, balance: Balance, limits: LimitsConfig) -> dict[str, object]:
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
