"""A gateway that accepts connections and says nothing any more, with the settings that everybody has."""

import signal
from pathlib import Path

import anyio
import pytest
from http_server import Exchange, http_server
from real_gateway import real_gateway, said

from nearfar import Hybrid, Policy, Result
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.protocols import ScriptedAgent
from nearfar.protocols.testing import chaos_proxy, eventually

pytestmark = pytest.mark.anyio
POLICY = Policy.model_validate({"strategy": "cloud", "sensitivity": "public"})


async def test_a_gateway_that_falls_silent_leaves_tasks_to_the_device(tmp_path: Path) -> None:
    """One task is in mid-answer behind a black hole, one at a stopped process, and one comes when the process has stopped."""
    results: dict[str, Result] = {}
    asked: list[str] = []

    async def answer(exchange: Exchange) -> None:
        asked.append(exchange.body["messages"][-1]["content"])
        await exchange.open_stream()
        await exchange.send(said("first "))
        await exchange.until_client_leaves()

    async def run(address: str, task: str) -> None:
        far = GatewayConfig(provider="gateway", address=address, token_variable="NEARFAR_NO_TOKEN")
        async with Hybrid(near=ScriptedAgent(["near"], name="near"), far=far, policy=POLICY) as hybrid:
            results[task] = await hybrid.run(task)

    with anyio.fail_after(60):
        async with (
            http_server(answer) as provider,
            real_gateway(provider.base_url, tmp_path) as (address, process),
            chaos_proxy(address) as proxy,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(run, proxy.address, "swallowed")
            tasks.start_soon(run, address, "stopped")
            await eventually(lambda: len(asked) == 2)
            proxy.black_hole()
            process.send_signal(signal.SIGSTOP)
            tasks.start_soon(run, address, "late")
    assert {task: result.text for task, result in results.items()} == dict.fromkeys(("swallowed", "stopped", "late"), "near")
    assert all(result.attempts[0].error in ("Unavailable", "StepLost") for result in results.values())
    assert sorted(asked) == ["stopped", "swallowed"]
