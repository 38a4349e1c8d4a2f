"""The connection to an MCP server that is reached by Streamable HTTP."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp.client.streamable_http import streamable_http_client

from ...protocols.address import is_loopback
from ...protocols.secrets import secret
from . import McpServerConfig
from .process import LONGEST_MESSAGE

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams


@asynccontextmanager
async def http_transport(config: McpServerConfig) -> AsyncGenerator["TransportStreams"]:
    """Connect to a server, and yield the streams of its messages. Raises `ConfigError` if its token is not set.

    The package follows redirects within the server's own origin only, so that the token goes nowhere else.
    """
    headers = {"accept-encoding": "identity"}  # the limit counts bytes as they are sent
    if config.token_variable is not None:
        headers["authorization"] = f"Bearer {secret(config.token_variable)}"
    timeout = httpx2.Timeout(config.start_seconds, read=None)  # each request has a deadline of its own
    async with (
        httpx2.AsyncClient(
            headers=headers, timeout=timeout, mounts=_unproxied(config.url), event_hooks={"response": [_limit_body]}
        ) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=LONGEST_MESSAGE) as streams,
    ):
        yield streams


def _unproxied(url: str) -> dict[str, httpx2.AsyncHTTPTransport | None]:
    """Return mounts that keep requests to this machine, which need no TLS, away from a proxy of the environment."""
    host = httpx2.URL(url).host
    return {f"all://{'[' + host + ']' if ':' in host else host}": None} if is_loopback(host) else {}


async def _limit_body(response: httpx2.Response) -> None:
    """Let a response that is one message fail once it is too long. The package limits the events of a stream, and no single message."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream), "of an asynchronous client"
        response.stream = _LimitedStream(response.stream)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for part in self._stream:
            count += len(part)
            if count > LONGEST_MESSAGE:
                raise httpx2.StreamError(f"the response is longer than {LONGEST_MESSAGE} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
