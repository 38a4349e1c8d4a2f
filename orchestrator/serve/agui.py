"""AG-UI 1.0: turns of a `Hybrid` as the events that user interfaces of the protocol show."""

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Self
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ...protocols import ApprovalNeeded, Cancelled, InvalidRequest, NearfarError, ToolCall, Usage
from ..hybrid import Hybrid
from ..hybrid.arguments import TurnOptions
from ..task.context import question_text
from ..task.events import (
    AgentText,
    ApprovalAsked,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    TaskEvent,
    TaskFinished,
    ToolFinished,
    ToolStarted,
)
from ..task.results import Attempt, Call, Result
from ..util.text import canonical, digest
from .callers import BY_POLICY, read_options, turn_options
from .dialect import common_headers, event
from .endpoint import Exchange

PROTOCOL: Final = "1.0"
AgUiEvent = dict[str, Any]
"""An event as it is sent."""
_NOT_SENT: Final = ("activity", "reasoning")
"""Roles of messages that interfaces show and models are not sent."""
_APPROVAL: Final = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}


class _Wire(BaseModel):
    """A part of a request. Fields of later versions of the protocol are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", hide_input_in_errors=True)


class AgUiTool(_Wire):
    """A tool that the interface runs itself."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class AgUiContext(_Wire):
    """Something that the interface knows of the situation."""

    description: str
    value: str


class AgUiAnswer(_Wire):
    """The answer to an interrupt of an earlier run."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None

    @property
    def is_approval(self) -> bool:
        """Return whether it says yes. Anything that is no plain yes is a no."""
        said = self.payload.get("approved") if isinstance(self.payload, Mapping) else self.payload
        return self.status == "resolved" and said is True


class AgUiRequest(_Wire):
    """A request to run an agent, or to resume a run with answers."""

    thread_id: str = Field(min_length=1, max_length=200)
    run_id: str = Field(min_length=1, max_length=200)
    messages: list[dict[str, Any]]
    tools: list[AgUiTool] | None = None
    context: list[AgUiContext] | None = None
    resume: list[AgUiAnswer] | None = None
    forwarded_props: Any = None

    @classmethod
    def parse(cls, body: object) -> Self:
        """Return the request that a JSON body holds. Raises `InvalidRequest`."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise InvalidRequest(f"{place}: {first['msg']}", hint="send a RunAgentInput of AG-UI 1.0") from error

    @property
    def prompt(self) -> list[dict[str, Any]]:
        """Return the conversation in OpenAI's form."""
        return [_message(message) for message in self.messages if message.get("role") not in _NOT_SENT]

    @property
    def announced(self) -> dict[str, str]:
        """Return the calls that the interface knows already, by their ids; those that have a result as empty texts."""
        calls = [call for message in self.messages if isinstance(given := message.get("toolCalls"), list) for call in given]
        known = {str(call.get("id")): _told_call(call.get("function")) for call in calls if isinstance(call, Mapping)}
        return known | {str(message["toolCallId"]): "" for message in self.messages if message.get("toolCallId")}

    @property
    def forwarded(self) -> Mapping[str, Any]:
        """Return what the interface passes through to the agent: the `model`, and the options `nearfar`."""
        return self.forwarded_props if isinstance(self.forwarded_props, Mapping) else {}

    def options(self, given: TurnOptions) -> TurnOptions:
        """Return the options of the turn: those `given`, and what the request says."""
        told = "\n\n".join(f"{each.description}:\n{each.value}" for each in self.context or ())
        run = digest(given.get("user", ""), self.thread_id, self.run_id)  # two users may choose the same ids
        options: TurnOptions = {**given, "session": self.thread_id, "idempotency_key": run}
        return {**options, "context": told} if told else options

    def approvals(self) -> tuple[str, dict[str, bool]]:
        """Return the run that is resumed, and the answers by the requests' ids: a yes and a no to one interrupt are a no.

        Raises `InvalidRequest` for answers to several runs.
        """
        pairs = [(*answer.interrupt_id.partition("/")[::2], answer.is_approval) for answer in self.resume or ()]
        runs = {run for run, _, _ in pairs}
        if len(runs) != 1 or not all(request for _, request, _ in pairs):
            raise InvalidRequest("resume answers no interrupts of one run", hint="send the ids of RUN_FINISHED's outcome as they came")
        refused = {request for _, request, is_approved in pairs if not is_approved}
        return runs.pop(), {request: request not in refused for _, request, _ in pairs}


def _said_call(call: ToolCall) -> str:
    return canonical((call.name, call.arguments))


def _told_call(function: object) -> str:
    """Return a call as an interface tells it in a conversation; empty if it cannot be read."""
    try:
        match function:
            case {"name": str(name), "arguments": str(arguments)}:
                return canonical((name, json.loads(arguments)))
    except ValueError:
        pass
    return ""


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    content = given.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = [_part(part) for part in content]
    message = {"role": given.get("role"), "content": content}
    if given.get("role") == "tool":
        return {**message, "tool_call_id": given.get("toolCallId"), "is_error": bool(given.get("error"))}
    return {**message, "tool_calls": given.get("toolCalls") or []} if given.get("role") == "assistant" else message


