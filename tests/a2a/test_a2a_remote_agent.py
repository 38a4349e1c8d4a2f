"""A remote A2A agent as a far agent: another `Hybrid` behind a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("a2a", reason="A2A is an extra: pip install 'nearfar[a2a]'")
from a2a_face import TOKENS, served, until
from http_server import Exchange, http_server

from nearfar import ConfigError, Hybrid, PrivacyViolation, RequestRefused, ScriptedAgent, Side, ToolCall, Unavailable, Unsupported, tool
from nearfar.cloud.a2a import A2aTransport, RemoteTaskAgent
from nearfar.cloud.config import A2aAgentConfig
from nearfar.orchestrator.a2a import A2aServer
from nearfar.orchestrator.task.labels import Integrity
from nearfar.protocols import InvalidOutput, Message, Sensitivity, StepRequest, complete
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, Subject, run_check

pytestmark = pytest.mark.anyio
VARIABLE = "REMOTE_TOKEN"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKENS["ana"])


@asynccontextmanager
async def remote(folder: Path, agent: ScriptedAgent) -> AsyncIterator[A2aServer]:
    async with Hybrid(near=agent, tools=[pay], records=folder) as hybrid, served(hybrid) as server:
        yield server


async def accepted(url: str) -> A2aAgentConfig:
    """Return the configuration with the hash that the refusal names."""
    config = A2aAgentConfig(provider="a2a", url=url, token_variable=VARIABLE)
    with pytest.raises(ConfigError, match="is new") as refused:
        await RemoteTaskAgent.connect(config, name="helper")
    return config.model_copy(update={"card": refused.value.hint.split('"')[1]})


@asynccontextmanager
async def connected(server: A2aServer) -> AsyncIterator[RemoteTaskAgent]:
    agent = await RemoteTaskAgent.connect(await accepted(server.url), name="helper")
    try:
        yield agent
    finally:
        await agent.aclose()


def asking(*texts: str, **options: object) -> StepRequest:
    messages = tuple(Message.user(text) if place % 2 == 0 else Message.assistant(text) for place, text in enumerate(texts))
    return StepRequest.model_validate({"messages": messages, "sensitivity": Sensitivity.PUBLIC, **options})


@pytest.mark.parametrize("streams", [True, False])
async def test_a_task_is_given_and_its_answer_comes_back(streams: bool, tmp_path: Path) -> None:
    worker = ScriptedAgent(["It is small. " * 500])
    async with remote(tmp_path, worker) as server, connected(server) as agent:
        agent._streams = agent._client._config.streaming = streams  # type: ignore[attr-defined]  # as if its card said so
        reply = await complete(agent, asking("How is it?"))
    assert reply.text == "It is small. " * 500
    assert [message.text for message in worker.requests[0].messages] == ["How is it?"]
    assert (agent.card.side, agent.card.prices, agent.card.capabilities.tools) == (Side.FAR, None, False)


async def test_a_conversation_is_told_in_one_message(tmp_path: Path) -> None:
    worker = ScriptedAgent(["Ana."])
    async with remote(tmp_path, worker) as server, connected(server) as agent:
        await complete(agent, asking("I am Ana.", "Hello Ana.", "Who am I?"))
    assert worker.requests[0].messages[0].text == "User: I am Ana.\n\nAssistant: Hello Ana.\n\nUser: Who am I?"


async def test_the_same_step_twice_is_one_task(tmp_path: Path) -> None:
    worker = ScriptedAgent(["Once."])
    async with remote(tmp_path, worker) as server, connected(server) as agent:
        request = asking("How is it?", idempotency_key="k1")
        assert [(await complete(agent, request)).text for _ in range(2)] == ["Once.", "Once."]
    assert len(worker.requests) == 1


async def test_leaving_a_step_cancels_the_remote_task(tmp_path: Path) -> None:
    worker = ScriptedAgent([[anyio.Event(), "never"]])
    async with remote(tmp_path, worker) as server, connected(server) as agent:
        asked = asyncio.create_task(complete(agent, asking("How is it?")))
        await until(lambda: bool(worker.live_steps))
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (worker.live_steps, worker.cancelled_steps) == (0, 1)


async def test_a_changed_card_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    async with remote(tmp_path, ScriptedAgent([])) as server:
        config = (await accepted(server.url)).model_copy(update={"card": f"sha256:{'0' * 64}"})
        with pytest.raises(ConfigError, match=f"has changed its card: .* tasks and the token go to '{server.url}/,"):
            await RemoteTaskAgent.connect(config, name="helper")


async def test_private_text_tools_and_schemas_do_not_leave(tmp_path: Path) -> None:
    worker = ScriptedAgent([])
    async with remote(tmp_path, worker) as server, connected(server) as agent:
        with pytest.raises(PrivacyViolation):
            await complete(agent, asking("Secret.", sensitivity=Sensitivity.PRIVATE))
        for lacking in ({"tools": [pay.spec]}, {"output_schema": {"type": "object"}}):
            with pytest.raises(Unsupported):
                await complete(agent, asking("How is it?", **lacking))
    assert not worker.requests


async def test_an_agent_that_asks_back_or_fails_is_an_error(tmp_path: Path) -> None:
    worker = ScriptedAgent([ToolCall(id="c1", name="pay", arguments={"amount": 5})])
    async with remote(tmp_path, worker) as server, connected(server) as agent:
        with pytest.raises(RequestRefused, match="asks for more"):
            await complete(agent, asking("Pay it."))
        with pytest.raises(RequestRefused, match="FAILED"):
            await complete(agent, asking("Again."))


async def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    async with remote(tmp_path, ScriptedAgent([])) as server:
        config = await accepted(server.url)
    with pytest.raises(Unavailable):
        await RemoteTaskAgent.connect(config, name="helper")


@pytest.mark.parametrize("url", ["https://localhost:1/", "https://127.0.0.1:1/", "https://10.0.0.1/", "https://169.254.169.254/latest"])
async def test_a_card_leads_to_no_private_address(url: str) -> None:
    import httpx

    async with httpx.AsyncClient(transport=A2aTransport("https://agents.example")) as client:
        with pytest.raises(ConfigError, match="no public address"):
            await client.get(url)
        with pytest.raises(ConfigError, match="without TLS"):
            await client.get("http://agents.example/")


async def test_a_card_that_cannot_be_read_or_leads_nowhere_is_a_typed_error() -> None:
    interface = {"url": "http://[::1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = json.dumps({"name": "eve", "description": "helps", "version": "1", "supportedInterfaces": [interface]})
    given = [card, card, "[" * 100_000]

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, given.pop(0))

    async with http_server(answer) as server:
        config = await accepted(server.base_url)
        agent = await RemoteTaskAgent.connect(config, name="helper")
        with pytest.raises(InvalidOutput, match="Invalid port"):
            await complete(agent, asking("Hello."))
        await agent.aclose()
        with pytest.raises(InvalidOutput, match="cannot be read"):
            await RemoteTaskAgent.connect(config, name="helper")


async def test_a_hybrid_asks_a_remote_agent_and_takes_its_words_for_a_strangers(tmp_path: Path) -> None:
    async with remote(tmp_path, ScriptedAgent(["From afar."])) as server:
        config = await accepted(server.url)
        async with Hybrid(near=ScriptedAgent([]), agents={"helper": config}, policy={"sensitivity": "public"}) as hybrid:
            result = await hybrid.run("How is it?", agent="helper")
    assert (result.text, result.side, result.dollars) == ("From afar.", Side.FAR, None)
    assert (result.label.integrity, result.label.origins) == (Integrity.UNTRUSTED, ("agent helper",))


STREAMS = ("text_streams_and_ends_with_one_finished", "concurrent_steps_interleave")
"""Checks that need pieces of an answer: this agent gives it whole, since an artifact may be replaced to its end."""


@pytest.mark.parametrize("check", [check for check in CHECKS if check.__name__ not in STREAMS], ids=lambda check: check.__name__)
async def test_a_remote_agent_keeps_the_contract_of_agents(check: Check, tmp_path: Path) -> None:
    worker = ScriptedAgent(lambda request: "One two three. " * 20, pace=0.001)
    async with remote(tmp_path, worker) as server:
        config = await accepted(server.url)

        async def create() -> RemoteTaskAgent:
            return await RemoteTaskAgent.connect(config, name="helper")

        await run_check(check, Subject(create=create, prompt="How is it?", long_prompt="Tell me all."))
