"""What counts of calls whose agent, or the way to it, was lost before it had said a word: nobody knows what they have cost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

import anyio
import pytest

from nearfar import Hybrid, Policy, Records, Result
from nearfar.orchestrator.budgets import Balance, BudgetBook, BudgetScope
from nearfar.orchestrator.budgets.storage import MemoryStorage
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.protocols import Agent, Message, Prices, ScriptedAgent, Sensitivity, Side, StepRequest, Unavailable, WorkerCrashed, complete
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import serve
from nearfar.protocols.testing import ChaosProxy, chaos_proxy

pytestmark = pytest.mark.anyio
PRICES = Prices.model_validate({"input": 10, "output": 10, "source": "a test", "as_of": "2026-11-18"})
MOST = 200


class Pair:
    """A far agent that is at work and says nothing, a near one that stands in, and what is spent."""

    def __init__(self) -> None:
        self.near = ScriptedAgent(lambda _: "near", name="near")
        self.far = ScriptedAgent(lambda _: [anyio.Event()], name="far", side=Side.FAR, prices=PRICES)
        self.book = BudgetBook(MemoryStorage())

    @asynccontextmanager
    async def hybrid(self, far: Agent | GatewayConfig) -> AsyncIterator[Hybrid]:
        limits = {"day": {"dollars": 1}}
        policy = Policy.model_validate({"strategy": "cloud", "sensitivity": "public", "maximum_output_tokens": MOST, "limits": limits})
        async with Hybrid(near=self.near, far=far, policy=policy, records=Records(budgets=self.book)) as hybrid:
            yield hybrid

    async def run(self, far: Agent | GatewayConfig) -> Result:
        async with self.hybrid(far) as hybrid:
            return await hybrid.run("hello")

    async def is_asked(self) -> None:
        while not self.far.requests:
            await anyio.lowlevel.checkpoint()

    @property
    def spent(self) -> Balance:
        return self.book.balance(BudgetScope("day"))


async def test_a_connection_that_is_lost_before_the_first_word_leaves_a_cost_that_nobody_knows() -> None:
    pair = Pair()

    async def cut(proxy: ChaosProxy) -> None:
        await pair.is_asked()
        await proxy.refuse()
        proxy.reset()

    with anyio.fail_after(20):
        async with serve(pair.far) as server, chaos_proxy(server.address) as proxy, anyio.create_task_group() as tasks:
            tasks.start_soon(cut, proxy)
            result = await pair.run(GatewayConfig(provider="gateway", address=proxy.address))
    _expect_the_most(pair, result, "StepLost")


async def test_a_gateway_that_stops_before_the_first_word_leaves_a_cost_that_nobody_knows() -> None:
    pair = Pair()
    results: list[Result] = []

    async def run(hybrid: Hybrid) -> None:
        results.append(await hybrid.run("hello"))

    with anyio.fail_after(20):
        serving = serve(pair.far)
        server = await serving.__aenter__()
        async with pair.hybrid(GatewayConfig(provider="gateway", address=server.address)) as hybrid, anyio.create_task_group() as tasks:
            tasks.start_soon(run, hybrid)
            await pair.is_asked()
            await serving.__aexit__(None, None, None)
    _expect_the_most(pair, results[0], "StepLost")


async def test_a_worker_that_dies_before_the_first_word_leaves_a_cost_that_nobody_knows() -> None:
    pair = Pair()
    far = ScriptedAgent([WorkerCrashed("the process died")], name="far", side=Side.FAR, prices=PRICES)
    _expect_the_most(pair, await pair.run(far), "WorkerCrashed")


async def test_a_gateway_that_cannot_be_reached_costs_nothing() -> None:
    pair = Pair()
    with anyio.fail_after(20):
        async with serve(pair.far) as server, chaos_proxy(server.address) as proxy:
            far = await RemoteAgent.connect(proxy.address)
            await proxy.refuse()
            proxy.reset()
            with pytest.raises(Unavailable):
                await complete(far, StepRequest(messages=(Message.user("hello"),), sensitivity=Sensitivity.PUBLIC))
            result = await pair.run(far)  # by now the connection is known to be gone
            await far.aclose()
    assert [(call.dollars, call.error) for call in result.calls if call.agent == "far"] == [(Decimal(0), "Unavailable")]
    assert pair.spent.spent.dollars == 0


def _expect_the_most(pair: Pair, result: Result, error: str) -> None:
    assert [(call.dollars, call.error) for call in result.calls if call.agent == "far"] == [(None, error)]
    assert pair.spent.spent.tokens > MOST
    assert pair.spent.spent.of("dollars") > MOST * 10 / 1e6
    assert not any(pair.spent.reserved)
