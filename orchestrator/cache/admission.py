"""The reasons why a request or a reply may not be cached."""

from typing import Final

from ...protocols import FinishReason, Message, Side, StepReply, StepRequest
from ...protocols.messages import Sensitivity
from ..task.scope import Scope

LONGEST_QUESTION: Final = 2_000
"""Characters up to which a question may be found by its meaning; an embedder reads only so much of a text."""


def objection_to_request(request: StepRequest, scope: Scope, *, side: Side) -> str | None:
    """Return why the answer to a request is neither looked for nor stored; None where it may be."""
    if scope.caching == "no-store":
        return "the task asks for no-store"
    if request.temperature and request.seed is None:
        return "the answer is sampled: whoever asks again may want another one"
    if request.sensitivity is Sensitivity.PRIVATE and side is Side.FAR:
        return "a far agent refuses private text"
    return None


def objection_to_reply(reply: StepReply, *, minimum_confidence: float) -> str | None:
    """Return why an answer is not stored; None where it may be."""
    finished = reply.finished
    if reply.tool_calls:
        return "it calls tools: what they return, and what they change, is not the cache's to repeat"
    if finished.reason is not FinishReason.STOP:
        return "it was cut off"
    if not reply.text.strip():
        return "it is empty"
    if finished.confidence is not None and finished.confidence < minimum_confidence:
        return "the model was not sure of it"
    if finished.saved is not None:
        return "it comes from a cache"
    return None


def question_of(request: StepRequest) -> str | None:
    """Return the words by which a request may be found in another wording; None where it may be found in the same one alone.

    Once tools have returned something, the answer depends on that and not on the question.
    """
    last: Message = request.messages[-1]
    has_results = any(message.tool_result is not None for message in request.messages)
    if last.role != "user" or has_results or not last.text.strip() or len(last.text) > LONGEST_QUESTION:
        return None
    return last.text
