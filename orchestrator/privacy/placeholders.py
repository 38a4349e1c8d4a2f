"""Placeholders: what stands for private values where an agent far away goes on with them, and what puts the values back."""

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json

from ...protocols import InvalidOutput, PrivacyViolation, ToolCall
from ...protocols.messages import Value
from ..labels import Label, joined, may_go
from ..memory.item import Source, Tier
from ..tools import Tool
from .texts import texts_in, with_arguments

_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_RANDOM_LETTERS: Final = 6
"""Thirty bits for each placeholder, so that nobody can name one that was not shown to them."""
_TELLING: Final = 6
"""Characters from which on a value that occurs in a text is taken for the same value."""
_EXACT: Final = re.compile(rf"<[A-Z][A-Z_]*_[0-9]+_[{_ALPHABET}]{{{_RANDOM_LETTERS}}}>")
_WORD: Final = re.compile(r"\S+")
_OF_AN_ADDRESS: Final = re.compile(r"[:/\\][/\\]")
"""What makes a word an address of the web: browsers take a backslash for a slash, and one for two."""


class Placeholder(Value):
    """Stands for a value."""

    name: str
    """As agents see it: `<EMAIL_1_k3t7xq>`."""
    value: str
    tier: Tier
    """How far the value may go."""
    origin: str
    """Where it comes from: `tool read_mail`, `the detectors`."""

    @property
    def type(self) -> str:
        return self.name[1:].rsplit("_", 2)[0].lower()


