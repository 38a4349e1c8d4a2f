"""Contract types survive the wire unchanged, and nothing malformed gets through it."""

import datetime
import json
from contextlib import suppress
from decimal import Decimal

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from nearfar.protocols import (
    AgentCard,
    Attachment,
    Capabilities,
    Effort,
    EnergySource,
    Execution,
    Finished,
    FinishReason,
    InvalidOutput,
    InvalidRequest,
    LikelyToken,
    Limits,
    LongPrompt,
    Message,
    Performance,
    Prices,
    ProviderState,
    Sensitivity,
    Side,
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
from nearfar.protocols.steps import MOST_TOKENS
from nearfar.protocols.v1 import agent_pb2 as pb
from nearfar.protocols.wire import (
    card_from_proto,
    card_to_proto,
    event_from_proto,
    event_to_proto,
    request_from_proto,
    request_to_proto,
)

TEXT = st.text(max_size=20)
SOME_TEXT = st.text(min_size=1, max_size=20)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.builds(ToolCall, id=SOME_TEXT, name=SOME_TEXT, arguments=OBJECTS)
RESULTS = st.builds(ToolResult, call_id=SOME_TEXT, name=SOME_TEXT, content=TEXT, is_error=st.booleans())
STATES = st.builds(ProviderState, provider=SOME_TEXT, model=SOME_TEXT, parts=st.lists(OBJECTS, min_size=1, max_size=3).map(tuple))
SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/webp": b"RIFF1234WEBP", "application/pdf": b"%PDF-1.7"}
ATTACHMENTS = st.builds(
    lambda kind, rest, name: Attachment(media_type=kind, data=SIGNATURES[kind] + rest, name=name),
    st.sampled_from(sorted(SIGNATURES)),
    st.binary(max_size=20),
    TEXT,
)
MESSAGES = st.one_of(
    st.builds(Message.system, TEXT),
    st.builds(Message.user, TEXT, st.lists(ATTACHMENTS, max_size=2).map(tuple)),
    st.builds(Message.assistant, TEXT, st.lists(CALLS, max_size=2).map(tuple), st.none() | STATES),
    st.builds(Message.tool, RESULTS, st.lists(ATTACHMENTS, max_size=2).map(tuple)),
)
TOOLS = st.builds(
    ToolSpec,
    name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True),
    description=TEXT,
    parameters=OBJECTS.map(lambda rest: {**rest, "type": "object"}),
)
REQUESTS = st.builds(
    StepRequest,
    messages=st.lists(MESSAGES, min_size=1, max_size=4).map(tuple),
    tools=st.lists(TOOLS, max_size=2, unique_by=lambda tool: tool.name).map(tuple),
    tool_choice=st.sampled_from([ToolChoice.AUTO, ToolChoice.NONE]),
    output_schema=st.none() | OBJECTS,
    max_output_tokens=st.none() | st.integers(1, 2**32 - 1),
    temperature=st.none() | st.floats(0, 2),
    effort=st.none() | st.sampled_from(Effort),
    max_reasoning_tokens=st.none() | st.integers(1, 2**32 - 1),
    seed=st.none() | st.integers(0, 2**31 - 1),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    top_k=st.none() | st.integers(1, 2**31 - 1),
    min_p=st.none() | st.floats(0, 1),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    top_logprobs=st.none() | st.integers(0, 20),
    stop=st.lists(SOME_TEXT, max_size=3).map(tuple),
    timeout=st.none() | st.floats(0.001, 1e6),
    adapter=st.none() | SOME_TEXT,
    call_adapter=st.none() | SOME_TEXT,
    sensitivity=st.sampled_from(Sensitivity),
    idempotency_key=SOME_TEXT,
)
COUNTS = st.integers(0, 2**64 - 1)
FIGURE = st.none() | st.floats(0, 1e12)
JOULES = st.just((None, EnergySource.UNAVAILABLE)) | st.tuples(
    st.floats(0, 1e12), st.sampled_from([EnergySource.MEASURED, EnergySource.ESTIMATED])
)
PERFORMANCES = st.builds(
    lambda joules, **figures: Performance(joules=joules[0], joules_source=joules[1], **figures),
    JOULES,
    first_token_seconds=FIGURE,
    prefill_tokens_per_second=FIGURE,
    decode_tokens_per_second=FIGURE,
    kv_bytes=st.none() | COUNTS,
)
USAGES = st.builds(Usage, **dict.fromkeys(Usage.model_fields, st.integers(0, MOST_TOKENS)))
LOGPROB = st.floats(max_value=0, allow_infinity=False)
LIKELY = st.builds(LikelyToken, token=TEXT, logprob=LOGPROB)
LOGPROBS = st.builds(TokenLogprob, token=TEXT, logprob=LOGPROB, top=st.lists(LIKELY, max_size=3).map(tuple))
EVENTS = st.one_of(
    st.builds(TextDelta, text=SOME_TEXT),
    st.builds(ToolCalled, call=CALLS),
    st.builds(
        Finished,
        reason=st.sampled_from(FinishReason),
        usage=USAGES,
        model=TEXT,
        confidence=st.none() | st.floats(0, 1),
        performance=st.none() | PERFORMANCES,
        saved=st.none() | USAGES,
        state=st.none() | STATES,
        logprobs=st.lists(LOGPROBS, max_size=3).map(tuple),
        stop=st.none() | SOME_TEXT,
    ),
)
DOLLARS = st.decimals(0, 10**6, allow_nan=False, allow_infinity=False)
RATES: dict[str, st.SearchStrategy[Decimal | None]] = {
    "input": DOLLARS,
    "output": DOLLARS,
    "cached_input": st.none() | DOLLARS,
    "cache_write": st.none() | DOLLARS,
}
TIERS = st.lists(st.builds(LongPrompt, above=st.integers(1, 2**64 - 1), **RATES), max_size=2, unique_by=lambda tier: tier.above).map(tuple)
LIMIT = st.none() | st.integers(1, 2**32 - 1)
LAYERS = st.none() | st.integers(0, 2**32 - 1)
SIZE = st.none() | st.integers(1, 2**64 - 1)
CARDS = st.builds(
    AgentCard,
    name=SOME_TEXT,
    side=st.sampled_from(Side),
    model=SOME_TEXT,
    description=TEXT,
    world=st.none() | TEXT,
    capabilities=st.builds(Capabilities, **dict.fromkeys(Capabilities.model_fields, st.booleans())),
    limits=st.builds(Limits, context_tokens=LIMIT, max_output_tokens=LIMIT, concurrency=st.integers(1, 2**32 - 1)),
    prices=st.none() | st.builds(Prices, source=TEXT, as_of=st.dates(), long_prompts=TIERS, **RATES),
    parameters=SIZE,
    kv_bytes_per_token=SIZE,
    adapters=st.lists(SOME_TEXT, max_size=3).map(tuple),
    execution=st.none()
    | st.builds(Execution, engine=SOME_TEXT, provider=SOME_TEXT, device=TEXT, layers=LAYERS, offloaded_layers=LAYERS, threads=LIMIT),
)


