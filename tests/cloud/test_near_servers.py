"""Near agents behind a server of the user's: what the server shows is claimed, and nothing else."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import pytest
from http_server import STREAM, Exchange, Server, http_server, sse
from near_servers import MORE, ORDER, FakeServer, running

from nearfar.cloud import near_server, server_trials
from nearfar.cloud.near_server import NearServerConfig, parse_server
from nearfar.cloud.server_info import ModelServer, running_servers
from nearfar.cloud.server_trials import ServerAgent, open_near_server
from nearfar.protocols import (
    AgentError,
    ConfigError,
    ContextOverflow,
    InvalidOutput,
    Message,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    RequestRefused,
    Side,
    Stalled,
    StepLost,
    StepRequest,
    ToolChoice,
    ToolSpec,
    Unavailable,
    Unsupported,
    complete,
)
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, run_check

pytestmark = pytest.mark.anyio

WEATHER = ToolSpec(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


@pytest.fixture(autouse=True)
def fresh_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are used again: what an earlier server has shown says nothing about the next."""
    monkeypatch.setattr(server_trials, "_shown", {})
    monkeypatch.delenv("OLLAMA_HOST", raising=False)


async def opened(seen: Server, **fields: object) -> ServerAgent:
    config = NearServerConfig.model_validate({"provider": "openai", "base_url": seen.base_url, **fields})
    return await open_near_server(config, name="near")


def asking(text: str = "Hello there.", **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text),), **fields})


@pytest.mark.parametrize(
    ("program", "context", "concurrency"), [("vllm", 4096, 32), ("llama-server", 1024, 2), ("lmstudio", 2048, 1), ("ollama", 4096, 1)]
)
async def test_a_card_says_what_the_server_has_shown(program: str, context: int, concurrency: int) -> None:
    async with running(FakeServer(program)) as seen:
        agent = await opened(seen)
        reply = await complete(agent, asking())
        await agent.aclose()
    card = agent.card
    assert (card.side, card.model, card.prices is not None and card.prices.is_free) == (Side.NEAR, "tiny", True)
    assert (card.capabilities.tools, card.capabilities.json_schema, card.capabilities.confidence) == (True, True, True)
    assert (card.limits.context_tokens, card.limits.concurrency) == (context, concurrency)
    assert reply.text == "It is fine."
    assert reply.finished.confidence is not None


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("program", ["vllm", "ollama"])
async def test_near_agent_keeps_the_contract(check: Check, program: str) -> None:
    server = FakeServer(program, takes_tool_choice=program == "vllm")
    async with running(server) as seen:
        subject = Subject(
            create=partial(opened, seen),
            prompt="Hello there.",
            long_prompt=MORE,
            tool_use=ToolUse(prompt=f"{ORDER} weather.", tools=(WEATHER,), result="sunny"),
            schema_use=SchemaUse(
                prompt="Where?", schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
            ),
            overflow_prompt="word " * 20_000,
        )
        await run_check(check, subject)


@pytest.mark.parametrize(
    ("server", "lacks"),
    [
        (FakeServer(calls_tools=False, takes_tool_choice=False), "tools"),
        (FakeServer(schema_form=None), "json_schema"),
        (FakeServer(logprobs=False), "confidence"),
    ],
    ids=["tool_choice and tools", "response_format", "logprobs"],
)
async def test_what_a_server_ignores_is_not_claimed(server: FakeServer, lacks: str) -> None:
    async with running(server) as seen:
        agent = await opened(seen)
        await agent.aclose()
    claimed = agent.card.capabilities.model_dump(include={"tools", "json_schema", "confidence"})
    assert [name for name, is_claimed in claimed.items() if not is_claimed] == [lacks]


async def test_a_server_that_refuses_a_parameter_still_serves_the_rest() -> None:
    server = FakeServer(schema_form="json_object", refuses_other_formats=True, refuses_logprobs_with_tools=True)
    async with running(server) as seen:
        agent = await opened(seen)
        called = await complete(agent, asking(f"{ORDER} weather.", tools=(WEATHER,)))
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        answered = await complete(agent, asking(output_schema=schema))
        await agent.aclose()
    assert called.tool_calls[0].name == "weather"
    assert json.loads(answered.text) == {"n": 7}
    assert answered.finished.confidence is not None


async def test_ignored_tool_choice_is_made_good_or_refused() -> None:
    server = FakeServer("ollama", takes_tool_choice=False)
    async with running(server) as seen:
        agent = await opened(seen)
        assert (await complete(agent, asking(f"{ORDER} weather.", tools=(WEATHER,)))).tool_calls
        told = await complete(agent, asking(f"{ORDER} weather.", tools=(WEATHER,), tool_choice=ToolChoice.NONE))
        before = len(server.bodies)
        with pytest.raises(Unsupported, match="ignores tool_choice"):
            await complete(agent, asking(tools=(WEATHER,), tool_choice=ToolChoice.REQUIRED))
        await agent.aclose()
    assert told.text == "It is fine."
    assert len(server.bodies) == before


