"""A provider on loopback that speaks the chat-completions dialect, counts how often it is asked, and writes as many words as it is told."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def words(count: int) -> list[str]:
    """The answer: no two words are the same, so that one that comes twice, or not at all, is noticed."""
    return [f"word-{number} " for number in range(count)]


class Upstream:
    """A prompt is `NAME COUNT PAUSE`: the answer has COUNT words with PAUSE seconds between them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """How often each prompt was asked, which is how often it is billed."""
        self.written: Counter[str] = Counter()
        """Words that were written for each prompt."""
        self.ended: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set once the answer to a prompt has ended, well or not."""
        self.base_url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request."""
        try:
            prompt = await _prompt(reader)
            self.calls[prompt] += 1
            await self._answer(prompt, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway has left
        finally:
            writer.close()

    async def _answer(self, prompt: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count, pause = prompt.split()
        try:
            writer.write(_HEAD)
            for word in words(int(count)):
                if reader.at_eof():
                    return  # the client is gone
                writer.write(_chunk({"content": word}))
                self.written[prompt] += 1
                await writer.drain()
                await asyncio.sleep(float(pause))
            writer.write(_chunk({}, "stop") + _usage(int(count)) + b"data: [DONE]\n\n")
            await writer.drain()
        finally:
            self.ended[prompt].set()


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """The provider, until the context ends."""
    provider = Upstream()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(task := asyncio.create_task(provider.answer(reader, writer)))
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    provider.base_url = f"http://{host}:{port}/v1"
    try:
        yield provider
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _prompt(reader: asyncio.StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(int(line.partition(":")[2]) for line in head.split("\r\n") if line.startswith("content-length"))
    body = json.loads(await reader.readexactly(length))
    return str(body["messages"][-1]["content"])


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c', 'model': 'm', 'choices': [choice]})}\n\n".encode()


def _usage(count: int) -> bytes:
    usage = {"prompt_tokens": 10, "completion_tokens": count}
    return f"data: {json.dumps({'id': 'c', 'model': 'm', 'choices': [], 'usage': usage})}\n\n".encode()
