"""Steps in llama-server's words: a request becomes a body for /v1/chat/completions, and the answer becomes events.

What llama-server sends is checked by hand, as a phone has no pydantic and no jsonschema: names, counts and JSON here, and once more, with
the schemas of tools and output, by the hub.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NoReturn, TypeVar
from uuid import uuid4

from ...protocols.confidence import LowestWindow
from ...protocols.errors import InvalidOutput, InvalidRequest, Unsupported
from ...protocols.v1 import agent_pb2 as pb
from .llama_server import JsonObject

Number = TypeVar("Number")
Meaning = TypeVar("Meaning")

_ROLES = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant", pb.ROLE_TOOL: "tool"}
_TOOL_CHOICES = {pb.TOOL_CHOICE_AUTO: "auto", pb.TOOL_CHOICE_NONE: "none", pb.TOOL_CHOICE_REQUIRED: "required"}
_REASONS = {"stop": pb.FINISH_REASON_STOP, "tool_calls": pb.FINISH_REASON_TOOL_CALLS, "length": pb.FINISH_REASON_LENGTH}
_LARGEST_COUNT = 2**53


def request_body(request: pb.StepRequest, *, context_tokens: int) -> JsonObject:
    """Raises `InvalidRequest` for what is malformed, and `Unsupported` for what llama-server could not keep to."""
    if request.HasField("adapter") or request.HasField("call_adapter"):
        raise Unsupported("this worker has no adapters", hint="leave adapter out, or ask another agent")
    # With tools it has log-probabilities in a whole answer only, and without them nobody could tell how sure the answer is.
    is_streamed = not request.tools
    body: JsonObject = {
        "messages": [_message(message) for message in request.messages],
        # Without a limit, older versions shift the context and go on for ever.
        "max_tokens": request.max_output_tokens if request.HasField("max_output_tokens") else context_tokens,
        "temperature": request.temperature,
        "logprobs": True,
        "top_logprobs": 1,
        "stream": is_streamed,
    }
    if is_streamed:
        body["stream_options"] = {"include_usage": True}
    if request.HasField("seed"):
        body["seed"] = request.seed
    if request.stop:
        body["stop"] = list(request.stop)
    if request.tools:
        body |= {"tools": [_tool(tool) for tool in request.tools], "tool_choice": _known(_TOOL_CHOICES, request.tool_choice)}
    if request.output_schema_json:
        schema = _object(request.output_schema_json, InvalidRequest)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    return body


class Answer:
    """What the chunks of one answer, or a whole answer, add up to. Raises `InvalidOutput` for what breaks the contract."""

    def __init__(self, request: pb.StepRequest) -> None:
        self._request = request
        self._taken = {call.id for message in request.messages for call in message.tool_calls}
        self._calls: dict[int, _Call] = {}
        self._confidence = LowestWindow()
        self._reason = ""
        self._model = ""
        self._usage: object = None
        self._timings: object = None

    def feed(self, chunk: JsonObject) -> str:
        """The text that a chunk adds."""
        self._model = model_name(_text(chunk, "model")) or self._model
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        choice = inner(chunk, "choices", 0)
        self._reason = _text(choice, "finish_reason") or self._reason
        delta = inner(choice, "delta") or inner(choice, "message")
        if not _text(delta, "reasoning_content"):  # thoughts wander; the confidence is the answer's
            self._weigh(inner(choice, "logprobs", "content"))
        for position, piece in enumerate(_list(inner(delta, "tool_calls"))):
            index = inner(piece, "index")
            self._add_to_call(index if isinstance(index, int) else position, piece)  # whole answers do not number their calls
        return _text(delta, "content")

    def events(self, *, first_token_seconds: float | None) -> Iterator[pb.StepEvent]:
        """The calls, and what closes the step. `first_token_seconds`: as the worker has seen it."""
        calls = [] if self._reason == "length" else [self._checked(call) for call in self._calls.values()]  # the last may be half a call
        self._check(calls)
        for call in calls:
            yield pb.StepEvent(tool_call=call)
        reason = pb.FINISH_REASON_TOOL_CALLS if calls else _known(_REASONS, self._reason)
        finished = pb.Finished(
            reason=reason, usage=self._counted(), model=self._model, confidence=self._confidence.value, performance=self._measured()
        )
        if first_token_seconds is not None:
            finished.performance.first_token_seconds = first_token_seconds
        yield pb.StepEvent(finished=finished)

    def _weigh(self, tokens: object) -> None:
        for token in _list(tokens):
            if isinstance(value := inner(token, "logprob"), int | float):
                self._confidence.add(value)

    def _add_to_call(self, index: int, piece: object) -> None:
        call = self._calls.setdefault(index, _Call())
        call.id = call.id or _text(piece, "id")
        call.name = call.name or _text(inner(piece, "function"), "name")
        call.arguments += _text(inner(piece, "function"), "arguments")

    def _check(self, calls: list[pb.ToolCall]) -> None:
        if self._reason not in _REASONS:
            raise InvalidOutput(f"llama-server stopped for an unknown reason {self._reason[:40]!r}", hint="it may be too old or too new")
        choice = self._request.tool_choice
        if calls and choice == pb.TOOL_CHOICE_NONE:
            raise InvalidOutput("the model called a tool although tool_choice is 'none'")
        if not calls and (self._reason == "tool_calls" or (choice == pb.TOOL_CHOICE_REQUIRED and self._reason != "length")):
            raise InvalidOutput("the model called no tool although it had to")
        names = {tool.name for tool in self._request.tools}
        for call in calls:
            if call.name not in names:
                raise InvalidOutput(f"the model called an unknown tool {call.name[:60]!r}", hint=f"known tools: {', '.join(sorted(names))}")

    def _checked(self, call: "_Call") -> pb.ToolCall:
        """Templates number calls anew in every turn, or not at all, and ids must not repeat within a conversation."""
        arguments = call.arguments.strip() or "{}"
        _object(arguments, InvalidOutput)
        identity = call.id if call.id and call.id not in self._taken else f"call_{uuid4().hex}"
        self._taken.add(identity)
        return pb.ToolCall(id=identity, name=call.name, arguments_json=arguments)

    def _counted(self) -> pb.Usage:
        read = _count(inner(self._usage, "prompt_tokens"))
        written = _count(inner(self._usage, "completion_tokens"))
        if not read:
            raise InvalidOutput("llama-server did not count its tokens", hint="it may be too old: use a version of 2025 or later")
        cached = _count(inner(self._usage, "prompt_tokens_details", "cached_tokens"))
        return pb.Usage(input_tokens=read, output_tokens=written, cached_tokens=min(cached, read))

    def _measured(self) -> pb.Performance:
        """What llama-server has clocked; energy and memory it does not tell."""
        return pb.Performance(
            prefill_tokens_per_second=_rate(inner(self._timings, "prompt_per_second")),
            decode_tokens_per_second=_rate(inner(self._timings, "predicted_per_second")),
        )


class _Call:
    """A tool call that is still arriving."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments = ""


