"""`nearfar prices show | import`."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...protocols import ConfigError
from ..compose.agents import import_price_table, imported_prices_day, known_prices
from .console import notes, output, print_json, reported

if TYPE_CHECKING:
    from ..compose.agents import PriceLine

_OLD_DAYS: Final = 180


def show_prices(prefix: str, *, as_json: bool) -> None:
    """Print the prices that hold today; of two lines for a model, the one that counts."""
    with reported(as_json=as_json):
        today = datetime.now(UTC).date()
        lines = _counting([line for line in known_prices() if line.holds_on(today)])
        found = [line for line in lines if any(name.startswith(prefix) for name in (line.model, *line.aliases))]
        imported = imported_prices_day()
        if not found:
            raise ConfigError(
                f"no price is known of a model whose name begins with {prefix!r}", hint="nearfar prices show lists all models"
            )
    if as_json:
        described = [{**line.model_dump(mode="json"), "age_days": (today - line.as_of).days} for line in found]
        print_json({"prices": described, "imported": None if imported is None else imported.isoformat()})
        return
    output.print(_table(found, today))
    notes.print(_ages(found, today, imported), style="dim", soft_wrap=True)


def import_prices(file: Path, *, source: str, as_of: str, as_json: bool) -> None:
    """Keep the prices of a public table in the user's folder."""
    with reported(as_json=as_json):
        count, path = import_price_table(file, source=source, as_of=_day(as_of))
    if as_json:
        print_json({"models": count, "path": str(path)})
    else:
        output.print(f"{count} models: {path}", soft_wrap=True, highlight=False)


def _day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no day", hint="write it as YYYY-MM-DD") from None
    if day > datetime.now(UTC).date():
        raise ConfigError(f"{text} lies in the future", hint="--as-of is the day on which the figures held")
    return day


def _counting(lines: Sequence["PriceLine"]) -> list["PriceLine"]:
    """The first line of each model, by provider and name."""
    first: dict[tuple[str, str], PriceLine] = {}
    for line in lines:
        first.setdefault((line.provider, line.model), line)
    return [first[key] for key in sorted(first)]


def _table(lines: Sequence["PriceLine"], today: date) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("model", "provider", "input", "cached", "stored", "output", "age"):
        table.add_column(column, justify="left" if column in ("model", "provider") else "right", no_wrap=True)
    for line in lines:
        for name, rates in [(line.model, line), *((f"  above {tier.above:,} tokens", tier) for tier in line.long_prompts)]:
            figures = [_figure(each) for each in (rates.input, rates.cached_input, rates.cache_write, rates.output)]
            is_line = rates is line
            table.add_row(name, line.provider if is_line else "", *figures, f"{(today - line.as_of).days} d" if is_line else "")
    return table


def _figure(price: object) -> str:
    return "" if price is None else f"{price:f}"


def _ages(lines: Sequence["PriceLine"], today: date, imported: date | None) -> str:
    ages = [(today - line.as_of).days for line in lines]
    said = f"dollars per million tokens; {len(lines)} models, {min(ages)} to {max(ages)} days old"
    if imported is not None:
        said += f"; imported on {imported}"
    return said + ("; correct old ones by [far.prices] or nearfar prices import" if max(ages) > _OLD_DAYS else "")
