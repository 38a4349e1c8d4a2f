"""What providers charge, from the table in `prices.toml`. A model that is not in the table has an unknown price, never a price of 0."""

import tomllib
from datetime import date
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field

from ..protocols import Prices


class _Line(Prices):
    provider: str
    model: str
    aliases: tuple[str, ...] = ()
    """Further ids of the same model at the same price, such as dated ones."""
    until: date | None = None
    """The last day on which the provider asks this price; afterwards it is unknown."""
    note: str = ""
    """Where the provider charges differently, and this line does not hold."""


class _Reference(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str
    model: str


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: _Reference
    """The real model at whose price the demo states what its far tokens would cost."""
    price: tuple[_Line, ...] = Field(min_length=1)


def price_of(provider: str, model: str, *, on: date | None = None) -> Prices | None:
    """The price of `model` at `provider`'s own API on a day (None: today), or None if it is unknown.

    Ids match exactly, or by an alias that the table states: a dated id is another model unless the table says otherwise.
    """
    day = on or date.today()
    for line in _table().price:
        if line.provider == provider and model in (line.model, *line.aliases):
            return None if line.until is not None and day > line.until else _prices(line)
    return None


def reference_price() -> tuple[str, Prices]:
    """The name and the price of the model that the demo's dollars refer to."""
    reference = _table().reference
    line = next(line for line in _table().price if (line.provider, line.model) == (reference.provider, reference.model))
    return reference.model, _prices(line)


def _prices(line: _Line) -> Prices:
    return Prices(**{name: getattr(line, name) for name in Prices.model_fields})


@cache
def _table() -> _Table:
    text = files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    # Decimal, because a binary float does not hold a price exactly.
    return _Table.model_validate(tomllib.loads(text, parse_float=str))
