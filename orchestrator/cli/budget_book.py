"""`nearfar budget show | reset`."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...protocols import ConfigError
from ..budgets.amounts import MEASURES
from ..budgets.book import Balance, BudgetBook, Scope, open_budgets
from ..compose.config import Config
from ..task.sections.routing import AmountsConfig, LimitsConfig
from .configuration import read_config
from .console import notes, output, print_json, reported

_SHOWN: Final = 20
"""Users, and sessions; of more, the last ones."""
_KINDS: Final = ("day", "user", "session", "task")


def show_budgets(path: Path | None, *, as_json: bool) -> None:
    """Print the balances; of days only the one that counts now, of tasks only those with calls under way."""
    with reported(as_json=as_json), _opened(path) as (config, book):
        found = _chosen(book)
    limits = config.policy.limits
    if as_json:
        print_json({"scopes": [_described(scope, balance, limits) for scope, balance in found]})
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("scope", *MEASURES):
        table.add_column(column, justify="left" if column == "scope" else "right")
    for kind in _KINDS:
        for scope, balance in [each for each in found if each[0].kind == kind][-_SHOWN:]:
            caps = _caps(scope, limits)
            table.add_row(_named(scope), *(_cell(name, balance, getattr(caps, name)) for name in MEASURES))
    output.print(table)
    for scope, balance in found:
        if balance.unpriced:
            notes.print(f"{_named(scope)}: the price of {balance.unpriced} calls is unknown", style="dim")


def reset_budget(text: str, path: Path | None, *, as_json: bool) -> None:
    """Forget what was spent in the scope that `text` names."""
    with reported(as_json=as_json), _opened(path) as (_, book):
        scope = _scope(text)
        known = book.today() if scope == Scope("day") else scope
        balance = book.balances().get(known)
        if balance is None:
            raise ConfigError(f"nothing was ever spent in {text}", hint="nearfar budget show names the scopes")
        book.reset(scope)
    if as_json:
        print_json({"scope": text, "spent": _amounts(balance)})
    else:
        output.print(f"{text} begins anew: {balance.spent.of('dollars'):.4g} dollars and {balance.spent.tokens} tokens are forgotten")


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[Config, BudgetBook]]:
    """The configuration and its book. Raises `ConfigError` where each process keeps its own."""
    config = read_config(path)
    if config is None or config.runs is None:
        raise ConfigError("what was spent is kept by each process alone", hint="[runs] in nearfar.toml keeps it for all of them")
    with closing(open_budgets(config.runs)) as book:
        yield config, book


def _chosen(book: BudgetBook) -> list[tuple[Scope, Balance]]:
    today = book.today()
    balances = {today: Balance(), **book.balances()}
    under_way = [(scope, balance) for scope, balance in balances.items() if scope.kind == "task" and any(balance.reserved)]
    lasting = [(scope, balance) for scope, balance in balances.items() if scope.kind in ("user", "session")]
    return [(today, balances[today]), *lasting, *under_way]


def _scope(text: str) -> Scope:
    kind, mark, name = text.partition(":")
    if kind not in _KINDS or (kind == "day") is bool(mark):
        raise ConfigError(f"there is no scope {text!r}", hint="it is day, user:NAME, session:NAME or task:ID")
    return Scope(kind, name)


def _named(scope: Scope) -> str:
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
    reserved = {name: balance.reserved.of(name) for name in MEASURES}
    return {
        "scope": scope.kind,
        "name": scope.name,
        "spent": _amounts(balance),
        "reserved": reserved,
        "cap": _caps(scope, limits).model_dump(),
        "unpriced_calls": balance.unpriced,
    }


def _amounts(balance: Balance) -> dict[str, float]:
    return {name: balance.spent.of(name) for name in MEASURES}
