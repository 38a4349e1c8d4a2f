"""What is kept of one turn: what was said or done, verbatim, and the passages by which it is found again."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from ....protocols.tiers import Source, Tier
from .granularity import SEARCHABLE, TEXT

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_SHORTEST: Final = 16
"""Characters of a sentence that is worth a passage of its own."""
_MOST_SENTENCES: Final = 8
"""A longer text is one passage: the store cuts it to what the embedder reads at once."""
_CONTEXT: Final = 400
"""Characters of the turn before, from its end."""


class TurnKind(StrEnum):
    """What sort of thing happened."""

    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    OUTCOME = "outcome"
    """What became of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Something that was said, called, returned or achieved."""

    speaker: str
    """Who said it, or the tool that returned it."""
    text: str
    kind: TurnKind = TurnKind.MESSAGE
    at: datetime | None = None
    """None: now."""
    source: Source | None = None
    """On whose word it is; None: on that of whoever the store is bound to."""
    tier: Tier | None = None
    """How far it may go; None: as far as what is written now may go."""
    subject: str | None = None
    """Whom it is about; None: whom the running task is about."""

    def value(self, session: str, at: datetime, before: str | None) -> dict[str, Any]:
        """What is stored. `before` is the line of the turn before, where both may be found by it."""
        return {
            "session": session,
            "kind": self.kind.value,
            "speaker": self.speaker,
            "at": at.isoformat(),
            TEXT: self.text,
            SEARCHABLE: passages(self.speaker, self.text, before),
        }


def line(speaker: str, text: str) -> str:
    """A turn as it is read: who said what. Questions mostly name who."""
    return f"{speaker}: {text}"


def passages(speaker: str, text: str, before: str | None) -> list[str]:
    """By what a turn is found: itself behind the turn before, since an answer is made of words of its question; and sentence by sentence,
    since a turn may say several things."""
    own = line(speaker, text)
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if len(sentence) >= _SHORTEST]
    if len(sentences) > _MOST_SENTENCES:
        sentences = []
    return [own if before is None else f"{before[-_CONTEXT:]}\n{own}", *(line(speaker, sentence) for sentence in sentences or [text])]
