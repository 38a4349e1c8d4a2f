"""Requests of every shape that a step may have, among them turns that go back to their provider in its own form."""

import json
from collections.abc import Callable

from hypothesis import strategies as st
from pydantic import JsonValue

from nearfar.protocols import Effort, Message, ProviderState, StepRequest, ToolCall, ToolChoice, ToolResult, ToolSpec
from nearfar.protocols.steps import JsonSchema, Sensitivity

Part = dict[str, JsonValue]
Parts = tuple[Part, ...]
Parted = Callable[[str, tuple[ToolCall, ...]], Parts]
"""A turn's text and calls in a provider's own form."""

SCHEMAS: tuple[JsonSchema, ...] = (
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    {
        "type": "object",
        "properties": {
            "when": {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1},
        },
        "$defs": {"item": {"type": "object", "properties": {"n": {"enum": [1, "two", None]}}}},
    },
)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
_SAID = _TEXTS.filter(str.strip)
_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,11}", fullmatch=True)
_VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | _TEXTS, lambda inner: st.lists(inner, max_size=2), max_leaves=4)
_ARGUMENTS = st.dictionaries(_NAMES, _VALUES, max_size=3)
_IDS = st.text(min_size=1, max_size=80)
_TOOLS = st.builds(ToolSpec, name=_NAMES, description=_TEXTS, parameters=st.sampled_from(SCHEMAS))


def chat_parts(text: str, calls: tuple[ToolCall, ...]) -> Parts:
    """Chat completions have no form of their own."""
    return ()


def responses_parts(text: str, calls: tuple[ToolCall, ...]) -> Parts:
    """Reasoning, text, reasoning, calls."""
    said: Part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return (
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA1"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary", "content": [said]},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "So."}], "encrypted_content": "gAAAA2"},
        *map(_responses_call, calls),
    )


def anthropic_parts(text: str, calls: tuple[ToolCall, ...]) -> Parts:
    """Thinking, text, hidden thinking, calls."""
    return (
        {"type": "thinking", "thinking": "Where?", "signature": "c2lnMQ=="},
        {"type": "text", "text": text},
        {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
        *map(_anthropic_call, calls),
    )


def gemini_parts(text: str, calls: tuple[ToolCall, ...]) -> Parts:
    """A thought, text, calls of which the first is signed."""
    signed: Part = {"thoughtSignature": "c2lnMg=="}
    called = [_gemini_call(call) | (signed if place == 0 else {}) for place, call in enumerate(calls)]
    return ({"text": "Where?", "thought": True}, {"text": text, "thoughtSignature": "c2lnMQ=="}, *called)


def _responses_call(call: ToolCall) -> Part:
    arguments = json.dumps(call.arguments)
    return {"type": "function_call", "id": "fc_1", "status": "completed", "name": call.name, "arguments": arguments, "call_id": call.id}


def _anthropic_call(call: ToolCall) -> Part:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _gemini_call(call: ToolCall) -> Part:
    return {"functionCall": {"name": call.name, "args": call.arguments, "id": call.id}}


def requests(parted: Parted, ids: st.SearchStrategy[str] = _IDS) -> st.SearchStrategy[StepRequest]:
    """Requests whose turns may have been `parted` by the provider that they are for, and whose calls have these `ids`."""
    return st.builds(
        StepRequest,
        messages=_conversations(parted, st.builds(ToolCall, id=ids, name=_NAMES, arguments=_ARGUMENTS)),
        tools=st.lists(_TOOLS, max_size=3, unique_by=lambda tool: tool.name).map(tuple),
        output_schema=st.none() | st.sampled_from(SCHEMAS),
        temperature=st.none() | st.sampled_from([0.0, 0.7, 1.0, 2.0]),
        effort=st.none() | st.sampled_from(Effort),
        seed=st.none() | st.integers(0, 2**31 - 1),
        stop=st.lists(st.text(min_size=1, max_size=5), max_size=8).map(tuple),
        sensitivity=st.just(Sensitivity.PUBLIC),
    ).flatmap(_with_choice)


def _with_choice(request: StepRequest) -> st.SearchStrategy[StepRequest]:
    choices = list(ToolChoice) if request.tools else [ToolChoice.AUTO, ToolChoice.NONE]
    return st.sampled_from(choices).map(lambda choice: request.model_copy(update={"tool_choice": choice}))


def _conversations(parted: Parted, calls: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[tuple[Message, ...]]:
    beginning = st.tuples(_TEXTS.map(Message.system), _SAID.map(Message.user)) | st.tuples(_SAID.map(Message.user))
    return st.tuples(beginning, st.lists(_rounds(parted, calls), max_size=3)).map(lambda pair: sum(pair[1], pair[0]))


@st.composite
def _rounds(draw: st.DrawFn, parted: Parted, any_call: st.SearchStrategy[ToolCall]) -> tuple[Message, ...]:
    """An agent's turn, the results of its calls, and perhaps what the user says to it."""
    text = draw(_TEXTS)
    calls = tuple(draw(st.lists(any_call, max_size=3, unique_by=lambda call: call.id)))
    is_parted = draw(st.booleans())
    parts = parted(text, calls) if is_parted else ()
    state = ProviderState(provider="its own", model="model-1", parts=parts) if parts else None
    results = [ToolResult(call_id=call.id, name=call.name, content=draw(_TEXTS), is_error=draw(st.booleans())) for call in calls]
    turn = (Message.assistant(text, calls, state), *map(Message.tool, results))
    is_last = bool(calls) and draw(st.booleans())
    return turn if is_last else (*turn, Message.user(draw(_SAID)))
