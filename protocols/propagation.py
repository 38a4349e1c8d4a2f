"""Carry a trace from process to process by its `traceparent` (W3C Trace Context): in gRPC metadata, HTTP headers and the `_meta` of MCP.

Nothing here loads OpenTelemetry. A process that has not loaded it passes on what it was given.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})")
_given: Final[ContextVar[str]] = ContextVar("nearfar_traceparent", default="")


def traceparent() -> str:
    """Return the `traceparent` of the current span, or the one that this process was given; empty if there is neither."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace import get_current_span

        span = get_current_span().get_span_context()
        if span.is_valid:
            return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return _given.get()


def trace_headers() -> dict[str, str]:
    """Return the header that lets another process continue the trace; empty if there is no trace. It serves as `_meta` of MCP, too."""
    value = traceparent()
    return {TRACEPARENT: value} if value else {}


def annotate_span(attributes: Mapping[str, str]) -> None:
    """Add attributes to the current span, if OpenTelemetry is loaded and records one."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes(attributes)


@contextmanager
def without_baggage() -> Iterator[None]:
    """Keep the app's baggage of OpenTelemetry, which may name its users, out of what other packages send within the block."""
    if "opentelemetry.context" not in sys.modules:
        yield
        return
    from opentelemetry import baggage, context

    token = context.attach(baggage.clear())
    try:
        yield
    finally:
        context.detach(token)


def continued_trace(given: object) -> AbstractContextManager[None]:
    """Continue the trace of a caller within the block: spans become children of the caller's. `given` is the `traceparent` that came with
    the call; anything else than a well-formed one is ignored."""
    found = _FORM.fullmatch(given) if isinstance(given, str) else None
    return nullcontext() if found is None else _continued(found)


@contextmanager
def _continued(found: re.Match[str]) -> Iterator[None]:
    token = _given.set(found[0])
    try:
        with _remote_span(int(found[1], 16), int(found[2], 16), int(found[3], 16)):
            yield
    finally:
        _given.reset(token)


@contextmanager
def _remote_span(trace: int, span: int, flags: int) -> Iterator[None]:
    """Make the caller's span the current one, if OpenTelemetry is loaded."""
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    with use_span(NonRecordingSpan(SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags)))):
        yield
