"""Checks on a draft that cost no model call: each can reject it by itself.

A draft of several steps is as confident as the least confident of them (DeepConf, arXiv 2508.15260), so its confidence can only fall: what
is below the threshold after one step stays there, and can be stopped at once.
"""

import re
import unicodedata
from collections.abc import Sequence
from math import sqrt
from typing import Final

from pydantic import Field

from ...protocols import ConfigError, Message
from ...protocols.steps import Value

_SHORT_ANSWER_WORDS = 8
_GROUPED = re.compile(r"(?<![\w.,\[])\d{1,3}(?:,\d{3})+(?![\w,])")
"""1,234,567; but "[100,200,300]" is a list."""
_CLOSING_ZEROS = re.compile(r"(?<=\d)\.0+\b|(?<=\.\d)0+\b")
_LIST_NUMBER = re.compile(r"^\s*\d+[.)]\s+(?=\S)", re.MULTILINE)
_MARKUP = " \t*#>-_`\"'(\u201c\u2018\u2022"
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]+")
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORD = re.compile(rf"\d+(?:\.\d+)*(?![^\W\d_])|{_UNSPACED.pattern}|\w+")


def objection(answer: str, *, confidence: float | None, minimum_confidence: float) -> str | None:
    """Return the reason to distrust a draft, or None.

    Args:
        answer: the draft.
        confidence: the lowest of the attempt's step confidences; None where unknown, which is not held against it.
        minimum_confidence: below it a draft is distrusted.
    """
    if not answer.strip():
        return "the draft is empty"
    if confidence is not None and confidence < minimum_confidence:
        return f"confidence {confidence:.2f} is below {minimum_confidence:.2f}"
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
    before = before.rstrip(_MARKUP)
    opens_sentence = not before or before[-1] in ".!?:\n"
    return word[0].isupper() and word != "I" and not opens_sentence


def _normalise(text: str) -> str:
    return " ".join(_WORD.findall(_without_separators(unicodedata.normalize("NFKC", text).casefold())))


def _without_separators(text: str) -> str:
    return _GROUPED.sub(lambda match: match.group().replace(",", ""), text)


CERTAINTY: Final = 0.95
"""Share of the drafts below a learned threshold that are wrong, at least."""
LEAST_DRAFTS: Final = 20
_QUANTILE: Final = 1.645
"""Quantile of the normal distribution for a one-sided bound that holds with 95 %."""


class EarlyStop(Value):
    """When to stop."""

    threshold: float = Field(ge=0, le=1)
    """A draft with a step below it is stopped; 0: none is. With the policy's own `minimum_confidence`, exactly the drafts are stopped that
    it would reject in the end."""
    certainty: float = Field(default=1.0, ge=0, le=1)
    """Lower bound of the probability that a stopped draft would have been rejected or wrong."""

    def stops(self, confidence: float | None) -> bool:
        """Return whether a draft is stopped at a step of this confidence. None, where the agent does not tell, is not held against it."""
        return confidence is not None and confidence < self.threshold


def learn_early_stop(confidences: Sequence[float | None], scores: Sequence[float | None], *, certainty: float = CERTAINTY) -> EarlyStop:
    """Return the highest threshold below which drafts were wrong nearly always.

    Args:
        confidences: the lowest confidence of each draft; None where unknown.
        scores: what became of it, from 0 (wrong or rejected) to 1; None where unknown.
        certainty: the share of wrong drafts below the threshold has to be at least this large, by Wilson's lower bound at 95 %. So even
            where all of them are wrong, 0.95 takes 52 drafts.

    Drafts of which either is unknown are left out. Raises `ConfigError` for fewer than 20 others, or a certainty that is not between
    0 and 1. Where no threshold will do, it is 0, and nothing is ever stopped.
    """
    if not 0 < certainty < 1:
        raise ConfigError(f"a certainty of {certainty} cannot be had", hint="give a share between 0 and 1, such as 0.95")
    both = zip(confidences, scores, strict=True)
    known = sorted((confidence, score) for confidence, score in both if confidence is not None and score is not None)
    if len(known) < LEAST_DRAFTS:
        left_out = len(confidences) - len(known)
        raise ConfigError(
            f"{len(known)} drafts with a confidence and an outcome are too few, {left_out} lack one of them", hint=f"record {LEAST_DRAFTS}"
        )
    return EarlyStop(threshold=_threshold(known, certainty), certainty=certainty)


def _threshold(drafts: Sequence[tuple[float, float]], certainty: float) -> float:
    """Return the threshold for drafts in the order of their confidence. Drafts of equal confidence are stopped together or not at all."""
    wrong, threshold = 0.0, 0.0
    for count, ((_, score), (following, _)) in enumerate(zip(drafts, drafts[1:], strict=False), start=1):
        wrong += 1 - score
        if following > drafts[count - 1][0] and _lower_bound(wrong, count) >= certainty:
            threshold = following
    return threshold


def _lower_bound(successes: float, count: int) -> float:
    """Return Wilson's lower bound of a share (1927)."""
    share, weight = successes / count, _QUANTILE**2 / count
    return (share + weight / 2 - _QUANTILE * sqrt((share * (1 - share) + weight / 4) / count)) / (1 + weight)
