"""Read LiteLLM's public price table, `model_prices_and_context_window.json`, from a file."""

import json
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from ..protocols import ConfigError
from .prices import PriceLine

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
