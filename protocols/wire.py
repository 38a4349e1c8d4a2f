"""Convert contract types to protobuf messages and back, without loss.

A value that cannot be sent, or arrives malformed, raises `InvalidRequest` if it belongs to a request and `InvalidOutput` if it belongs
to an event or a card.
"""

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

from google.protobuf.message import Message as ProtobufMessage
from pydantic import JsonValue, ValidationError

from .agent import AgentCard, Capabilities, Execution, Limits, LongPrompt, Prices, Rates, Side
from .attachments import Attachment
from .errors import InvalidOutput, InvalidRequest, NearfarError
from .limits import ATTACHMENTS, CALLS_OF_A_MESSAGE, MESSAGES, NAME_LENGTH, SCHEMA_LENGTH, TOOLS
from .steps import (
    Effort,
    EnergySource,
    Finished,
    FinishReason,
    LikelyToken,
    Message,
    Performance,
    ProviderState,
    Sensitivity,
    StepEvent,
    StepRequest,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCalled,
    ToolChoice,
    ToolResult,
    ToolSpec,
    Usage,
)
from .v1 import agent_pb2 as pb
from .validation import parse_json

Number = TypeVar("Number")
Meaning = TypeVar("Meaning")

_ROLES: dict[Literal["system", "user", "assistant", "tool"], pb.Role] = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
_TOOL_CHOICES = {
    ToolChoice.AUTO: pb.TOOL_CHOICE_AUTO,
    ToolChoice.NONE: pb.TOOL_CHOICE_NONE,
    ToolChoice.REQUIRED: pb.TOOL_CHOICE_REQUIRED,
}
_EFFORTS = {
    None: pb.EFFORT_UNSPECIFIED,
    Effort.NONE: pb.EFFORT_NONE,
    Effort.MINIMAL: pb.EFFORT_MINIMAL,
    Effort.LOW: pb.EFFORT_LOW,
    Effort.MEDIUM: pb.EFFORT_MEDIUM,
    Effort.HIGH: pb.EFFORT_HIGH,
    Effort.XHIGH: pb.EFFORT_XHIGH,
    Effort.MAX: pb.EFFORT_MAX,
}
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.TOOL_CALLS: pb.FINISH_REASON_TOOL_CALLS,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_ENERGY_SOURCES = {
    EnergySource.UNAVAILABLE: pb.ENERGY_SOURCE_UNAVAILABLE,
    EnergySource.MEASURED: pb.ENERGY_SOURCE_MEASURED,
    EnergySource.ESTIMATED: pb.ENERGY_SOURCE_ESTIMATED,
}
_ENERGY_SOURCE_OF = {number: source for source, number in _ENERGY_SOURCES.items()}
_ROLE_OF = {number: role for role, number in _ROLES.items()}
_TOOL_CHOICE_OF = {number: choice for choice, number in _TOOL_CHOICES.items()}
_EFFORT_OF = {number: effort for effort, number in _EFFORTS.items()}
_REASON_OF = {number: reason for reason, number in _REASONS.items()}
_OPTIONAL: Final = (
    "max_output_tokens",
    "temperature",
    "seed",
    "adapter",
    "call_adapter",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "max_reasoning_tokens",
)
"""Fields of a request that have one form in both types, and may be missing."""


def request_to_proto(request: StepRequest) -> pb.StepRequest:
    """Write `request` without its key and timeout, which travel separately: the key in the call, the timeout as the call's deadline."""
    given = vars(request)
    with _SENDING_REQUEST:
        return pb.StepRequest(
            messages=map(_message_to_proto, request.messages),
            tools=map(_tool_to_proto, request.tools),
            tool_choice=_TOOL_CHOICES[request.tool_choice],
            output_schema_json="" if request.output_schema is None else _to_json(request.output_schema),
            stop=request.stop,
            effort=_EFFORTS[request.effort],
            **{name: given[name] for name in _OPTIONAL if given[name] is not None},
            sensitivity=pb.SENSITIVITY_PUBLIC if request.sensitivity is Sensitivity.PUBLIC else pb.SENSITIVITY_PRIVATE,
        )


