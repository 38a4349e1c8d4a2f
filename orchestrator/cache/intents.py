"""The intent of a task, without its names and numbers: tasks of one intent can share a plan."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from .wording.canonical import Canonical

_SPECIFIC: Final = re.compile(
    r"\"[^\"\n]+\"|\u201c[^\u201d\n]+\u201d|\u00ab[^\u00bb\n]+\u00bb|(?<!\w)'[^'\n]+'(?!\w)"
    r"|\b(?:https?://|www\.)\S+|\b[\w.+-]+@[\w-]+\.[\w.]+"
    r"|\d+(?:[.,:/-]\d+)*"
    r"|(?<![.!?:\n]\s)(?<=\s)[^\W\d_a-z]\w*(?:[ -][^\W\d_a-z]\w*)*"
)
"""Quotations, addresses, numbers and dates, and names: words with a capital inside of a sentence."""
_NUMBERING: Final = re.compile(r"^\s*(?:\d+[.)]|[-*])\s*", re.MULTILINE)
_SLOT: Final = "\u27e8{}\u27e9"
_GAP: Final = "\u27e8\u27e9"
_PLACED: Final = re.compile(rf"(?:\b(?:in|on|at) )?{_GAP}")
"""A gap with the preposition that a date or a place takes with it."""
_ANY_SLOT: Final = re.compile("\u27e8(\\d+)\u27e9")


@dataclass(frozen=True, slots=True)
class Intent:
    """A task in two parts."""

    words: tuple[str, ...]
    """The words that carry meaning, sorted; equal for tasks of one intent."""
    specifics: tuple[str, ...]
    """The names, numbers, dates and quotations of the task, in its order, each once."""

    @classmethod
    def of(cls, task: str) -> Self:
        """Take a task apart."""
        specifics = tuple(dict.fromkeys(found[0] for found in _SPECIFIC.finditer(task) if _is_specific(found[0])))
        gaps = _SPECIFIC.sub(lambda found: _GAP if _is_specific(found[0]) else found[0], task)
        rest = Canonical.of(_PLACED.sub(" ", gaps))
        return cls(tuple(sorted(" ".join(rest.words).split())), specifics)

    def template(self, plan: str) -> str:
        """Return the plan with slots in place of what the task names."""
        return "\n".join(self._templated(line) for line in plan.split("\n"))

    def _templated(self, line: str) -> str:
        numbering = _NUMBERING.match(line)
        start = 0 if numbering is None else numbering.end()
        body = line[start:]
        for place in sorted(range(len(self.specifics)), key=lambda each: -len(self.specifics[each])):
            bare = self.specifics[place].strip("\"'\u201c\u201d\u00ab\u00bb")
            body = re.sub(rf"(?<!\w){re.escape(bare)}(?!\w)", _SLOT.format(place), body)
        return line[:start] + body

    def fill(self, template: str) -> str:
        """Return the plan for this task. A slot that it has nothing for is left open."""
        return _ANY_SLOT.sub(lambda slot: self._named(int(slot[1]), slot[0]), template)

    def _named(self, place: int, slot: str) -> str:
        return self.specifics[place].strip("\"'\u201c\u201d\u00ab\u00bb") if place < len(self.specifics) else slot


def _is_specific(found: str) -> bool:
    """Return whether a match of `_SPECIFIC` is a name, and not `I` or a word of a script without capitals."""
    return not found[0].isalpha() or (found[0].isupper() and found != "I") or _kind(found) == "address"


def is_complete(plan: str) -> bool:
    """Return whether no slot of a plan is open."""
    return _ANY_SLOT.search(plan) is None


def with_open_slots(plan: str) -> str:
    """Return a plan for a model to read, with open slots in the form that plans of `pevr` use for unknown values."""
    return _ANY_SLOT.sub("<...>", plan)


def kinds(specifics: Sequence[str]) -> tuple[str, ...]:
    """Return the kind of each specific: a number, a quotation, an address or a name."""
    return tuple(_kind(specific) for specific in specifics)


def _kind(specific: str) -> str:
    if specific[0].isdigit():
        return "number"
    if specific[0] in "\"'\u201c\u00ab":
        return "quotation"
    return "address" if "@" in specific or "/" in specific else "name"
