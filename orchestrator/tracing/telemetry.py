"""Export runs to OpenTelemetry, as spans and metrics by its semantic conventions for generative AI.

Nothing is exported unless an app calls `instrument` and has set up an exporter of its own, or the environment of `nearfar serve` names an
endpoint. Texts are left out unless asked for.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from ...protocols import Attachment, ConfigError, FinishReason, Message, Side, ToolCall, ToolSpec, Usage
from ..task import Task
from ..task.events import AttemptEnded, AttemptStarted, TaskEvent
from ..task.results import Attempt
from .observing import AskedStep, EndedRun, EndedStep, EndedTool, Observers
from .recorder import redact_credentials

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.metrics import Meter as MeterOfOtel
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

MetricNames = Literal["current", "older", "both"]
Backend = Literal["openinference", "langfuse"]
Attributes = dict[str, "AttributeValue"]

_NANOSECONDS: Final = 1_000_000_000
_PLANNING: Final = ("plan", "jobs")
_WORKING: Final = ("execute", "adapt")
"""Roles in which an agent works on its own attempt; in others it helps with that of another one."""
FINISH_REASONS: Final[Mapping[FinishReason | None, str]] = {
    FinishReason.STOP: "stop",
    FinishReason.TOOL_CALLS: "tool_call",
    FinishReason.LENGTH: "length",
    None: "error",
}
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "invoke_workflow": ("CHAIN", "chain"),
    "invoke_agent": ("AGENT", "agent"),
    "plan": ("CHAIN", "chain"),
    "chat": ("LLM", "generation"),
    "execute_tool": ("TOOL", "tool"),
    "search_memory": ("RETRIEVER", "retriever"),
}
"""By operation: `openinference.span.kind`, and `langfuse.observation.type`."""


class Observable(Protocol):
    """A `Hybrid`."""

    @property
    def observers(self) -> Observers: ...


def instrument(
    hybrid: Observable,
    *,
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
    content: bool = False,
    metric_names: MetricNames = "current",
    backends: Collection[Backend] = (),
) -> None:
    """Export the runs that `hybrid` begins from now on, as spans while they happen and as metrics.

    A run's span is a child of the span that is current when the run is asked for. Raises `ConfigError` if OpenTelemetry is missing.

    Args:
        hybrid: the `Hybrid`.
        tracer_provider: None: the app's own, as set by `opentelemetry.trace.set_tracer_provider`.
        meter_provider: None: the app's own, as set by `opentelemetry.metrics.set_meter_provider`.
        content: include prompts, replies, arguments, results and reasons, whatever their labels: they then go wherever the spans go.
        metric_names: the names of the current conventions, those of the older ones (`gen_ai.client.token.usage`), or both.
        backends: add the attributes by which OpenInference (Phoenix) or Langfuse sort spans and show costs.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise ConfigError("spans need opentelemetry", hint="pip install 'nearfar[otel]'") from error

    tracer = trace.get_tracer("nearfar", tracer_provider=tracer_provider)
    hybrid.observers.spans = partial(RunSpans, tracer, content=content, backends=frozenset(backends))
    hybrid.observers.meters.append(OtelMeter(metrics.get_meter("nearfar", meter_provider=meter_provider), metric_names))


