"""A llama-server as an agent: its card, and steps in the words of its chat API.

A request becomes a body for /v1/chat/completions, and the answer becomes events. A capability is claimed if the server has shown it.
llama-server's answers are checked by hand, as a phone has no pydantic and no jsonschema: names, counts and JSON here, and once more, with
the schemas of tools and output, by the hub.
"""

import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NoReturn, TypeVar
from uuid import uuid4

from ...protocols.confidence import LowestWindow, as_logprob
from ...protocols.errors import InvalidOutput, InvalidRequest, NearfarError, Unavailable, Unsupported, travelling_class
from ...protocols.v1 import agent_pb2 as pb
from ...protocols.v1 import hub_pb2
from .llama_server import JsonObject, LlamaServer

Number = TypeVar("Number")
Meaning = TypeVar("Meaning")

_ROLES = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant", pb.ROLE_TOOL: "tool"}
_TOOL_CHOICES = {pb.TOOL_CHOICE_AUTO: "auto", pb.TOOL_CHOICE_NONE: "none", pb.TOOL_CHOICE_REQUIRED: "required"}
_REASONS = {"stop": pb.FINISH_REASON_STOP, "tool_calls": pb.FINISH_REASON_TOOL_CALLS, "length": pb.FINISH_REASON_LENGTH}
_LARGEST_COUNT = 2**53
_SAMPLERS = ("seed", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")


def request_body(request: pb.StepRequest, *, context_tokens: int) -> JsonObject:
    """Raises `InvalidRequest` for what is malformed, and `Unsupported` for what llama-server could not keep to."""
    if request.HasField("adapter") or request.HasField("call_adapter"):
        raise Unsupported("this worker has no adapters", hint="leave adapter out, or ask another agent")
    if any(message.attachments for message in request.messages):
        raise Unsupported("this worker reads no images or documents", hint="ask another agent")
    # With tools, llama-server sends log-probabilities in a whole answer only, and the confidence is computed from them.
    is_streamed = not request.tools
    body: JsonObject = {
        "messages": [_message(message) for message in request.messages],
        # Without a limit, older versions shift the context and go on for ever.
        "max_tokens": request.max_output_tokens if request.HasField("max_output_tokens") else context_tokens,
        "temperature": request.temperature,
        "logprobs": True,
        "top_logprobs": max(request.top_logprobs, 1),
        "stream": is_streamed,
    }
    if is_streamed:
        body["stream_options"] = {"include_usage": True}
    body |= {name: getattr(request, name) for name in _SAMPLERS if request.HasField(name)}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.tools:
        body |= {"tools": [_tool(tool) for tool in request.tools], "tool_choice": _known(_TOOL_CHOICES, request.tool_choice)}
    if request.output_schema_json:
        schema = _object(request.output_schema_json, InvalidRequest)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    return body


class ChatAnswer:
    """The sum of the chunks of one answer, or a whole answer. Raises `InvalidOutput` if the answer breaks the contract."""

    def __init__(self, request: pb.StepRequest) -> None:
        self._request = request
        self._taken = {call.id for message in request.messages for call in message.tool_calls}
        self._calls: dict[int, _Call] = {}
        self._confidence = LowestWindow()
        self._logprobs: list[pb.TokenLogprob] = []
        self._reason = ""
        self._model = ""
        self._usage: object = None
        self._timings: object = None

    def feed(self, chunk: JsonObject) -> str:
        """Take a chunk and return the text that it adds."""
        self._model = model_name(_text(chunk, "model")) or self._model
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        choice = inner(chunk, "choices", 0)
        self._reason = _text(choice, "finish_reason") or self._reason
        delta = inner(choice, "delta") or inner(choice, "message")
        if not _text(delta, "reasoning_content"):  # the confidence is that of the answer, without the reasoning
            self._weigh(inner(choice, "logprobs", "content"))
        for position, piece in enumerate(_list(inner(delta, "tool_calls"))):
            index = inner(piece, "index")
            self._add_to_call(index if isinstance(index, int) else position, piece)  # whole answers do not number their calls
        return _text(delta, "content")

    def events(self, *, first_token_seconds: float | None) -> Iterator[pb.StepEvent]:
        """Yield the calls, and the event that finishes the step. `first_token_seconds`: as the worker has measured it."""
        calls = [] if self._reason == "length" else [self._check_call(call) for call in self._calls.values()]  # the last may be half a call
        self._check(calls)
        for call in calls:
            yield pb.StepEvent(tool_call=call)
        reason = pb.FINISH_REASON_TOOL_CALLS if calls else _known(_REASONS, self._reason)
        finished = pb.Finished(
            reason=reason,
            usage=self._read_usage(),
            model=self._model,
            confidence=self._confidence.value,
            performance=self._read_speeds(),
            logprobs=self._logprobs,
        )
        if first_token_seconds is not None:
            finished.performance.first_token_seconds = first_token_seconds
        yield pb.StepEvent(finished=finished)

    def _weigh(self, tokens: object) -> None:
        for token in _list(tokens):
            if isinstance(value := inner(token, "logprob"), int | float):
                self._confidence.add(value)
                if self._request.HasField("top_logprobs"):
                    self._logprobs.append(_logprob(token, self._request.top_logprobs))

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

    def _check_call(self, call: "_Call") -> pb.ToolCall:
        """Check a call and give it an id of its own: templates number calls again in every turn, or not at all, and ids must not repeat
        within a conversation."""
        arguments = call.arguments.strip() or "{}"
        _object(arguments, InvalidOutput)
        identity = call.id if call.id and call.id not in self._taken else f"call_{uuid4().hex}"
        self._taken.add(identity)
        return pb.ToolCall(id=identity, name=call.name, arguments_json=arguments)

    def _read_usage(self) -> pb.Usage:
        read = _count(inner(self._usage, "prompt_tokens"))
        written = _count(inner(self._usage, "completion_tokens"))
        if not read:
            raise InvalidOutput("llama-server did not count its tokens", hint="it may be too old: use a version of 2025 or later")
        cached = _count(inner(self._usage, "prompt_tokens_details", "cached_tokens"))
        return pb.Usage(input_tokens=read, output_tokens=written, cached_tokens=min(cached, read))

    def _read_speeds(self) -> pb.Performance:
        """Return the speeds that llama-server has measured; it does not report energy and memory."""
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
    """Return the value at `path` inside a JSON value; None if there is none."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def model_name(path: str) -> str:
    """Return a model's name without its folder, which may reveal the owner of the device."""
    return PurePosixPath(path).name


def _text(value: object, key: str) -> str:
    """Return the string under `key`, "" if there is none. Half of an escaped character becomes U+FFFD: protobuf takes whole ones only."""
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
    """Return tokens per second; None for the 0 or null that llama-server writes if it has had no time to measure."""
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


def _logprob(token: object, top: int) -> pb.TokenLogprob:
    likely = [_likely(one) for one in _list(inner(token, "top_logprobs"))[:top]]
    chosen = _likely(token)
    return pb.TokenLogprob(token=chosen.token, logprob=chosen.logprob, top=likely)


def _likely(token: object) -> pb.LikelyToken:
    return pb.LikelyToken(token=_text(token, "token"), logprob=as_logprob(inner(token, "logprob")))


def _tool(tool: pb.ToolSpec) -> JsonObject:
    parameters = _object(tool.parameters_json, InvalidRequest)
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}