def request_from_proto(message: pb.StepRequest, *, idempotency_key: str, timeout: float | None) -> StepRequest:
    """Read and validate a request. An unknown sensitivity counts as private."""
    with _READING_REQUEST:
        present = _present(message)
        _check_counts(present)
        read: dict[str, Any] = {name: present[name] for name in _OPTIONAL if name in present}
        if "tools" in present:
            read["tools"] = tuple(map(_tool_from_proto, message.tools))
        if "tool_choice" in present:
            read["tool_choice"] = _known(_TOOL_CHOICE_OF, message.tool_choice, "tool_choice")
        if "output_schema_json" in present:
            read["output_schema"] = _object_from_json(message.output_schema_json)
        if "stop" in present:
            read["stop"] = tuple(message.stop)
        if "effort" in present:
            read["effort"] = _known(_EFFORT_OF, message.effort, "effort")
        return StepRequest(
            messages=tuple(map(_message_from_proto, message.messages)),
            **read,
            timeout=timeout,
            sensitivity=Sensitivity.PUBLIC if message.sensitivity == pb.SENSITIVITY_PUBLIC else Sensitivity.PRIVATE,
            idempotency_key=idempotency_key,
        )


def event_to_proto(event: StepEvent) -> pb.StepEvent:
    """Write an event. Raise `InvalidOutput` if it holds text that JSON or UTF-8 cannot represent."""
    with _SENDING_EVENT:
        match event:
            case TextDelta():
                return pb.StepEvent(text=event.text)
            case ToolCalled():
                return pb.StepEvent(tool_call=_call_to_proto(event.call))
            case Finished():
                return pb.StepEvent(finished=_finished_to_proto(event))


def event_from_proto(message: pb.StepEvent) -> StepEvent:
    """Read an event. Raise `InvalidOutput` if it is empty, unknown or malformed."""
    with _READING_EVENT:
        match message.WhichOneof("event"):
            case "text":
                return TextDelta(text=message.text)
            case "tool_call":
                return ToolCalled(call=_call_from_proto(message.tool_call))
            case "finished":
                return _finished_from_proto(message.finished)
            case _:
                raise ValueError("it holds nothing that this version knows")


def card_to_proto(card: AgentCard) -> pb.AgentCard:
    """Write a card. Raise `InvalidOutput` if it holds a number too large for the wire."""
    with _SENDING_CARD:
        return pb.AgentCard(
            name=card.name,
            side=pb.SIDE_NEAR if card.side is Side.NEAR else pb.SIDE_FAR,
            model=card.model,
            description=card.description,
            world=card.world,
            capabilities=pb.Capabilities(**card.capabilities.model_dump()),
            limits=pb.Limits(**card.limits.model_dump()),
            prices=None if card.prices is None else _prices_to_proto(card.prices),
            parameters=card.parameters,
            kv_bytes_per_token=card.kv_bytes_per_token,
            adapters=card.adapters,
            execution=None if card.execution is None else pb.Execution(**card.execution.model_dump()),
            provider=card.provider,
        )


def card_from_proto(message: pb.AgentCard) -> AgentCard:
    """Read a card. An unknown side counts as far."""
    with _READING_CARD:
        flags, limits = message.capabilities, message.limits
        return AgentCard(
            name=message.name,
            side=Side.NEAR if message.side == pb.SIDE_NEAR else Side.FAR,
            model=message.model,
            description=message.description,
            world=message.world if message.HasField("world") else None,
            capabilities=Capabilities(**{name: getattr(flags, name) for name in Capabilities.model_fields}),
            limits=Limits(
                context_tokens=limits.context_tokens if limits.HasField("context_tokens") else None,
                max_output_tokens=limits.max_output_tokens if limits.HasField("max_output_tokens") else None,
                concurrency=limits.concurrency or 1,
            ),
            prices=_prices_from_proto(message.prices) if message.HasField("prices") else None,
            parameters=message.parameters if message.HasField("parameters") else None,
            kv_bytes_per_token=message.kv_bytes_per_token if message.HasField("kv_bytes_per_token") else None,
            adapters=tuple(message.adapters),
            execution=Execution(**_present(message.execution)) if message.HasField("execution") else None,
            provider=message.provider,
        )