def _part(given: object) -> object:
    """Return a part of a content in OpenAI's form; one that has none as it is, which is refused with its kind."""
    match given:
        case {"type": "image", "source": {"type": "url", "value": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}}:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
    return given


async def answer_agui(exchange: Exchange) -> None:
    """Answer a request with the events of its run. Raises `InvalidRequest`, and what `turn_options` raises."""
    request, incoming = AgUiRequest.parse(exchange.body), exchange.incoming
    asked, warnings = read_options(incoming.headers, {"nearfar": request.forwarded.get("nearfar")})
    model = request.forwarded.get("model") or BY_POLICY
    options = request.options(turn_options(incoming.hybrid, incoming.caller, incoming.allowed, model, asked))
    headers = common_headers(options["idempotency_key"], str(options.get("strategy", "auto")), warnings)
    await exchange.send_events(_encoded(serve_agui(incoming.hybrid, request, options)), headers, failure=lambda error: _line(_error(error)))


async def _encoded(events: AsyncGenerator[AgUiEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for each in events:
            yield _line(each)


def _line(told: AgUiEvent) -> bytes:
    return event(orjson.dumps(told))


def _error(error: NearfarError) -> AgUiEvent:
    return {"type": "RUN_ERROR", "message": str(error), "code": type(error).__name__}


async def serve_agui(hybrid: Hybrid, request: AgUiRequest, options: TurnOptions) -> AsyncGenerator[AgUiEvent, None]:
    """Serve a request and yield AG-UI's events. The run is durable where the `Hybrid` keeps runs, and its approvals are then interrupts.

    Args:
        hybrid: serves the turn.
        request: what is asked, or how a run that stopped goes on.
        options: those of the turn; its `user` alone may resume the run.
    """
    shown = AgUiStream(request)
    yield shown.started()
    try:
        async with aclosing(_events(hybrid, request, options)) as events:
            async for each in events:
                for piece in shown.show(each):
                    yield piece
    except ApprovalNeeded as error:
        ending = shown.interrupted(error)
    except Cancelled:
        ending = shown.finished({"type": "cancelled"})
    except NearfarError as error:
        ending = iter([_error(error)])
    else:
        return
    for piece in ending:
        yield piece


def _events(hybrid: Hybrid, request: AgUiRequest, options: TurnOptions) -> AsyncGenerator[TaskEvent, None]:
    if request.resume:
        run, approvals = request.approvals()
        return hybrid.follow(run, user=options.get("user", ""), approvals=approvals)
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    return hybrid.follow_turn(request.prompt, tools=tools, **options)


class AgUiStream:
    """The events of one run, in the order that the protocol demands: what was begun is ended before the run is."""

    def __init__(self, request: AgUiRequest) -> None:
        self._ids = {"threadId": request.thread_id, "runId": request.run_id}
        self._announced = request.announced
        """The calls that the interface knows, by the ids that it knows them by; those that have a result as empty texts."""
        self._shown: dict[str, str] = {}
        """By the ids that agents gave: those that the interface knows the newest calls by."""
        self._message = _new_id("message")
        """Id of the assistant's message of the last step: its text, and the calls that it makes."""
        self._is_open = False
        """The message's text is not ended."""
        self._has_spoken = False
        """The step has a text."""
        self._has_text = False
        self._steps: dict[str, str] = {}
        """Agents of attempts that have not ended, by the names of their steps."""
        self._attempts = 0

    def started(self) -> AgUiEvent:
        """Return the first event."""
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": PROTOCOL}

    def show(self, happened: TaskEvent) -> Iterator[AgUiEvent]:
        """Yield the events that tell of one of a task's."""
        match happened:
            case AttemptStarted():
                yield self._begin_attempt(happened)
            case AttemptEnded(attempt=attempt):
                yield from self._end_attempt(attempt)
            case AgentText(text=text):
                yield from self._text(text)
            case CallEnded(call=call):
                yield from self._end_step()
                yield _custom("nearfar.cost", _cost(call))
            case ApprovalAsked(requests=requests):
                yield from self._announce(request.call for request in requests)
            case ToolStarted(call=started):
                yield from self._announce([started])
            case ToolFinished(result=returned):
                shown = self._shown.get(returned.call_id, returned.call_id)
                self._announced[shown] = ""
                told = {"toolCallId": shown, "content": returned.content, "role": "tool"}
                yield {"type": "TOOL_CALL_RESULT", "messageId": _new_id("result"), **told}
            case TaskFinished(result=result):
                yield from self._end(result)

    def interrupted(self, error: ApprovalNeeded) -> Iterator[AgUiEvent]:
        """Yield the end of a run that waits for approvals."""
        interrupts = [
            {
                "id": f"{error.run}/{request.id}",
                "reason": "tool_call",
                "message": question_text(request),
                "toolCallId": self._id_of(request.call),
                "responseSchema": _APPROVAL,
            }
            for request in error.requests
        ]
        return self.finished({"type": "interrupt", "interrupts": interrupts})

    def finished(self, outcome: Mapping[str, object], **more: object) -> Iterator[AgUiEvent]:
        """Yield the end of a run, and of all that it has begun."""
        yield from self._end_text()
        for step in self._steps:
            yield {"type": "STEP_FINISHED", "stepName": step}
        yield {"type": "RUN_FINISHED", **self._ids, "outcome": outcome, **more}

    def _begin_attempt(self, begun: AttemptStarted) -> AgUiEvent:
        self._attempts += 1
        name = f"{self._attempts}. {begun.agent}"
        self._steps[name] = begun.agent
        told = {"agent": begun.agent, "side": begun.side, "model": begun.model}
        return {"type": "STEP_STARTED", "stepName": name, "metadata": {"nearfar": told}}

    def _end_attempt(self, attempt: Attempt) -> Iterator[AgUiEvent]:
        name = next((name for name, agent in reversed(self._steps.items()) if agent == attempt.agent), None)
        if name is None:
            return
        del self._steps[name]
        yield from self._end_text()
        told = {"outcome": attempt.outcome, "reason": attempt.reason, "confidence": attempt.confidence}
        yield {"type": "STEP_FINISHED", "stepName": name, "metadata": {"nearfar": told}}

    def _text(self, text: str) -> Iterator[AgUiEvent]:
        if not self._is_open:
            self._is_open, self._message = True, _new_id("message")
            yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
        self._has_text = self._has_spoken = True
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message, "delta": text}

    def _end_text(self) -> Iterator[AgUiEvent]:
        if self._is_open:
            self._is_open = False
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message}

    def _end_step(self) -> Iterator[AgUiEvent]:
        yield from self._end_text()
        if not self._has_spoken:
            self._message = _new_id("message")
        self._has_spoken = False

    def _announce(self, calls: Iterable[ToolCall]) -> Iterator[AgUiEvent]:
        """Yield the calls that the interface does not know yet: arguments are pieces, and would be put behind those that it has."""
        new: dict[str, ToolCall] = {}
        for call in calls:
            shown = self._shown[call.id] = self._id_of(call)
            if shown not in self._announced:
                self._announced[shown] = _said_call(call)
                new[shown] = call
        if new:
            yield from self._end_text()
        for shown, call in new.items():
            named = {"toolCallId": shown}
            yield {"type": "TOOL_CALL_START", **named, "toolCallName": call.name, "parentMessageId": self._message}
            yield {"type": "TOOL_CALL_ARGS", **named, "delta": json.dumps(call.arguments, ensure_ascii=False)}
            yield {"type": "TOOL_CALL_END", **named}

    def _id_of(self, call: ToolCall) -> str:
        """Return the id by which the interface knows the call: that of its agent, unless another call has it. Else an agent that uses an id
        twice would have the user approve the second call while the first one is shown."""
        said, shown, number = _said_call(call), call.id, 1
        while self._announced.get(shown, said) != said:
            number += 1
            shown = f"{call.id}-{number}"
        return shown

    def _end(self, result: Result) -> Iterator[AgUiEvent]:
        pending = result.messages[-1].tool_calls if result.messages else ()
        if not self._has_text and result.text:
            yield from self._text(result.text)
        yield from self._announce(pending)
        yield _custom("nearfar.result", _facts(result))
        outcome = {"type": "success", **({"pendingToolCallIds": [self._id_of(call) for call in pending]} if pending else {})}
        yield from self.finished(outcome, usage=_usage(result.calls))


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"


def _custom(name: str, value: object) -> AgUiEvent:
    return {"type": "CUSTOM", "name": name, "value": value}


def _cost(call: Call) -> dict[str, object]:
    dollars = None if call.dollars is None else float(call.dollars)
    return {"agent": call.agent, "side": call.side, "model": call.model, "dollars": dollars, "seconds": call.seconds, **_tokens(call.usage)}


def _facts(result: Result) -> dict[str, object]:
    return {
        "run": result.id,
        "agent": result.agent,
        "side": result.side,
        "model": result.model,
        "confidence": result.confidence,
        "dollars": None if result.dollars is None else float(result.dollars),
        "reasons": list(result.reasons),
    }


def _usage(calls: Sequence[Call]) -> list[dict[str, object]]:
    """Return the tokens of each model."""
    sums: dict[str, Usage] = defaultdict(Usage)
    for call in calls:
        sums[call.model] += call.usage
    return [{"model": model, **_tokens(usage)} for model, usage in sums.items()]


def _tokens(usage: Usage) -> dict[str, object]:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        "cachedInputTokens": usage.cached_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    }
