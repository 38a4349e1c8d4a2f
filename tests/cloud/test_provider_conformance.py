"""ProviderAgent keeps the contract in all four dialects, in-process and over gRPC.

The provider is a loopback HTTP server that speaks the dialect and does what the prompt says, so that tools, cancellation and
overflow are provable, which no local model server enforces.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import pytest
from http_server import Exchange, http_server
from streams import DIALECTS, KEY, TEXTS, WEATHER, anthropic_call, gemini_call, openai_call, responses_call

from nearfar.cloud.provider import ProviderAgent
from nearfar.protocols import Capabilities, Limits
from nearfar.protocols.secrets import GivenKey
from nearfar.protocols.testing import TRANSPORTS, Transport
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, UnicodeUse, run_check

ODD = "\N{FAMILY} na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{CJK UNIFIED IDEOGRAPH-6F22}"
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
CALLS = {
    "openai": openai_call('{"city": "Par', 'is"}'),
    "responses": responses_call('{"city": "Par', 'is"}'),
    "anthropic": anthropic_call('{"city": "Paris"}'),
    "gemini": gemini_call(),
}
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")
LENGTH = {"openai": "length", "responses": "max_output_tokens", "anthropic": "max_tokens", "gemini": "MAX_TOKENS"}
OVERFLOW = {
    "openai": {"error": {"message": "too long", "code": "context_length_exceeded"}},
    "responses": {"error": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}},
    "anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 900 tokens > 500 maximum"}},
    "gemini": {"error": {"code": 400, "message": "The input token count exceeds the maximum number of tokens allowed."}},
}


@dataclass
class Provider:
    """Speaks one dialect: an answer of a word per event, each of them a token."""

    dialect: str
    live: int = 0
    tokens: int = 0

    async def answer(self, exchange: Exchange) -> None:
        self.live += 1
        try:
            await self._answer(exchange)
        finally:
            self.live -= 1

    async def _answer(self, exchange: Exchange) -> None:
        said = json.dumps(exchange.body, ensure_ascii=False)
        read = 20 + len(said.split())
        if read > 500:
            await exchange.respond(400, json.dumps(OVERFLOW[self.dialect]))
            return
        last = json.dumps(self._turns(exchange.body)[-1])
        if "capital" in last:
            await exchange.stream([CALLS[self.dialect]])
            return
        words = [f"word{number} " for number in range(150)] if "long" in last else ['{"age":', " 3}"] if "person" in last else [ODD]
        await self._stream(exchange, words, read)

    async def _stream(self, exchange: Exchange, words: list[str], read: int) -> None:
        wanted = exchange.body.get("generationConfig", exchange.body)
        limit = next((wanted[name] for name in LIMITS if name in wanted), 8192)
        stops: list[str] = next((wanted[name] for name in ("stop", "stop_sequences", "stopSequences") if name in wanted), [])
        text = "".join(words)
        end = min((text.index(stop) for stop in stops if stop in text), default=len(text))
        kept = words[:limit] if end == len(text) else [text[:end]]
        finish = {"finish": LENGTH[self.dialect]} if len(kept) < len(words) and end == len(text) else {}
        events = TEXTS[self.dialect](*kept, read=read, written=len(kept), **finish).split("\n\n")
        await exchange.open_stream()
        for event in events:
            if exchange.reader.at_eof():
                return
            await exchange.send(f"{event}\n\n")
            self.tokens += any(word.strip() in event for word in kept)
            await anyio.sleep(0.001)  # the pace of a model, for which nobody waits
        await exchange.finish()

    def _turns(self, body: dict[str, Any]) -> list[Any]:
        turns: list[Any] = body[{"gemini": "contents", "responses": "input"}.get(self.dialect, "messages")]
        return turns


async def create(dialect: str, base_url: str) -> ProviderAgent:
    """This provider does what no hosted one shows from outside, so its agent claims it."""
    proved = Capabilities(tools=True, json_schema=True, seed=True, cancellation=True)
    limits = Limits(context_tokens=500, concurrency=4)
    return ProviderAgent(DIALECTS[dialect], "model-1", key=GivenKey(KEY), base_url=base_url, capabilities=proved, limits=limits)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_provider_agent_keeps_the_contract(check: Check, dialect: str, transport: Transport) -> None:
    provider = Provider(dialect)
    async with http_server(provider.answer) as server:
        subject = Subject(
            create=partial(create, dialect, server.base_url),
            prompt="short",
            long_prompt="long",
            tool_use=ToolUse(prompt="capital", tools=(WEATHER,), result="sunny"),
            schema_use=SchemaUse(prompt="person", schema=PERSON),
            unicode_use=UnicodeUse(prompt="odd", expected=ODD),
            least_output_tokens=16 if dialect == "responses" else 2,
            live_steps=lambda _: provider.live,
            tokens_decoded=lambda _: provider.tokens,
        )
        await run_check(check, subject, transport)
