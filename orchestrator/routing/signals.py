"""The looks at a draft: what each one finds, and what it costs."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from pydantic import Field

from ...protocols import InvalidOutput, Message, ToolCall, ToolSpec
from ...protocols.messages import JsonSchema, Value
from ...protocols.validation import check_arguments, parse_output
from .checks import Answer, is_grounded, is_literal, number_of
from .head import SURFACE, surface

PROMPT: Final = "prompt"
DRAFT: Final = "draft"
SCHEMA: Final = "schema"
GROUNDING: Final = "grounding"
CONFIDENCE: Final = "confidence"
FREE: Final = (PROMPT, DRAFT, SCHEMA, GROUNDING, CONFIDENCE)
"""Names of the free looks. A second opinion has the name of the agent that gives it."""

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+(?:\.\d+)?")
_STEM: Final = 5
"""Letters of a word that are compared: "calculates" and "calculation" speak of the same."""
_SHORTEST: Final = 3
"""Letters of a word that says something."""


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


def call_form(calls: Sequence[ToolCall], tools: Sequence[ToolSpec], prompt: str) -> Signal:
    """Measure the kind of calls a draft makes: how many, of how many tools, and how much of them the prompt mentions."""
    given = list(_groundedness(calls, prompt))
    called = [tool for tool in tools if any(call.name == tool.name for call in calls)]
    spoken = _stems(prompt)
    measures = {
        "tools offered": math.log1p(len(tools)),
        "calls": float(len(calls)),
        "no call": float(not calls),
        "one call": float(len(calls) == 1),
        "tools called": float(len({call.name for call in calls})),
        "repeats itself": float(len(set(Answer.of_calls(calls).parts)) < len(calls)),
        "values": math.log1p(len(given)),
        "values in the prompt": fmean(given) if given else 1.0,
        "least value in the prompt": min(given, default=1.0),
        "called tool in the prompt": max((_share(_described(tool), spoken) for tool in called or tools), default=0.0),
        "best tool in the prompt": max((_share(_described(tool), spoken) for tool in tools), default=0.0),
    }
    return Signal(measures, Answer.of_calls(calls))


def schema_check(text: str, schema: JsonSchema) -> Signal:
    """Check that a text is JSON and valid against a schema. Raises `InvalidRequest` for an invalid schema."""
    try:
        parse_output(text, schema)
    except InvalidOutput:
        return Signal({"is valid": 0.0})
    return Signal({"is valid": 1.0})


def call_check(calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> Signal:
    """Check that each call names a declared tool and has all required arguments, of the right types, and no others.

    Raises `InvalidRequest` for a tool whose schema is none.
    """
    declared = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
    undeclared = any(set(call.arguments) - set(declared.get(call.name, ())) for call in calls)
    return Signal({"is valid": float(all(_is_valid(call, tools) for call in calls)), "has further arguments": float(undeclared)})


def grounding(answer: str, messages: Sequence[Message]) -> Signal:
    """Check whether the tool results among the messages support the answer; the finding is empty if there are no tool results."""
    if not any(message.tool_result is not None for message in messages):
        return Signal()
    return Signal({"is grounded": float(is_grounded(answer, messages))})


def token_confidence(confidences: Sequence[float | None]) -> Signal:
    """Measure the lowest confidence of the draft's steps, as log odds; the finding is empty if none is known.

    Each is that of the lowest window of tokens in the step (DeepConf, arXiv 2508.15260).
    """
    known = [confidence for confidence in confidences if confidence is not None]
    return Signal({"lowest confidence": log_odds(min(known))} if known else {})


def self_consistency(draft: Answer, samples: Sequence[Answer]) -> Signal:
    """Measure the share of further samples of the same agent that agree with its draft (arXiv 2203.11171); empty without samples."""
    if not samples:
        return Signal()
    most = max(sum(sample.agrees(other) for other in samples) for sample in samples)
    agreeing = fmean(draft.agrees(sample) for sample in samples)
    return Signal({"share that agrees": agreeing, "share of the largest group": most / len(samples)})


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


def _is_valid(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    try:
        check_arguments(call, tools)
    except InvalidOutput:
        return False
    return True


def _groundedness(calls: Sequence[ToolCall], prompt: str) -> Iterator[float]:
    """Yield for each value among the arguments the share of its words that the prompt mentions."""
    spoken = _stems(prompt)
    for value in _leaves([call.arguments for call in calls]):
        stems = _stems(f"{value:g}" if isinstance(value, float) else str(value))
        if stems and value is not None and not isinstance(value, bool):
            yield _share(stems, spoken)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _described(tool: ToolSpec) -> frozenset[str]:
    return _stems(f"{tool.name} {tool.description}")


def _stems(text: str) -> frozenset[str]:
    """Return the beginnings of the longer words of a text, and its numbers."""
    words = (word.lower() for word in _WORD.findall(text.replace(",", "")))
    return frozenset(word[:_STEM] for word in words if len(word) >= _SHORTEST or word[0].isdigit())


def _share(part: frozenset[str], whole: frozenset[str]) -> float:
    return len(part & whole) / len(part) if part else 0.0
