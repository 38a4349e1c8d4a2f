"""MCP servers that are reached by HTTP: the token stays with its server, and nothing is read without end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("mcp", reason="MCP is an extra: pip install 'nearfar[mcp]'")

from mcp.server.mcpserver import Context, MCPServer
from mcp_stubs import Caller, approve

from nearfar import ConfigError, McpServer, Unavailable
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.orchestrator.serve import serving_mcp
from nearfar.protocols.access import Access

pytestmark = pytest.mark.anyio
LOOPBACK = ServeConfig(address="127.0.0.1:0")
TOKEN = "t" * 40


def stub() -> MCPServer:
    """Return a server with a few tools."""
    server = MCPServer("http-stub", log_level="ERROR")

    @server.tool()
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    @server.tool()
    def flood() -> str:
        """Return a text that is longer than any message may be."""
        return "x" * 20_000_000

    @server.tool()
    def trace(context: Context) -> str:
        """Return the trace context of the request."""
        return str((context.request_context.meta or {}).get("traceparent"))

    return server


@asynccontextmanager
async def served(tokens: dict[str, str] | None = None) -> AsyncIterator[McpServer]:
    """Serve the stub, and yield a configuration for it."""
    async with serving_mcp(stub(), LOOPBACK, Access(tokens)) as url:
        yield McpServer(name="stub", url=url, token_variable="STUB_TOKEN" if tokens else None, call_seconds=20)


async def test_a_server_with_a_token_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_TOKEN", TOKEN)
    async with served({"ann": TOKEN}) as config:
        await approve(config)
        async with Caller(config) as server:
            assert (await server.call("shout", text="hi")).content == "HI"


async def test_a_token_that_is_not_set_is_an_error_that_says_how_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STUB_TOKEN", raising=False)
    async with served({"ann": TOKEN}) as config:
        with pytest.raises(ConfigError, match="STUB_TOKEN is not set"):
            await approve(config)


async def test_a_wrong_token_is_an_error_and_not_repeated_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_TOKEN", "wrong-token-of-some-length")
    async with served({"ann": TOKEN}) as config:
        with pytest.raises(Unavailable) as caught:
            await approve(config)
    assert "wrong-token" not in str(caught.value)


async def test_a_message_without_end_is_given_up() -> None:
    async with served() as config:
        await approve(config)
        async with Caller(config) as server:
            result = await server.call("flood")
            assert result.is_error
            assert len(result.content) < 1000
            assert (await server.call("shout", text="still there")).content == "STILL THERE"


async def test_a_server_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(Unavailable, match="the MCP server stub cannot be reached"):
        await approve(McpServer(name="stub", url="http://127.0.0.1:9/mcp"))


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects every request to another host, or remembers what it was sent."""

    sent: list[dict[str, str]]
    target: str | None

    def do_POST(self) -> None:
        """Answer a request."""
        self.sent.append(dict(self.headers))
        self.send_response(307 if self.target else 200)
        if self.target:
            self.send_header("location", self.target)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@asynccontextmanager
async def answering(target: str | None) -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """Serve `Elsewhere`; yield its URL, and the headers of the requests."""
    sent: list[dict[str, str]] = []
    handler = type("Handler", (Elsewhere,), {"sent": sent, "target": target})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_redirect_to_another_host_is_not_followed_and_the_token_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_TOKEN", TOKEN)
    async with answering(None) as (other, stolen), answering(other.replace("127.0.0.1", "localhost")) as (url, sent):
        with pytest.raises(Unavailable):
            await approve(McpServer(name="stub", url=url, token_variable="STUB_TOKEN", start_seconds=5))
    assert any(TOKEN in headers.get("authorization", "") for headers in sent)
    assert not stolen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_of_this_machine_is_not_reached_through_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_TOKEN", TOKEN)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with answering(None) as (proxy, passed), served({"ann": TOKEN}) as config:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.removesuffix("/mcp"))
        here = config.model_copy(update={"url": config.url.replace("127.0.0.1", host)})
        await approve(here)
        async with Caller(here) as server:
            assert (await server.call("shout", text="hi")).content == "HI"
    assert not passed


async def test_the_trace_goes_on_at_the_server() -> None:
    from opentelemetry import trace as tracing
    from opentelemetry.sdk.trace import TracerProvider

    span = TracerProvider().get_tracer("test").start_span("task")
    async with served() as config:
        await approve(config)
        with tracing.use_span(span):
            async with Caller(config) as server:
                told = (await server.call("trace")).content
    assert f"{span.get_span_context().trace_id:032x}" in told
