"""One retry layer: however many layers a task goes through, its provider is asked as often as its client says, and not before its time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from http_server import Exchange, Server, http_server

from nearfar import Hybrid, Policy
from nearfar.cloud.failures import RetryPolicy
from nearfar.cloud.gateway import serve_gateway
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.protocols import Message, RateLimited, ScriptedAgent, Sensitivity, StepRequest, complete
from nearfar.protocols.client import RemoteAgent

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def behind_a_gateway(status: int, **headers: str) -> AsyncIterator[tuple[Hybrid, Server]]:
    """A near agent, and a far one whose provider answers with a status; all that stands between them is real."""

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, "{}", **headers)

    policy = Policy.model_validate({"strategy": "cloud", "sensitivity": "public"})
    async with http_server(answer) as provider:
        retry = RetryPolicy(calls=3, first_delay=0.0)
        agent = ProviderAgent(OpenAIDialect(), "m", name="far", base_url=provider.base_url, retry=retry)
        async with serve_gateway({"far": agent}) as gateway:
            far = GatewayConfig(provider="gateway", address=gateway.address)
            async with Hybrid(near=ScriptedAgent(lambda _: "near", name="near"), far=far, policy=policy) as hybrid:
                yield hybrid, provider
        await agent.aclose()


async def test_a_provider_that_fails_is_asked_three_times_a_task_and_no_more() -> None:
    async with behind_a_gateway(503) as (hybrid, provider):
        for tasks in (1, 2, 3):
            assert (await hybrid.run("hello")).text == "near"
            assert len(provider.exchanges) == 3 * tasks
        assert (await hybrid.run("hello")).text == "near"
        assert len(provider.exchanges) == 9


async def test_a_provider_that_says_when_to_come_back_is_asked_once() -> None:
    async with behind_a_gateway(429, retry_after="60") as (hybrid, provider):
        for _ in range(3):
            await hybrid.run("hello")
        result = await hybrid.run("hello")
        assert len(provider.exchanges) == 1
        objection = hybrid.pool["far"].health.objection()
    assert objection is not None
    assert objection.retry_after == pytest.approx(60, abs=5)
    assert any("far left out: circuit breaker open" in reason and "RateLimited" in reason for reason in result.reasons)


async def test_what_a_provider_told_one_caller_of_a_gateway_holds_for_the_others() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(429, "{}", retry_after="60")

    request = StepRequest(messages=(Message.user("hello"),), sensitivity=Sensitivity.PUBLIC)
    tokens = {"laptop": "a" * 32, "phone": "b" * 32}
    async with http_server(answer) as provider:
        agent = ProviderAgent(OpenAIDialect(), "m", name="far", base_url=provider.base_url)
        async with serve_gateway({"far": agent}, tokens=tokens) as gateway:
            for token in tokens.values():
                remote = await RemoteAgent.connect(gateway.address, token=token)
                with pytest.raises(RateLimited) as caught:
                    await complete(remote, request)
                assert caught.value.retry_after == pytest.approx(60, abs=5)
                await remote.aclose()
        await agent.aclose()
    assert len(provider.exchanges) == 1
