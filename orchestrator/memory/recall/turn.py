"""The stored form of a turn: its verbatim text, and the passages by which it is found."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from ....protocols.tiers import Source, Tier
from .granularity import SEARCHABLE, TEXT

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_SHORTEST: Final = 16
"""The least characters of a sentence that gets a passage of its own."""
_MOST_SENTENCES: Final = 8
"""The most sentences with passages of their own; a longer text is one passage, which the store cuts for the embedder."""
_CONTEXT: Final = 400
"""Characters of the previous turn, from its end."""


class TurnKind(StrEnum):
    """The kind of event that a turn records."""

    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    OUTCOME = "outcome"
    """The outcome of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Something that was said, called, returned or achieved."""

    speaker: str
    """The person who said it, or the tool that returned it."""
    text: str
    kind: TurnKind = TurnKind.MESSAGE
    at: datetime | None = None
    """None: now."""
    source: Source | None = None
    """The source of the turn; None: that of the writer that the store is bound to."""
    tier: Tier | None = None
    """The tier of the turn; None: the tier of writes now."""
    subject: str | None = None
    """The person it is about; None: the subject of the running task."""

    def value(self, session: str, at: datetime, before: str | None) -> dict[str, Any]:
        """Return the stored value. `before` is the line of the previous turn, if both may be found by it."""
        return {
            "session": session,
            "kind": self.kind.value,
            "speaker": self.speaker,
            "at": at.isoformat(),
            TEXT: self.text,
            SEARCHABLE: passages(self.speaker, self.text, before),
        }


def line(speaker: str, text: str) -> str:
    """Return a turn as readers see it, with its speaker: most questions name one."""
    return f"{speaker}: {text}"


def passages(speaker: str, text: str, before: str | None) -> list[str]:
    """Return the passages by which a turn is found.

    The first is the turn after the previous one, since an answer shares words with its question. The others are its sentences, since a
    turn may say several things.
    """
    own = line(speaker, text)
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if len(sentence) >= _SHORTEST]
    if len(sentences) > _MOST_SENTENCES:
        sentences = []
    return [own if before is None else f"{before[-_CONTEXT:]}\n{own}", *(line(speaker, sentence) for sentence in sentences or [text])]
