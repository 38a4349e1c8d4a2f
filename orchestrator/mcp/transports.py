"""The two ways to an MCP server: a child process, which speaks JSON-RPC in lines on standard input and output, and Streamable HTTP.

It is loaded with the package of MCP, when a server is first called.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, ObjectReceiveStream, ObjectSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from ...protocols import ConfigError
from ...protocols.address import is_loopback
from ...protocols.secrets import quote, secret
from ...protocols.system import interpreter
from . import McpServerConfig

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

logger = logging.getLogger(__name__)
LONGEST_MESSAGE: Final = 8 * 1024 * 1024
"""Bytes of one message of a server. A longer one ends the connection."""
_LONGEST_LINE: Final = 64 * 1024
"""Bytes of a line that a server writes to standard error; the rest of a longer one is another line."""
_KEPT_LINES: Final = 5
"""Last lines of standard error that an error quotes."""
_LEAVING_SECONDS: Final = 2.0
"""Time for a server to end by itself when its input is closed, and again after SIGTERM."""
_INHERITED: Final = ("PATH", "HOME", "LANG")
_INHERITED_ON_WINDOWS: Final = ("PATH", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP")
_DIE_WITH_PARENT: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.getppid() == int(sys.argv[1]) or os._exit(1)
os.execv(sys.argv[2], sys.argv[3:])
"""
"""Asks Linux to kill the process with its parent (PR_SET_PDEATHSIG), which may have died already, and becomes the server."""


class ServerProcess:
    """The child process of one connection, and the last lines that it wrote to standard error.

    Args:
        name: of the server, for the log.
        config: names the command and its environment.
    """

    def __init__(self, name: str, config: McpServerConfig) -> None:
        self._name = name
        self._config = config
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: Process | None = None

    @property
    def last_words(self) -> str:
        """The end of what the server wrote to standard error, quoted for an error message."""
        return quote(" ".join(self._said))

    def kill(self) -> None:
        """End the server at once, with the processes that it has started. To be called when its event loop is closed."""
        if self._process is not None and self._process.returncode is None:
            _signal(self._process, "SIGKILL")

    @asynccontextmanager
    async def transport(self) -> AsyncGenerator["TransportStreams"]:
        """Start the server, and yield the streams of its messages. Raises `ConfigError` if there is no such program, and `OSError`."""
        environment = child_environment(self._config)
        command = _command(self._config, environment)
        self._process = process = await anyio.open_process(
            command, env=environment, cwd=self._config.folder, stderr=-1, start_new_session=True
        )
        heard_send, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        said, said_receive = anyio.create_memory_object_stream[SessionMessage](0)
        assert process.stdout is not None, "a pipe by default"
        assert process.stderr is not None, "a pipe was asked for"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear, process.stdout, heard_send)
            tasks.start_soon(self._say, process, said_receive, heard_send)
            tasks.start_soon(self._log, process.stderr)
            try:
                yield heard, said
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(process)
                tasks.cancel_scope.cancel()

    async def _hear(self, output: ByteReceiveStream, heard: ObjectSendStream[SessionMessage | Exception]) -> None:
        """Pass on the server's messages. The stream ends when the server does, or writes a line that is too long."""
        lines = BufferedByteReceiveStream(output)
        async with heard:
            while True:
                try:
                    line = await lines.receive_until(b"\n", LONGEST_MESSAGE)
                except anyio.DelimiterNotFound:
                    logger.error("MCP server %s has written more than %d bytes without an end of line", self._name, LONGEST_MESSAGE)
                    return
                except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    logger.debug("MCP server %s wrote no message: %s", self._name, quote(line[:_LONGEST_LINE].decode(errors="replace")))
                    continue
                try:
                    await heard.send(SessionMessage(message))
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return

    async def _say(
        self, process: Process, said: ObjectReceiveStream[SessionMessage], heard: ObjectSendStream[SessionMessage | Exception]
    ) -> None:
        assert process.stdin is not None, "a pipe by default"
        try:
            async with said:
                async for message in said:
                    await process.stdin.send(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await heard.aclose()  # so that requests fail at once, instead of waiting for an answer

    async def _log(self, errors: ByteReceiveStream) -> None:
        """Log the lines that the server writes to standard error, and keep the last ones."""
        rest = b""
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                *lines, rest = (rest + await errors.receive()).split(b"\n")
                rest = rest[-_LONGEST_LINE:]
                for line in lines:
                    shown = line[-_LONGEST_LINE:].decode(errors="replace").rstrip()
                    self._said.append(shown)
                    logger.debug("MCP server %s: %s", self._name, quote(shown))


def child_environment(config: McpServerConfig) -> dict[str, str]:
    """Return the whole environment of a server's process: a few variables of this one, and what the configuration lists.

    Raises `ConfigError` for a variable that is not set.
    """
    inherited = _INHERITED_ON_WINDOWS if sys.platform == "win32" else _INHERITED
    kept = {name: os.environ[name] for name in inherited if name in os.environ}
    return {**kept, **config.env, **{name: secret(name) for name in config.variables}}


def _command(config: McpServerConfig, environment: Mapping[str, str]) -> Sequence[str]:
    folder = config.folder or Path.cwd()
    named = str(folder / config.command) if os.path.dirname(config.command) else config.command
    program = shutil.which(named, path=environment.get("PATH"))
    if program is None:
        raise ConfigError(f"there is no program {config.command!r}", hint="install it, or give its whole path as command")
    if sys.platform != "linux":
        return [program, *config.args]
    # By a program that becomes the server: a function between fork and exec is not safe where there are threads.
    return [interpreter(), "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), program, config.command, *config.args]


async def _stop(process: Process) -> None:
    """End a server: close its input, then SIGTERM, then SIGKILL, each for its whole process group."""
    assert process.stdin is not None, "a pipe by default"
    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    for name in ("SIGTERM", "SIGKILL"):
        with anyio.move_on_after(_LEAVING_SECONDS):
            await process.wait()
        if process.returncode is None:
            _signal(process, name)
    await process.aclose()


def _signal(process: Process, name: str) -> None:
    """Send a signal to a server's process group, which may outlive the server itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, getattr(signal, name))


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
