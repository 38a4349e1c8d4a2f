"""The gateway lets known callers in, forwards their steps, and keeps account without content or keys."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from http_server import Exchange, http_server, sse
from streams import KEY, TEXTS, WEATHER, agent_at, anthropic_call, asking, openai_chunk

from nearfar.cloud.config import GatewayLimits
from nearfar.cloud.gateway import TOKENS_VARIABLE, environment_tokens, serve_gateway
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.protocols import (
    Agent,
    ConfigError,
    InternalError,
    Limits,
    Message,
    Prices,
    ProviderAuthError,
    RateLimited,
    ScriptedAgent,
    Side,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolResult,
    Unauthenticated,
    complete,
    stream,
)
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.secrets import GivenKey
from nearfar.protocols.security import EVERY_SCOPE, token_digest
from nearfar.protocols.testing import eventually
from nearfar.protocols.token_file import add_token, load_tokens

pytestmark = pytest.mark.anyio
TOKENS = {"laptop": "a" * 64, "phone": "b" * 64}
PRICES = Prices(input=Decimal(3), output=Decimal(15), source="this test", as_of=date(2026, 1, 1))


@asynccontextmanager
async def remote(agent: Agent, caller: str = "laptop") -> AsyncIterator[RemoteAgent]:
    async with serve_gateway({"far": agent}, tokens=TOKENS) as server:
        client = await RemoteAgent.connect(server.address, token=TOKENS[caller])
        try:
            yield client
        finally:
            await client.aclose()


def account(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "nearfar.cloud.gateway"]


async def test_step_is_forwarded_and_accounted_to_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("confidential answer")])

    async with http_server(answer) as server:
        far = ProviderAgent(OpenAIDialect(), "model-1", key=GivenKey(KEY), base_url=server.base_url, prices=PRICES)
        async with remote(far, "phone") as client:
            reply = await complete(client, asking("confidential question"))
        await far.aclose()
    assert reply.text == "confidential answer"
    [line] = account(caplog)
    assert float(str(line.pop("seconds"))) >= 0
    assert line == {
        "caller": "phone",
        "agent": "far",
        "model": "model-1-0613",
        "outcome": "stop",
        "input_tokens": 20,
        "output_tokens": 5,
        "cached_tokens": 16,
        "cache_write_tokens": 0,
        "dollars": "0.000135",
    }
    assert "confidential" not in caplog.text
    assert KEY not in caplog.text


async def test_unknown_price_is_unknown_and_not_zero(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with remote(ScriptedAgent(["hello"], side=Side.FAR)) as client:
        await complete(client, asking())
    assert account(caplog)[0]["dollars"] == "unknown"


async def test_failed_step_is_accounted_by_its_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(401, json.dumps({"error": {"message": f"bad key {KEY}"}}))

    async with http_server(answer) as server:
        far = agent_at(server.base_url)
        async with remote(far) as client:
            with pytest.raises(ProviderAuthError) as caught:
                await complete(client, asking())
        await far.aclose()
    assert account(caplog)[0]["outcome"] == "ProviderAuthError"
    assert account(caplog)[0]["output_tokens"] is None
    assert KEY not in caplog.text + str(caught.value)


async def test_step_that_fails_by_a_defect_is_not_accounted_as_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def fail(request: StepRequest) -> str:
        raise ZeroDivisionError

    async with remote(ScriptedAgent(fail, side=Side.FAR)) as client:
        with pytest.raises(InternalError):
            await complete(client, asking())
    assert [line["outcome"] for line in account(caplog)] == ["InternalError"]


async def test_step_that_its_caller_leaves_is_accounted_as_cancelled_and_ends_upstream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    left = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(sse(openai_chunk({"content": "a"})))
        await exchange.until_client_leaves()
        left.set()

    async with http_server(answer) as server:
        far = agent_at(server.base_url)
        with anyio.fail_after(60):
            async with remote(far) as client:
                async with stream(client, asking()) as events:
                    assert isinstance(await anext(aiter(events)), TextDelta)
                await left.wait()
        await far.aclose()
    assert [line["outcome"] for line in account(caplog)] == ["cancelled"]


@pytest.mark.parametrize("token", [None, "c" * 64])
async def test_caller_without_a_known_token_reaches_no_provider(token: str | None) -> None:
    far = ScriptedAgent(["hello"], side=Side.FAR)
    async with serve_gateway({"far": far}, tokens=TOKENS) as server:
        with pytest.raises(Unauthenticated):
            await RemoteAgent.connect(server.address, token=token)
    assert not far.requests


async def test_same_idempotency_key_calls_the_provider_once() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("paid once")])

    async with http_server(answer) as server:
        far = agent_at(server.base_url)
        async with remote(far) as client:
            request = asking()
            assert [(await complete(client, request)).text for _ in range(2)] == ["paid once"] * 2
        await far.aclose()
        assert len(server.exchanges) == 1


async def test_callers_with_one_idempotency_key_have_two_at_the_provider() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("mine")])

    async with http_server(answer) as server:
        far = agent_at(server.base_url)
        for caller in TOKENS:
            async with remote(far, caller) as client:
                await complete(client, asking(idempotency_key="shared"))
        await far.aclose()
        assert len({exchange.headers["idempotency-key"] for exchange in server.exchanges}) == 2


async def test_a_callers_own_thinking_goes_back_through_the_gateway() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([anthropic_call('{"city": "Paris"}') if len(server.exchanges) == 1 else TEXTS["anthropic"]("Sunny.")])

    question = Message.user("Weather in Paris?")
    async with http_server(answer) as server:
        far = agent_at(server.base_url, "anthropic")
        async with remote(far, "laptop") as client:
            asked = await complete(client, asking(messages=(question,), tools=(WEATHER,)))
            result = Message.tool(ToolResult(call_id=asked.tool_calls[0].id, name="weather", content="sunny"))
            await complete(client, asking(messages=(question, asked.message, result), tools=(WEATHER,)))
        await far.aclose()
        assert [block["type"] for block in server.exchanges[1].body["messages"][1]["content"]] == ["thinking", "tool_use"]


async def test_callers_do_not_get_each_others_thinking_back() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([anthropic_call('{"city": "Paris"}')])

    question = Message.user("Weather in Paris?")
    async with http_server(answer) as server:
        far = agent_at(server.base_url, "anthropic")
        for caller in TOKENS:
            async with remote(far, caller) as client:
                call = ToolCall(id="toolu_1", name="weather", arguments={"city": "Paris"})
                result = Message.tool(ToolResult(call_id=call.id, name=call.name, content="sunny"))
                messages = (question, Message.assistant(tool_calls=(call,)), result) if caller == "phone" else (question,)
                await complete(client, asking(messages=messages, tools=(WEATHER,)))
        await far.aclose()
        assert [block["type"] for block in server.exchanges[1].body["messages"][1]["content"]] == ["tool_use"]


def test_tokens_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKENS_VARIABLE, f"laptop={'a' * 64}, phone={'b' * 64}")
    assert environment_tokens() == TOKENS
    monkeypatch.delenv(TOKENS_VARIABLE)
    assert environment_tokens() == {}


@pytest.mark.parametrize("text", ["ab" * 32, "ab" * 32 + "=laptop", "ab!" * 20 + "=laptop", f"laptop={'ab' * 32},laptop={'cd' * 32}"])
def test_malformed_tokens_in_the_environment_are_refused_without_being_quoted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKENS_VARIABLE, text)
    with pytest.raises(ConfigError) as caught:
        environment_tokens()
    assert "ab" not in str(caught.value)


async def test_a_caller_beyond_its_rate_is_told_when_to_come_back_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    agent = ScriptedAgent(["one"], name="far", side=Side.FAR, prices=PRICES)
    with anyio.fail_after(30):
        async with serve_gateway({"far": agent}, tokens=TOKENS, limits=GatewayLimits(requests_per_second=0.01)) as server:
            client = await RemoteAgent.connect(server.address, token=TOKENS["laptop"])
            assert (await complete(client, asking())).text == "one"
            with pytest.raises(RateLimited) as caught:
                await complete(client, asking())
            await client.aclose()
    assert caught.value.retry_after == pytest.approx(100, abs=5)
    assert len(agent.requests) == 1
    assert [(line["outcome"], line["dollars"]) for line in account(caplog)][1:] == [("RateLimited", "0")]


async def test_a_busy_caller_does_not_keep_another_one_waiting() -> None:
    gate, order = anyio.Event(), []

    def answer(request: StepRequest) -> list[anyio.Event | str]:
        order.append(request.messages[-1].text)
        return [gate, "done"]

    agent = ScriptedAgent(answer, name="far", side=Side.FAR, limits=Limits(concurrency=1))
    with anyio.fail_after(30):
        async with serve_gateway({"far": agent}, tokens=TOKENS) as server:
            clients = {name: await RemoteAgent.connect(server.address, token=token) for name, token in TOKENS.items()}
            async with anyio.create_task_group() as tasks:
                for caller in ["laptop"] * 10 + ["phone"]:
                    tasks.start_soon(complete, clients[caller], asking(caller))
                await eventually(lambda: server.live_steps == 11)
                gate.set()
            for client in clients.values():
                await client.aclose()
    assert order.index("phone") <= 2


@pytest.mark.parametrize("after", [{"phone": "b" * 64}, {"phone": "b" * 64, "laptop": "c" * 64}, {}])
async def test_caller_whose_token_is_revoked_is_stopped_in_mid_step(after: dict[str, str]) -> None:
    far = ScriptedAgent(lambda request: ["begun", anyio.Event()], name="far", side=Side.FAR)
    with anyio.fail_after(30):
        async with serve_gateway({"far": far}, tokens=TOKENS) as server:
            client = await RemoteAgent.connect(server.address, token=TOKENS["laptop"])
            async with stream(client, asking("laptop")) as events:
                await anext(events)
                server.replace_tokens(after)
                with pytest.raises(Unauthenticated, match="revoked"):
                    await anext(events)
            await eventually(lambda: server.live_steps == 0)
            with pytest.raises(Unauthenticated, match="wrong"):
                await complete(client, asking("laptop"))
            await client.aclose()


async def test_other_callers_go_on_when_one_is_revoked() -> None:
    gate = anyio.Event()
    far = ScriptedAgent(lambda request: ["begun", gate, " and done"], name="far", side=Side.FAR)
    with anyio.fail_after(30):
        async with serve_gateway({"far": far}, tokens=TOKENS) as server:
            client = await RemoteAgent.connect(server.address, token=TOKENS["phone"])
            text = ""
            async with stream(client, asking("phone")) as events:
                async for event in events:
                    server.replace_tokens({"phone": TOKENS["phone"]})
                    gate.set()
                    text += event.text if isinstance(event, TextDelta) else ""
            assert text == "begun and done"
            await client.aclose()


async def test_open_server_cannot_be_given_tokens_later() -> None:
    async with serve_gateway({"far": ScriptedAgent([], name="far", side=Side.FAR)}) as server:
        with pytest.raises(ConfigError, match="without tokens"):
            server.replace_tokens(TOKENS)


async def test_who_reads_a_digest_in_the_token_file_has_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    token = add_token(path, "laptop", scopes=EVERY_SCOPE).token
    async with serve_gateway({"far": ScriptedAgent([], name="far", side=Side.FAR)}, tokens=load_tokens(path)) as server:
        await (await RemoteAgent.connect(server.address, token=token)).aclose()
        for digest in (token_digest(token), token_digest(token).removeprefix("sha256:")):
            with pytest.raises(Unauthenticated, match="wrong"):
                await RemoteAgent.connect(server.address, token=digest)
