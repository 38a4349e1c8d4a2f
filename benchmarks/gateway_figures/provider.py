"""A provider on loopback, in a process of its own, which speaks chat completions and answers as the prompt says.

`stream COUNT PAUSE`: COUNT tokens, one each PAUSE seconds. `together COUNT SECONDS`: once COUNT such requests are open, or after SECONDS,
the highest number that were open together.
"""

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter, subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from nearfar.protocols.limits import ask_for_open_files

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_BACKLOG = 4096


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """The provider's base URL; it stops with the context, or with this process."""
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, stdin=pipe, stdout=pipe)
    assert process.stdin is not None, "a pipe, as asked for"
    assert process.stdout is not None, "a pipe, as asked for"
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.stdin.close()
        await process.wait()


class Provider:
    """Serves connections, and knows how many requests are open together."""

    def __init__(self) -> None:
        self._open = 0
        self._most = 0
        self._arrived = asyncio.Condition()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, request after request."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # the gateway has left
            while True:
                prompt = await _prompt(reader)
                if prompt is None:
                    writer.write(_NOT_FOUND)
                    continue
                kind, count, seconds = prompt.split()
                writer.write(_HEAD)
                if kind == "stream":
                    await _stream(writer, int(count), float(seconds))
                else:
                    _send(writer, _token(str(await self._together(int(count), float(seconds)))))
                _send(writer, _END)
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        writer.close()

    async def _together(self, count: int, seconds: float) -> int:
        self._open += 1
        self._most = max(self._most, self._open)
        async with self._arrived:
            self._arrived.notify_all()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait_for(lambda: self._most >= count), seconds)
        self._open -= 1
        most = self._most
        if not self._open:
            self._most = 0
        return most


async def _stream(writer: StreamWriter, count: int, pause: float) -> None:
    """By the clock, so that a late token does not delay those after it."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number in range(count):
        _send(writer, _token(f"word{number} "))
        await asyncio.sleep(max(0.0, begin + (number + 1) * pause - loop.time()))


async def _prompt(reader: StreamReader) -> str | None:
    """The prompt of the next request; None for one without a body: LiteLLM asks for a list of models."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next((int(line.partition(":")[2]) for line in head.split("\r\n") if line.startswith("content-length")), 0)
    if not length:
        return None
    return str(json.loads(await reader.readexactly(length))["messages"][-1]["content"])


def _send(writer: StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _event(**fields: object) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _token(text: str) -> bytes:
    return _event(choices=[{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}])


_END = (
    _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    + _event(choices=[], usage={"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20})
    + b"data: [DONE]\n\n"
)


async def main() -> None:
    """Say the port, and serve until standard input closes, which it does when the measuring process ends, however it ends."""
    ask_for_open_files()
    server = await asyncio.start_server(Provider().serve, "127.0.0.1", 0, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
