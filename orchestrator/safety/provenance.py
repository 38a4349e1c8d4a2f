"""Provenance of values: find out whether the arguments of a tool call come from trusted texts (the taint check).

A value comes from a text that says it: in any spacing, and a number or a date in any notation. A part of a longer word, address or path is
another value, which an attacker may have chosen. Look-alikes are not equal: an argument reaches its tool as it is. Case makes a difference,
except in schemes, hosts, and the first letters of plain words.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import IntEnum
from functools import cached_property
from typing import Any, Final
from unicodedata import combining

from pydantic import JsonValue

from ...protocols import JsonSchema, ToolCall
from ..task.tools import Tool
from .text_values import Times, find_times, numbers_in

_COMMON_WORDS: Final = (
    "about after again all also and any anybody anyone anything are ask back before but call can change check could day delete did "
    "done down each every everybody everyone everything few file files find first folder for friend from get give has have her here "
    "him his how just know last latest let like list look mail mails make many message messages more most move much must name need "
    "new next none not note now off old one only open order other our out own pay people please read recent room same see send set "
    "she show some such take tell than that the their them then there these they this those today tomorrow too two until update use "
    "user users very want was way what when where which who whole will with work would year yes yesterday yet you your"
)
_COMMON: Final = frozenset(_COMMON_WORDS.split())
"""Words that identify nothing: finding one in the user's request does not show that a value came from it."""
_JOINING: Final = frozenset("-_.@/\\:+#~=&%?*")
"""Characters that hold an address, a path or a name together where there is no space."""
_OPENING: Final = frozenset("/\\~*@=&?%+")
"""Before or behind a value these make another one of it, whatever is on their other side."""
_AS_NUMBER: Final = re.compile(r"[$€£]?(-?(?:[1-9]\d{0,2}(?:,\d{3})+|0|[1-9]\d*)(?:\.\d+)?)", re.ASCII)
"""A text that means a number: with zeros in front it is a name."""
_GROUPED: Final = re.compile(r"(?<![\w.@/-])\+?\d(?:[ ().-]{0,2}\d){5,}(?![\w@/-])", re.ASCII)
"""Figures in groups, as those of telephones and accounts are."""
_LIST: Final = re.compile(r" ?; ?| ?, | ,|(?<!\d),|,(?!\d)")
"""Between the members of a list; a comma between two figures is a part of a number."""
_LOCAL: Final = frozenset("!#$%&'*+/=?^_`{|}~-.")
"""Characters allowed in a mailbox's name (RFC 5322): `o'brien@example.com` is another one than `brien@example.com`."""
_LINE_ENDS: Final = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_SCHEME: Final = re.compile(r"\A(?:https?://|#)", re.IGNORECASE)
"""A prefix that a value may have although the text says it without."""
_END: Final = "\0"
"""Marks the end of a text."""
_FAR: Final = 64
"""Number of characters next to a value that are looked at."""
_LEAST: Final = 3
"""Letters of a word that names anything."""


class MatchStrength(IntEnum):
    """Strength of the match between a value and the trusted texts."""

    NONE = 0
    """No text says it."""
    WEAK = 1
    """It is so short or common that the text may mean something else."""
    STRONG = 2