@given(REQUESTS)
def test_request_comes_back_unchanged(request: StepRequest) -> None:
    message = pb.StepRequest.FromString(request_to_proto(request).SerializeToString())
    assert request_from_proto(message, idempotency_key=request.idempotency_key, timeout=request.timeout) == request


@given(EVENTS)
def test_event_comes_back_unchanged(event: TextDelta | ToolCalled | Finished) -> None:
    assert event_from_proto(pb.StepEvent.FromString(event_to_proto(event).SerializeToString())) == event


@given(CARDS)
def test_card_comes_back_unchanged(card: AgentCard) -> None:
    assert card_from_proto(pb.AgentCard.FromString(card_to_proto(card).SerializeToString())) == card


def test_price_keeps_its_digits() -> None:
    prices = Prices(input=Decimal("0.10"), output=Decimal("1E+2"), source="x", as_of=datetime.date(2026, 1, 2))
    card = AgentCard(name="a", side=Side.FAR, model="m", prices=prices)
    back = card_from_proto(card_to_proto(card)).prices
    assert back is not None
    assert (str(back.input), str(back.output)) == ("0.10", "1E+2")


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_a_request_or_an_invalid_request(data: bytes) -> None:
    try:
        message = pb.StepRequest.FromString(data)
    except DecodeError:  # which gRPC itself turns into a status
        return
    with suppress(InvalidRequest):
        assert isinstance(request_from_proto(message, idempotency_key="key", timeout=None), StepRequest)


