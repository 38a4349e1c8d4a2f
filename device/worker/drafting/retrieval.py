"""Find earlier values: in past calls of the tool, token by token, or in the conversation, as text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ....protocols import Message

LONGEST_MATCH: Final = 7
"""Tokens, or characters, beyond which a match is as good as a longer one."""
_MOST_FOLLOWING: Final = 48
"""Characters of the conversation that a match suggests."""
_TOKENS_PER_TOOL: Final = 4096
_TOOLS: Final = 64


def as_text(tokens: Iterable[int]) -> str:
    """Return token ids as characters, so that looking for a run of tokens is a search for a substring."""
    return "".join(map(chr, tokens))


@dataclass(frozen=True, slots=True)
class Match:
    """The continuation of an earlier text that equals the present one."""

    length: int
    """Length of the equal part, at most `LONGEST_MATCH`."""
    following: str


class CallMemory:
    """The calls that an agent made, by tool. It holds private data, so it lives in the worker process alone, and is bounded."""

    def __init__(self) -> None:
        self._calls: dict[str, str] = {}
        self._successors: dict[str | None, Counter[str]] = {}
        self.on_new_line = False
        """True if the last call began on a line of its own."""

    def add(self, tool: str, tokens: Sequence[int], *, after: str | None) -> None:
        """Remember a call, and which tool was called before it in its conversation."""
        known = self._calls.pop(tool, "")
        self._calls[tool] = (known + as_text(tokens))[-_TOKENS_PER_TOOL:]
        if len(self._calls) > _TOOLS:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            self._successors.pop(oldest, None)
        self._successors.setdefault(after, Counter())[tool] += 1

    def by_likelihood(self, tools: Iterable[str], *, after: str | None) -> list[str]:
        """Return the tools, those first that were called most often after that one."""
        counts = self._successors.get(after, Counter())
        return sorted(tools, key=lambda tool: -counts[tool])

    def find(self, tool: str, context: str) -> Match | None:
        """Find how a call of the tool went on after the longest end of `context` that it held. All texts are as `as_text` writes them."""
        calls = self._calls.get(tool, "")
        for length in range(min(LONGEST_MATCH, len(context)), 0, -1):
            at = calls.rfind(context[-length:], 0, len(calls) - 1)
            if at >= 0:
                return Match(length, calls[at + length : at + length + _MOST_FOLLOWING])
        return None


class Conversation:
    """Texts of a conversation, from which values are often taken."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._texts = [message.tool_result.content if message.tool_result else message.text for message in messages]

    def find(self, parameter: str, value: str) -> Match | None:
        """Find how a value with this beginning went on at its last occurrence: as the value of a field of that name, or anywhere."""
        for text, length in ((f'"{parameter}": "{value}', LONGEST_MATCH), (value, min(len(value), LONGEST_MATCH - 1))):
            for said in reversed(self._texts) if text else ():
                at = said.rfind(text)
                if at >= 0:
                    at += len(text)
                    return Match(length, said[at : at + _MOST_FOLLOWING])
        # The value is often the whole last message: an answer to a question, the result of a look-up.
        return Match(0, self._texts[-1][:_MOST_FOLLOWING]) if self._texts and not value else None