def _check_counts(present: Mapping[str, Any]) -> None:
    """Refuse the fields of a request with too many parts before anything is built from them: untrusted callers may send any number."""
    messages, tools = present.get("messages", ()), present.get("tools", ())
    _check_most("messages", len(messages), MESSAGES)
    _check_most("tools", len(tools), TOOLS)
    names = [present.get("adapter", ""), present.get("call_adapter", ""), *present.get("stop", ())]
    attachments = 0
    for one in messages:
        attachments += len(one.attachments)
        if calls := one.tool_calls:  # most have none
            _check_most("tool calls in one message", len(calls), CALLS_OF_A_MESSAGE)
            names += [name for call in calls for name in (call.id, call.name)]
    _check_most("attachments", attachments, ATTACHMENTS)
    _check_most("characters in a name", max(map(len, names)), NAME_LENGTH)
    schemas = [present.get("output_schema_json", ""), *[tool.parameters_json for tool in tools]]
    _check_most("characters in a schema", max(map(len, schemas)), SCHEMA_LENGTH)


def _check_most(what: str, count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"{count} {what} are more than {most}")


def _message_to_proto(message: Message) -> pb.Message:
    result = message.tool_result
    return pb.Message(
        role=_ROLES[message.role],
        text=message.text,
        tool_calls=map(_call_to_proto, message.tool_calls),
        tool_result=None if result is None else pb.ToolResult(**vars(result)),
        state=_state_to_proto(message.state),
        attachments=[pb.Attachment(media_type=one.media_type, data=one.data, name=one.name) for one in message.attachments],
    )


def _message_from_proto(message: pb.Message) -> Message:
    present = _present(message)
    read: dict[str, Any] = {}
    if "tool_calls" in present:
        read["tool_calls"] = tuple(map(_call_from_proto, message.tool_calls))
    if "tool_result" in present:
        result = message.tool_result
        read["tool_result"] = ToolResult(call_id=result.call_id, name=result.name, content=result.content, is_error=result.is_error)
    if "state" in present:
        read["state"] = _state_from_proto(message.state)
    if "attachments" in present:
        read["attachments"] = tuple(map(_attachment_from_proto, message.attachments))
    return Message(role=_known(_ROLE_OF, message.role, "role"), text=message.text, **read)


def _attachment_from_proto(message: pb.Attachment) -> Attachment:
    return Attachment.model_validate({"media_type": message.media_type, "data": message.data, "name": message.name})


def _state_to_proto(state: ProviderState | None) -> pb.ProviderState | None:
    return None if state is None else pb.ProviderState(provider=state.provider, model=state.model, parts_json=_to_json(state.parts))


def _state_from_proto(message: pb.ProviderState) -> ProviderState:
    parts = parse_json(message.parts_json)
    if not isinstance(parts, list):
        raise ValueError(f"a JSON array was expected, and a {type(parts).__name__} came")
    return ProviderState.model_validate({"provider": message.provider, "model": message.model, "parts": parts})


def _tool_to_proto(tool: ToolSpec) -> pb.ToolSpec:
    return pb.ToolSpec(name=tool.name, description=tool.description, parameters_json=_to_json(tool.parameters))


def _tool_from_proto(message: pb.ToolSpec) -> ToolSpec:
    return ToolSpec(name=message.name, description=message.description, parameters=_object_from_json(message.parameters_json))


def _call_to_proto(call: ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments_json=_to_json(call.arguments))


def _call_from_proto(message: pb.ToolCall) -> ToolCall:
    return ToolCall(id=message.id, name=message.name, arguments=_object_from_json(message.arguments_json))


def _finished_to_proto(finished: Finished) -> pb.Finished:
    return pb.Finished(
        reason=_REASONS[finished.reason],
        usage=vars(finished.usage),
        model=finished.model,
        confidence=finished.confidence,
        performance=None if finished.performance is None else _performance_to_proto(finished.performance),
        saved=None if finished.saved is None else vars(finished.saved),
        state=_state_to_proto(finished.state),
        logprobs=[pb.TokenLogprob(**one.model_dump()) for one in finished.logprobs],
        stop=finished.stop,
    )


