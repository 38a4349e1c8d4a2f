"""Checks on a draft that cost no model call, and the looks at it that the escalation weighs, with their prices.

A draft of several steps is as confident as the least confident of them (DeepConf, arXiv 2508.15260), so its confidence can only fall: what
is below the threshold after one step stays there, and can be stopped at once.
"""

import ast
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from pydantic import Field

from ...protocols import ConfigError, Message, ToolCall
from ...protocols.steps import Value
from .head import SURFACE, surface

_NO_CALL: Final = "no call"
_LONGEST_LITERAL: Final = 20_000
"""Characters of a text up to which it may be a literal; a longer one is compared as text."""
_DECORATION: Final = " \t\r\n.,;:!?\"'`*$"
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|[-+]?\.\d+")
_LATEX: Final = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|(?<=\\)[dt](?=frac)|\\(?:text|mathrm|mbox|boxed)(?=\s*\{)")
"""LaTeX commands that only affect how a formula is typeset."""
_SINGLE: Final = re.compile(r"\{(\w)\}")
"""Braces that may be left out."""
_ESCAPE: Final = re.compile(r"\\([\\'\"nrt])|\\")


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's answer in a canonical form: equal answers compare equal."""

    parts: tuple[str, ...]
    """One for each tool call, in no order; one for a text, or for calling none; empty where it says nothing."""
    tools: tuple[str, ...] = ()
    """It calls, once for each call, sorted."""

    @classmethod
    def of_text(cls, text: str | None) -> "Answer":
        """Return the answer of a text. A JSON list of objects with `name` and `arguments` counts as the tool calls that it states."""
        if text is None or not text.strip():
            return cls(())
        stated = _stated_calls(text)
        return cls((_text_form(text),)) if stated is None else cls.of_calls(stated)

    @classmethod
    def of_calls(cls, calls: Sequence[ToolCall]) -> "Answer":
        """Return the answer of tool calls. An empty list says that no tool is needed."""
        if not calls:
            return cls((_NO_CALL,))
        return cls(tuple(sorted(_call_form(call) for call in calls)), tuple(sorted(call.name for call in calls)))

    def agrees(self, other: "Answer") -> bool:
        """Return True if both say the same. An empty answer agrees with none, not even with another empty one."""
        return bool(self.parts) and self.parts == other.parts

    def overlap(self, other: "Answer") -> float:
        """Return the share of the parts of both that they have in common (Jaccard); 1 if both are empty."""
        mine, theirs = Counter(self.parts), Counter(other.parts)
        either = (mine | theirs).total()
        return (mine & theirs).total() / either if either else 1.0


def agree(first: str | Sequence[ToolCall] | None, second: str | Sequence[ToolCall] | None) -> bool:
    """Return True if two answers say the same.

    Texts are compared without regard to case, spacing and decoration, numbers by their value (1,000 = 1000.0), Python and JSON literals
    by theirs. Tool calls are the same in any order where name and arguments are; in arguments, case makes no difference, nor does
    whether a number is written as an integer.
    """
    return _answer(first).agrees(_answer(second))


def _answer(given: str | Sequence[ToolCall] | None) -> Answer:
    return Answer.of_text(given) if given is None or isinstance(given, str) else Answer.of_calls(given)


def number_of(text: str) -> float | None:
    """Parse a text as a number, with commas between thousands; None if it is none."""
    found = text.strip().strip("$%").strip()
    return float(found.replace(",", "")) if _NUMBER.fullmatch(found) else None


def is_literal(text: str) -> bool:
    """Return True if a text is a list, tuple, set, dictionary or quoted string in Python or JSON notation."""
    return _literal(text) is not None


def _stated_calls(text: str) -> list[ToolCall] | None:
    """Return the tool calls that a JSON text states, or None where it is something else."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
        keys = [entry.keys() >= {"name", "arguments"} for entry in found]
        return [ToolCall(id="call", name=entry["name"], arguments=entry["arguments"]) for entry in found] if keys and all(keys) else None
    except (ValueError, AttributeError, RecursionError):  # it is no JSON, or JSON of another kind
        return None


def _text_form(text: str) -> str:
    number = number_of(text)
    if number is not None:
        return _number_form(number)
    return _literal(text) or _words_form(text)


def _words_form(text: str) -> str:
    plain = _LATEX.sub("", unicodedata.normalize("NFKC", text)).casefold().strip(_DECORATION)
    return "".join(_SINGLE.sub(r"\1", plain).split())


def _literal(text: str) -> str | None:
    """Return the form of a literal, in which case and types make a difference; None if the text is no literal."""
    stripped = text.strip()
    if not stripped.startswith(("[", "(", "{", '"', "'")) or len(stripped) > _LONGEST_LITERAL:
        return None
    try:
        # Escapes that Python does not know, as in LaTeX, would be warned of; they mean the backslash itself.
        return _form(ast.literal_eval(_ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", stripped)), is_exact=True)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return _form(json.loads(stripped), is_exact=True)
    except (ValueError, RecursionError):
        return None


def _call_form(call: ToolCall) -> str:
    try:
        return f"{call.name}({_form(call.arguments, is_exact=False)})"
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or nested too deeply
        return f"{call.name}(?)"


def _form(value: object, *, is_exact: bool) -> str:
    """Return the canonical text of a value. `is_exact`: case matters, and whether a sequence is a list or a tuple."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return _number_form(value)
    if isinstance(value, str):
        return repr(value if is_exact else _words_form(value))
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{_form(inner, is_exact=is_exact)}" for key, inner in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "set(" + ",".join(sorted(_form(inner, is_exact=is_exact) for inner in value)) + ")"
    if isinstance(value, list | tuple):
        inside = ",".join(_form(inner, is_exact=is_exact) for inner in value)
        return f"({inside})" if is_exact and isinstance(value, tuple) else f"[{inside}]"
    return repr(value)


def _number_form(value: float) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return repr(value)


_SHORT_ANSWER_WORDS = 8
_GROUPED = re.compile(r"(?<![\w.,\[])\d{1,3}(?:,\d{3})+(?![\w,])")
"""1,234,567; but "[100,200,300]" is a list."""
_CLOSING_ZEROS = re.compile(r"(?<=\d)\.0+\b|(?<=\.\d)0+\b")
_LIST_NUMBER = re.compile(r"^\s*\d+[.)]\s+(?=\S)", re.MULTILINE)
_MARKUP = " \t*#>-_`\"'(\u201c\u2018\u2022"
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


PROMPT: Final = "prompt"
DRAFT: Final = "draft"
SCHEMA: Final = "schema"
GROUNDING: Final = "grounding"
CONFIDENCE: Final = "confidence"
FREE: Final = (PROMPT, DRAFT, SCHEMA, GROUNDING, CONFIDENCE)
"""Names of the free looks. A second opinion has the name of the agent that gives it."""


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


def text_form(draft: str | None, prompt: str, *, output_characters: int | None = None) -> Signal:
    """Measure the kind of answer a text is, without judging it. `output_characters`: length of all that the agent wrote, if known."""
    text = (draft or "").strip()
    written = {} if output_characters is None else {"length of the output": math.log1p(output_characters)}
    measures = {
        "is empty": float(not text),
        "length": math.log1p(len(text)),
        "is a number": float(number_of(text) is not None),
        "is a literal": float(is_literal(text)),
        "stands in the prompt": float(bool(text) and text in prompt),
    }
    return Signal(measures | written, Answer.of_text(text))


def token_confidence(confidences: Sequence[float | None]) -> Signal:
    """Measure the lowest confidence of the draft's steps, as log odds; the finding is empty if none is known.

    Each is that of the lowest window of tokens in the step (DeepConf, arXiv 2508.15260).
    """
    known = [confidence for confidence in confidences if confidence is not None]
    return Signal({"lowest confidence": log_odds(min(known))} if known else {})


def second_opinion(draft: Answer, opinion: Answer, *, is_valid: bool | None = None, further: Mapping[str, float] | None = None) -> Signal:
    """Compare another agent's answer, or a second one of the same agent, with the draft.

    Args:
        is_valid: it keeps to its schema; None: unknown.
        further: whatever else is known of the opinion, such as its length.
    """
    measures = {
        "agrees": float(draft.agrees(opinion)),
        "overlap": draft.overlap(opinion),
        "calls the same tools": float(draft.tools == opinion.tools),
        "calls more often": float(len(opinion.tools) - len(draft.tools)),
        "says nothing": float(not opinion.parts),
    }
    return Signal(measures | _known("is valid", is_valid) | dict(further or {}), opinion)


def free_findings(
    prompt: str,
    draft: str | None,
    *,
    is_valid: bool | None,
    is_grounded: bool | None,
    confidence: float | None,
    probabilities: Mapping[str, float] | None = None,
) -> dict[str, Signal]:
    """Return the findings of all free looks at a draft, from what a trace records of it.

    Args:
        draft: the final answer, or the JSON list of the tool calls.
        is_valid: it keeps to its schema; None, here and below: unknown.
        is_grounded: tool results support it.
        confidence: the lowest of its steps.
        probabilities: that each agent gets the prompt right, as a learned head predicts it.
    """
    return {
        PROMPT: prompt_surface(prompt, probabilities),
        DRAFT: text_form(draft, prompt),
        SCHEMA: Signal(_known("is valid", is_valid)),
        GROUNDING: Signal(_known("is grounded", is_grounded)),
        CONFIDENCE: token_confidence([confidence]),
    }


def crowd(draft: Answer, opinions: Sequence[Answer]) -> dict[str, float]:
    """Measure how several opinions relate to each other and to the draft."""
    sizes = Counter(answer.parts for answer in opinions if answer.parts)
    with_draft = sizes.pop(draft.parts, 0)
    return {
        "opinions that agree": float(with_draft),
        "largest group of others": float(max(sizes.values(), default=0)),
        "different answers": float(len(sizes)),
    }


CROWD: Final = tuple(crowd(Answer(()), ()))
"""Names of the measures of `crowd`, in its order."""


def log_odds(probability: float) -> float:
    """Return ln(p / (1 - p)), with p kept off 0 and 1."""
    inner = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(inner / (1 - inner))


def _known(measure: str, value: bool | None) -> dict[str, float]:
    return {} if value is None else {measure: float(value)}