USER = pb.Message(role=pb.ROLE_USER, text="hi")
CALL_OF_LIST = pb.ToolCall(id="1", name="f", arguments_json="[]")
STATE = pb.ProviderState(provider="openai", model="m", parts_json='[{"type": "reasoning"}]')
STATE_OF_OBJECT = pb.ProviderState(provider="openai", model="m", parts_json="{}")
MALFORMED = {
    "no message": pb.StepRequest(),
    "unknown role": pb.StepRequest(messages=[pb.Message(role=9, text="hi")]),  # type: ignore[arg-type]  # as a newer client would
    "role not given": pb.StepRequest(messages=[pb.Message(text="hi")]),
    "unknown tool choice": pb.StepRequest(messages=[USER], tool_choice=9),  # type: ignore[arg-type]  # as a newer client would
    "schema that is no JSON": pb.StepRequest(messages=[USER], output_schema_json="{"),
    "schema that is no object": pb.StepRequest(messages=[USER], output_schema_json="[]"),
    "schema with NaN": pb.StepRequest(messages=[USER], output_schema_json='{"a": NaN}'),
    "schema nested too deeply": pb.StepRequest(messages=[USER], output_schema_json="[" * 100_000),
    "arguments that are no object": pb.StepRequest(messages=[pb.Message(role=pb.ROLE_ASSISTANT, tool_calls=[CALL_OF_LIST])]),
    "tool without parameters": pb.StepRequest(messages=[USER], tools=[pb.ToolSpec(name="f")]),
    "tool message without result": pb.StepRequest(messages=[pb.Message(role=pb.ROLE_TOOL)]),
    "temperature out of range": pb.StepRequest(messages=[USER], temperature=9),
    "temperature not a number": pb.StepRequest(messages=[USER], temperature=float("nan")),
    "unknown effort": pb.StepRequest(messages=[USER], effort=99),  # type: ignore[arg-type]  # as a newer client would
    "state on a user's message": pb.StepRequest(messages=[pb.Message(role=pb.ROLE_USER, text="hi", state=STATE)]),
    "state that is no array": pb.StepRequest(messages=[pb.Message(role=pb.ROLE_ASSISTANT, state=STATE_OF_OBJECT)]),
    "no output tokens": pb.StepRequest(messages=[USER], max_output_tokens=0),
    "empty stop sequence": pb.StepRequest(messages=[USER], stop=[""]),
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_request_is_invalid(message: pb.StepRequest) -> None:
    with pytest.raises(InvalidRequest):
        request_from_proto(message, idempotency_key="key", timeout=None)


def test_request_without_a_key_is_invalid() -> None:
    with pytest.raises(InvalidRequest, match="idempotency_key"):
        request_from_proto(pb.StepRequest(messages=[USER]), idempotency_key="", timeout=None)


def test_unknown_sensitivity_counts_as_private() -> None:
    message = pb.StepRequest(messages=[USER], sensitivity=9)  # type: ignore[arg-type]  # as a newer client would
    assert request_from_proto(message, idempotency_key="key", timeout=None).sensitivity is Sensitivity.PRIVATE


def test_unknown_side_counts_as_far() -> None:
    assert card_from_proto(pb.AgentCard(name="a", model="m", side=9)).side is Side.FAR  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    "message",
    [
        pb.StepEvent(),
        pb.StepEvent(text=""),
        pb.StepEvent(tool_call=CALL_OF_LIST),
        pb.StepEvent(finished=pb.Finished(model="m")),
        pb.StepEvent(finished=pb.Finished(reason=pb.FINISH_REASON_STOP, model="m", confidence=2)),
    ],
    ids=str,
)
def test_malformed_event_is_invalid_output(message: pb.StepEvent) -> None:
    with pytest.raises(InvalidOutput):
        event_from_proto(message)


@pytest.mark.parametrize(
    "message",
    [
        pb.AgentCard(),
        pb.AgentCard(name="a", model="m", prices=pb.Prices(input="cheap", output="1", as_of="2026-01-01")),
        pb.AgentCard(name="a", model="m", parameters=0),
        pb.AgentCard(name="a", model="m", kv_bytes_per_token=0),
    ],
    ids=["empty", "price in words", "no weights", "no cache"],
)
def test_malformed_card_is_invalid_output(message: pb.AgentCard) -> None:
    with pytest.raises(InvalidOutput):
        card_from_proto(message)


@pytest.mark.parametrize(
    "fields",
    [{"max_output_tokens": 2**32}, {"output_schema": {"a": float("nan")}}, {"output_schema": {"a": {1, 2}}}, {"stop": ("\ud800",)}],
    ids=["number too large", "not a number", "not JSON", "half a character"],
)
def test_request_that_the_wire_cannot_hold_is_invalid(fields: dict[str, object]) -> None:
    request = StepRequest.model_construct(messages=(Message.user("hi"),), **fields)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidRequest):
        request_to_proto(request)


def test_event_with_half_a_character_is_invalid_output() -> None:
    call = ToolCall(id="1", name="f", arguments=json.loads('{"a": "\\ud83d"}'))
    with pytest.raises(InvalidOutput):
        event_to_proto(ToolCalled(call=call))
