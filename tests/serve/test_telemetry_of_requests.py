"""Requests over HTTP in the traces of their clients."""

import pytest

pytest.importorskip("openai", reason="the server's tests use OpenAI's client")
pytest.importorskip("opentelemetry.sdk", reason="spans need the SDK")
from http_face import ASK, CHAT, raw_client, served
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nearfar import Hybrid, ScriptedAgent, instrument

pytestmark = pytest.mark.anyio

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_with_a_traceparent_is_served_in_its_clients_trace(stream: bool) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    near = ScriptedAgent(["Here."], name="near")
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, raw_client(server) as client:
        instrument(hybrid, tracer_provider=provider)
        answer = await client.post(CHAT, json={**ASK, "stream": stream}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        assert answer.status_code == 200
    spans = {span.name.partition(" ")[0]: span for span in exporter.get_finished_spans()}
    parent = spans["invoke_workflow"].parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
