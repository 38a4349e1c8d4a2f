"""Answers in a canonical form, so that answers that say the same compare equal."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...protocols import JsonSchema, ToolCall
from ..task.decisions import AnswerSource, ExtractedAnswer
from .forms import text_form, value_form

_NO_CALL: Final = "no call"


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's answer in a canonical form: equal answers compare equal."""

    parts: tuple[str, ...]
    """One for each tool call, in no order; one for a text, or for calling none; empty where it says nothing."""
    tools: tuple[str, ...] = ()
    """It calls, once for each call, sorted."""
    bare: str | None = None
    """Its form without what others may leave out: `12` of `12 km` and of `x = 12`, a text without its quotation marks."""
    found: ExtractedAnswer | None = field(default=None, compare=False)
    """The part of the text that was taken as the answer; None for tool calls."""

    @classmethod
    def of_text(cls, text: str | None, *, prompt: str = "", schema: JsonSchema | None = None) -> "Answer":
        """Find and return the answer in a text. A JSON list of objects with `name` and `arguments` counts as the tool calls that it states.

        Args:
            prompt: the question; it tells which choices there are, and what kind of answer is asked for.
            schema: of the task's output; its field for the answer is taken.
        """
        from .extraction import extract

        if text is None or not text.strip():
            return cls(())
        stated = stated_calls(text)
        return cls.of_found(extract(text, prompt=prompt, schema=schema)) if stated is None else cls.of_calls(stated)

    @classmethod
    def of_found(cls, found: ExtractedAnswer) -> "Answer":
        """Return the answer of what was found in a text."""
        form, bare = text_form(found.text)
        return cls((form,), bare=bare, found=found)

    @classmethod
    def of_whole(cls, text: str | None) -> "Answer":
        """Return a whole text as the answer, whatever stands in it."""
        if text is None or not text.strip():
            return cls(())
        stated = stated_calls(text)
        return cls.of_calls(stated) if stated is not None else cls.of_found(ExtractedAnswer(source=AnswerSource.TEXT, text=text))

    @classmethod
    def of_calls(cls, calls: Sequence[ToolCall]) -> "Answer":
        """Return the answer of tool calls. An empty list says that no tool is needed."""
        if not calls:
            return cls((_NO_CALL,))
        return cls(tuple(sorted(_call_form(call) for call in calls)), tuple(sorted(call.name for call in calls)))

    def agrees(self, other: "Answer") -> bool:
        """Return True if both say the same. An empty answer agrees with none, not even with another empty one."""
        if not self.parts or not other.parts:
            return False
        return self.parts == other.parts or (self.bare,) == other.parts or self.parts == (other.bare,)

    def overlap(self, other: "Answer") -> float:
        """Return the share of the parts of both that they have in common (Jaccard); 1 if both are empty."""
        if self.agrees(other):
            return 1.0
        mine, theirs = Counter(self.parts), Counter(other.parts)
        either = (mine | theirs).total()
        return (mine & theirs).total() / either if either else 1.0


def agree(first: str | Sequence[ToolCall] | None, second: str | Sequence[ToolCall] | None) -> bool:
    """Return True if two answers say the same as a whole: nothing is looked for in a text.

    Texts are compared without regard to case, spacing, articles and decoration, numbers by their value (1,000 = 1000.0, 50 % = 1/2),
    quantities in the same unit (1.5 km = 1500 m), dates by the day, Python and JSON literals by their value. Tool calls are the same in
    any order where name and arguments are; in arguments, case makes no difference, nor does whether a number is written as an integer.
    """
    return _answer(first).agrees(_answer(second))


def _answer(given: str | Sequence[ToolCall] | None) -> Answer:
    return Answer.of_whole(given) if given is None or isinstance(given, str) else Answer.of_calls(given)


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


def _call_form(call: ToolCall) -> str:
    try:
        return f"{call.name}({value_form(call.arguments, is_exact=False)})"
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or nested too deeply
        return f"{call.name}(?)"
