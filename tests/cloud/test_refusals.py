"""A provider's refusal is its agent's failure: another agent serves the task, and the refusal is told."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from http_server import Exchange, Server, http_server
from streams import agent_at

from nearfar import Hybrid, Policy
from nearfar.cloud.provider import ProviderAgent
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.protocols import (
    AgentError,
    Message,
    NearfarError,
    NoSuchModel,
    RequestRefused,
    ScriptedAgent,
    Side,
)
from nearfar.protocols.fakes import Reply
from nearfar.protocols.server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

RETIRED = (404, "The model `model-1` has been deprecated", "model_not_found")
REFUSED = (400, "Unsupported parameter: 'temperature'", "unsupported_parameter")
BROKE = (429, "You exceeded your current quota", "insufficient_quota")
WRONG_KEY = (401, "Incorrect API key provided", "invalid_api_key")
REFUSALS = [(RETIRED, "NoSuchModel"), (REFUSED, "RequestRefused"), (BROKE, "QuotaExceeded"), (WRONG_KEY, "ProviderAuthError")]
LOGGER = "nearfar.orchestrator.strategies.attempts"


@asynccontextmanager
async def refused(refusal: tuple[int, str, str]) -> AsyncIterator[tuple[Server, ProviderAgent]]:
    """An agent, with three calls per step, whose provider refuses every request; and what the provider has seen."""
    status, message, code = refusal

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, json.dumps({"error": {"message": message, "code": code, "type": "invalid_request_error"}}))

    async with http_server(answer) as server, aclosing(agent_at(server.base_url, calls=3)) as agent:
        yield server, agent


def policy(**fields: object) -> Policy:
    return Policy.model_validate({"sensitivity": "public", **fields})


def near(reply: Reply = "from here") -> ScriptedAgent:
    return ScriptedAgent(lambda _: reply, name="near")


@pytest.mark.parametrize(("refusal", "name"), REFUSALS)
async def test_a_task_that_the_provider_refuses_is_served_by_the_next_agent_and_says_so(
    refusal: tuple[int, str, str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with refused(refusal) as (server, far), Hybrid(near=near(), far=far, policy=policy()) as hybrid:
        result = await hybrid.run("hello", strategy="cloud")
    assert result.text == "from here"
    assert len(server.exchanges) == 1  # none of these is asked again
    assert result.attempts[0].reason.startswith(f"{name}: ")
    assert any(name in reason and refusal[1] in reason for reason in result.reasons)
    assert [record.levelname for record in caplog.records if record.name == LOGGER] == ["WARNING"]


@pytest.mark.parametrize(("refusal", "name"), REFUSALS)
async def test_the_draft_that_a_cascade_doubted_stands_where_the_provider_refuses(refusal: tuple[int, str, str], name: str) -> None:
    unsure = ScriptedAgent(["a draft"], name="near", confidence=0.1)
    async with refused(refusal) as (server, far), Hybrid(near=unsure, far=far, policy=policy(strategy="cascade")) as hybrid:
        result = await hybrid.run("hello")
    assert result.text == "a draft"
    assert [(attempt.outcome, attempt.error) for attempt in result.attempts] == [("accepted", None), ("failed", name)]
    assert len(server.exchanges) == 1


@pytest.mark.parametrize(("refusal", "name"), REFUSALS)
async def test_a_refusal_keeps_its_class_over_the_wire(refusal: tuple[int, str, str], name: str) -> None:
    async with refused(refusal) as (server, far), serve(far) as gateway:
        remote = GatewayConfig(provider="gateway", address=gateway.address)
        async with Hybrid(near=near(), far=remote, policy=policy(strategy="cloud")) as hybrid:
            result = await hybrid.run("hello")
            with pytest.raises(AgentError) as caught:
                await hybrid.run("hello", mode="only_in_cloud")
    assert result.attempts[0].error == name
    assert type(caught.value).__name__ == name


@pytest.mark.parametrize("strategy", ["pevr", "eva", "subtasks", "route", "cascade"])
@pytest.mark.parametrize("refusal", [RETIRED, REFUSED])
async def test_every_strategy_goes_on_without_the_agent_that_is_refused(refusal: tuple[int, str, str], strategy: str) -> None:
    async with refused(refusal) as (server, far):
        given = policy(strategy=strategy, mode="prefer_in_cloud" if strategy == "route" else "auto")
        async with Hybrid(near=near(), far=far, policy=given) as hybrid:
            result = await hybrid.run("hello")
    assert result.text == "from here"
    assert result.served_on_device


async def test_minions_go_on_with_the_near_side_alone() -> None:
    said = [
        json.dumps({"jobs": [{"instruction": "When?", "advice": ""}]}),
        json.dumps({"explanation": "It says so.", "citation": "in 1871", "answer": "1871"}),
        json.dumps({"answer": "1871", "scratchpad": "", "jobs": []}),
    ]
    reader = ScriptedAgent(said, name="near")
    async with refused(REFUSED) as (_, far), Hybrid(near=reader, far=far, policy=policy(strategy="minions")) as hybrid:
        result = await hybrid.run("When was the tower built?", context="The tower was built in 1871.")
    assert result.text == "1871"
    for role in ("jobs", "aggregate"):
        assert any(f"in the role {role!r}: RequestRefused" in reason for reason in result.reasons)


async def test_a_hedge_that_is_refused_leaves_the_first_agent_its_answer() -> None:
    gate = anyio.Event()
    slow = ScriptedAgent([*["quick"] * 20, [gate, "from here"]], name="near")
    hedge = {"enabled": True, "observations": 5, "least_seconds": 0.01}

    async def let_go(server: Server) -> None:
        with anyio.fail_after(20):
            while not server.exchanges:
                await anyio.lowlevel.checkpoint()
        gate.set()

    given = policy(strategy="device", mode="prefer_on_device", hedge=hedge)
    async with refused(RETIRED) as (server, far), Hybrid(near=slow, far=far, policy=given) as hybrid:
        for _ in range(20):
            await hybrid.run("hello")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go, server)
            result = await hybrid.run("hello", strategy="route")
    assert result.text == "from here"
    assert "NoSuchModel" in [call.error for call in result.calls]


async def test_a_refused_request_opens_no_breaker_and_a_missing_model_does() -> None:
    replies: list[NearfarError] = [RequestRefused("no temperature")] * 4 + [NoSuchModel("retired")] * 4
    far = ScriptedAgent([*replies], name="far", side=Side.FAR)
    async with Hybrid(near=near(), far=far, policy=policy(strategy="cloud")) as hybrid:
        results = [await hybrid.run("hello") for _ in range(8)]
    assert [result.text for result in results] == ["from here"] * 8
    assert len(far.requests) == 7
    assert "NoSuchModel" in " ".join(results[-1].reasons)


async def test_where_no_other_agent_may_serve_the_provider_s_words_are_raised() -> None:
    async with refused(REFUSED) as (server, far), Hybrid(far=far, policy=policy()) as hybrid:
        with pytest.raises(RequestRefused, match="Unsupported parameter"):
            await hybrid.run("hello")


async def test_what_this_side_finds_wrong_stays_the_users_and_is_never_sent() -> None:
    async with refused(REFUSED) as (server, far), Hybrid(near=near(), far=far, policy=policy()) as hybrid:
        with pytest.raises(NearfarError) as caught:
            await hybrid.run([Message.user(" ")], strategy="cloud")
    assert not isinstance(caught.value, AgentError)
    assert not server.exchanges