def _known(meanings: Mapping[Number, Meaning], number: Number) -> Meaning:
    if number not in meanings:
        raise InvalidRequest(f"this worker does not know the enum value {number!r} of the request", hint="update nearfar on the worker")
    return meanings[number]


def _object(text: str, error: type[InvalidOutput] | type[InvalidRequest]) -> JsonObject:
    """Parse a JSON object strictly."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise error(f"this should be a JSON object, but is not JSON: {str(problem)[:100]}") from None
    if not isinstance(value, dict):
        raise error(f"this should be a JSON object, but is a {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_PATH = "/v1/chat/completions"
_LONGEST_WHOLE_ANSWER = 3600.0
"""Seconds. An answer with tools comes in one piece; its real limit is the step's own timeout."""


async def run_step(server: LlamaServer, request: pb.StepRequest, *, context_tokens: int) -> AsyncGenerator[pb.StepEvent, None]:
    """Run a step and yield its events. Closing it early stops the compute. Raises a `NearfarError`, and no other exception."""
    if not request.messages:
        raise InvalidRequest("the request has no messages")
    body = request_body(request, context_tokens=context_tokens)
    answer = ChatAnswer(request)
    began, first_token_seconds = time.monotonic(), None
    async with aclosing(_chunks(server, body)) as chunks:
        async for chunk in chunks:
            text = answer.feed(chunk)
            if text:
                if first_token_seconds is None and body["stream"]:
                    first_token_seconds = time.monotonic() - began
                yield pb.StepEvent(text=text)
    for event in answer.events(first_token_seconds=first_token_seconds):
        yield event


