"""Looks at a draft that the escalation weighs: what each measures, and what it costs; and checks that cost no model call.

A draft of several steps is as confident as the least confident of them (DeepConf, arXiv 2508.15260), so its confidence can only fall: what
is below the threshold after one step stays there, and can be stopped at once.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from pydantic import Field

from ...protocols import ConfigError, JsonSchema, Message
from ...protocols.steps import Value
from .answers import Answer
from .forms import is_literal
from .head import SURFACE, surface
from .meaning import clusters, graded, mean_same, opinion_on
from .quantities import number_of

_SHORT_ANSWER_WORDS = 8
_GROUPED = re.compile(r"(?<![\w.,\[])\d{1,3}(?:,\d{3})+(?![\w,])")
"""1,234,567; but "[100,200,300]" is a list."""
_CLOSING_ZEROS = re.compile(r"(?<=\d)\.0+\b|(?<=\.\d)0+\b")
_LIST_NUMBER = re.compile(r"^\s*\d+[.)]\s+(?=\S)", re.MULTILINE)
_MARKUP = " \t*#>-_`\"'(\u201c\u2018\u2022"
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]+")
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORD = re.compile(rf"\d+(?:\.\d+)*(?![^\W\d_])|{_UNSPACED.pattern}|\w+")
PROMPT: Final = "prompt"
DRAFT: Final = "draft"
SCHEMA: Final = "schema"
GROUNDING: Final = "grounding"
CONFIDENCE: Final = "confidence"
LENGTH: Final = "length of the output"
"""Measure of all that an agent wrote: the logarithm of its characters."""
FREE: Final = (PROMPT, DRAFT, SCHEMA, GROUNDING, CONFIDENCE)
"""Names of the free looks. A second opinion has the name of the agent that gives it."""


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


class Cost(Value):
    """The cost of a look or of asking an agent."""

    dollars: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    joules: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Look(Value):
    """One thing that can be looked at before a draft is accepted."""

    name: str = Field(min_length=1)
    cost: Cost = Cost()

    @property
    def is_free(self) -> bool:
        """It takes nothing, and is always taken."""
        return not (self.cost.dollars or self.cost.seconds or self.cost.joules)


@dataclass(frozen=True, slots=True)
class Signal:
    """The result of a look."""

    measures: Mapping[str, float] = field(default_factory=dict)
    """By name; one that is missing could not be had."""
    answer: Answer | None = None
    """Answer of the agent that was asked: the draft, or a second opinion on the task; None: no agent was asked."""


def prompt_surface(prompt: str, probabilities: Mapping[str, float] | None = None) -> Signal:
    """Measure the surface of a prompt, and the learned head's prediction for each agent as log odds."""
    predicted = {f"log odds of {agent}": log_odds(probability) for agent, probability in (probabilities or {}).items()}
    return Signal(dict(zip(SURFACE, surface(prompt), strict=True)) | predicted)


def text_form(
    draft: str | None, prompt: str, *, schema: JsonSchema | None = None, output_characters: int | None = None, answer: Answer | None = None
) -> Signal:
    """Measure the kind of answer that a text gives, without judging it.

    Args:
        schema: of the task's output; its field for the answer is measured.
        output_characters: length of all that the agent wrote; None: no more than the text.
        answer: the one that was found in the text before; None: it is looked for.
    """
    answer = answer if answer is not None else Answer.of_text(draft, prompt=prompt, schema=schema)
    text = (draft if answer.found is None else answer.found.text) or ""
    text = text.strip()
    written = len((draft or "").strip()) if output_characters is None else output_characters
    measures = {
        "is empty": float(not text),
        "length": math.log1p(len(text)),
        "is a number": float(number_of(text) is not None),
        "is a literal": float(is_literal(text)),
        "stands in the prompt": float(bool(text) and text in prompt),
        LENGTH: math.log1p(written),
    }
    return Signal(measures, answer)


