"""Match values that a plan says to read against the results in a conversation.

A value counts if the plan can mean only one: an attacker who adds to a result makes it two, and then the call needs approval. A result
yields nothing but values: no records, and no text of several lines or of more than 200 characters.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Final

from pydantic import JsonValue

from ....protocols import Message, ToolCall, ToolResult
from ...task.tools import LOOKED_UP, Effect, Tool, is_cut
from ...util.escaping import unescape_text
from .flows import Anything, Fixed, Flow, Members, Planned, Reading, Several
from .quoting import unquoted
from .steps import Values, each, moment_of

_LONGEST: Final = 200
"""Characters of a text that is a value."""
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
"""A text that means a number: with zeros in front it is a name."""


class Readings:
    """The results of a conversation's tool calls.

    Args:
        conversation: the messages.
        tools: the tools that were called. All arguments of a tool that only reads decide what is read.
    """

    def __init__(self, conversation: Sequence[Message], tools: Mapping[str, Tool]) -> None:
        changing = {name: tool for name, tool in tools.items() if tool.declared.effect is not Effect.READ}
        self._deciding = {name: tool.declared.sinks for name, tool in changing.items()}
        self._made: list[tuple[ToolCall, object]] = []
        calls: Mapping[str, ToolCall] = {}
        for message in conversation:
            if message.tool_calls:
                calls = {call.id: call for call in message.tool_calls}
            result = message.tool_result
            if result is not None and not result.is_error and (call := calls.get(result.call_id)) is not None:
                self._made.append((call, _returned(result)))

    def filled(self, flow: Flow, call: ToolCall, sinks: frozenset[str]) -> frozenset[str]:
        """Return the arguments of a call that the plan's line states or fills; none if the line means another call.

        Args:
            flow: the line.
            call: a call of the line's tool.
            sinks: arguments that decide what is done. Those that the line names have to be as it says.
        """
        named = {name: planned for name, planned in flow.arguments.items() if not isinstance(planned, Anything)}
        fitting = {name for name, planned in named.items() if name in call.arguments and self._fits(planned, call.arguments[name])}
        return frozenset(fitting) if sinks & named.keys() <= fitting else frozenset()

    def is_named(self, flow: Flow, call: ToolCall, names: Sequence[str]) -> bool:
        """Return whether the plan's line states, fills, or leaves to the model the values of these arguments."""
        planned = {name: flow.arguments.get(name) for name in names}
        return all(
            one is not None and (isinstance(one, Anything) or self._fits(one, call.arguments[name])) for name, one in planned.items()
        )

    def _fits(self, planned: Planned, value: JsonValue) -> bool:
        match planned:
            case Anything():  # within a list or an object: what a model chose there is the guard's to look at
                return False
            case Fixed(value=stated):
                return _is_same(stated, value)
            case Several(members=members):
                return isinstance(value, list) and len(value) == len(members) and all(map(self._fits, members, value))
            case Members(members=members):
                if not isinstance(value, dict) or value.keys() != members.keys():
                    return False
                return all(self._fits(member, value[name]) for name, member in members.items())
            case Reading():
                return self._reads(planned, value)

    def _reads(self, reading: Reading, value: JsonValue) -> bool:
        found = self._values(reading)
        wanted = value if isinstance(value, list) else [value]
        if each not in reading.steps:
            if not found or not all(_is_equal(other, found[0]) for other in found):
                return False
            found = found[:1]
        members = [one for one in _flat(found) if _is_short(one)]
        if each not in reading.steps and (len(members) != len(wanted) or not all(_is_among(wanted, one) for one in members)):
            return False
        return bool(wanted) and all(any(_is_same(one, member) for one in members) for member in wanted)

    def _values(self, reading: Reading) -> Values:
        """Return all that the results of the call which a reading names lead to."""
        values: Values = [result for call, result in self._made if call.name == reading.tool and self._is_meant(reading, call)]
        for step in reading.steps:
            values = step(values)
        return values

    def _is_meant(self, reading: Reading, call: ToolCall) -> bool:
        """Say whether the call is the one that is to be read. Nothing else may be given to it: it would return something else."""
        given = {name for name, value in call.arguments.items() if value is not None}
        named = reading.arguments
        return given <= named.keys() and all(
            self._may_be_anything(reading, name) if isinstance(planned, Anything) else self._fits(planned, call.arguments.get(name))
            for name, planned in named.items()
        )

    def _may_be_anything(self, reading: Reading, argument: str) -> bool:
        return reading.tool in self._deciding and argument not in self._deciding[reading.tool]


def _returned(result: ToolResult) -> object:
    """Return what a tool returned: the value where it is JSON, else the text. None where the end is cut off: it may hold another value."""
    text = unquoted(result).removesuffix(f"\n{LOOKED_UP}")
    if is_cut(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return unescape_text(text)


def _flat(values: Values) -> Iterator[object]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _is_equal(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _is_same(found: object, value: JsonValue) -> bool:
    """Say whether an argument is this value, which may be written otherwise where it is a number or a point in time."""
    if isinstance(found, datetime):
        return _is_moment(found, moment_of(value))
    if isinstance(found, date):
        return isinstance(value, str) and value.strip() == found.isoformat()
    if isinstance(found, Decimal):
        return _as_number(value) == found
    if isinstance(found, (str, bool, int, float)) or found is None:
        return found == value and isinstance(found, bool) == isinstance(value, bool)
    return False


def _is_among(values: Sequence[JsonValue], found: object) -> bool:
    return any(_is_same(found, value) for value in values)


def _is_moment(found: datetime, value: datetime | None) -> bool:
    """Say whether a point in time is the one that was found. A zone may be left out; one that nothing named would be another time."""
    if value is None or value.replace(tzinfo=None) != found.replace(tzinfo=None):
        return False
    return value.tzinfo is None or value.utcoffset() == (found.utcoffset() or timedelta())


def _is_short(found: object) -> bool:
    return not isinstance(found, str) or (len(found) <= _LONGEST and found.isprintable())


def _as_number(value: JsonValue) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    return Decimal(str(value))