def inner(value: object, *path: str | int) -> object:
    """What stands at `path` inside a JSON value; None if nothing does."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def model_name(path: str) -> str:
    """A model's name without the folder that it is in, which may tell whose device it is."""
    return PurePosixPath(path).name


def _text(value: object, key: str) -> str:
    """The string under `key`, "" if there is none. Half of an escaped character becomes U+FFFD: protobuf takes whole ones only."""
    found = inner(value, key)
    return whole_characters(found) if isinstance(found, str) else ""


def whole_characters(text: str) -> str:
    """Join the halves of characters, and replace those that stay alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _LARGEST_COUNT else 0


def _rate(value: object) -> float | None:
    """Tokens per second; llama-server writes 0 or null where it has had no time to measure."""
    return float(value) if isinstance(value, int | float) and 0 < value < _LARGEST_COUNT else None


def _message(message: pb.Message) -> JsonObject:
    if message.HasField("tool_result"):
        return {"role": "tool", "tool_call_id": message.tool_result.call_id, "content": message.tool_result.content}
    written: JsonObject = {"role": _known(_ROLES, message.role), "content": message.text}
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return written


def _tool(tool: pb.ToolSpec) -> JsonObject:
    parameters = _object(tool.parameters_json, InvalidRequest)
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}


def _known(meanings: Mapping[Number, Meaning], number: Number) -> Meaning:
    if number not in meanings:
        raise InvalidRequest(f"the request holds a number {number!r} that this worker does not know", hint="update nearfar on the worker")
    return meanings[number]


def _object(text: str, error: type[InvalidOutput] | type[InvalidRequest]) -> JsonObject:
    """The JSON object that `text` is, strictly."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise error(f"what should be a JSON object is no JSON: {str(problem)[:100]}") from None
    if not isinstance(value, dict):
        raise error(f"what should be a JSON object is a {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
