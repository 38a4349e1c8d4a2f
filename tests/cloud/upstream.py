"""A provider behind a proxy: it speaks three APIs on one port, in a thread of its own, and does what the prompt's last word says."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_server import Exchange, http_server
from streams import TEXTS, anthropic_call, gemini_call, openai_call, responses_call

_CALLS = {
    "openai": openai_call('{"city": "Par', 'is"}'),
    "responses": responses_call('{"city": "Par', 'is"}'),
    "anthropic": anthropic_call('{"city": "Par', 'is"}'),
    "gemini": gemini_call(),
}
_RECORDED = Path(__file__).parents[1] / "judges" / "recorded"
_BOTH = {"openai": "chat", "responses": "responses", "anthropic": "anthropic", "gemini": "gemini"}
_PATHS = {"chat/completions": "openai", "responses": "responses", "messages": "anthropic", "GenerateContent": "gemini"}
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error", 401: "authentication_error", 500: "api_error"}
_STATUSES = {"wrong": 400, "overflow": 400, "gone": 404, "busy": 429, "locked": 401, "down": 500}
_SAID = {
    "wrong": "temperature: out of range",
    "overflow": "prompt is too long: this model's maximum context length is 500 tokens",
    "gone": "the model does not exist",
    "busy": "too many requests",
    "locked": "incorrect api key provided",
    "down": "the server had an error",
}


@dataclass
class Upstream:
    """What the provider saw."""

    base_url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """Whoever asked for an endless answer has closed the connection."""

    async def answer(self, exchange: Exchange) -> None:
        """Answer one call."""
        self.bodies.append(exchange.body)
        dialect = next(name for path, name in _PATHS.items() if path in exchange.path)
        said = json.dumps(exchange.body)
        word = next((word for word in (*_STATUSES, "endless", "weather", "both") if f"{word}!" in said), "")
        if word in _STATUSES:
            await _refuse(exchange, dialect, word)
        elif word == "endless":
            await self._speak_without_end(exchange, dialect)
        elif word == "weather" and "sunny" not in said:
            await exchange.stream([_CALLS[dialect]])
        elif word == "both" and "sunny" not in said:
            await exchange.stream([_recorded(f"{_BOTH[dialect]}-parallel-calls.sse")])
        else:
            await exchange.stream([TEXTS[dialect]("It is ", "fine.")])

    async def _speak_without_end(self, exchange: Exchange, dialect: str) -> None:
        await exchange.open_stream()
        beginning, _, _ = TEXTS[dialect](*["on "] * 5).rpartition("on ")
        await exchange.send(beginning.rpartition("\n\n")[0] + "\n\n")
        await exchange.until_client_leaves()
        self.left.set()


def _recorded(name: str) -> str:
    """The events of a recording, without its sources, which LiteLLM does not take."""
    return (_RECORDED / name).read_bytes().decode().partition("\n\n")[2]


async def _refuse(exchange: Exchange, dialect: str, word: str) -> None:
    status = _STATUSES[word]
    error: dict[str, Any] = {"type": _KINDS[status], "message": _SAID[word]}
    if dialect in ("openai", "responses"):
        error |= {"code": "context_length_exceeded" if word == "overflow" else None, "param": None}
    if dialect == "gemini":
        error = {"code": status, "message": _SAID[word], "status": "INVALID_ARGUMENT"}
    body = {"error": error} | ({"type": "error"} if dialect == "anthropic" else {})
    await exchange.respond(status, json.dumps(body), retry_after="7" if word == "busy" else "0")


@contextmanager
def upstream() -> Iterator[Upstream]:
    """Run a provider until the block ends."""
    provider = Upstream()
    ready, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with http_server(provider.answer) as server:
            provider.base_url = server.base_url
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(30), "the provider did not start"
        yield provider
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()
