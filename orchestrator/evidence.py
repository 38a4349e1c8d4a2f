"""Checks on a draft that cost no model call: is it there, is it grounded, was the model sure?"""

import re
from collections.abc import Sequence

from ..protocols import Message

_SHORT_ANSWER_WORDS = 8
_WORD = re.compile(r"\w+(?:[.,:/-]\w+)*")


def objection(
    answer: str, *, messages: Sequence[Message], has_tools: bool, confidence: float | None, minimum_confidence: float
) -> str | None:
    """The reason to distrust a draft, or None.

    Args:
        answer: the draft.
        messages: the conversation that led to it, tool results included.
        has_tools: the agent could have called tools; then the answer must be grounded in what they returned.
        confidence: the lowest of the attempt's step confidences; None where unknown, which is not held against it.
        minimum_confidence: below it a draft is distrusted.
    """
    if not answer.strip():
        return "the draft is empty"
    if confidence is not None and confidence < minimum_confidence:
        return f"confidence {confidence:.2f} is below {minimum_confidence:.2f}"
    if has_tools and not is_grounded(answer, messages):
        return "the answer occurs in no tool result"
    return None


def is_grounded(answer: str, messages: Sequence[Message]) -> bool:
    """Whether tool results support the answer.

    A short answer must occur in a result as it stands. Of a longer one, every number and every name (a capitalised word
    inside a sentence) must occur in a result or in what the user said.
    """
    results = [message.tool_result for message in messages if message.tool_result is not None]
    found = _normalise(" \n ".join(result.content for result in results if not result.is_error))
    words = _WORD.findall(answer)
    if len(words) <= _SHORT_ANSWER_WORDS and _contains(found, _normalise(answer)):
        return True
    claims = _claims(answer)
    said = _normalise(" ".join(message.text for message in messages if message.role in ("user", "system")))
    supported = [claim for claim in claims if _contains(found, claim)]
    return bool(supported) and all(claim in supported or _contains(said, claim) for claim in claims)


def _claims(answer: str) -> list[str]:
    """Numbers anywhere, and capitalised words that do not merely open a sentence, normalised."""
    claims = []
    for match in _WORD.finditer(answer):
        word = match.group()
        opens_sentence = not answer[: match.start()].rstrip() or answer[: match.start()].rstrip()[-1] in ".!?:\n"
        if word[0].isdigit() or (word[0].isupper() and not opens_sentence):
            claims.append(_normalise(word))
    return claims


def _normalise(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _contains(haystack: str, needle: str) -> bool:
    """Whether the words of `needle` occur in `haystack` in a row."""
    return bool(needle) and f" {needle} " in f" {haystack} "
