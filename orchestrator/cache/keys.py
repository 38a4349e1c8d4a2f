"""Keys of requests, as hashes of the canonical JSON of everything that decides the answer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from ...protocols import AgentCard, Message, StepRequest
from ..util.canonical import hashed

if TYPE_CHECKING:
    from ..task.scope import Scope

_OF_THE_STEP: Final = frozenset({"messages", "idempotency_key", "timeout"})
"""Fields of a request that do not decide its answer, and the messages, which are taken apart."""
VERSION: Final = 1
"""Version of the keys: answers stored under another version are never found."""


def exact_key(request: StepRequest, card: AgentCard, scope: "Scope") -> str:
    """Return the hash of everything that decides the answer: agents with one key give one answer, as far as an agent is reproducible at
    all."""
    return hashed({**_partition(request, card, scope), "messages": _messages(request.messages)})


def partition_key(request: StepRequest, card: AgentCard, scope: "Scope", *, embedder: str) -> str:
    """Return the hash of all but the wording of the last message, the user's. Within one partition, questions may be compared by
    meaning.

    User, tools, policy, model, sensitivity, output schema, limits, system prompt and all earlier turns are part of it.
    """
    earlier = _messages(request.messages[:-1])
    return hashed({**_partition(request, card, scope), "earlier": earlier, "embedder": embedder})


def _partition(request: StepRequest, card: AgentCard, scope: "Scope") -> dict[str, JsonValue]:
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
