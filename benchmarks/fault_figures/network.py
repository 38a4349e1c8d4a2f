"""The network at fault: gateways that are down, hang or break off, and what tasks notice of it. Everything has its default settings."""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from nearfar import Hybrid, Policy
from nearfar.orchestrator.compose import GatewayConfig, NearConfig, open_local
from nearfar.orchestrator.task.events import AgentText
from nearfar.protocols import Agent, Message, ScriptedAgent, Sensitivity, Side, StepRequest, TextDelta, stream
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.testing import ChaosProxy, chaos_proxy

from .gateways import Gateway, gateway
from .upstream import Upstream, upstream, words

_LANES = 4
"""Connections that are reset side by side."""
_WORDS = 40
_LONG = "long 2000 0.02"
"""A task whose answer takes far longer than noticing that nothing comes any more."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`half_open_s`, `cloud_down_added_ms` and `midstream_exact`, and what they are made of. `data` is not needed."""
    return asyncio.run(_figures(resets=16 if quick else 100, tasks=5 if quick else 40, rounds=1 if quick else 5))


async def _figures(*, resets: int, tasks: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with upstream() as provider:
            half_open = asyncio.create_task(_half_open_rounds(provider, Path(folder), rounds))
            async with gateway(provider.base_url, _new(Path(folder), "steady")) as steady:
                exact = await _midstream(provider, steady, resets)
            added = await _cloud_down(tasks)
            seconds = await half_open
    return {
        "half_open_s": max(seconds.values()),
        "half_open_s_by_case": seconds,
        "cloud_down_added_ms": max(added.values()),
        "cloud_down_added_ms_by_case": added,
        **exact,
    }


async def _half_open_rounds(provider: Upstream, folder: Path, rounds: int) -> dict[str, float]:
    """The longest of several rounds for each case: how soon silence is noticed depends on when the last ping was."""
    slowest: dict[str, float] = {}
    for number in range(rounds):
        found = await _half_open(provider, _new(folder, f"half-open-{number}"))
        slowest = {case: max(seconds, slowest.get(case, 0.0)) for case, seconds in found.items()}
    return slowest


async def _half_open(provider: Upstream, folder: Path) -> dict[str, float]:
    """Seconds from the fault to the device's answer. The fault comes before the first connection, between tasks, or in mid-answer."""
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(gateway(provider.base_url, folder))
        cases: dict[str, Awaitable[float]] = {}
        proxies = [await stack.enter_async_context(chaos_proxy(live.address)) for _ in range(3)]
        stopped = [await stack.enter_async_context(chaos_proxy(live.address)) for _ in range(3)]
        is_stopped = asyncio.Event()
        for proxy, moment in zip(proxies, ("cold", "idle", "midstream"), strict=True):
            cases[f"black_hole_{moment}"] = _left_for_the_device(proxy, moment, _black_hole(proxy))
        for proxy, moment in zip(stopped, ("cold", "idle", "midstream"), strict=True):
            cases[f"sigstop_{moment}"] = _left_for_the_device(proxy, moment, is_stopped.wait)
        running = asyncio.gather(*cases.values())
        await asyncio.sleep(1 + random.uniform(0, 1.5))  # all are at work, and at any point between two pings
        live.stop()
        is_stopped.set()
        return dict(zip(cases, await running, strict=True))


def _black_hole(proxy: ChaosProxy) -> Callable[[], Awaitable[object]]:
    async def fault() -> None:
        await asyncio.sleep(0.5 + random.uniform(0, 1.5))
        proxy.black_hole()

    return fault


async def _left_for_the_device(proxy: ChaosProxy, moment: str, fault: Callable[[], Awaitable[object]]) -> float:
    async with _pair(proxy.address) as hybrid:
        if moment != "cold":
            await hybrid.pool["far"].open()
        if moment == "midstream":
            serving = asyncio.create_task(hybrid.run(_LONG))
            await fault()
            started = time.monotonic()
        else:
            await fault()
            started = time.monotonic()
            serving = asyncio.create_task(hybrid.run(_LONG))
        result = await serving
        assert result.served_on_device, result.reasons
        return time.monotonic() - started


@asynccontextmanager
async def _pair(address: str, near: Agent | None = None) -> AsyncIterator[Hybrid]:
    """The far side first, behind a gateway; the near one steps in."""
    far = GatewayConfig(provider="gateway", address=address, token_variable="NEARFAR_NO_TOKEN")
    near = near or ScriptedAgent(lambda _: "from the device", name="near")
    policy = Policy.model_validate({"strategy": "cloud", "sensitivity": "public", "maximum_output_tokens": 8})
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        yield hybrid


async def _cloud_down(tasks: int) -> dict[str, float]:
    """Milliseconds that a cloud which is down adds to the device's first token: the median of pairs, taken turn by turn."""
    near = await open_local(NearConfig(), name="near", side=Side.NEAR)
    try:
        async with chaos_proxy("127.0.0.1:9") as down, chaos_proxy("127.0.0.1:9") as hole:
            await down.refuse()
            hole.black_hole()
            async with Hybrid(near=near) as alone, _pair(hole.address, near) as known:
                await known.run("hello")  # now the breaker knows
                return await _added(near, alone, known, refused=down.address, tasks=tasks)
    finally:
        await near.aclose()


async def _added(near: Agent, alone: Hybrid, known: Hybrid, *, refused: str, tasks: int) -> dict[str, float]:
    await _first_token(alone)  # it warms up
    differences: dict[str, list[float]] = {"refused": [], "black_hole_known": []}
    for _ in range(tasks):
        base = await _first_token(alone)
        async with _pair(refused, near) as fresh:  # a new one each time, whose breaker knows nothing
            differences["refused"].append(await _first_token(fresh) - base)
        differences["black_hole_known"].append(await _first_token(known) - await _first_token(alone))
    return {case: 1000 * statistics.median(found) for case, found in differences.items()}


async def _first_token(hybrid: Hybrid) -> float:
    started = time.monotonic()
    seconds = 0.0
    async for event in hybrid.stream("What is the capital of Peru?"):
        if isinstance(event, AgentText) and not seconds:
            seconds = time.monotonic() - started
    return seconds


async def _midstream(provider: Upstream, live: Gateway, resets: int) -> dict[str, Any]:
    """Steps whose connections are reset at random bytes: whether each text came exactly once, and was asked of the provider once."""
    lanes = await asyncio.gather(*(_lane(provider, live, f"lane-{number}", resets // _LANES) for number in range(_LANES)))
    steps = sum(count for count, _, _ in lanes)
    wrong = [problem for _, _, problems in lanes for problem in problems]
    assert not wrong, wrong[:3]
    return {"midstream_exact": 1.0 - len(wrong) / steps, "midstream_resets": sum(done for _, done, _ in lanes), "midstream_steps": steps}


async def _lane(provider: Upstream, live: Gateway, name: str, resets: int) -> tuple[int, int, list[str]]:
    """Steps, resets, and what was wrong."""
    problems: list[str] = []
    step = 0
    async with chaos_proxy(live.address) as proxy:
        remote = await RemoteAgent.connect(proxy.address)
        try:
            while proxy.connections <= resets:
                step += 1
                proxy.reset_after(random.randint(1, 2000))
                problems += await _problems(provider, remote, f"{name}-{step} {_WORDS} 0.0005")
        finally:
            done = proxy.connections - 1
            await remote.aclose()
    return step, done, problems


async def _problems(provider: Upstream, remote: RemoteAgent, prompt: str) -> list[str]:
    request = StepRequest(messages=(Message.user(prompt),), sensitivity=Sensitivity.PUBLIC)
    pieces: list[str] = []
    async with stream(remote, request) as events:
        async for event in events:
            pieces += [event.text] if isinstance(event, TextDelta) else []
    problems = [] if pieces == words(_WORDS) else [f"{prompt}: {pieces}"]
    return problems + ([] if provider.calls[prompt] == 1 else [f"{prompt}: asked {provider.calls[prompt]} times"])


def _new(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made
