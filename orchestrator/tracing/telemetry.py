"""Export traces as OpenTelemetry spans, by its semantic conventions for generative AI.

Nothing is exported unless the app calls `export_spans` and has set up an exporter of its own. Texts are left out unless asked for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ...protocols import ConfigError, Message
from .store import AgentStepped, AnyEntry, Happened, RunBegan, RunEnded, ToolRan, TraceStore

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider

_NANOSECONDS: Final = 1_000_000_000
_Value = str | int | float | Sequence[str]


def export_spans(store: TraceStore, *, provider: "TracerProvider | None" = None, content: bool = False) -> None:
    """Export a span for each run recorded from now on, and for its steps and tool calls, when the run ends.

    Raises `ConfigError` if opentelemetry is missing.

    Args:
        provider: None: the app's own, as set by `opentelemetry.trace.set_tracer_provider`.
        content: include prompts, replies, arguments, results and reasons, whatever their labels: they then go wherever the spans go.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigError("spans need opentelemetry", hint="pip install 'nearfar[otel]'") from error
    tracer = trace.get_tracer("nearfar", tracer_provider=provider)
    store.exporting = lambda run, entries: _Export(tracer, run, content).make(entries)


class _Export:
    """Exports the work of one process on one run."""

    def __init__(self, tracer: "Tracer", run: str, content: bool) -> None:
        self._tracer = tracer
        self._run = run
        self._content = content
        self._clock = 0.0

    def make(self, entries: Sequence[AnyEntry]) -> None:
        """Make the spans of entries that begin with a `RunBegan`."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        first, last = entries[0], entries[-1]
        if not isinstance(first, RunBegan):
            return
        self._clock = first.clock - first.at
        named: dict[str, _Value] = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "nearfar", "nearfar.run": self._run}
        named["nearfar.strategy"] = first.task.policy.strategy.value
        if first.task.session is not None:
            named["gen_ai.conversation.id"] = first.task.session
        root = self._tracer.start_span("invoke_agent nearfar", kind=SpanKind.INTERNAL, start_time=self._time(first.at), attributes=named)
        within = set_span_in_context(root)
        for entry in entries:
            match entry:
                case AgentStepped():
                    attributes, start = self._step(entry), entry.at - entry.call.seconds
                    span = self._tracer.start_span(
                        f"chat {entry.call.model}", within, _kind(entry), attributes, start_time=self._time(start)
                    )
                    self._end(span, entry.at, entry.call.error)
                case ToolRan():
                    start_time = self._time(entry.at - entry.seconds)
                    span = self._tracer.start_span(
                        f"execute_tool {entry.call.name}", within, SpanKind.INTERNAL, self._tool(entry), start_time=start_time
                    )
                    self._end(span, entry.at, "tool_error" if entry.result.is_error else None)
                case Happened():
                    root.add_event(f"nearfar.{entry.event.type}", self._event(entry), self._time(entry.at))
        if isinstance(last, RunEnded):
            root.set_attribute("nearfar.outcome", last.outcome)
            root.set_attribute("nearfar.label.tier", last.label.tier.value)
        self._end(root, last.at, last.error if isinstance(last, RunEnded) else None)

    def _step(self, entry: AgentStepped) -> dict[str, _Value]:
        call = entry.call
        attributes: dict[str, _Value] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "nearfar",
            "gen_ai.agent.name": call.agent,
            "gen_ai.request.model": call.model,
            "gen_ai.response.model": call.model,
            "gen_ai.usage.input_tokens": call.usage.input_tokens,
            "gen_ai.usage.output_tokens": call.usage.output_tokens,
            "nearfar.side": call.side.value,
            "nearfar.role": call.role,
            "nearfar.label.tier": entry.label.tier.value,
        }
        known = {"dollars": call.dollars, "joules": call.energy.joules, "confidence": call.confidence}
        attributes |= {f"nearfar.{name}": float(value) for name, value in known.items() if value is not None}
        if self._content:
            attributes["gen_ai.input.messages"] = _messages(entry.messages)
            attributes["gen_ai.output.messages"] = _messages([entry.reply])
        return attributes

    def _tool(self, entry: ToolRan) -> dict[str, _Value]:
        attributes: dict[str, _Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": entry.call.name,
            "gen_ai.tool.call.id": entry.call.id,
            "gen_ai.tool.type": "function",
            "nearfar.effect": entry.effect.value,
            "nearfar.label.tier": entry.label.tier.value,
        }
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = json.dumps(entry.call.arguments, ensure_ascii=False)
            attributes["gen_ai.tool.call.result"] = entry.result.content
        return attributes

    def _event(self, entry: Happened) -> Mapping[str, _Value]:
        """Return the decision as an attribute; its reasons may quote content."""
        return {"nearfar.decision": entry.event.model_dump_json()} if self._content else {}

    def _end(self, span: "Span", at: float, error: str | None) -> None:
        from opentelemetry.trace import StatusCode

        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(StatusCode.ERROR)
        span.end(self._time(at))

    def _time(self, at: float) -> int:
        """Return nanoseconds since 1970."""
        return int((self._clock + at) * _NANOSECONDS)


def _kind(entry: AgentStepped) -> "SpanKind":
    """Return the kind of a step's span: internal for a model on this device, client for a far one."""
    from opentelemetry.trace import SpanKind

    return SpanKind.INTERNAL if entry.call.side.value == "near" else SpanKind.CLIENT


def _messages(messages: Sequence[Message]) -> str:
    """Return the messages in the form of the conventions: a role, and parts of texts, calls and results."""
    return json.dumps([{"role": message.role, "parts": _parts(message)} for message in messages], ensure_ascii=False)


def _parts(message: Message) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = [{"type": "text", "content": message.text}] if message.text else []
    parts += [{"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    if message.tool_result is not None:
        parts.append({"type": "tool_call_response", "id": message.tool_result.call_id, "response": message.tool_result.content})
    return parts
