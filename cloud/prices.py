"""Prices of models, and reading them from LiteLLM's list."""

import json
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from ..protocols import ConfigError, Prices
from ..protocols.attachments import Value
from ..protocols.system import data_folder, hint_for, replace_text


class PriceLine(Prices):
    """The price of one model at one provider."""

    provider: str = Field(min_length=1)
    model: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    """Further ids of the same model at the same price, such as dated ones."""
    until: date | None = None
    """Last day of this price; afterwards it is unknown."""
    note: str = ""
    """Cases in which the provider charges differently and this line is wrong."""

    @property
    def prices(self) -> Prices:
        """Return the prices without the other fields of the line."""
        return Prices(**{name: getattr(self, name) for name in Prices.model_fields})

    def names(self, provider: str, model: str) -> bool:
        """Return whether the line is for this model; ids match exactly."""
        return self.provider == provider and model in (self.model, *self.aliases)

    def holds_on(self, day: date) -> bool:
        """Return whether the provider still has this price on a day."""
        return self.until is None or day <= self.until


class _Reference(Value):
    provider: str
    model: str


class _Shipped(Value):
    reference: _Reference
    """The real model whose price the demo uses for the cost of its far tokens."""
    hosts: dict[str, str]
    """Providers by the host of their OpenAI-compatible API."""
    price: tuple[PriceLine, ...] = Field(min_length=1)


class ImportedTable(Value):
    """Prices that the user has imported; they take precedence over the shipped ones."""

    imported: date
    price: tuple[PriceLine, ...]


def price_of(provider: str, model: str, *, on: date | None = None) -> Prices | None:
    """Return the price of `model` at `provider`'s own API on a day (None: today), or None if it is unknown.

    Ids match exactly, or by an alias in the table: a dated id is another model unless the table says otherwise. Raise `ConfigError` if
    an imported table cannot be read.
    """
    day = on or datetime.now(UTC).date()
    return next((line.prices for line in price_lines() if line.names(provider, model) and line.holds_on(day)), None)


def price_at(host: str, model: str) -> Prices | None:
    """Return the price of `model` at the OpenAI-compatible API of a known host, or None if either is unknown."""
    provider = _shipped().hosts.get(host.lower())
    return None if provider is None else price_of(provider, model)


def price_lines() -> Iterator[PriceLine]:
    """Yield the lines of both tables, imported ones first. Raise `ConfigError` if the imported table cannot be read."""
    imported = imported_table()
    yield from imported.price if imported is not None else ()
    yield from _shipped().price


def reference_price() -> tuple[str, Prices]:
    """Return name and price of the model that the demo's dollars refer to; an imported table does not change it."""
    reference = _shipped().reference
    line = next(line for line in _shipped().price if line.names(reference.provider, reference.model))
    return reference.model, line.prices


def imported_path() -> Path:
    """Return the path of the imported table."""
    return data_folder() / "prices.json"


def imported_table() -> ImportedTable | None:
    """Return the imported table, or None if there is none. Raise `ConfigError` if it cannot be read."""
    path = imported_path()
    try:
        return ImportedTable.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        message = f"the imported prices in {path} cannot be read: {type(error).__name__}"
        raise ConfigError(message, hint="import them again with nearfar prices import, or delete the file") from error


def keep_imported(lines: tuple[PriceLine, ...]) -> Path:
    """Replace the imported table and return its path. Raise `ConfigError` if it cannot be written."""
    path = imported_path()
    table = ImportedTable(imported=datetime.now(UTC).date(), price=lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(table.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n", mode=0o600)
    except OSError as error:
        hint = hint_for(error, "set NEARFAR_HOME to a folder of yours")
        raise ConfigError(f"the prices cannot be kept in {path}: {error.strerror}", hint=hint) from error
    return path


@cache
def _shipped() -> _Shipped:
    text = files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    # Strings, because a binary float does not hold a price exactly.
    return _Shipped.model_validate(tomllib.loads(text, parse_float=str))


PROVIDERS: Final = frozenset({"openai", "anthropic", "gemini", "mistral", "deepseek", "xai"})
"""Providers of the public table that have one price per model and an API that nearfar speaks."""

_MODES: Final = frozenset({"chat", "responses"})
_RATES: Final = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
_THRESHOLD: Final = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
_MILLION: Final = Decimal(1_000_000)
_HINT: Final = "it takes a copy of LiteLLM's model_prices_and_context_window.json"


def read_public_table(path: Path, *, source: str, as_of: date) -> tuple[PriceLine, ...]:
    """Return the prices of all text models of known providers. Raise `ConfigError` that names the first wrong entry."""
    table = _loaded(path)
    lines: dict[tuple[str, str], PriceLine] = {}
    for name, entry in table.items():
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: the entry of {name!r} is not an object", hint=_HINT)
        if entry.get("litellm_provider") in PROVIDERS and entry.get("mode") in _MODES and _RATES["input"] in entry:
            line = _line(path, name, entry, source, as_of)
            lines.setdefault((line.provider, line.model), line)
    if not lines:
        raise ConfigError(f"{path} names no text model of {', '.join(sorted(PROVIDERS))}", hint=_HINT)
    return tuple(lines.values())


def _loaded(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_bytes(), parse_float=Decimal)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", hint=_HINT) from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path} holds no JSON object", hint=_HINT)
    return table


def _line(path: Path, name: str, entry: dict[str, Any], source: str, as_of: date) -> PriceLine:
    provider = entry["litellm_provider"]
    try:
        tiers = [{"above": above, **_rates(entry, f"_above_{above // 1000}k_tokens")} for above in _thresholds(entry)]
        fields = {**_rates(entry), "long_prompts": tiers, "source": source, "as_of": as_of, "until": entry.get("deprecation_date")}
        return PriceLine.model_validate({"provider": provider, "model": name.removeprefix(f"{provider}/"), **fields})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: the price of {name!r} is wrong: {place}: {first['msg']}", hint=_HINT) from error


def _thresholds(entry: dict[str, Any]) -> Iterator[int]:
    return (int(found[1]) * 1000 for key in entry if (found := _THRESHOLD.fullmatch(key)) is not None)


def _rates(entry: dict[str, Any], suffix: str = "") -> dict[str, object]:
    """Return the rates per million tokens; a value that is not a number is left to the validation to refuse."""
    stated = {ours: entry[theirs + suffix] for ours, theirs in _RATES.items() if entry.get(theirs + suffix) is not None}
    if not stated.get("cache_write"):  # the table writes 0 where nothing is charged beyond plain input
        stated.pop("cache_write", None)
    return {ours: _per_million(value) for ours, value in stated.items()}


def _per_million(value: object) -> object:
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return value * _MILLION
    return str(value)
