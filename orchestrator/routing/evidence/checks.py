"""Checks on a draft that cost no model call: is it there, is it grounded, was the model sure?"""

import re
import unicodedata
from collections.abc import Sequence

from ....protocols import Message

_SHORT_ANSWER_WORDS = 8
_GROUPED = re.compile(r"(?<![\w.,\[])\d{1,3}(?:,\d{3})+(?![\w,])")
"""1,234,567; but "[100,200,300]" is a list."""
_CLOSING_ZEROS = re.compile(r"(?<=\d)\.0+\b|(?<=\.\d)0+\b")
_LIST_NUMBER = re.compile(r"^\s*\d+[.)]\s+(?=\S)", re.MULTILINE)
_DECORATION = " \t*#>-_`\"'(\u201c\u2018\u2022"
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]+")
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORD = re.compile(rf"\d+(?:\.\d+)*(?![^\W\d_])|{_UNSPACED.pattern}|\w+")


def objection(
    answer: str, *, messages: Sequence[Message], has_tools: bool, confidence: float | None, minimum_confidence: float
) -> str | None:
    """Return the reason to distrust a draft, or None.

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
    """Return True if tool results support the answer.

    A short answer must occur in a result as it stands. Of a longer one, every number and every name (a capitalised word
    inside a sentence) must occur in a result or in the user's words, and at least one in a result. Thousands separators,
    closing zeros and the Unicode form make no difference.
    """
    results = [message.tool_result for message in messages if message.tool_result is not None]
    found = _Words(" \n ".join(result.content for result in results if not result.is_error))
    if len(_WORD.findall(answer)) <= _SHORT_ANSWER_WORDS and answer in found:
        return True
    claims = _claims(answer)
    said = _Words(" \n ".join(message.text for message in messages if message.role in ("user", "system")))
    supported = [claim for claim in claims if claim in found]
    return bool(supported) and all(claim in supported or claim in said for claim in claims)


class _Words:
    """The words of a text, in which phrases can be looked up."""

    def __init__(self, text: str) -> None:
        self._text = f" {_normalise(text)} "

    def __contains__(self, phrase: str) -> bool:
        return any(self._has(_normalise(form)) for form in (phrase, _CLOSING_ZEROS.sub("", phrase)))

    def _has(self, form: str) -> bool:
        return bool(form) and (form if _UNSPACED.fullmatch(form) else f" {form} ") in self._text


def _claims(answer: str) -> list[str]:
    """Return numbers anywhere, and capitalised words that do not merely open a sentence."""
    text = _without_separators(_LIST_NUMBER.sub("", answer))
    return [match.group() for match in _WORD.finditer(text) if _is_claim(match.group(), text[: match.start()])]


def _is_claim(word: str, before: str) -> bool:
    if word[0].isdigit():
        return True
    before = before.rstrip(_DECORATION)
    opens_sentence = not before or before[-1] in ".!?:\n"
    return word[0].isupper() and word != "I" and not opens_sentence


def _normalise(text: str) -> str:
    return " ".join(_WORD.findall(_without_separators(unicodedata.normalize("NFKC", text).casefold())))


def _without_separators(text: str) -> str:
    return _GROUPED.sub(lambda match: match.group().replace(",", ""), text)