class RunSpans:
    """The spans of one run: the workflow, below it attempts and plans, below those steps and tool calls."""

    def __init__(self, tracer: "Tracer", task: Task, *, content: bool, backends: frozenset[Backend]) -> None:
        self._tracer = tracer
        self._task = task
        self._content = content
        self._backends = backends
        self._root: Span | None = None
        self._attempts: dict[tuple[str, str], Span] = {}
        """Open spans of attempts, by the part of the run and the agent; the latest one last."""
        self._open: dict[int, Span] = {}
        """Spans of steps and tool calls that have not ended, by their identity."""

    def begin(self, asked: float, recalled: tuple[float, int] | None) -> object:
        """Begin the run's own span."""
        name = self._task.policy.strategy.value
        attributes: Attributes = {"gen_ai.workflow.name": name, "nearfar.run": self._task.idempotency_key}
        if self._content:
            attributes["gen_ai.input.messages"] = self._messages(self._task.messages)
        if "langfuse" in self._backends and self._task.session is not None:
            attributes["session.id"] = self._task.session
        self._root = self._start("invoke_workflow", name, attributes, within=None, at=asked)
        if recalled is not None:
            read, items = recalled
            found: Attributes = {"gen_ai.memory.record.count": items}
            self._start("search_memory", "", found, within=self._root, at=asked).end(_nanoseconds(read))
        return self._root

    def current(self, span: object) -> AbstractContextManager[None]:
        """Make a span the current one within the block."""
        from opentelemetry.trace import use_span

        given = span.chat if isinstance(span, _StepSpans) else span
        return cast(AbstractContextManager[None], use_span(cast("Span", given), record_exception=False, set_status_on_exception=False))

    def event(self, event: TaskEvent, scope: str) -> None:
        """Begin or end an attempt; note anything else on the run's span."""
        match event:
            case AttemptStarted():
                self._end_attempt(scope, event.agent)
                attributes: Attributes = {"gen_ai.agent.name": event.agent, "gen_ai.request.model": event.model}
                attributes["nearfar.side"] = event.side.value
                self._attempts[scope, event.agent] = self._start("invoke_agent", event.agent, attributes, within=self._root)
            case AttemptEnded(attempt=attempt):
                self._end_attempt(scope, attempt.agent, attempt)
            case _ if self._root is not None:
                told: Attributes = {"nearfar.decision": redact_credentials(event.model_dump_json())} if self._content else {}
                self._root.add_event(f"nearfar.{event.type}", told)

    def begin_step(self, step: AskedStep, scope: str) -> object:
        """Begin the span of a step, and around it that of a plan, where it makes one."""
        within, plan = self._above(step, scope), None
        if step.role in _PLANNING:
            plan = within = self._opened(self._start("plan", step.agent, {"gen_ai.agent.name": step.agent}, within=within))
        attributes = {**self._asked(step), "nearfar.role": step.role}
        is_client = step.server is not None or step.card.side is Side.FAR
        chat = self._start("chat", step.card.model, attributes, within=within, is_client=is_client)
        return _StepSpans(self._opened(chat), plan)

    def end_step(self, span: object, step: EndedStep) -> None:
        """End the span of a step with what it took."""
        assert isinstance(span, _StepSpans), "begun by begin_step"
        span.chat.set_attributes({**self._figures(step), **(self._said(step) if self._content else {})})
        self._end(span.chat, step.call.error)
        if span.plan is not None:
            self._end(span.plan, step.call.error)

    def begin_tool(self, call: ToolCall, scope: str) -> object:
        """Begin the span of a tool call."""
        attributes: Attributes = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id, "gen_ai.tool.type": "function"}
        return self._opened(self._start("execute_tool", call.name, attributes, within=self._acting(scope) or self._root))

    def end_tool(self, span: object, tool: EndedTool) -> None:
        """End the span of a tool call."""
        ended = cast("Span", span)
        ended.set_attributes({"nearfar.effect": tool.effect.value, "nearfar.label.tier": tool.label.tier.value})
        if self._content:
            ended.set_attribute("gen_ai.tool.call.arguments", _json(tool.call.arguments))
            ended.set_attribute("gen_ai.tool.call.result", redact_credentials(tool.result.content))
        self._end(ended, "tool_error" if tool.result.is_error else None)

    def end(self, run: EndedRun) -> None:
        """End all spans that are still open, the run's own last."""
        for span in self._open.copy().values():
            self._end(span, run.error_class or "_OTHER")
        for scope, agent in self._attempts.copy():
            self._end_attempt(scope, agent, error=run.error_class)
        if self._root is None:
            return
        self._root.set_attribute("nearfar.outcome", run.outcome)
        if (result := run.result) is not None:
            self._root.set_attributes({"nearfar.side": result.side.value, "nearfar.label.tier": result.label.tier.value})
            self._root.set_attributes(_known(dollars=result.dollars, joules=result.energy.joules, confidence=result.confidence))
            if self._content:
                self._root.set_attribute("gen_ai.output.messages", self._messages([Message.assistant(result.text)], FinishReason.STOP))
        self._end(self._root, run.error_class)

    def _above(self, step: AskedStep, scope: str) -> "Span | None":
        """Return the span of the attempt that a step belongs to, else the run's own."""
        own = self._attempts.get((scope, step.agent)) if step.role in _WORKING else None
        return own or self._acting(scope) or self._root

    def _acting(self, scope: str) -> "Span | None":
        """Return the span of the attempt that began last in a part of the run, and has not ended."""
        return next((span for (part, _), span in reversed(self._attempts.items()) if part == scope), None)

    def _end_attempt(self, scope: str, agent: str, attempt: Attempt | None = None, *, error: str | None = None) -> None:
        span = self._attempts.pop((scope, agent), None)
        if span is None:
            return
        if attempt is not None:
            error = attempt.error
            usage = {"gen_ai.usage.input_tokens": attempt.usage.input_tokens, "gen_ai.usage.output_tokens": attempt.usage.output_tokens}
            figures = _known(dollars=attempt.dollars, confidence=attempt.confidence)
            span.set_attributes({"nearfar.outcome": attempt.outcome, **usage, **figures})
        self._end(span, error)

    def _asked(self, step: AskedStep) -> Attributes:
        """Return the attributes of a step that are known before it is taken."""
        request = step.request
        settings = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "max_tokens": request.max_output_tokens,
            "seed": request.seed,
            "stop_sequences": request.stop or None,
            "stream": True,
        }
        attributes: Attributes = {f"gen_ai.request.{name}": value for name, value in settings.items() if value is not None}
        attributes["gen_ai.output.type"] = "text" if request.output_schema is None else "json"
        attributes |= {**_provider(step), "gen_ai.agent.name": step.agent, "nearfar.side": step.card.side.value}
        if self._content:
            instructions = [message for message in request.messages if message.role == "system"]
            others = [message for message in request.messages if message.role != "system"]
            if instructions:
                attributes["gen_ai.system_instructions"] = _json([part for each in instructions for part in _parts(each)])
            attributes["gen_ai.input.messages"] = self._messages(others)
            if request.tools:
                attributes["gen_ai.tool.definitions"] = _json([_definition(tool) for tool in request.tools])
        return attributes

    def _figures(self, step: EndedStep) -> Attributes:
        """Return what a step took, as far as it is known."""
        call, usage = step.call, step.call.usage
        attributes: Attributes = {"gen_ai.response.finish_reasons": [FINISH_REASONS[step.finish]]}
        attributes["nearfar.label.tier"] = step.label.tier.value
        attributes |= _known(dollars=call.dollars, joules=call.energy.joules, confidence=call.confidence)
        if call.first_token_seconds is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = call.first_token_seconds
        if step.finish is None:
            return attributes
        attributes |= {f"gen_ai.usage.{name}": count for name, count in _token_counts(usage).items()}
        if call.dollars is not None and "langfuse" in self._backends:
            attributes["langfuse.observation.cost_details"] = json.dumps({"total": float(call.dollars)})
        if call.dollars is not None and "openinference" in self._backends:
            attributes["llm.cost.total"] = float(call.dollars)
        return {**attributes, "gen_ai.response.model": call.model}

    def _said(self, step: EndedStep) -> Attributes:
        return {"gen_ai.output.messages": self._messages([step.reply], step.finish, is_output=True)}

    def _messages(self, messages: Sequence[Message], finish: FinishReason | None = None, *, is_output: bool = False) -> str:
        """Return messages in the form of the conventions; those of a model say why they end there."""
        ends = {"finish_reason": FINISH_REASONS[finish]} if is_output or finish is not None else {}
        return _json([{"role": message.role, "parts": _parts(message), **ends} for message in messages])

    def _start(
        self,
        operation: str,
        name: str,
        attributes: Attributes,
        *,
        within: "Span | None",
        at: float | None = None,
        is_client: bool = False,
    ) -> "Span":
        from opentelemetry.trace import SpanKind, set_span_in_context

        kind, type_ = _KINDS[operation]
        attributes = {"gen_ai.operation.name": operation, **attributes}
        if self._task.session is not None:
            attributes["gen_ai.conversation.id"] = self._task.session
        if "openinference" in self._backends:
            attributes["openinference.span.kind"] = kind
        if "langfuse" in self._backends:
            attributes["langfuse.observation.type"] = type_
        return self._tracer.start_span(
            f"{operation} {name}".strip(),
            None if within is None else set_span_in_context(within),
            SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
            attributes,
            start_time=None if at is None else _nanoseconds(at),
        )

    def _opened(self, span: "Span") -> "Span":
        self._open[id(span)] = span
        return span

    def _end(self, span: "Span", error: str | None) -> None:
        from opentelemetry.trace import StatusCode

        self._open.pop(id(span), None)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(StatusCode.ERROR)
        span.end()