async def test_a_model_is_tried_out_once_per_process() -> None:
    server = FakeServer()
    async with running(server) as seen:
        for _ in range(2):
            await (await opened(seen)).aclose()
    assert len(server.bodies) == 3  # a greeting, a tool and a schema


async def test_trials_carry_nothing_of_a_task() -> None:
    server = FakeServer()
    async with running(server) as seen:
        await (await opened(seen)).aclose()
    assert {body["messages"][0]["content"] for body in server.bodies} == {"Hello."}


async def test_a_prompt_that_the_server_would_cut_is_refused() -> None:
    async with running(FakeServer("ollama")) as seen:
        agent = await opened(seen)
        with pytest.raises(ContextOverflow, match="4096"):
            await complete(agent, asking("word " * 5000))
        await agent.aclose()


@pytest.mark.parametrize("model", ["huge:120b-cloud", "renamed"])
async def test_a_model_of_a_cloud_behind_a_local_server_is_not_near(model: str) -> None:
    server = FakeServer("ollama", models=(model,), remote={} if "cloud" in model else {model: "https://ollama.com:443"})
    async with running(server) as seen:
        with pytest.raises(ConfigError, match="not on this machine"):
            await opened(seen, model=model)
        with pytest.raises(NoSuchModel):
            await opened(seen)
    assert server.bodies == []


async def test_a_model_that_becomes_one_of_a_cloud_sees_no_further_step() -> None:
    server = FakeServer("ollama", models=("mine",))
    async with running(server) as seen:
        agent = await opened(seen)
        assert (await complete(agent, asking())).text == "It is fine."
        server.remote["mine"] = "https://ollama.com:443"
        before = len(server.bodies)
        with pytest.raises(ConfigError, match="not on this machine"):
            await complete(agent, asking())
        await agent.aclose()
    assert len(server.bodies) == before


@pytest.mark.parametrize("model", ["huge:120b-cloud", "huge:Cloud"])
async def test_a_cloud_model_is_known_by_its_name_where_only_the_openai_api_is_reached(model: str) -> None:
    async with running(FakeServer("openai", models=(model,))) as seen:
        with pytest.raises(ConfigError, match="not on this machine"):
            await opened(seen, model=model)


async def test_a_missing_model_is_told_with_those_that_there_are() -> None:
    async with running(FakeServer("ollama", models=("qwen3:4b", "llama3.2:latest"))) as seen:
        with pytest.raises(NoSuchModel, match=r"'phi'.*qwen3:4b, llama3\.2:latest") as caught:
            await opened(seen, model="phi")
        with pytest.raises(ConfigError, match=r"several models.*qwen3:4b"):
            await opened(seen)
        agent = await opened(seen, model="llama3.2")
        await agent.aclose()
    assert caught.value.hint == "ollama pull phi"
    assert agent.card.model == "llama3.2:latest"


async def test_the_only_model_for_chats_is_chosen() -> None:
    async with running(FakeServer("lmstudio", models=("text-embed", "chatty"))) as seen:
        agent = await opened(seen)
        await agent.aclose()
    assert agent.card.model == "chatty"


async def test_an_absent_server_is_told_with_the_command_that_starts_it() -> None:
    async with running(FakeServer()) as seen:
        gone = seen.base_url
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await open_near_server(NearServerConfig(provider="ollama", base_url=gone), name="near")
    assert "ollama serve" in caught.value.hint


async def _html(exchange: Exchange) -> None:
    await exchange.respond(200, "<html>Welcome</html>", content_type="text/html")


async def _locked(exchange: Exchange) -> None:
    await exchange.respond(401, json.dumps({"error": {"message": "no key"}}))


async def _old(exchange: Exchange) -> None:
    await exchange.respond(404, "404 page not found", content_type="text/plain")


async def _elsewhere(exchange: Exchange) -> None:
    await exchange.respond(302, "", location="http://192.0.2.1/v1/models")


async def _endless(exchange: Exchange) -> None:
    await exchange.start(200, "application/json", {"transfer_encoding": "chunked"})
    while True:  # until the client has had enough, which ends the connection's task
        await exchange.send(b" " * 1_000_000)


async def _packed(exchange: Exchange) -> None:
    body = gzip.compress(gzip.compress(bytes(1 << 20)))
    await exchange.respond(200, body, content_encoding="gzip, gzip")


async def _dripping(exchange: Exchange) -> None:
    await exchange.start(200, "application/json", {"transfer_encoding": "chunked"})
    while True:
        await exchange.send(b" ")
        await asyncio.sleep(0.05)


