"""A llama-server on this device, over its HTTP interface."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Lock
from typing import TypeVar
from urllib.parse import urlsplit

from ...protocols.address import Address
from ...protocols.errors import (
    ConfigError,
    ContextOverflow,
    InvalidOutput,
    NearfarError,
    NotFound,
    Stalled,
    Unavailable,
    Unsupported,
    WorkerCrashed,
    from_http_status,
)
from ...protocols.limits import STEP_BYTES

JsonObject = dict[str, object]
Returned = TypeVar("Returned")

_QUICK_SECONDS = 10.0
_SILENCE_SECONDS = 330.0
"""Longest pause in an answer. A phone may take minutes to read a long prompt, of which nothing is heard meanwhile."""
_LONGEST_BODY = 32 * 1024 * 1024
_LONGEST_LINE = 1024 * 1024
_SHOWN = 300
_DATA = b"data:"
_END = b"[DONE]"


class LlamaServer:
    """A server at `url`, which has to be on this machine: nothing that is sent there is encrypted."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """`key`: the key that the server was started with as `--api-key`. Raises `ConfigError` for a URL that is malformed or elsewhere."""
        self.url = url.rstrip("/")
        self._address = _local_address(url)
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    async def ask(self, path: str, body: JsonObject | None = None, *, seconds: float = _QUICK_SECONDS) -> object:
        """Return the JSON of the server's answer. Raises as `stream` does. Cancelling the task closes the connection."""
        exchange = _Exchange(self._address, seconds)
        try:
            async with asyncio.timeout(seconds):  # the socket's own limit begins again with every byte
                response = await self._request(exchange, path, body)
                text = await _in_thread(response.read, _LONGEST_BODY)
        except TimeoutError:
            raise _stall_error() from None
        finally:
            exchange.close()
        return _parse(text)

    async def stream(self, path: str, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """Yield the objects of an event stream. Closing it closes the connection, upon which the server stops computing.

        Raises `Unavailable` if the server is not there or still loading, `WorkerCrashed` if it goes away in between, `Stalled` if it
        falls silent, `ContextOverflow` or `Unsupported` if it refuses the request, `InvalidOutput` if it sends something else.
        """
        exchange = _Exchange(self._address, _SILENCE_SECONDS)
        try:
            response, received = await self._request(exchange, path, body), 0
            while (line := await _in_thread(response.readline, _LONGEST_LINE)) and line.strip() != _DATA + b" " + _END:
                received += len(line)
                if received > STEP_BYTES:
                    raise InvalidOutput(f"llama-server sent more than {STEP_BYTES} bytes in one answer", hint="set max_output_tokens")
                if line.startswith(_DATA):
                    yield _chunk(line.removeprefix(_DATA).strip())
            if not line:
                raise _crash_error()
        finally:
            exchange.close()

    async def _request(self, exchange: "_Exchange", path: str, body: JsonObject | None) -> HTTPResponse:
        """Send a request and return the response, with its status checked."""
        sent = None if body is None else json.dumps(body).encode()
        try:
            response = await _in_thread(exchange.send, path, sent, self._headers)
        except ConnectionError as error:
            raise Unavailable(f"no llama-server answers at {self.url}", hint="start llama-server, or check --server") from error
        if response.status != 200:
            raise _refusal(response.status, await _in_thread(response.read, _LONGEST_LINE), body or {})
        return response


class _Exchange:
    """One request on a connection of its own. Closing it from another thread ends a read that waits in this one."""

    def __init__(self, address: Address, seconds: float) -> None:
        self._connection = HTTPConnection(address.host, address.port, timeout=seconds)
        self._connection.auto_open = 0  # else a request closed on the way connects anew, and is computed for nobody
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._is_closed = False

    def send(self, path: str, body: bytes | None, headers: dict[str, str]) -> HTTPResponse:
        self._connection.connect()
        with self._lock:
            if self._is_closed:
                self._connection.close()
                raise ConnectionAbortedError("closed before it was used")
            self._socket = self._connection.sock
        self._connection.request("GET" if body is None else "POST", path, body, headers)
        return self._connection.getresponse()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._socket is not None:
                with suppress(OSError):  # the other side may have closed it already
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._connection.close()


async def _in_thread(function: Callable[..., Returned], *arguments: object) -> Returned:
    """Run a blocking read or write; what can go wrong on a connection becomes an error of ours."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except TimeoutError as error:
        raise _stall_error() from error
    except ConnectionRefusedError:
        raise
    except (OSError, HTTPException, ValueError, OverflowError) as error:  # the last two for impossible chunk sizes
        raise _crash_error() from error


def _stall_error() -> Stalled:
    return Stalled("llama-server has been silent for too long", hint="use a smaller model or a shorter prompt")


def _crash_error() -> WorkerCrashed:
    return WorkerCrashed("llama-server closed the connection in mid-answer", hint="see its log; a phone may kill it to free memory")


def _local_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        address = Address(host=parts.hostname or "", port=parts.port or 8080)
    except ValueError:
        raise ConfigError(f"{url!r} is not a URL", hint="write http://127.0.0.1:8080") from None
    if parts.scheme != "http" or parts.path not in ("", "/") or not address.is_local:
        raise ConfigError(f"{url!r} is not the address of a server on this device", hint="write http://127.0.0.1:8080")
    return address


def _refusal(status: int, text: bytes, body: JsonObject) -> NearfarError:
    """Return the error for a response other than 200; llama-server gives the reason in `error.message`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {}
    return stated_error(value if isinstance(value, dict) else {}, status=status, constrained="tools" in body or "response_format" in body)


def stated_error(value: JsonObject, *, status: int = 500, constrained: bool = False) -> NearfarError:
    """Return the error for the object `{"error": ...}`. `constrained`: the request had tools or a schema, which may be the reason."""
    stated = value.get("error")
    stated = stated if isinstance(stated, dict) else {}
    message = f"llama-server refuses the request: {str(stated.get('message', f'HTTP {status}'))[:_SHOWN]}"
    if stated.get("type") == "exceed_context_size_error":
        return ContextOverflow(message, hint="shorten the conversation, or start llama-server with a larger --ctx-size")
    if status in (401, 403):
        return ConfigError(message, hint="give the key that llama-server was started with: --server-key-file")
    if status == 404:
        return NotFound(message, hint="check that --server is a llama-server of 2025 or later")
    if status == 503:
        return Unavailable(message, hint="the model is still being loaded")
    if constrained:
        return Unsupported(message, hint="start llama-server with --jinja, or simplify the JSON Schema")
    return from_http_status(status, message)


def _chunk(data: bytes) -> JsonObject:
    value = _parse(data)
    if not isinstance(value, dict):
        raise InvalidOutput("llama-server's stream holds something other than JSON objects", hint="check that --server is a llama-server")
    if "error" in value:
        raise stated_error(value)
    return value


def _parse(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOutput("llama-server's answer is not JSON", hint="check that --server is a llama-server") from error
