"""The interface between a provider's API and the agent: write a step as a request, and read its stream."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from pydantic import JsonValue

from ..protocols import Capabilities, FinishReason, InvalidOutput, Message, StepRequest, Usage
from ..protocols.limits import CALLS_OF_A_MESSAGE
from ..protocols.validation import parse_json

JsonObject = dict[str, JsonValue]

_MOST_COUNTED = 10**9
"""Upper bound of the tokens of one step, a thousand times the longest context: a wrong count must not use up a budget at once."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A tool call as the provider sent it, before its arguments are checked."""

    name: str
    arguments: str | JsonObject
    """JSON text where the API streams it in pieces, an object where it sends it whole."""
    id: str | None = None
    """None: the provider gave none."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The result of a stream that has ended properly."""

    reason: FinishReason
    calls: tuple[RawCall, ...] = ()
    usage: Usage | None = None
    """None: the provider did not report it."""
    model: str | None = None
    """The model that answered, if the provider named it."""
    confidence: float | None = None
    parts: tuple[JsonObject, ...] = ()
    """The turn in the provider's own form, which it expects back unchanged; empty if text and calls say everything."""


class EndedEarly(InvalidOutput):
    """The stream ended before the provider said why it stopped."""

    def __init__(self) -> None:
        super().__init__("the stream ended before the provider reported a reason", hint="try again")


class Decoder(Protocol):
    """Reads one stream. A `NearfarError` that it raises ends the step."""

    @property
    def has_written(self) -> bool:
        """True if a part of the answer has come: text, thoughts, a piece of a call or a count of output tokens.

        Until then the provider has only accepted the request.
        """
        ...

    def feed(self, chunk: JsonObject) -> str:
        """Add the next JSON object of the stream; return the new text in it, or ""."""
        ...

    def end(self) -> Ending:
        """Finish the stream and return its result. Raise `EndedEarly` if the provider had not finished."""
        ...


class Dialect(Protocol):
    """One provider API. Stateless: one object serves many agents."""

    @property
    def name(self) -> str: ...

    @property
    def default_base_url(self) -> str: ...

    @property
    def default_key_variable(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def path(self, model: str) -> str:
        """Return the path after the base URL."""
        ...

    def headers(self, key: str | None, idempotency_key: str) -> dict[str, str]: ...

    def unsent_stops(self, stops: Sequence[str], model: str) -> Sequence[str]:
        """Return the stops that the API does not take; the caller ends the text at them."""
        ...

    def body(self, request: StepRequest, model: str, *, max_output_tokens: int | None) -> JsonObject:
        """Return the request's body. Provider states in the messages are this provider's own."""
        ...

    def decoder(self) -> Decoder: ...


def check_number_of_calls(number: int) -> None:
    """Raise `InvalidOutput` if an answer calls more tools than any model does."""
    if number > CALLS_OF_A_MESSAGE:
        raise InvalidOutput(f"the provider called more than {CALLS_OF_A_MESSAGE} tools at once", hint="try again")


def counted(*, read: int, written: int, cached: int = 0, stored: int = 0, thought: int = 0) -> Usage | None:
    """Return a usage whose parts are no larger than their totals, or None if the provider counted nothing."""
    if not (read or written):
        return None
    cached = min(cached, read)
    return Usage(
        input_tokens=read,
        output_tokens=written,
        cached_tokens=cached,
        cache_write_tokens=min(stored, read - cached),
        reasoning_tokens=min(thought, written),
    )


def has_output(usage: Usage | None) -> bool:
    """Return whether the provider counted output tokens; they may be thoughts that are not shown."""
    return usage is not None and usage.output_tokens > 0


Said = tuple[str, list[tuple[str, str, JsonObject]]]
"""Text of a turn, and id, name and arguments of its calls."""


def said_in(message: Message) -> Said:
    """Return text and calls of an assistant message, to compare them with the provider's own form."""
    return message.text, [(call.id, call.name, call.arguments) for call in message.tool_calls]


def arguments_of(call: RawCall) -> JsonObject:
    """Return the arguments of a call, or {} if they are not a JSON object."""
    if not isinstance(call.arguments, str):
        return call.arguments
    try:
        return as_object(parse_json(call.arguments.strip() or "{}"))
    except ValueError:
        return {}


def own_parts(message: Message) -> list[JsonObject]:
    """Return the turn in the provider's own form, or [] if it is not known."""
    return [] if message.state is None else list(message.state.parts)


class CallIds:
    """The ids under which the calls of one conversation are sent to an API, so that each result finds its call.

    A turn in the provider's own form keeps its ids: a proxy may have hidden data in them. Other ids may come from another agent and are
    replaced if the API does not take them.
    """

    def __init__(self, taken: re.Pattern[str]) -> None:
        """Use `taken` as the pattern of ids that the API takes."""
        self._taken = taken
        self._sent: dict[str, str] = {}

    def keep(self, message: Message) -> None:
        """Note that the calls of a message go back under their own ids."""
        self._sent |= {call.id: call.id for call in message.tool_calls}

    def of_call(self, call_id: str) -> str:
        """Return the id to send for a call."""
        fits = self._taken.fullmatch(call_id) is not None
        self._sent[call_id] = call_id if fits else f"call_{sha256(call_id.encode()).hexdigest()[:32]}"
        return self._sent[call_id]

    def of_result(self, call_id: str) -> str:
        """Return the id that was sent for the call of a result."""
        return self._sent[call_id] if call_id in self._sent else self.of_call(call_id)


def as_object(value: JsonValue) -> JsonObject:
    """Return `value` if it is an object, else {}: providers leave out fields."""
    return value if isinstance(value, dict) else {}


def as_objects(value: JsonValue) -> list[JsonObject]:
    """Return the objects in `value` if it is an array, else []."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: JsonValue) -> str:
    """Return `value` if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def as_count(value: JsonValue) -> int:
    """Return `value` if it is a possible count of one step, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_COUNTED else 0