class Placeholders:
    """Those of one run: the same value has the same placeholder throughout. A `Vault`.

    `keep` is called with new ones before they are used, so that they are there when the run is resumed; `known` are those of before. What
    looks like a placeholder in the user's own words, `said`, may be repeated.
    """

    def __init__(
        self, known: Iterable[Placeholder] = (), *, keep: Callable[[Sequence[Placeholder]], None] | None = None, said: Iterable[str] = ()
    ) -> None:
        self._said = tuple(said)
        self._by_name: dict[str, Placeholder] = {}
        self._by_value: dict[str, Placeholder] = {}
        self._numbers = Counter[str]()
        """The last one of each type."""
        self._keep = keep
        self._resembling: re.Pattern[str] | None = None
        for placeholder in known:
            self._add(placeholder)
            self._numbers[placeholder.type] += 1

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def values(self) -> Iterable[str]:
        """All that placeholders stand for."""
        return self._by_value.keys()

    def standing_for(self, value: str, type: str, *, tier: Tier, origin: str) -> str:
        """The name of the placeholder for a value."""
        return self.standing_for_all({value: type}, tier=tier, origin=origin)[value]

    def standing_for_all(self, types: Mapping[str, str], *, tier: Tier, origin: str) -> dict[str, str]:
        """The names of the placeholders for values, of which these are the types."""
        new = [self._new(value, type, tier, origin) for value, type in types.items() if value not in self._by_value]
        if new and self._keep is not None:
            self._keep(new)
        for placeholder in new:
            self._add(placeholder)
        return {value: self._by_value[value].name for value in types}

    def hidden(self, text: str) -> str:
        """The text with placeholders for the values in it that have one, the longest first; not for ones that may stand there by chance."""
        found = sorted((value for value in self._by_value if len(value) >= _TELLING and value in text), key=len, reverse=True)
        if not found:
            return text
        any_of_them = "|".join([_EXACT.pattern, *map(re.escape, found)])  # placeholders stay as they are, whatever their letters
        return re.sub(any_of_them, lambda match: self._by_value[match[0]].name if match[0] in self._by_value else match[0], text)

    def filled(self, text: str, *, in_json: bool = False, reach: Tier = Tier.DEVICE) -> str:
        """The text with the values in the place of their placeholders, as far as they may go where it goes.

        `in_json`: they stand inside of strings of JSON.
        """
        if not self._by_name or "<" not in text:
            return text
        return _EXACT.sub(lambda match: self._value_of(match[0], in_json=in_json, reach=reach), text)

    def shown(self, text: str, *, in_json: bool = False) -> str:
        """The same as a user sees it: not inside of addresses of the web, which whoever displays them may fetch."""
        if not self._by_name or "<" not in text:
            return text

        def show(word: re.Match[str]) -> str:
            is_address = _OF_AN_ADDRESS.search(word[0]) is not None
            return word[0] if is_address else self.filled(word[0], in_json=in_json)

        return _WORD.sub(show, text)

    def named_in(self, value: JsonValue) -> list[Placeholder]:
        """The placeholders in the texts of a value of JSON."""
        found: dict[str, Placeholder] = {}
        for text in texts_in(value) if self._by_name else ():
            found |= {name: self._by_name[name] for name in _EXACT.findall(text) if name in self._by_name}
        return list(found.values())

    def check(self, text: str) -> None:
        """Raise `InvalidOutput` where a text holds a placeholder that there is not, or one that was altered."""
        if not self._by_name:
            return
        rest = _EXACT.sub(lambda match: "" if match[0] in self._by_name else match[0], text)
        for found in self._resembling_pattern.finditer(rest):
            if not any(found[0] in said for said in self._said):
                because = f"there is no placeholder {found[0]!r}; copy those that you were shown letter by letter, and make up none"
                raise InvalidOutput(because)

    def opened(self, call: ToolCall, tool: Tool) -> ToolCall:
        for name, argument in call.arguments.items():
            for placeholder in self.named_in({name: argument}):
                _require_open_to(tool, name, placeholder)
        if not self.named_in(call.arguments):
            return call
        return with_arguments(call, self.filled)

    def label_of(self, call: ToolCall) -> Label:
        return joined(Label(tier=each.tier, origins=(each.origin,)) for each in self.named_in(call.arguments))

    def _new(self, value: str, type: str, tier: Tier, origin: str) -> Placeholder:
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LETTERS))
        self._numbers[type] += 1
        return Placeholder(name=f"<{type.upper()}_{self._numbers[type]}_{letters}>", value=value, tier=tier, origin=origin)

    def _add(self, placeholder: Placeholder) -> None:
        self._by_name[placeholder.name] = placeholder
        self._by_value[placeholder.value] = placeholder
        self._resembling = None

    def _value_of(self, name: str, *, in_json: bool, reach: Tier) -> str:
        known = self._by_name.get(name)
        if known is None or not may_go(known.tier, reach):
            return name
        return to_json(known.value)[1:-1].decode() if in_json else known.value

    @property
    def _resembling_pattern(self) -> re.Pattern[str]:
        """Of what a careless model makes of a placeholder."""
        if self._resembling is None:
            types = "|".join(sorted({placeholder.type.upper() for placeholder in self._by_name.values()}))
            in_brackets = rf"<\s*(?:{types})[\s_\\-]*[0-9][^<>\n]{{0,24}}>"
            without = rf"(?<![^\W_])(?:{types})[\s_\\-]*[0-9]+[\s_\\-]*[{_ALPHABET}]{{{_RANDOM_LETTERS}}}(?![^\W_])"
            self._resembling = re.compile(f"{in_brackets}|{without}", re.IGNORECASE)
        return self._resembling


def _require_open_to(tool: Tool, argument: str, placeholder: Placeholder) -> None:
    """Raise `PrivacyViolation` where what a placeholder stands for may not go as far as the tool sends its arguments, or where a tool
    that strangers have a hand in acts by the argument."""
    declared = tool.declared
    if not may_go(placeholder.tier, declared.sends):
        because = f"{tool.name} sends its arguments further than what {placeholder.name} stands for may go ({placeholder.tier})"
        raise PrivacyViolation(because, hint="@tool(sends=...) says how far a tool sends its arguments")
    if declared.source in (Source.EXTERNAL_TOOL, Source.DOCUMENT) and argument in declared.sinks:
        because = f"{placeholder.name} is not filled into {argument!r} of {tool.name}, in which strangers have a hand"
        raise PrivacyViolation(because, hint="@tool(source=...) says whose words a tool brings in")
