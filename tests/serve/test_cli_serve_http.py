"""`nearfar serve http`: it prints how to reach it, drains on SIGTERM, and says what is wrong."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import pytest
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app
from nearfar.protocols.security import Scope
from nearfar.protocols.token_file import add_token

COMMAND = (sys.executable, "-m", "nearfar", "serve", "http", "--near", "near", "--address", "127.0.0.1:0")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_server_prints_how_to_point_a_client_at_it_and_ends_cleanly() -> None:
    with started() as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        variables = dict(word.split("=", 1) for word in words[1:])
        assert words[0] == "export"
        with openai.OpenAI(base_url=variables["OPENAI_BASE_URL"], api_key=variables["OPENAI_API_KEY"]) as client:
            assert "near" in [model.id for model in client.models.list()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_tokens_of_a_file_are_asked_for(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    made = add_token(tokens, "app", scopes=[Scope.TASKS])
    with started("--tokens", str(tokens), "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert (told["token"], told["agents"]) == (None, ["near"])
        for key, error in ((made.token, None), ("x" * 64, openai.AuthenticationError)):
            with openai.OpenAI(base_url=f"{told['url']}/v1", api_key=key, max_retries=0) as client:
                if error is None:
                    assert client.models.list().data
                else:
                    with pytest.raises(error):
                        client.models.list()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


class Collector(ThreadingHTTPServer):
    """Takes exports of OpenTelemetry, by their paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.taken: dict[str, bytes] = {}


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.taken[self.path] = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("more", "paths"),
    [({}, ["/v1/metrics", "/v1/traces"]), ({"OTEL_METRICS_EXPORTER": "none"}, ["/v1/traces"]), ({"OTEL_SDK_DISABLED": "true"}, [])],
    ids=["all", "traces", "off"],
)
def test_spans_and_metrics_go_without_texts_where_the_environment_says(
    more: dict[str, str], paths: list[str], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'nearfar[otel]'")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    with started("--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with openai.OpenAI(base_url=f"{told['url']}/v1", api_key=told["token"]) as client:
            client.chat.completions.create(model="nearfar/auto", messages=[{"role": "user", "content": "Who is Xanthippe?"}])
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert sorted(collector.taken) == paths
    assert b"Xanthippe" not in b"".join(collector.taken.values())
    if "/v1/traces" in paths:
        (resource,) = ExportTraceServiceRequest.FromString(collector.taken["/v1/traces"]).resource_spans
        assert ("service.name", "nearfar") in [(each.key, each.value.string_value) for each in resource.resource.attributes]
        names = {span.name.partition(" ")[0] for scope in resource.scope_spans for span in scope.spans}
        assert {"invoke_workflow", "invoke_agent", "chat"} <= names


def test_a_protocol_that_is_not_spoken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    result = CliRunner().invoke(app, ["serve", "http", "--near", "near", "--address", "127.0.0.1:0", "--json"])
    assert result.exit_code == 2, result.output
    assert "http/protobuf" in json.loads(result.stdout)["error"]["hint"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--address", "0.0.0.0:0"), "needs TLS"),
        (("--address", "nowhere"), "not an address"),
        (("--tokens", "none.toml"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_told(arguments: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", "http", "--near", "near", *arguments, "--json"])
    assert result.exit_code == 2, result.output
    assert problem in json.loads(result.stdout)["error"]["message"]
