"""Steps from what a tool returned to the value in it that a plan means.

Each takes the values so far and returns those that it leads to. Values are those of JSON, and of the kinds that texts hold.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Final

from pydantic import JsonValue

from .kinds import KINDS

Values = Sequence[object]
Step = Callable[[Values], Values]


def each(values: Values) -> Values:
    """All of them: a plan says so where it means more than one."""
    return values


def member(name: str) -> Step:
    """Return that of records which has this name, or the values of the kind that it names in texts."""
    if name == "each":
        return each

    def step(values: Values) -> Values:
        return [found for value in _members_of_lists(values) for found in _in(value, name)]

    return step


def step_of(name: str, positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Return the step that a plan writes as a method. Raises `ValueError` for one that there is not."""
    make = _METHODS.get(name)
    if make is None:
        raise ValueError(f"there is no step {name!r}: the steps are {', '.join(sorted(_METHODS))}")
    return make(positional, named)


def _where(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep the records whose members are these: `where(sender="Ann")`."""
    if positional or not named:
        raise ValueError('write where(sender="Ann")')

    def fits(record: object) -> bool:
        return isinstance(record, dict) and all(name in record and _is_same(record[name], value) for name, value in named.items())

    return lambda values: [value for value in _members_of_lists(values) if fits(value)]


def _containing(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep what says these words, in any case and spacing: `containing("coffee mug")`."""
    words = _in_one_case(_one_text("containing", positional, named))
    return lambda values: [value for value in _members_of_lists(values) if any(words in _in_one_case(text) for text in _texts(value))]


def _starting(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep the texts that begin with these words: `starting("External")`."""
    words = _one_text("starting", positional, named)
    return lambda values: [value for value in _members_of_lists(values) if isinstance(value, str) and value.startswith(words)]


def _most(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep the records with the largest number: `max("size")`."""
    return _extreme(_one_text("max", positional, named), max)


def _least(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep the records with the smallest number: `min("price")`."""
    return _extreme(_one_text("min", positional, named), min)


def _extreme(name: str, choose: Callable[[list[float]], float]) -> Step:
    def step(values: Values) -> Values:
        records = [value for value in _members_of_lists(values) if isinstance(value, dict) and value.get(name) is not None]
        if not records or not all(_is_number(record[name]) and isfinite(record[name]) for record in records):
            return []  # one that cannot be compared could be the one
        best = choose([record[name] for record in records])
        return [record for record in records if record[name] == best]

    return step


def _later(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Go on from points in time: `later(hours=4)`."""
    if positional or not named or not set(named) <= {"days", "hours", "minutes"} or not all(map(_is_number, named.values())):
        raise ValueError("write later(hours=4), with days, hours or minutes")
    try:
        ahead = timedelta(**named)  # type: ignore[arg-type]  # they are numbers
    except (OverflowError, ValueError) as error:
        raise ValueError("nothing is so much later") from error
    return lambda values: [moved for moment in map(moment_of, values) if moment is not None and (moved := _moved(moment, ahead))]


_METHODS: Final[Mapping[str, Callable[[Sequence[JsonValue], Mapping[str, JsonValue]], Step]]] = {
    "where": _where,
    "containing": _containing,
    "starting": _starting,
    "max": _most,
    "min": _least,
    "later": _later,
}


def moment_of(value: object) -> datetime | None:
    """Return the point in time that a value is or says by itself."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.strip())
    except ValueError:
        return None


def _moved(moment: datetime, ahead: timedelta) -> datetime | None:
    try:
        return moment + ahead
    except OverflowError:
        return None


def _in(value: object, name: str) -> Iterator[object]:
    if isinstance(value, dict):
        if name in value:
            yield value[name]
    elif isinstance(value, str) and name in KINDS:
        yield from KINDS[name](value)
    elif name == "number" and _is_number(value):
        yield Decimal(str(value))  # a text of nothing but a number is JSON, too


def _members_of_lists(values: Values) -> Iterator[object]:
    for value in values:
        if isinstance(value, list):
            yield from _members_of_lists(value)
        else:
            yield value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each_ in value.values():
            yield from _texts(each_)
    elif isinstance(value, list):
        for each_ in value:
            yield from _texts(each_)


def _in_one_case(text: str) -> str:
    return " ".join(text.casefold().split())


def _is_same(found: object, stated: JsonValue) -> bool:
    return found == stated and isinstance(found, bool) == isinstance(stated, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_text(name: str, positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> str:
    if named or len(positional) != 1 or not isinstance(positional[0], str) or not positional[0].strip():
        raise ValueError(f'write {name}("..."), with a text')
    return positional[0]