def failure(error: NearfarError) -> hub_pb2.StepFailure:
    """Describe `error` for the hub, which raises the same class."""
    reason = travelling_class(error).__name__
    message = error.message.encode(errors="replace").decode()  # it may quote half a character of llama-server's
    return hub_pb2.StepFailure(reason=reason, message=message, hint=error.hint, retry_after=error.retry_after)


async def _chunks(server: LlamaServer, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
    """Yield the answer's chunks; a whole answer is one."""
    if not body["stream"]:
        whole = await server.ask(_PATH, body, seconds=_LONGEST_WHOLE_ANSWER)
        if not isinstance(whole, dict):
            raise InvalidOutput("llama-server's answer is not a JSON object", hint="check that --server is a llama-server")
        yield whole
        return
    async with aclosing(server.stream(_PATH, body)) as chunks:
        async for chunk in chunks:
            yield chunk


_TRIAL = pb.StepRequest(messages=[pb.Message(role=pb.ROLE_USER, text="Hello.")], max_output_tokens=1)
_EXAMPLE: JsonObject = {
    "messages": [{"role": "user", "content": "Hello."}],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}],
}
"""A prompt with a tool, to be formatted and not to be answered."""
_UINT32 = 2**32 - 1
_INT64 = 2**63
_LONGEST_MODEL = 256
"""Characters. A hub shows the name in tables, and takes no card that is much longer."""


async def read_card(server: LlamaServer, name: str) -> pb.AgentCard:
    """Ask the server what it runs, and let it generate one token.

    Raises `Unavailable` while the server is not there or still loading, `InvalidOutput` if it is no llama-server.
    """
    await server.ask("/health")
    properties = await server.ask("/props")
    models = await server.ask("/v1/models")
    context = _positive(inner(properties, "default_generation_settings", "n_ctx"), "context size")
    weights = inner(models, "data", 0, "meta", "n_params")
    is_sure = await _is_sure(server, context)
    return pb.AgentCard(
        name=name,
        side=pb.SIDE_NEAR,
        model=_model(properties, models),
        description="A model behind llama-server on another device.",
        capabilities=pb.Capabilities(
            tools=await _takes_tools(server), json_schema=True, confidence=is_sure, logprobs=is_sure, cancellation=True
        ),
        limits=pb.Limits(context_tokens=context, concurrency=_positive(inner(properties, "total_slots"), "number of slots")),
        prices=pb.Prices(input="0", output="0", source="runs on this device", as_of=datetime.now(UTC).date().isoformat()),
        parameters=weights if type(weights) is int and 0 < weights < _INT64 else None,
    )


async def _takes_tools(server: LlamaServer) -> bool:
    try:
        await server.ask("/apply-template", _EXAMPLE)
    except Unavailable:
        raise
    except NearfarError:  # it was started with --no-jinja, or is older than the endpoint
        return False
    return True


async def _is_sure(server: LlamaServer, context: int) -> bool:
    """Return True if an answer comes with log-probabilities."""
    answer = ChatAnswer(_TRIAL)
    async for chunk in server.stream("/v1/chat/completions", request_body(_TRIAL, context_tokens=context)):
        answer.feed(chunk)
    (closing,) = answer.events(first_token_seconds=None)
    return closing.finished.HasField("confidence")


def _model(properties: object, models: object) -> str:
    """Return the alias that the server was given, else the file's name."""
    for found in (inner(properties, "model_alias"), inner(models, "data", 0, "id"), inner(properties, "model_path")):
        if isinstance(found, str) and (name := _shown(model_name(found))):
            return name
    raise InvalidOutput("llama-server does not say which model it runs", hint="check that --server is a llama-server")


def _shown(name: str) -> str:
    """Return the name as a hub takes it, which refuses control characters: they are commands to a terminal."""
    return "".join(character for character in whole_characters(name) if character.isprintable())[:_LONGEST_MODEL]


def _positive(value: object, what: str) -> int:
    if type(value) is not int or not 0 < value <= _UINT32:
        raise InvalidOutput(f"llama-server reports no {what}", hint="check that --server is a llama-server of 2025 or later")
    return value
