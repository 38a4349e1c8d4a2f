"""Parse the tool calls in a plan: which values the plan says to read, and into which arguments they may flow.

A plan writes calls in Python's notation, anywhere in its text:

    invite(user="Dora", address=get_page(url="www.dora.example").email)

Here the only e-mail address on the page may become that argument. Untrusted content has no influence on it: the call, the steps from its
result to the value, and the argument were all written before it was read. A step takes the values so far and returns those that it leads
to. Values are those of JSON, and of the kinds that texts hold.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from math import isfinite
from typing import Final, NamedTuple, TypeAlias

from pydantic import JsonValue

from ..task.tools import Tool
from .text_values import KINDS

Values = Sequence[object]
Step = Callable[[Values], Values]


_LONGEST: Final = 20_000
"""Characters of a plan that are read."""
_MOST: Final = 200
"""Calls in a plan that are read: each is looked through to its end, which may be that of the plan."""
_DEEPEST: Final = 16
"""Calls within calls, lists and members."""

PlanValue: TypeAlias = "PlanCall | FixedValue | PlanList | PlanObject | AnyValue"


@dataclass(frozen=True)
class FixedValue:
    """A value that the plan states."""

    value: JsonValue


@dataclass(frozen=True)
class AnyValue:
    """`...`: the plan leaves the value to the model, and to the guard."""


@dataclass(frozen=True)
class PlanList:
    """A list."""

    members: tuple[PlanValue, ...]


@dataclass(frozen=True)
class PlanObject:
    """An object."""

    members: Mapping[str, PlanValue]


@dataclass(frozen=True)
class PlanCall:
    """A call that the plan names: to be made, or within another one, to be read, with the way from its result to the value."""

    tool: str
    arguments: Mapping[str, PlanValue]
    steps: tuple[Step, ...] = ()


class UnreadableCall(ValueError):
    """A call in a plan that cannot be read."""


Signature = tuple[str, tuple[str, ...]]
"""A tool's name, and those of its arguments in their order."""


def signatures_of(tools: Mapping[str, Tool]) -> tuple[Signature, ...]:
    """Return the signatures of the tools."""
    return tuple((name, tuple(tool.spec.parameters["properties"])) for name, tool in tools.items())


@lru_cache(maxsize=64)
def parse_plan(plan: str, known: tuple[Signature, ...]) -> tuple[PlanCall, ...]:
    """Read the calls of these tools that a plan names; those that cannot be read say nothing."""
    return tuple(found for found in _calls(plan, dict(known)) if isinstance(found, PlanCall))


def find_plan_problem(plan: str, known: Sequence[Signature]) -> str | None:
    """Return why a call of these tools that a plan names cannot be read; None: all can."""
    if len(plan) > _LONGEST:
        return f"it has {len(plan):,} characters, and {_LONGEST:,} at most are read"
    problems = (found for found in _calls(plan, dict(known)) if isinstance(found, UnreadableCall))
    return next(map(str, problems), None)


class SplitPlan(NamedTuple):
    """The calls of one tool in a plan, and what else it says."""

    calls: tuple[str, ...]
    rest: str


def split_calls(plan: str, tool: str) -> SplitPlan:
    """Separate a plan's calls of a tool from its other words. One that is nowhere closed ends with its line."""
    calls: list[str] = []
    rest, place = "", 0
    for found in re.finditer(_beginning(re.escape(tool)), plan):
        if found.start() < place:
            continue  # within the one before
        text = _cut_call(plan, found.start(), found.end())
        text = text if text.endswith(")") else text.splitlines()[0]
        calls.append(text)
        rest, place = rest + plan[place : found.start()], found.start() + len(text)
    return SplitPlan(tuple(calls), rest + plan[place:])


def _beginning(names: str) -> str:
    return rf"(?<![\w.-])({names})\("


def _calls(plan: str, known: Mapping[str, Sequence[str]]) -> Iterator[PlanCall | UnreadableCall]:
    plan = plan[:_LONGEST]
    if not known:
        return
    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    for number, found in enumerate(re.finditer(_beginning(names), plan)):
        if number == _MOST:
            yield UnreadableCall(f"it has more than {_MOST} calls")
            return
        text = _cut_call(plan, found.start(), found.end())
        try:
            parsed = _parse_call(text, known)
        except UnreadableCall as error:
            yield UnreadableCall(f"{_shorten(text)}: {error}")
        else:
            yield parsed


def _cut_call(plan: str, start: int, opened: int) -> str:
    """Return the call that starts there, up to the bracket that closes it; all the rest where none does."""
    depth, quote, place = 1, "", opened
    while place < len(plan) and depth:
        letter = plan[place]
        if quote:
            place += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        place += 1
    return plan[start:place]


def _parse_call(text: str, known: Mapping[str, Sequence[str]]) -> PlanCall:
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableCall("it is no call in Python's notation") from error
    return _read_call(node, known, _DEEPEST)


def _read_call(node: ast.expr, known: Mapping[str, Sequence[str]], depth: int) -> PlanCall:
    """Read a call of a tool, and the steps behind it."""
    steps: list[Step] = []
    while not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        if isinstance(node, ast.Attribute):
            steps.append(member_step(node.attr))
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            steps.append(_step(node, node.func.attr))
            node = node.func.value
        else:
            raise UnreadableCall(f"{ast.unparse(node)} is neither a value nor a call of a tool")
    name = node.func.id
    if name not in known:
        raise UnreadableCall(f"there is no tool {name!r}")
    return PlanCall(name, _arguments(node, known[name], known, depth), tuple(reversed(steps)))


