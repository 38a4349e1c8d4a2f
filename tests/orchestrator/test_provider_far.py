"""A provider as the far side: the app, its gateway process and an HTTP endpoint are three processes' worth of real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nearfar import Hybrid
from nearfar.cloud.config import ProviderConfig
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError, ProviderAuthError, ScriptedAgent, Sensitivity, Side

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

KEY = "sk-test-0123456789"
PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)


@asynccontextmanager
async def endpoint(status: int, body: str, seen: list[str]) -> AsyncIterator[str]:
    """An OpenAI-compatible endpoint that gives every request the same answer and notes its head; yields its base URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(head)
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
        await reader.readexactly(length)
        kind = "text/event-stream" if status == 200 else "application/json"
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def streamed(text: str) -> str:
    chunks = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}], "model": "frontier-1"},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "model": "frontier-1"},
        {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}},
    ]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def provider(base_url: str) -> ProviderConfig:
    return ProviderConfig(provider="openai", model="frontier-1", base_url=base_url, key_variable="NEARFAR_TEST_KEY", max_calls=1)


async def test_a_provider_answers_through_the_gateway_process_which_alone_reads_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_TEST_KEY", KEY)
    seen: list[str] = []
    async with endpoint(200, streamed("Lisbon"), seen) as base_url, Hybrid(far=provider(base_url), policy=PUBLIC) as hybrid:
        result = await hybrid.run("Where?", strategy="cloud")
    assert (result.text, result.side, result.model) == ("Lisbon", Side.FAR, "frontier-1")
    assert (result.far.usage.input_tokens, result.far.usage.cached_tokens, result.far.usage.output_tokens) == (12, 8, 3)
    assert result.far.dollars == 0  # a server on this machine
    assert f"Bearer {KEY}" in seen[0]


async def test_a_provider_that_refuses_the_key_means_the_device_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_TEST_KEY", KEY)
    near = ScriptedAgent(["from here"], name="near")
    refusal = endpoint(401, '{"error": {"message": "bad key"}}', [])
    async with refusal as base_url, Hybrid(near=near, far=provider(base_url), policy=PUBLIC) as hybrid:
        result = await hybrid.run("Where?", strategy="cloud")
        assert result.served_on_device
        assert "ProviderAuthError" in result.attempts[0].reason
        assert KEY not in result.model_dump_json()
        with pytest.raises(ProviderAuthError):
            await hybrid.run("Where?", strategy="cloud", mode="only_in_cloud")


async def test_a_missing_key_is_named_and_is_no_reason_to_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEARFAR_TEST_KEY", raising=False)
    near = ScriptedAgent([], name="near")
    async with endpoint(200, streamed("never"), []) as base_url, Hybrid(near=near, far=provider(base_url), policy=PUBLIC) as hybrid:
        with pytest.raises(ConfigError, match="NEARFAR_TEST_KEY"):
            await hybrid.run("Where?", strategy="cloud")
