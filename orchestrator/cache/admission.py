"""Decide which requests and replies may be cached, and compute the keys of requests."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from ...protocols import AgentCard, FinishReason, Message, Side, StepReply, StepRequest
from ...protocols.messages import Sensitivity
from ..task.task import TaskScope
from ..util.json_text import fingerprint

LONGEST_QUESTION: Final = 2_000
"""Characters up to which a question may be found by its meaning; an embedder reads only so much of a text."""


def objection_to_request(request: StepRequest, scope: TaskScope, *, side: Side) -> str | None:
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


_OF_THE_STEP: Final = frozenset({"messages", "idempotency_key", "timeout"})
"""Fields of a request that do not decide its answer, and the messages, which are taken apart."""
VERSION: Final = 1
"""Version of the keys: answers stored under another version are never found."""


def exact_key(request: StepRequest, card: AgentCard, scope: "TaskScope") -> str:
    """Return the hash of everything that decides the answer: agents with one key give one answer, as far as an agent is reproducible at
    all."""
    return fingerprint({**_partition(request, card, scope), "messages": _messages(request.messages)})


def partition_key(request: StepRequest, card: AgentCard, scope: "TaskScope", *, embedder: str) -> str:
    """Return the hash of all but the wording of the last message, the user's. Within one partition, questions may be compared by
    meaning.

    User, tools, policy, model, sensitivity, output schema, limits, system prompt and all earlier turns are part of it.
    """
    earlier = _messages(request.messages[:-1])
    return fingerprint({**_partition(request, card, scope), "earlier": earlier, "embedder": embedder})


def _partition(request: StepRequest, card: AgentCard, scope: "TaskScope") -> dict[str, JsonValue]:
    return {
        "version": VERSION,
        "request": request.model_dump(mode="json", exclude=set(_OF_THE_STEP)),
        "agent": [card.name, card.side.value, card.model],
        "user": scope.user,
        "policy": scope.policy,
        "task_class": scope.task_class,
    }


def _messages(messages: tuple[Message, ...]) -> JsonValue:
    """Return the messages with calls numbered in their order, since the ids that models give them are random."""
    places: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            places.setdefault(call.id, str(len(places)))
    return [_message(message, places) for message in messages]


def _message(message: Message, places: Mapping[str, str]) -> JsonValue:
    value: dict[str, JsonValue] = message.model_dump(mode="json", exclude={"tool_calls", "tool_result", "state"})
    result = message.tool_result
    value["calls"] = [[places[call.id], call.name, call.arguments] for call in message.tool_calls]
    if result is not None:
        value["result"] = [places.get(result.call_id, result.call_id), result.name, result.content, result.is_error]
    return value