class _StepSpans:
    """The span of a step, and that of the plan that it makes."""

    def __init__(self, chat: "Span", plan: "Span | None") -> None:
        self.chat = chat
        self.plan = plan


def _provider(step: AskedStep) -> Attributes:
    """Return the provider, the model and the server that are asked."""
    attributes: Attributes = {"gen_ai.provider.name": step.card.provider or "nearfar", "gen_ai.request.model": step.card.model}
    if step.server is not None:
        attributes["server.address"], attributes["server.port"] = step.server
    return attributes


def _token_counts(usage: Usage) -> dict[str, int]:
    """Return the tokens of a step by the names that the conventions give to their kinds."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read.input_tokens": usage.cached_tokens,
        "cache_write.input_tokens": usage.cache_write_tokens,
        "reasoning.output_tokens": usage.reasoning_tokens,
    }


def _known(**figures: object) -> Attributes:
    """Return the figures that are known, under names of nearfar's own."""
    return {f"nearfar.{name}": float(cast(float, value)) for name, value in figures.items() if value is not None}


def _parts(message: Message) -> list[dict[str, object]]:
    shown = message.parts if message.tool_result is None else message.attachments
    parts = [_text(part) if isinstance(part, str) else _file(part) for part in shown]
    parts += [{"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    if message.tool_result is not None:
        parts.append({"type": "tool_call_response", "id": message.tool_result.call_id, "response": message.tool_result.content})
    return parts


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "content": text}


def _file(attachment: Attachment) -> dict[str, object]:
    """Return an attachment by its hash: its bytes are too large for a span."""
    modality = "image" if attachment.is_image else "document"
    return {"type": "file", "mime_type": attachment.media_type, "modality": modality, "file_id": f"sha256:{attachment.digest}"}


def _definition(tool: ToolSpec) -> dict[str, object]:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _json(value: object) -> str:
    """Return a value as JSON without credentials."""
    return redact_credentials(json.dumps(value, ensure_ascii=False))


def _nanoseconds(clock: float) -> int:
    """Return nanoseconds since 1970."""
    return int(clock * _NANOSECONDS)


_SECONDS: Final = [0.01 * 2**power for power in range(14)]
_TOKENS: Final = [4**power for power in range(14)]
_Attributes = dict[str, str | int]


class OtelMeter:
    """Records steps, attempts, tool calls and runs in instruments of OpenTelemetry, under current or older names, or both."""

    def __init__(self, meter: "MeterOfOtel", names: Literal["current", "older", "both"]) -> None:
        self._meter = meter
        self._current = names != "older"
        self._older = names != "current"
        inference = [*(["gen_ai.client.inference"] if self._current else []), *(["gen_ai.client.operation"] if self._older else [])]
        self._durations = [self._seconds(f"{prefix}.duration") for prefix in inference]
        self._first_chunks = [self._seconds(f"{prefix}.time_to_first_chunk") for prefix in inference]
        self._chunks = [self._seconds(f"{prefix}.time_per_output_chunk") for prefix in inference]
        workflows = [*(["gen_ai.invoke_workflow"] if self._current else []), *(["gen_ai.workflow"] if self._older else [])]
        self._workflows = [self._seconds(f"{prefix}.duration") for prefix in workflows]
        self._agents = self._seconds("gen_ai.invoke_agent.duration")
        self._tools = self._seconds("gen_ai.execute_tool.duration")
        kinds = ("input_tokens", "output_tokens")
        self._per_step = {kind: self._tokens(f"gen_ai.client.inference.operation.{kind}") for kind in kinds if self._current}
        used = (*kinds, "cache_read.input_tokens", "cache_write.input_tokens", "reasoning.output_tokens")
        self._used = {kind: meter.create_counter(f"gen_ai.client.inference.usage.{kind}", unit="{token}") for kind in used if self._current}
        self._usage = self._tokens("gen_ai.client.token.usage") if self._older else None

    def step_ended(self, step: EndedStep) -> None:
        """Record the time and the tokens of a step."""
        asked, call = step.asked, step.call
        attributes: _Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": asked.card.provider or "nearfar"}
        attributes |= {"gen_ai.request.model": asked.card.model}
        if asked.server is not None:
            attributes["server.address"], attributes["server.port"] = asked.server
        failed = {} if call.error is None else {"error.type": call.error}
        for duration in self._durations:
            duration.record(call.seconds, {**attributes, **failed})
        if call.first_token_seconds is not None:
            for first in self._first_chunks:
                first.record(call.first_token_seconds, attributes)
        for chunk in self._chunks:
            for seconds in step.gaps:
                chunk.record(seconds, attributes)
        self._count(step, attributes)

    def attempt_ended(self, attempt: Attempt, strategy: str) -> None:
        """Record the time of an attempt."""
        attributes: _Attributes = {"gen_ai.agent.name": attempt.agent}
        attributes |= {} if attempt.error is None else {"error.type": attempt.error}
        self._agents.record(attempt.seconds, attributes)

    def escalated(self, attempt: Attempt, strategy: str) -> None:
        """Do nothing: the conventions have no metric for it."""

    def egress_blocked(self, agent: str, role: str) -> None:
        """Do nothing: the conventions have no metric for it."""

    def tool_ended(self, tool: EndedTool) -> None:
        """Record the time of a tool call."""
        failed = {"error.type": "tool_error"} if tool.result.is_error else {}
        self._tools.record(tool.seconds, {"gen_ai.tool.name": tool.call.name, "gen_ai.tool.type": "function", **failed})

    def run_ended(self, run: EndedRun) -> None:
        """Record the time of a run."""
        attributes = {"gen_ai.workflow.name": run.task.policy.strategy.value}
        attributes |= {} if run.error_class is None else {"error.type": run.error_class}
        for workflow in self._workflows:
            workflow.record(run.seconds, attributes)

    def _count(self, step: EndedStep, attributes: _Attributes) -> None:
        """Count the tokens of a step. Of one that failed nothing is known, and 0 is counted as the conventions want it."""
        counts = _token_counts(step.call.usage)
        modality = "unknown" if step.finish is None else "text"
        for kind, counter in self._used.items():
            counter.add(counts[kind], {**attributes, "gen_ai.token.modality": modality})
        if step.finish is None:
            return
        for kind, histogram in self._per_step.items():
            histogram.record(counts[kind], attributes)
        if self._usage is not None:
            self._usage.record(counts["input_tokens"], {**attributes, "gen_ai.token.type": "input"})
            self._usage.record(counts["output_tokens"], {**attributes, "gen_ai.token.type": "output"})

    def _seconds(self, name: str) -> "Histogram":
        return self._meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)

    def _tokens(self, name: str) -> "Histogram":
        return self._meter.create_histogram(name, unit="{token}", explicit_bucket_boundaries_advisory=_TOKENS)
