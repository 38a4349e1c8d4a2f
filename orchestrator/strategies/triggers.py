"""When a supervised executor is checked: on schedule, or on evidence in its work that no check has covered yet."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ...protocols import Message, ToolCall, ToolResult
from ..task.policy import Cause, SupervisionConfig, Trigger

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about the executor's work after a turn has acted."""

    turn: int
    """Turns that have acted, over all resets."""
    covered: Sequence[Message]
    """The executor's conversation up to the last check or reset, its prompt included."""
    fresh: Sequence[Message]
    """Its conversation since then."""
    confidence: float | None
    """The confidence of the last step; None where unknown, which triggers nothing."""
    share_spent: float
    """The spent share of the turns or of the timeout: the larger one."""
    half_was_covered: bool
    """A check has taken place since half was spent."""
    answered: bool = False
    """The last turn did not act but gave the answer."""


def cause_of_check(supervision: SupervisionConfig, evidence: Evidence) -> Cause | None:
    """Return the cause of a check that is due now: the schedule, else the first trigger that fires, in the configured order.

    An answer ends the task, so only the trigger for answers asks for a check of it.
    """
    if evidence.answered:
        return Trigger.ANSWER if Trigger.ANSWER in supervision.triggers else None
    if supervision.interval is not None and evidence.turn % supervision.interval == 0:
        return "interval"
    return next((trigger for trigger in supervision.triggers if _FIRES[trigger](supervision, evidence)), None)


def _has_error(_: SupervisionConfig, evidence: Evidence) -> bool:
    return any(result.is_error for result in _results(evidence.fresh))


def _loops(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    counts = Counter(canonical(call) for message in evidence.fresh for call in message.tool_calls)
    return any(count >= supervision.loop_calls for count in counts.values())


def _stalls(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    starts = [index for index, message in enumerate(evidence.fresh) if message.tool_calls]
    if len(starts) < supervision.stall_turns:
        return False
    first = starts[-supervision.stall_turns]
    known = _words([*evidence.covered, *evidence.fresh[:first]])
    return not _words(evidence.fresh[first:]) - known


def _is_long(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    return any(len(result.content) > supervision.observation_characters for result in _results(evidence.fresh))


def _is_unsure(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.confidence is not None and evidence.confidence < supervision.minimum_confidence


def _is_half_spent(_: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.share_spent >= 0.5 and not evidence.half_was_covered


def _has_answered(_: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.answered


_FIRES: Mapping[Trigger, Callable[[SupervisionConfig, Evidence], bool]] = {
    Trigger.TOOL_ERROR: _has_error,
    Trigger.LOOP: _loops,
    Trigger.STALL: _stalls,
    Trigger.LONG_OBSERVATION: _is_long,
    Trigger.LOW_CONFIDENCE: _is_unsure,
    Trigger.HALF_SPENT: _is_half_spent,
    Trigger.ANSWER: _has_answered,
}


def canonical(call: ToolCall) -> str:
    """Return a call as text such that equal calls are equal text: keys sorted, white space single, 2.0 the same as 2."""
    return f"{call.name} {json.dumps(_canonical(call.arguments), sort_keys=True)}"


def _canonical(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: _canonical(item) for key, item in value.items()}
        case list():
            return [_canonical(item) for item in value]
        case str():
            return " ".join(value.split())
        case float() if value.is_integer():
            return int(value)
    return value


def _results(messages: Sequence[Message]) -> list[ToolResult]:
    return [message.tool_result for message in messages if message.tool_result is not None]


def _words(messages: Sequence[Message]) -> set[str]:
    """Return the words that the executor was told: prompts and results, but neither errors nor its own text."""
    prompts = [message.text for message in messages if message.role in ("user", "system")]
    results = [result.content for result in _results(messages) if not result.is_error]
    return set(_WORD.findall(" ".join([*prompts, *results]).casefold()))