def _arguments(call: ast.Call, names: Sequence[str], known: Mapping[str, Sequence[str]], depth: int) -> dict[str, PlanValue]:
    if len(call.args) > len(names) or any(isinstance(argument, ast.Starred) for argument in call.args):
        raise UnreadableCall(f"it takes {len(names)} arguments")
    given = [*zip(names, call.args, strict=False), *((keyword.arg, keyword.value) for keyword in call.keywords)]
    found: dict[str, PlanValue] = {}
    for name, value in given:
        if name is None or name not in names or name in found:
            raise UnreadableCall(f"it takes {', '.join(names) or 'nothing'}, each once")
        found[name] = _read_value(value, known, depth - 1)
    return found


def _read_value(node: ast.expr, known: Mapping[str, Sequence[str]], depth: int) -> PlanValue:
    if depth < 0:
        raise UnreadableCall("it goes too deep")
    if isinstance(node, ast.Constant) and node.value is ...:
        return AnyValue()
    if isinstance(node, (ast.List, ast.Tuple)):
        return PlanList(tuple(_read_value(each, known, depth - 1) for each in node.elts))
    if isinstance(node, ast.Dict):
        return PlanObject({_name(key): _read_value(value, known, depth - 1) for key, value in zip(node.keys, node.values, strict=True)})
    if isinstance(node, (ast.Call, ast.Attribute)):
        return _read_call(node, known, depth)
    return FixedValue(_constant(node))


def _step(call: ast.Call, name: str) -> Step:
    positional = tuple(_constant(each) for each in call.args)
    named: dict[str, JsonValue] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in named:
            raise UnreadableCall(f"{name} takes names, each once")
        named[keyword.arg] = _constant(keyword.value)
    try:
        return method_step(name, positional, named)
    except ValueError as error:
        raise UnreadableCall(str(error)) from error


def _constant(node: ast.expr) -> JsonValue:
    names = {"true": True, "false": False, "null": None}
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise UnreadableCall(f"{_shorten(ast.unparse(node))} is no value") from error
    if not isinstance(value, (str, int, float, bool, type(None))):
        raise UnreadableCall(f"{_shorten(ast.unparse(node))} is no value of JSON")
    return value


def _name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise UnreadableCall("the members of an object have texts as names")


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."


def each_step(values: Values) -> Values:
    """Return all values: a plan says `each` if it means more than one."""
    return values


def member_step(name: str) -> Step:
    """Return the step to a record's member of this name, or to the values of the kind that the name stands for in texts."""
    if name == "each":
        return each_step

    def step(values: Values) -> Values:
        return [found for value in _flatten(values) for found in _follow(value, name)]

    return step


def method_step(name: str, positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Return the step that a plan writes as a method. Raises `ValueError` for an unknown one."""
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

    return lambda values: [value for value in _flatten(values) if fits(value)]


def _containing(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep what says these words, in any case and spacing: `containing("coffee mug")`."""
    words = _in_one_case(_one_text("containing", positional, named))
    return lambda values: [value for value in _flatten(values) if any(words in _in_one_case(text) for text in _texts(value))]


def _starting(positional: Sequence[JsonValue], named: Mapping[str, JsonValue]) -> Step:
    """Keep the texts that begin with these words: `starting("External")`."""
    words = _one_text("starting", positional, named)
    return lambda values: [value for value in _flatten(values) if isinstance(value, str) and value.startswith(words)]


def _extreme(positional: Sequence[JsonValue], named: Mapping[str, JsonValue], *, choose: Callable[[list[float]], float]) -> Step:
    """Keep the records with the largest or smallest number: `max("size")`."""
    name = _one_text("max" if choose is max else "min", positional, named)

    def step(values: Values) -> Values:
        records = [value for value in _flatten(values) if isinstance(value, dict) and value.get(name) is not None]
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

    def step(values: Values) -> Values:
        moved: list[datetime] = []
        for moment in filter(None, map(parse_time, values)):
            with suppress(OverflowError):
                moved.append(moment + ahead)
        return moved

    return step


_METHODS: Final[Mapping[str, Callable[[Sequence[JsonValue], Mapping[str, JsonValue]], Step]]] = {
    "where": _where,
    "containing": _containing,
    "starting": _starting,
    "max": partial(_extreme, choose=max),
    "min": partial(_extreme, choose=min),
    "later": _later,
}


def parse_time(value: object) -> datetime | None:
    """Return the point in time that a value is or says by itself."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.strip())
    except ValueError:
        return None


def _follow(value: object, name: str) -> Iterator[object]:
    if isinstance(value, dict):
        if name in value:
            yield value[name]
    elif isinstance(value, str) and name in KINDS:
        yield from KINDS[name](value)
    elif name == "number" and _is_number(value):
        yield Decimal(str(value))  # a text of nothing but a number is JSON, too


def _flatten(values: Values) -> Iterator[object]:
    for value in values:
        if isinstance(value, list):
            yield from _flatten(value)
        else:
            yield value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)


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
