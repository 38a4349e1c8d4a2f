"""Traces as spans."""

import json

import pytest
from traced_tasks import LOOKUP, hybrid

from nearfar import Records
from nearfar.orchestrator.tracing.store import TraceStore
from nearfar.protocols import ToolCall, Unavailable

pytest.importorskip("opentelemetry.sdk", reason="spans need the extra 'otel', and a test the SDK")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nearfar.orchestrator.tracing.telemetry import export_spans

pytestmark = pytest.mark.anyio


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


async def spans_of(traces: TraceStore, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Of a run on both sides; the last of each name."""
    async with hybrid([LOOKUP, "Tomas Berg"], [LOOKUP, "Mira Falk"], records=Records(traces=traces)) as agents:
        await agents.run("Who leads Orbix Labs?", strategy="cascade", idempotency_key="r1", session="s1")
    traces.flush()
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_run_is_a_span_with_its_steps_and_tool_calls_below(
    traces: TraceStore, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    export_spans(traces, provider=provider)
    spans = await spans_of(traces, exporter)
    root = spans["invoke_agent nearfar"]
    assert sorted(span.name for span in exporter.get_finished_spans()) == [
        *["chat scripted"] * 4,
        *["execute_tool lookup"] * 2,
        "invoke_agent nearfar",
    ]
    assert root.attributes is not None
    assert (root.attributes["gen_ai.conversation.id"], root.attributes["nearfar.outcome"]) == ("s1", "done")
    for span in exporter.get_finished_spans():
        assert span is root or (span.parent is not None and span.parent.span_id == root.context.span_id)
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


async def test_steps_follow_the_conventions(traces: TraceStore, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    export_spans(traces, provider=provider)
    step = (await spans_of(traces, exporter))["chat scripted"].attributes
    assert step is not None
    assert (step["gen_ai.operation.name"], step["gen_ai.agent.name"], step["gen_ai.request.model"]) == ("chat", "far", "scripted")
    assert (step["gen_ai.usage.output_tokens"], step["nearfar.side"]) == (2, "far")


async def test_nothing_that_was_said_is_in_a_span(traces: TraceStore, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    export_spans(traces, provider=provider)
    await spans_of(traces, exporter)
    told = "".join(span.to_json() for span in exporter.get_finished_spans())
    for said in ("Orbix", "Falk", "Berg", "occurs in no"):
        assert said not in told


async def test_what_was_said_is_there_where_the_app_asks_for_it(
    traces: TraceStore, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    export_spans(traces, provider=provider, content=True)
    spans = await spans_of(traces, exporter)
    tool, step = spans["execute_tool lookup"].attributes, spans["chat scripted"].attributes
    assert tool is not None
    assert step is not None
    assert (json.loads(str(tool["gen_ai.tool.call.arguments"])), tool["gen_ai.tool.call.result"]) == (LOOKUP.arguments, "Mira Falk")
    assert json.loads(str(step["gen_ai.output.messages"])) == [{"role": "assistant", "parts": [{"type": "text", "content": "Mira Falk"}]}]


async def test_a_failed_run_is_an_error(traces: TraceStore, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    export_spans(traces, provider=provider)
    async with hybrid([Unavailable("gone")], [], records=Records(traces=traces)) as agents:
        with pytest.raises(Unavailable):
            await agents.run("Who?", strategy="device")
    traces.flush()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    root = spans["invoke_agent nearfar"]
    assert root.attributes is not None
    assert (root.attributes["error.type"], root.status.is_ok) == ("Unavailable", False)


async def test_an_exporter_that_fails_fails_no_run(traces: TraceStore, caplog: pytest.LogCaptureFixture) -> None:
    def fail(run: str, entries: object) -> None:
        raise RuntimeError(f"no collector for {run}")

    traces.exporting = fail
    read = ToolCall(id="1", name="read_mail", arguments={"subject": "vault"})
    async with hybrid([read, "at nine"], [], records=Records(traces=traces)) as agents:
        await agents.run("When?", strategy="device", idempotency_key="r1")
    traces.flush()
    assert "no collector for r1" in caplog.text
    assert traces.entries("r1")[-1].type == "ended"