async def _cut(exchange: Exchange) -> None:
    await exchange.start(200, "application/json", {"content_length": "1000"})
    exchange.writer.close()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (_html, RequestRefused, "text/html"),
        (_locked, ProviderAuthError, "401"),
        (_old, RequestRefused, "no list of models"),
        (_elsewhere, RequestRefused, "redirects"),
        (_endless, RequestRefused, "does not end"),
        (_packed, InvalidOutput, "compresses"),
        (_cut, StepLost, "broke"),
    ],
    ids=["a web page", "a locked server", "an old server", "a redirect", "an endless answer", "a packed one", "a cut one"],
)
async def test_a_server_of_another_kind_is_a_typed_error(
    answer: Callable[[Exchange], Awaitable[None]], error: type[NearfarError], words: str
) -> None:
    async with http_server(answer) as seen:
        with pytest.raises(error, match=words) as caught, anyio.fail_after(20):
            await opened(seen)
    assert caught.value.hint
    assert error is not ProviderAuthError or "key_variable" in caught.value.hint


async def test_an_answer_that_comes_byte_by_byte_is_not_waited_for() -> None:
    async with http_server(_dripping) as seen:
        config = NearServerConfig(provider="openai", base_url=seen.base_url)
        async with ModelServer.near(config, seconds=0.3) as server:
            with pytest.raises(Stalled, match=r"within 0\.3 s"), anyio.fail_after(10):
                await server.look()


@pytest.mark.parametrize("answer", [_html, _locked, _elsewhere])
async def test_a_server_is_used_whatever_its_other_pages_say(answer: Callable[[Exchange], Awaitable[None]]) -> None:
    server = FakeServer("openai")

    async def asked(exchange: Exchange) -> None:
        await (server.answer if exchange.path.startswith("/v1/") else answer)(exchange)

    async with http_server(asked) as seen:
        agent = await opened(seen)
        assert (await complete(agent, asking())).text == "It is fine."
        await agent.aclose()


async def test_a_context_that_is_no_number_of_tokens_is_the_smallest() -> None:
    server = FakeServer("ollama")

    async def answer(exchange: Exchange) -> None:
        pages = {"/api/show": {"parameters": f"num_ctx {'9' * 5000}"}, "/api/ps": {"models": []}}
        if exchange.path in pages:
            await exchange.respond(200, json.dumps(pages[exchange.path]))
        else:
            await server.answer(exchange)

    async with http_server(answer) as seen:
        agent = await opened(seen)
        await agent.aclose()
    assert agent.card.limits.context_tokens == 2048


async def test_a_server_that_dies_in_mid_stream_loses_the_step() -> None:
    server = FakeServer()

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/v1/chat/completions" and "die" in str(exchange.body["messages"]):
            await exchange.start(200, STREAM, {"transfer_encoding": "chunked"})
            await exchange.send(sse({"choices": [{"index": 0, "delta": {"content": "It "}}]}))
            exchange.writer.close()
            return
        await server.answer(exchange)

    async with http_server(answer) as seen:
        agent = await opened(seen)
        with pytest.raises(StepLost):
            await complete(agent, asking("die"))
        assert (await complete(agent, asking())).text == "It is fine."
        await agent.aclose()


async def test_a_server_that_dies_while_it_is_tried_out_claims_nothing() -> None:
    server = FakeServer()

    async def answer(exchange: Exchange) -> None:
        if server.bodies:
            exchange.writer.close()
            return
        await server.answer(exchange)

    async with http_server(answer) as seen:
        with pytest.raises(AgentError):
            await opened(seen)
    assert server_trials._shown == {}


async def test_cancelling_the_opening_closes_its_connections() -> None:
    waiting = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        waiting.set()
        await exchange.until_client_leaves()
        left.set()

    left = asyncio.Event()
    async with http_server(answer) as seen:
        opening = asyncio.create_task(opened(seen))
        await waiting.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        with anyio.fail_after(10):
            await left.wait()


async def test_running_servers_are_found_with_the_line_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running(FakeServer("ollama", models=("qwen3:4b",))) as ollama,
        running(FakeServer("llama-server")) as other,
        http_server(_html) as page,
    ):
        ports = {"ollama": ollama, "lmstudio": page, "llama-server": page, "vllm": other}
        changed = {
            name: replace(program, port=int(ports[name].base_url.split(":")[2][:-3])) for name, program in near_server.PROGRAMS.items()
        }
        monkeypatch.setattr(near_server, "PROGRAMS", changed)
        monkeypatch.setattr("nearfar.cloud.server_info.PROGRAMS", changed)
        found = await running_servers()
    assert [each.line(each.state.models[0]) for each in found] == ["ollama:qwen3:4b", f"{other.base_url}#tiny"]
    assert [each.label for each in found] == ["Ollama", "llama-server"]
    for each in found:
        assert parse_server(each.line(each.state.models[0])) is not None


async def test_silent_servers_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.until_client_leaves()

    async with http_server(silent) as seen:
        port = int(seen.base_url.split(":")[2][:-3])
        changed = {name: replace(program, port=port) for name, program in near_server.PROGRAMS.items()}
        monkeypatch.setattr(near_server, "PROGRAMS", changed)
        monkeypatch.setattr("nearfar.cloud.server_info.PROGRAMS", changed)
        with anyio.fail_after(10):
            assert await running_servers() == []