def _finished_from_proto(message: pb.Finished) -> Finished:
    present = _present(message)
    read: dict[str, Any] = {name: present[name] for name in ("confidence", "stop") if name in present}
    if "performance" in present:
        read["performance"] = _performance_from_proto(message.performance)
    if "saved" in present:
        read["saved"] = Usage(**_present(message.saved))
    if "state" in present:
        read["state"] = _state_from_proto(message.state)
    if "logprobs" in present:
        read["logprobs"] = tuple(map(_logprob_from_proto, message.logprobs))
    reason = _known(_REASON_OF, message.reason, "finish reason")
    return Finished(reason=reason, usage=Usage(**_present(message.usage)), model=message.model, **read)


def _logprob_from_proto(message: pb.TokenLogprob) -> TokenLogprob:
    top = tuple(LikelyToken(token=one.token, logprob=one.logprob) for one in message.top)
    return TokenLogprob(token=message.token, logprob=message.logprob, top=top)


def _performance_to_proto(performance: Performance) -> pb.Performance:
    figures = performance.model_dump(exclude={"joules_source"})
    return pb.Performance(**figures, joules_source=_ENERGY_SOURCES[performance.joules_source])


def _performance_from_proto(message: pb.Performance) -> Performance:
    source = _known(_ENERGY_SOURCE_OF, message.joules_source, "source of joules")
    return Performance(**{**_present(message), "joules_source": source})


def _present(message: ProtobufMessage) -> dict[str, Any]:
    """Return the fields of a message that are set."""
    return {field.name: value for field, value in message.ListFields()}


def _prices_to_proto(prices: Prices) -> pb.Prices:
    tiers = [pb.LongPrompt(above=tier.above, **_rates_to_proto(tier)) for tier in prices.long_prompts]
    return pb.Prices(**_rates_to_proto(prices), source=prices.source, as_of=prices.as_of.isoformat(), long_prompts=tiers)


def _prices_from_proto(message: pb.Prices) -> Prices:
    tiers = tuple(LongPrompt(above=tier.above, **_rates_from_proto(tier)) for tier in message.long_prompts)
    return Prices(**_rates_from_proto(message), source=message.source, as_of=date.fromisoformat(message.as_of), long_prompts=tiers)


def _rates_to_proto(rates: Rates) -> dict[str, str]:
    return {name: str(price) for name in Rates.model_fields if (price := getattr(rates, name)) is not None}


def _rates_from_proto(message: pb.Prices | pb.LongPrompt) -> dict[str, Decimal]:
    stated = {"input": message.input, "output": message.output, **_present(message)}
    return {name: Decimal(stated[name]) for name in Rates.model_fields if name in stated}


def _to_json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _object_from_json(text: str) -> dict[str, JsonValue]:
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, and a {type(value).__name__} came")
    return value


def _known(meanings: Mapping[Number, Meaning], number: Number, what: str) -> Meaning:
    if number not in meanings:
        raise ValueError(f"{what} {number} is not known")
    return meanings[number]


class FaultsBecome:
    """Turns what pydantic, protobuf and json raise for invalid content into `error`; a class, as it is entered for every event."""

    __slots__ = ("_error", "_what")

    def __init__(self, error: type[NearfarError], what: str) -> None:
        self._error = error
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None) -> None:
        if fault is None:
            return
        if isinstance(fault, ValidationError):
            first = fault.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise self._error(f"{self._what}: {place + ': ' if place else ''}{first['msg']}") from fault
        if isinstance(fault, ValueError | TypeError | InvalidOperation | RecursionError):
            raise self._error(f"{self._what}: {fault}") from fault


_SENDING_REQUEST = FaultsBecome(InvalidRequest, "the request cannot be sent")
_READING_REQUEST = FaultsBecome(InvalidRequest, "the request is malformed")
_SENDING_EVENT = FaultsBecome(InvalidOutput, "the agent produced an event that cannot be sent")
_READING_EVENT = FaultsBecome(InvalidOutput, "the server sent a malformed event")
_SENDING_CARD = FaultsBecome(InvalidOutput, "the agent card cannot be sent")
_READING_CARD = FaultsBecome(InvalidOutput, "the server sent a malformed agent card")


SERVICE = pb.DESCRIPTOR.services_by_name["AgentService"].full_name

ACCEPTED = (("nearfar-accepted", "1"),)
"""Initial metadata of every step: it tells the client that the server has the step, so that the step can be resumed."""