class TrustedTexts:
    """Trusted texts. A text of JSON stands for the values in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._known: dict[str, _TrustedText] = {}
        """Parsed texts, shared with the sets made by `plus`, so that each text is parsed once in a run."""
        self._texts = self._read(texts)

    def plus(self, texts: Iterable[str]) -> "TrustedTexts":
        """Return a set of these texts and `texts`."""
        more = TrustedTexts(())
        more._known = self._known
        more._texts = [*self._texts, *self._read(texts)]
        return more

    def strength(self, value: str | float) -> MatchStrength:
        """Return how strongly a value matches the texts."""
        if not isinstance(value, str):
            return self._of_number(Decimal(value) if isinstance(value, int) else Decimal(str(value)))
        value = _normalize(value)
        found = self._of_text(value)
        if found is MatchStrength.NONE and len(parts := [part for part in _LIST.split(value) if part]) > 1:
            return min(map(self._of_text, parts))
        return found

    def _read(self, texts: Iterable[str]) -> "list[_TrustedText]":
        return [self._known.setdefault(text, _TrustedText(text)) for text in texts]

    def _of_number(self, number: Decimal) -> MatchStrength:
        if not any(number in text.numbers for text in self._texts):
            return MatchStrength.NONE
        is_lone = number == int(number) and abs(number) < 10
        return MatchStrength.WEAK if is_lone else MatchStrength.STRONG

    def _of_text(self, value: str) -> MatchStrength:
        if not value:
            return MatchStrength.WEAK  # it says nothing, or everything
        if _END in value or not any(letter.isalnum() for letter in value):
            return MatchStrength.NONE  # `*` and `/` say a lot
        if (number := _AS_NUMBER.fullmatch(value)) is not None:
            return self._of_number(Decimal(number[1].replace(",", "")))
        if not (any(text.says(value) for text in self._texts) or self._says_figures(value) or self._times.has(value)):
            return MatchStrength.NONE
        words = re.findall(r"\w+", _fold_case(value))
        return MatchStrength.WEAK if all(len(word) < _LEAST or word in _COMMON for word in words) else MatchStrength.STRONG

    def _says_figures(self, value: str) -> bool:
        return _GROUPED.fullmatch(value) is not None and any(_figures(value) in text.figures for text in self._texts)

    @cached_property
    def _times(self) -> Times:
        found = [text.times for text in self._texts]
        days, clocks, years = (each.days for each in found), (each.clocks for each in found), (each.years for each in found)
        return Times(frozenset().union(*days), frozenset().union(*clocks), frozenset().union(*years))


class _TrustedText:
    """One text, and the values that it says."""

    def __init__(self, text: str) -> None:
        self._raw = text

    def says(self, value: str) -> bool:
        """Return whether the text says the value, not as a part of a longer one."""
        joining = _JOINING | _LOCAL if "@" in value else _JOINING
        for each in {value, _SCHEME.sub("", value, count=1)}:
            for found in re.finditer(re.escape(_fold_case(each)), self._fold_case):
                start, end = found.span()
                if _stands_alone(self._fold_case, start, end, joining) and _is_same(each, self._text[start:end]):
                    return True
        return False

    @cached_property
    def numbers(self) -> frozenset[Decimal]:
        return frozenset(numbers_in(self._fold_case))

    @cached_property
    def figures(self) -> frozenset[str]:
        """Numbers written as groups of digits, without what separates the groups."""
        return frozenset(_figures(found.group()) for found in _GROUPED.finditer(self._text))

    @cached_property
    def times(self) -> Times:
        return find_times(self._text)

    @cached_property
    def _fold_case(self) -> str:
        return _fold_case(self._text)

    @cached_property
    def _text(self) -> str:
        return "".join(f"{_normalize(part)}{_END}" for part in _parts(self._raw))


def _parts(text: str) -> Iterator[str]:
    """Yield the values in a text of JSON; yield any other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield text
        return
    yield from _values(value)


