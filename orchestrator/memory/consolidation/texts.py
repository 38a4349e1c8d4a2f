"""Digest a topic: a model's summary that passes the check, else its most telling sentences; and its keywords."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ....protocols import Message
from ...compression.compressor import compress
from ...compression.conversation import TEXT_MARK
from ...compression.facts import facts
from ...compression.scoring import terms
from ...compression.summary import Summarizer, summarized
from ...compression.tokens import conversation_tokens

_WORD: Final = re.compile(r"[\w'’-]{3,}")


@dataclass(frozen=True, slots=True)
class Digest:
    """The summary of some texts."""

    text: str
    is_by_model: bool
    problem: str = ""
    """The reason why the model's summary is not used, if one was asked for."""


async def digest(texts: Sequence[str], *, tokens: int, summarizer: Summarizer | None) -> Digest:
    """Return a summary of about `tokens` at most. Without a model, or if its answer cannot be used, it is an extract."""
    if summarizer is None:
        return Digest(extract(texts, tokens=tokens), is_by_model=False)
    summary = await summarized(summarizer, texts, tokens=tokens)
    if summary.text:
        return Digest(summary.text, is_by_model=True)
    return Digest(extract(texts, tokens=tokens), is_by_model=False, problem=summary.problem)


def extract(texts: Sequence[str], *, tokens: int) -> str:
    """Return the sentences with the most information, word for word and in their order."""
    messages = [Message.assistant(line) for text in texts for line in text.splitlines() if line.strip()]
    kept = compress(messages, budget=max(tokens, conversation_tokens(messages) // 20)).messages
    return "\n".join(message.text for message in kept if message.text.strip() != TEXT_MARK)


def keywords(texts: Sequence[str], everything: Sequence[str], *, count: int) -> list[str]:
    """Return the words that distinguish these texts from all others; of equally rare words, names and identifiers first."""
    documents = [terms(text) for text in everything]
    spread = Counter(term for document in documents for term in document)
    shown: dict[str, str] = {}
    weights: defaultdict[str, float] = defaultdict(float)
    for text in texts:
        named = {term for fact in facts(text) for term in terms(fact)}
        for word in _WORD.findall(text):
            for term in terms(word):
                rarity = math.log(1 + len(documents) / max(spread[term], 1))
                weights[term] += rarity * (1.5 if term in named else 1.0)
                shown.setdefault(term, word)
    best = sorted(weights, key=lambda term: (-weights[term], term))[:count]
    return [shown[term] for term in best]
