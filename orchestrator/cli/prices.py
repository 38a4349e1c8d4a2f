"""`nearfar prices`: show and import the prices of providers' models."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Column

from ...protocols import ConfigError
from ..compose.agents import import_price_table, imported_prices_day, known_prices
from . import options
from .printing import Line, Note, show, table
from .running import report_errors

if TYPE_CHECKING:
    from ..compose.agents import PriceLine

_OLD_DAYS: Final = 180
"""Age of a price, in days, after which a note suggests to correct it."""

app = typer.Typer(no_args_is_help=True)


@app.command("show")
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
    show(data, _lines(found, today, imported), as_json=as_json)


@app.command("import")
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


def _lines(found: Sequence["PriceLine"], today: date, imported: date | None) -> Iterator[Line]:
    columns = [Column(name, no_wrap=True) for name in ("model", "provider")]
    columns += [Column(name, no_wrap=True, justify="right") for name in ("input", "cached", "stored", "output", "age")]
    yield table(columns, (row for line in found for row in _rows(line, today)))
    ages = [(today - line.as_of).days for line in found]
    since = "" if imported is None else f"; imported on {imported}"
    advice = "; correct old ones with [far.prices] or nearfar prices import" if max(ages) > _OLD_DAYS else ""
    yield Note(f"dollars per million tokens; {len(found)} models, {min(ages)} to {max(ages)} days old{since}{advice}")


def _rows(line: "PriceLine", today: date) -> Iterator[tuple[str, ...]]:
    """Yield the row of a model, and one for each tier of long prompts."""
    for name, rates in [(line.model, line), *((f"  above {tier.above:,} tokens", tier) for tier in line.long_prompts)]:
        figures = ("" if each is None else f"{each:f}" for each in (rates.input, rates.cached_input, rates.cache_write, rates.output))
        is_line = rates is line
        yield (name, line.provider if is_line else "", *figures, f"{(today - line.as_of).days} d" if is_line else "")