def token_confidence(confidences: Sequence[float | None]) -> Signal:
    """Measure the lowest confidence of the draft's steps, as log odds; the finding is empty if none is known.

    Each is that of the lowest window of tokens in the step (DeepConf, arXiv 2508.15260).
    """
    known = [confidence for confidence in confidences if confidence is not None]
    return Signal({"lowest confidence": log_odds(min(known))} if known else {})


def second_opinion(draft: Answer, opinion: Answer, *, is_valid: bool | None = None, further: Mapping[str, float] | None = None) -> Signal:
    """Compare another agent's answer, or a second one of the same agent, with the draft. Open-ended texts are compared by meaning.

    Args:
        is_valid: it keeps to its schema; None: unknown.
        further: whatever else is known of the opinion, such as its length.
    """
    grade = graded(draft, opinion)
    measures = {
        "agrees": float(mean_same(draft, opinion)),
        "overlap": draft.overlap(opinion),
        "calls the same tools": float(draft.tools == opinion.tools),
        "calls more often": float(len(opinion.tools) - len(draft.tools)),
        "says nothing": float(not opinion.parts),
    }
    semantic = {} if grade is None else {"semantic agreement": grade}
    return Signal(measures | semantic | _known("is valid", is_valid) | dict(further or {}), opinion)


def text_opinion(
    draft: Answer,
    opinion: str | None,
    prompt: str,
    *,
    schema: JsonSchema | None = None,
    answer: Answer | None = None,
    is_valid: bool | None = None,
    output_characters: int | None = None,
) -> Signal:
    """Compare another agent's answer in text with the draft, and measure it. The further arguments are those of `text_form`, for it."""
    found = opinion_on(draft, opinion, prompt=prompt, schema=schema) if answer is None else answer
    form = text_form(opinion, prompt, output_characters=output_characters, answer=found)
    return second_opinion(draft, found, is_valid=is_valid, further=form.measures)


def free_findings(
    prompt: str,
    draft: str | None,
    *,
    schema: JsonSchema | None = None,
    answer: Answer | None = None,
    is_valid: bool | None,
    is_grounded: bool | None,
    confidence: float | None,
    probabilities: Mapping[str, float] | None = None,
    output_characters: int | None = None,
) -> dict[str, Signal]:
    """Return the findings of all free looks at a draft, from what a trace records of it.

    Args:
        draft: the final answer, or the JSON list of the tool calls.
        schema: of the task's output.
        answer: the draft's, if it was found before.
        is_valid: it keeps to its schema; None, here and below: unknown.
        is_grounded: tool results support it.
        confidence: the lowest of its steps.
        probabilities: that each agent gets the prompt right, as a learned head predicts it.
        output_characters: length of all that the agent wrote; None: no more than the draft.
    """
    return {
        PROMPT: prompt_surface(prompt, probabilities),
        DRAFT: text_form(draft, prompt, schema=schema, output_characters=output_characters, answer=answer),
        SCHEMA: Signal(_known("is valid", is_valid)),
        GROUNDING: Signal(_known("is grounded", is_grounded)),
        CONFIDENCE: token_confidence([confidence]),
    }


def crowd(draft: Answer, opinions: Sequence[Answer]) -> dict[str, float]:
    """Measure how several opinions relate to each other and to the draft, by clusters of answers that mean the same."""
    said = [answer for answer in opinions if answer.parts]
    with_draft, *others = clusters([draft, *said])
    return {
        "opinions that agree": float(len(with_draft) - 1),
        "largest group of others": float(max(map(len, others), default=0)),
        "different answers": float(len(others)),
    }


CROWD: Final = tuple(crowd(Answer(()), ()))
"""Names of the measures of `crowd`, in its order."""


def log_odds(probability: float) -> float:
    """Return ln(p / (1 - p)), with p kept off 0 and 1."""
    inner = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(inner / (1 - inner))


def _known(measure: str, value: bool | None) -> dict[str, float]:
    return {} if value is None else {measure: float(value)}
