"""Answers in a canonical form, so that answers that say the same compare equal."""

import ast
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...protocols import ToolCall

_NO_CALL: Final = "no call"
_LONGEST_LITERAL: Final = 20_000
"""Characters of a text up to which it may be a literal; a longer one is compared as text."""
_DECORATION: Final = " \t\r\n.,;:!?\"'`*$"
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|[-+]?\.\d+")
_LATEX: Final = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|(?<=\\)[dt](?=frac)|\\(?:text|mathrm|mbox|boxed)(?=\s*\{)")
"""LaTeX commands that only affect how a formula is typeset."""
_SINGLE: Final = re.compile(r"\{(\w)\}")
"""Braces that may be left out."""
_ESCAPE: Final = re.compile(r"\\([\\'\"nrt])|\\")


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's answer in a canonical form: equal answers compare equal."""

    parts: tuple[str, ...]
    """One for each tool call, in no order; one for a text, or for calling none; empty where it says nothing."""
    tools: tuple[str, ...] = ()
    """It calls, once for each call, sorted."""

    @classmethod
    def of_text(cls, text: str | None) -> "Answer":
        """Return the answer of a text. A JSON list of objects with `name` and `arguments` counts as the tool calls that it states."""
        if text is None or not text.strip():
            return cls(())
        stated = stated_calls(text)
        return cls((_text_form(text),)) if stated is None else cls.of_calls(stated)

    @classmethod
    def of_calls(cls, calls: Sequence[ToolCall]) -> "Answer":
        """Return the answer of tool calls. An empty list says that no tool is needed."""
        if not calls:
            return cls((_NO_CALL,))
        return cls(tuple(sorted(_call_form(call) for call in calls)), tuple(sorted(call.name for call in calls)))

    def agrees(self, other: "Answer") -> bool:
        """Return True if both say the same. An empty answer agrees with none, not even with another empty one."""
        return bool(self.parts) and self.parts == other.parts

    def overlap(self, other: "Answer") -> float:
        """Return the share of the parts of both that they have in common (Jaccard); 1 if both are empty."""
        mine, theirs = Counter(self.parts), Counter(other.parts)
        either = (mine | theirs).total()
        return (mine & theirs).total() / either if either else 1.0


def agree(first: str | Sequence[ToolCall] | None, second: str | Sequence[ToolCall] | None) -> bool:
    """Return True if two answers say the same.

    Texts are compared without regard to case, spacing and decoration, numbers by their value (1,000 = 1000.0), Python and JSON literals
    by theirs. Tool calls are the same in any order where name and arguments are; in arguments, case makes no difference, nor does
    whether a number is written as an integer.
    """
    return _answer(first).agrees(_answer(second))


def _answer(given: str | Sequence[ToolCall] | None) -> Answer:
    return Answer.of_text(given) if given is None or isinstance(given, str) else Answer.of_calls(given)


def number_of(text: str) -> float | None:
    """Parse a text as a number, with commas between thousands; None if it is none."""
    found = text.strip().strip("$%").strip()
    return float(found.replace(",", "")) if _NUMBER.fullmatch(found) else None


def is_literal(text: str) -> bool:
    """Return True if a text is a list, tuple, set, dictionary or quoted string in Python or JSON notation."""
    return _literal(text) is not None


def stated_calls(text: str) -> list[ToolCall] | None:
    """Return the tool calls that a JSON text states, or None where it is something else."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
        keys = [entry.keys() >= {"name", "arguments"} for entry in found]
        return [ToolCall(id="call", name=entry["name"], arguments=entry["arguments"]) for entry in found] if keys and all(keys) else None
    except (ValueError, AttributeError, RecursionError):  # it is no JSON, or JSON of another kind
        return None


def _text_form(text: str) -> str:
    number = number_of(text)
    if number is not None:
        return _number_form(number)
    return _literal(text) or _words_form(text)


def _words_form(text: str) -> str:
    plain = _LATEX.sub("", unicodedata.normalize("NFKC", text)).casefold().strip(_DECORATION)
    return "".join(_SINGLE.sub(r"\1", plain).split())


def _literal(text: str) -> str | None:
    """Return the form of a literal, in which case and types make a difference; None if the text is no literal."""
    stripped = text.strip()
    if not stripped.startswith(("[", "(", "{", '"', "'")) or len(stripped) > _LONGEST_LITERAL:
        return None
    try:
        # Escapes that Python does not know, as in LaTeX, would be warned of; they mean the backslash itself.
        return _form(ast.literal_eval(_ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", stripped)), is_exact=True)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return _form(json.loads(stripped), is_exact=True)
    except (ValueError, RecursionError):
        return None


def _call_form(call: ToolCall) -> str:
    try:
        return f"{call.name}({_form(call.arguments, is_exact=False)})"
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or nested too deeply
        return f"{call.name}(?)"


def _form(value: object, *, is_exact: bool) -> str:
    """Return the canonical text of a value. `is_exact`: case matters, and whether a sequence is a list or a tuple."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return _number_form(value)
    if isinstance(value, str):
        return repr(value if is_exact else _words_form(value))
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{_form(inner, is_exact=is_exact)}" for key, inner in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "set(" + ",".join(sorted(_form(inner, is_exact=is_exact) for inner in value)) + ")"
    if isinstance(value, list | tuple):
        inside = ",".join(_form(inner, is_exact=is_exact) for inner in value)
        return f"({inside})" if is_exact and isinstance(value, tuple) else f"[{inside}]"
    return repr(value)


def _number_form(value: float) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return repr(value)
