"""Looks at a draft that the escalation weighs: what each measures, and what it costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from ...protocols import JsonSchema
from ...protocols.steps import Value
from .answers import Answer
from .forms import is_literal
from .head import SURFACE, surface
from .meaning import clusters, graded, mean_same, opinion_on
from .quantities import number_of

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
        "length of the output": math.log1p(written),
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