def _values(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _values(member)
    elif isinstance(value, list):
        for member in value:
            yield from _values(member)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _normalize(text: str) -> str:
    """Return the text with single spaces. Line ends stay, because a command may end there."""
    return re.sub(rf"\s*[{_LINE_ENDS}]\s*", "\n", re.sub(rf"[^\S{_LINE_ENDS}]+", " ", text.strip()))


def _stands_alone(text: str, start: int, end: int, joining: frozenset[str]) -> bool:
    """Return whether the span is no part of a longer word, number, address or path. `joining`: those that join before it."""
    before, behind = text[max(start - _FAR, 0) : start], text[end : end + _FAR]
    return _ends(before[::-1], joining, is_figure=text[start].isdigit()) and _ends(behind, _JOINING, is_figure=text[end - 1].isdigit())


def _ends(neighbours: str, joining: frozenset[str], *, is_figure: bool) -> bool:
    """Return whether a value ends before these neighbouring characters, given with the nearest one first."""
    if is_figure and neighbours[:1] == "," and neighbours[1:2].isdigit():
        return False
    for place, letter in enumerate(neighbours):
        if letter.isalnum() or combining(letter) or (place == 0 and letter in _OPENING):
            return False
        if letter not in joining:
            return True
    return len(neighbours) < _FAR


def _figures(text: str) -> str:
    return re.sub(r"[ ().-]", "", text)


_DEPTH: Final = 32
"""Schemas may refer to themselves."""

Free = str | int | float


def free_values(value: JsonValue, schema: JsonSchema, root: JsonSchema) -> list[Free]:
    """Return the texts and numbers in an argument, names in objects included, that are neither constants of the schema nor defaults.

    `root`: the schema of all arguments, to which references in that of one refer.
    """
    return list(_free(value, schema, root, _DEPTH))


def untrusted_arguments(call: ToolCall, tool: Tool, names: Sequence[str], trusted_texts: TrustedTexts) -> list[str]:
    """Return the arguments among `names` that come from no trusted text.

    A value that is short or common counts as trusted only if another value of the call has a strong match.
    """
    schema = tool.spec.parameters
    free = {name: free_values({name: call.arguments[name]}, schema, schema) for name in names}
    found = {name: [trusted_texts.strength(value) for value in values] for name, values in free.items()}
    if any(MatchStrength.STRONG in strengths for strengths in found.values()):
        return [name for name, strengths in found.items() if MatchStrength.NONE in strengths]
    return [name for name, strengths in found.items() if strengths]


def _free(value: JsonValue, schema: Mapping[str, Any], root: JsonSchema, depth: int) -> Iterator[Free]:
    schema = _resolve(schema, root)
    if value is None or _is_constant(value, schema):
        return
    if isinstance(value, bool):
        # A tool that asks for a number takes these for 0 and 1.
        yield from [int(value)] if schema.get("type") in ("integer", "number") else []
        return
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and depth:
        yield from min((list(_free(value, choice, root, depth - 1)) for choice in choices), key=len)
    elif isinstance(value, list):
        items = schema.get("items")
        for member in value:
            yield from _free(member, items if isinstance(items, dict) else {}, root, max(depth - 1, 0))
    elif isinstance(value, dict):
        yield from _members(value, schema, root, depth)
    else:
        yield value


def _members(value: Mapping[str, JsonValue], schema: Mapping[str, Any], root: JsonSchema, depth: int) -> Iterator[Free]:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for name, member in value.items():
        if name not in known:
            yield name
        yield from _free(member, known.get(name, others if isinstance(others, dict) else {}), root, max(depth - 1, 0))


def _is_constant(value: JsonValue, schema: Mapping[str, Any]) -> bool:
    constants = [*schema.get("enum", ()), *(schema[key] for key in ("const", "default") if key in schema)]
    return any(value == constant and isinstance(value, bool) == isinstance(constant, bool) for constant in constants)


def _resolve(schema: Mapping[str, Any], root: JsonSchema) -> Mapping[str, Any]:
    """Return the schema that a `$ref` leads to, merged with the keys next to it. It follows only references into `$defs`."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
        schema = {**target, **{key: member for key, member in schema.items() if key != "$ref"}}
    return {}


_ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)?(?P<local>[^\s@/?#]*@)?(?P<host>[\w.-]+)(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_BETWEEN: Final = re.compile(r"(\s+)")
_JOINTS: Final = re.compile(r"[-'’.,;:!?()\"]")
"""Between the words of a compound or a name, and around words."""
_LOCAL_JOINTS: Final = re.compile(r"[._+-]")


def _fold_case(text: str) -> str:
    """Return the text in lower case, letter by letter. A letter whose lower case is of another alphabet stays: the kelvin sign is not k."""
    return text.lower() if text.isascii() else "".join(map(_small, text))


def _is_same(value: str, found: str) -> bool:
    """Return whether two texts that differ in nothing but case mean the same.

    Paths, identifiers and passwords are case-sensitive. Hosts and schemes are not (RFC 3986, 6.2.2.1), and a plain word may begin with a
    capital at the beginning of a sentence.
    """
    return value == found or all(map(_is_same_word, _BETWEEN.split(value), _BETWEEN.split(found)))


def _is_same_word(value: str, found: str) -> bool:
    if value == found:
        return True
    one, other = _ADDRESS.fullmatch(value), _ADDRESS.fullmatch(found)
    if one is not None and other is not None and (one["scheme"] or one["local"] or one["host"].lower().startswith("www.")):
        return one["rest"] == other["rest"] and _begin_alike(one["local"] or "", other["local"] or "", _LOCAL_JOINTS)
    return _begin_alike(value, found, _JOINTS)


def _begin_alike(value: str, found: str, joints: "re.Pattern[str]") -> bool:
    """Return whether they differ in nothing but the first letters of plain words. They have the same length."""
    pairs = zip(joints.split(value.removesuffix("@")), joints.split(found.removesuffix("@")), strict=True)
    return all(one == other or (one.isalpha() and one[1:] == other[1:]) for one, other in pairs)


def _small(letter: str) -> str:
    small = letter.lower()
    return small if len(small) == 1 and (letter.isascii() or not small.isascii()) else letter
