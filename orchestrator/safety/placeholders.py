"""Placeholders: names that replace private values for a far agent, and are replaced by the values where those may go."""

import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json

from ...protocols import InvalidOutput, Message, PrivacyViolation, StepRequest, ToolCall
from ...protocols.items import Source, Tier
from ...protocols.steps import Value
from ..task.labels import Label, join_labels, may_go
from ..task.tools import Tool
from .link_targets import marks_in_addresses


def texts_in(value: JsonValue) -> Iterator[str]:
    """Yield all texts in a JSON value, names of fields included."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_in(each)
        case dict():
            for name, each in value.items():
                yield name
                yield from texts_in(each)


def map_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """Return a JSON value with all its texts changed, names of fields included."""
    match value:
        case str():
            return change(value)
        case list():
            return [map_texts(each, change) for each in value]
        case dict():
            return {change(name): map_texts(each, change) for name, each in value.items()}
        case _:
            return value


def texts_of(messages: Iterable[Message]) -> list[str]:
    """Return all texts of a conversation, in order."""
    return [text for message in messages for text in (*_said(message), *_argued(message)) if text]


def texts_said(messages: Iterable[Message]) -> list[str]:
    """Return the texts that follow each other in a conversation, without the arguments of calls, which are separate values."""
    return [text for message in messages for text in _said(message) if text]


def _said(message: Message) -> Iterator[str]:
    yield message.text
    if message.tool_result is not None:
        yield message.tool_result.content


def _argued(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        yield from texts_in(call.arguments)


def map_request_texts(request: StepRequest, change: Callable[[str], str], *, but: Container[int] = ()) -> StepRequest:
    """Return the request with all texts of its conversation changed, except in the messages at the positions `but`."""
    messages = tuple(
        message if position in but else map_message_texts(message, change) for position, message in enumerate(request.messages)
    )
    return request if messages == request.messages else request.model_copy(update={"messages": messages})


def map_arguments(call: ToolCall, change: Callable[[str], str]) -> ToolCall:
    return call.model_copy(update={"arguments": map_texts(call.arguments, change)})


def map_message_texts(message: Message, change: Callable[[str], str]) -> Message:
    result = message.tool_result
    changes: dict[str, object] = {"text": change(message.text) if message.text else ""}
    if result is not None:
        changes["tool_result"] = result.model_copy(update={"content": change(result.content)})
    if message.tool_calls:
        changes["tool_calls"] = tuple(map_arguments(call, change) for call in message.tool_calls)
    written = message.model_copy(update=changes)
    return written if written == message else written.without_state


MOST_CALLS: Final = 16
"""Most calls of a run into which placeholders may go. Each can tell one bit of a value: that it ran, or was refused."""
_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_RANDOM_LETTERS: Final = 6
"""Length of the random part: 30 bits for each placeholder, so that a name cannot be guessed."""
_LEAST_LENGTH: Final = 6
"""Least length at which a value that occurs in a text is taken for the same value."""
_EXACT: Final = re.compile(rf"<[A-Z][A-Z_]*_[0-9]+_[{_ALPHABET}]{{{_RANDOM_LETTERS}}}>")
_ANY_NUMBER: Final = r"[^\W\d_][^\W\d]{0,40}[\s_\\-]{0,4}[0-9]{1,9}[\s_\\-]{1,4}"
_IN_BRACKETS: Final = re.compile(rf"<\s*{_ANY_NUMBER}[{_ALPHABET}]{{{_RANDOM_LETTERS}}}\s*>", re.IGNORECASE)
"""A placeholder of any type, known or not."""
_JSON_TEXT: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_STRUCTURE: Final = re.compile(r"[<>()\[\]:/\\&\x1b]|www\.", re.IGNORECASE)
"""A word with one of these may be made an address, or a tag, by a value in it."""
_OPENING: Final = re.compile(r"[<>()\[\]\n\x1b]")
"""A value with one of these may make addresses of what stands behind it, in whatever word."""
_MOST_READ: Final = 1 << 19
"""Characters that are read for all the values that may do that, in about two seconds; where it takes more, they are not filled in."""


class Placeholder(Value):
    """A placeholder and the value that it stands for."""

    name: str
    """Name that agents see, such as `<EMAIL_1_k3t7xq>`."""
    value: str
    tier: Tier
    """Privacy tier of the value."""
    origin: str
    """Origin of the value, such as `tool read_mail` or `the detectors`."""
    result: str = ""
    """Id of the tool result that it stands for; empty if it stands for a value wherever that occurs."""
    is_derived: bool = False
    """It stands for the result of a call into which a placeholder went."""

    @property
    def type(self) -> str:
        return self.name[1:].rsplit("_", 2)[0].lower()


class Placeholders:
    """The placeholders of one run.

    A detected value has one placeholder wherever it occurs; each tool result has its own.

    Args:
        known: placeholders of the run so far.
        keep: stores new ones before they are used, so that the run can be resumed.
        said: the user's own words: texts in them that look like a placeholder may be repeated.
    """

    def __init__(
        self, known: Iterable[Placeholder] = (), *, keep: Callable[[Sequence[Placeholder]], None] | None = None, said: Iterable[str] = ()
    ) -> None:
        self._said = tuple(said)
        self._by_name: dict[str, Placeholder] = {}
        self._by_value: dict[str, Placeholder] = {}
        self._by_result: dict[str, Placeholder] = {}
        self._filled_calls: set[str] = set()
        """Calls into which placeholders went."""
        self._filled_calls_before = 0
        """Number of such calls in earlier processes."""
        self._numbers = Counter[str]()
        """The last number of each type."""
        self._keep = keep
        self._resembling: re.Pattern[str] | None = None
        for placeholder in known:
            self._add(placeholder)
            self._numbers[placeholder.type] += 1
            self._filled_calls_before += placeholder.is_derived

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def values(self) -> Iterable[str]:
        """Return all values that placeholders stand for."""
        return {placeholder.value for placeholder in self._by_name.values()}

    def name_for(self, value: str, type: str, *, tier: Tier, origin: str) -> str:
        """Return the name of the placeholder for a value; make it if it is new."""
        return self.names_for({value: type}, tier=tier, origin=origin)[value]

    def names_for(self, types: Mapping[str, str], *, tier: Tier, origin: str) -> dict[str, str]:
        """Return the names of the placeholders for values, given with their types; make the new ones."""
        self._add_new([self._new(value, type, tier, origin) for value, type in types.items() if value not in self._by_value])
        return {value: self._by_value[value].name for value in types}

    def name_for_result(self, result: str, value: str, type: str, *, tier: Tier, origin: str, is_derived: bool) -> str:
        """Return the name of the placeholder for a result. Each has its own: a shared one would tell that two results are equal."""
        if result not in self._by_result:
            made = self._new(value, type, tier, origin)
            self._add_new([made.model_copy(update={"result": result, "is_derived": is_derived})])
        return self._by_result[result].name

    def redact(self, text: str) -> str:
        """Redact a text: replace values that have a placeholder, the longest first; not values so short that they may occur by chance."""
        found = sorted((value for value in self._by_value if len(value) >= _LEAST_LENGTH and value in text), key=len, reverse=True)
        if not found:
            return text
        any_of_them = "|".join([_EXACT.pattern, *map(re.escape, found)])  # placeholders stay as they are, whatever their letters
        return re.sub(any_of_them, lambda match: self._by_value[match[0]].name if match[0] in self._by_value else match[0], text)

    def redact_fully(self, text: str) -> str:
        """Redact a text, including values so short that they may occur by chance."""
        short = [value for value, known in self._by_value.items() if not known.result and len(value) < _LEAST_LENGTH]
        if short:
            any_of_them = rf"(?<!\w)(?:{'|'.join(map(re.escape, short))})(?!\w)"
            text = re.sub(any_of_them, lambda match: self._by_value[match[0]].name, text)
        return self.redact(text)

    def fill(self, text: str, *, reach: Tier = Tier.DEVICE) -> str:
        """Return the text with placeholders replaced by those values that may go as far as `reach`."""
        if not self._by_name or "<" not in text:
            return text
        return _EXACT.sub(lambda match: self._value_of(match[0], reach), text)

    def fill_for_display(self, text: str, *, in_json: bool = False, before: str = "") -> str:
        """Return the text as a user sees it: filled in, except in what a display may fetch, link or send.

        Args:
            text: the whole text; its last word may complete an address.
            in_json: the text is JSON, and each of its strings is displayed by itself.
            before: the text displayed in front of it, which stays as it is.
        """
        if not self._by_name or not _EXACT.search(text):
            return text
        if in_json:
            return _JSON_TEXT.sub(lambda match: self._fill_json_text(match[0]), text)
        kept = self._kept_in(before + text)
        numbers = count(len(_EXACT.findall(before)))

        def show(match: re.Match[str]) -> str:
            return match[0] if next(numbers) in kept else self._value_of(match[0], Tier.DEVICE)

        return _EXACT.sub(show, text)

    def first_in(self, text: str) -> int | None:
        """Return the position of the first placeholder in a text."""
        return None if (first := _EXACT.search(text)) is None else first.start()

    def find_in(self, value: JsonValue) -> list[Placeholder]:
        """Return the placeholders in the texts of a JSON value."""
        found: dict[str, Placeholder] = {}
        for text in texts_in(value) if self._by_name else ():
            found |= {name: self._by_name[name] for name in _EXACT.findall(text) if name in self._by_name}
        return list(found.values())

    def check(self, text: str) -> None:
        """Raise `InvalidOutput` if a text holds an unknown or altered placeholder."""
        if not self._by_name:
            return
        rest = _EXACT.sub(lambda match: "" if match[0] in self._by_name else match[0], text)
        for found in chain(self._resembling_pattern.finditer(rest), _IN_BRACKETS.finditer(rest)):
            if not any(found[0] in said for said in self._said):
                because = f"there is no placeholder {found[0]!r}; copy those that you were shown letter by letter, and make up none"
                raise InvalidOutput(because)

    def fill_call(self, call: ToolCall, tool: Tool, *, turn: int) -> ToolCall:
        for name, argument in call.arguments.items():
            for placeholder in self.find_in({name: argument}):
                _require_open_to(tool, name, placeholder)
        if not self.find_in(call.arguments):
            return call
        self._count(call, turn)
        return map_arguments(call, self.fill)

    def label_of(self, call: ToolCall) -> Label:
        return join_labels(Label(tier=each.tier, origins=(each.origin,)) for each in self.find_in(call.arguments))

    def _fill_json_text(self, literal: str) -> str:
        if not _EXACT.search(literal):
            return literal
        try:
            text = json.loads(literal)
        except ValueError:  # no JSON after all: nothing is known of how it is displayed
            return literal
        return to_json(self.fill_for_display(text)).decode()

    def _kept_in(self, text: str) -> set[int]:
        """Return which placeholders of a text, counted from 0, stand in addresses.

        The text is read with a mark in the place of each placeholder. Then it is read as it would be displayed, since one value may begin
        the address in which the next one stands: with the values that can do that in their places and marks for the others, and once for
        each of those values with a mark in its place alone.
        """
        names = _EXACT.findall(text)
        kept = _marks_in_addresses(text, range(len(names)), {})
        values = {number: self._value_of(name, Tier.DEVICE) for number, name in enumerate(names) if number not in kept}
        joining = {number: values[number] for number in _joining(text) if number in values}
        joining |= {number: value for number, value in values.items() if _OPENING.search(value)}
        if len(names) < 2 or not joining:
            return kept
        if len(joining) * (len(text) + sum(map(len, values.values()))) > _MOST_READ:
            kept |= joining.keys()
            joining = {}
        kept |= _marks_in_addresses(text, values.keys() - joining.keys(), joining)
        for number in joining:
            kept |= _marks_in_addresses(text, [number], {other: value for other, value in values.items() if other != number})
        return kept

    def _count(self, call: ToolCall, turn: int) -> None:
        """Count a call into which a placeholder goes. Raises `PrivacyViolation` if the run has made too many of them."""
        identity = f"{turn} {call.model_dump_json()}"  # looked at again where the run has waited for an approval
        if identity not in self._filled_calls and self._filled_calls_before + len(self._filled_calls) >= MOST_CALLS:
            because = f"placeholders may go into at most {MOST_CALLS} calls of a run, since the outcome of each can reveal part of a value"
            raise PrivacyViolation(because, hint="let a near agent continue, or divide the task")
        self._filled_calls.add(identity)

    def _add_new(self, new: Sequence[Placeholder]) -> None:
        if new and self._keep is not None:
            self._keep(new)
        for placeholder in new:
            self._add(placeholder)

    def _new(self, value: str, type: str, tier: Tier, origin: str) -> Placeholder:
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LETTERS))
        self._numbers[type] += 1
        return Placeholder(name=f"<{type.upper()}_{self._numbers[type]}_{letters}>", value=value, tier=tier, origin=origin)

    def _add(self, placeholder: Placeholder) -> None:
        self._by_name[placeholder.name] = placeholder
        if placeholder.result:
            self._by_result[placeholder.result] = placeholder
        if not placeholder.is_derived:  # an agent can choose what such a call returns, and would see where it is replaced
            self._by_value.setdefault(placeholder.value, placeholder)
        self._resembling = None

    def _value_of(self, name: str, reach: Tier) -> str:
        known = self._by_name.get(name)
        return name if known is None or not may_go(known.tier, reach) else known.value

    @property
    def _resembling_pattern(self) -> re.Pattern[str]:
        """A pattern of placeholders that a careless model has altered."""
        if self._resembling is None:
            types = "|".join(sorted({placeholder.type.upper() for placeholder in self._by_name.values()}))
            in_brackets = rf"<\s*(?:{types})[\s_\\-]*[0-9][^<>\n]{{0,24}}>"
            letters = "|".join(name[-1 - _RANDOM_LETTERS : -1] for name in self._by_name)
            of_any_type = rf"(?<![^\W_]){_ANY_NUMBER}(?:{letters})(?![^\W_])"
            without = rf"(?<![^\W_])(?:{types})[\s_\\-]*[0-9]+[\s_\\-]*[{_ALPHABET}]{{{_RANDOM_LETTERS}}}(?![^\W_])"
            self._resembling = re.compile(f"{in_brackets}|{without}|{of_any_type}", re.IGNORECASE)
        return self._resembling


def _marks_in_addresses(text: str, marked: Collection[int], filled: Mapping[int, str]) -> set[int]:
    """Return which of the placeholders with these numbers stand in addresses after others have been filled in."""
    stem = _unused_in("".join([text, *filled.values()]))
    numbers = count()

    def put(match: re.Match[str]) -> str:
        number = next(numbers)
        return f"{stem}{number}q" if number in marked else filled.get(number, match[0])

    marks = re.compile(rf"{stem}[0-9]+q", re.IGNORECASE)
    return {int(mark.removeprefix(stem)[:-1]) for mark in marks_in_addresses(_EXACT.sub(put, text), marks)}


def _joining(text: str) -> set[int]:
    """Return the numbers of the placeholders whose values may complete a tag or the address of another one."""
    found: set[int] = set()
    numbers = count()
    for word in text.split():
        here = [next(numbers) for _ in _EXACT.findall(word)]
        if len(here) > 1 or here and _STRUCTURE.search(_EXACT.sub("", word)):
            found.update(here)
    return found


def _unused_in(text: str) -> str:
    """Return a random word that does not occur in the text."""
    folded = text.lower()
    return next(stem for stem in iter(lambda: f"q{secrets.token_hex(6)}q", "") if stem not in folded)


def _require_open_to(tool: Tool, argument: str, placeholder: Placeholder) -> None:
    """Raise `PrivacyViolation` if the placeholder's value may not go as far as the tool sends its arguments, or if the argument decides
    what a tool with an untrusted source does.
    """
    declared = tool.declared
    if not may_go(placeholder.tier, declared.sends):
        because = f"{tool.name} sends its arguments further than what {placeholder.name} stands for may go ({placeholder.tier})"
        raise PrivacyViolation(because, hint="@tool(sends=...) says how far a tool sends its arguments")
    if declared.source in (Source.EXTERNAL_TOOL, Source.DOCUMENT) and argument in declared.sinks:
        because = f"{placeholder.name} is not filled into {argument!r} of {tool.name}, whose source is untrusted"
        raise PrivacyViolation(because, hint="declare the tool's source with @tool(source=...)")
