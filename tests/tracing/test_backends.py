"""The recipes of the page on traces, against a receiver of OTLP over HTTP on loopback."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from traced_tasks import LOOKUP, hybrid

from nearfar import instrument

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is an app's own choice: pip install '.[test]'")
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
ROWS = [line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "`http" in line]
RECIPES = {name.strip(): (endpoint.strip(" `"), headers.strip(" `"), options) for name, endpoint, headers, options in ROWS}
"""By the name of the backend: the values of the two variables, and the option."""


class Receiver(ThreadingHTTPServer):
    """Takes traces, and notes where they came and with which headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.paths: set[str] = set()
        self.headers: dict[str, str] = {}
        self.spans: dict[str, dict[str, AnyValue]] = {}


class Taking(BaseHTTPRequestHandler):
    """Answers one export."""

    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.add(self.path)
        self.server.headers |= {name.lower(): value for name, value in self.headers.items()}
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.server.spans[span.name] = {each.key: each.value for each in span.attributes}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def exported(receiver: Receiver, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the page says, with the receiver in the place of the backend."""
    endpoint, headers, options = RECIPES[recipe]
    base = urlsplit(endpoint)._replace(scheme="http", netloc=f"127.0.0.1:{receiver.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base.geturl())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    backends = [name for name in ("openinference", "langfuse") if name in options]
    async with hybrid([LOOKUP, "Tomas Berg"], [LOOKUP, "Mira Falk"]) as agents:
        instrument(agents, tracer_provider=provider, backends=backends)  # type: ignore[arg-type]  # the names of the loop
        await agents.run("Who leads Orbix Labs?", strategy="cascade", session="s1")


async def test_phoenix_gets_kinds_of_spans_and_costs(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    await exported(receiver, "Phoenix", monkeypatch)
    assert receiver.paths == {"/v1/traces"}
    assert receiver.headers["authorization"].startswith("Bearer ")
    kinds = {name: span["openinference.span.kind"].string_value for name, span in receiver.spans.items()}
    assert kinds == {
        "invoke_workflow cascade": "CHAIN",
        "invoke_agent near": "AGENT",
        "invoke_agent far": "AGENT",
        "chat scripted": "LLM",
        "execute_tool lookup": "TOOL",
    }
    assert receiver.spans["chat scripted"]["llm.cost.total"].double_value > 0


async def test_langfuse_gets_types_sessions_and_costs(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    await exported(receiver, "Langfuse", monkeypatch)
    assert receiver.paths == {"/api/public/otel/v1/traces"}
    assert receiver.headers["authorization"].startswith("Basic ")
    step = receiver.spans["chat scripted"]
    assert step["langfuse.observation.type"].string_value == "generation"
    assert step["langfuse.observation.cost_details"].string_value.startswith('{"total": ')
    assert receiver.spans["invoke_workflow cascade"]["session.id"].string_value == "s1"


async def test_mlflow_gets_operations_and_the_experiment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    await exported(receiver, "MLflow", monkeypatch)
    assert receiver.paths == {"/v1/traces"}
    assert receiver.headers["x-mlflow-experiment-id"] == "0"
    assert {span["gen_ai.operation.name"].string_value for span in receiver.spans.values()} == {
        "invoke_workflow",
        "invoke_agent",
        "chat",
        "execute_tool",
    }
    assert not any(name.startswith(("openinference", "langfuse")) for span in receiver.spans.values() for name in span)
