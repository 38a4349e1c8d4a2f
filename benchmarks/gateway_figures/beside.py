"""A gateway and LiteLLM's proxy in front of the same provider: what each takes of a core for a stream, and adds to the first token."""

import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.protocols import Agent, Message, Sensitivity, StepRequest, TextDelta, stream
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.secrets import GivenKey
from scripts.judges import JudgeMissingError
from scripts.litellm_proxy import litellm_proxy

from .programs import cpu_seconds, gateway, listener, megabytes
from .provider import provider

STREAMS: Final = 16
"""At once, each over a connection of its own."""
TOKENS: Final = 100
"""Of one stream."""
PACE: Final = 0.02
"""Seconds between two tokens of a paced stream: a fast frontier model writes 50 tokens a second."""
_WARM_UP: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    rounds: int
    streams: int
    """Of each client in a round, one after the other."""
    firsts: int


QUICK: Final = Plan(rounds=2, streams=3, firsts=60)
FULL: Final = Plan(rounds=5, streams=10, firsts=400)


@dataclass(frozen=True)
class Measured:
    """A program between clients and the provider."""

    process: psutil.Process
    clients: Sequence[Agent]

    async def cpu_of_a_stream(self, pace: float, streams: int) -> float:
        """CPU seconds of the program for one of the streams that its clients read, each `streams` of them, all clients at once."""
        prompt = f"stream {TOKENS} {pace}"

        async def read(client: Agent) -> None:
            for _ in range(streams):
                await _read(client, prompt)

        before = cpu_seconds(self.process)
        await asyncio.gather(*map(read, self.clients))
        return (cpu_seconds(self.process) - before) / (len(self.clients) * streams)


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Every figure of both; those of LiteLLM are null where it is not installed. `data` is not needed."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_figures(Path(folder), QUICK if quick else FULL))


async def _figures(folder: Path, plan: Plan) -> dict[str, Any]:
    missing = ""
    async with AsyncExitStack() as stack:
        base_url = await stack.enter_async_context(provider())
        direct = _asking(base_url)
        stack.push_async_callback(direct.aclose)
        programs = {"gateway": await _gateway(base_url, folder, stack)}
        try:
            programs["litellm"] = await _litellm(base_url, folder, stack)
        except JudgeMissingError as error:
            missing = str(error)
        added = await _first_tokens(direct, programs, plan.firsts)
        full = await _streams_per_core(programs, plan, pace=0.0, streams=plan.streams)
        paced = await _streams_per_core(programs, plan, pace=PACE, streams=1)
        memory = {name: round(megabytes(program.process), 1) for name, program in programs.items()}
    return {
        "streams_over_litellm": _ratio(full),
        "paced_streams_over_litellm": _ratio(paced),
        "first_token_added_ms": added["gateway"],
        "litellm_first_token_added_ms": added.get("litellm"),
        **{f"{name}_streams_per_core_s": round(value, 1) for name, value in full.items()},
        # A stream lasts TOKENS * PACE seconds, in which the core serves others, too.
        **{f"{name}_paced_streams_per_core": round(value * TOKENS * PACE, 1) for name, value in paced.items()},
        **{f"{name}_mb": value for name, value in memory.items()},
        **({"litellm_missing": missing} if missing else {}),
    }


def _ratio(streams: dict[str, float]) -> float | None:
    return round(streams["gateway"] / streams["litellm"], 2) if "litellm" in streams else None


def _asking(base_url: str, key: str = "sk-of-the-provider") -> ProviderAgent:
    """Asks the provider, or what stands in front of it and speaks as it does."""
    return ProviderAgent(OpenAIDialect(), "m", key=GivenKey(key), base_url=base_url)


async def _gateway(base_url: str, folder: Path, stack: AsyncExitStack) -> Measured:
    tokens = {f"device-{number}": secrets.token_urlsafe(32) for number in range(STREAMS)}
    server = await stack.enter_async_context(gateway(base_url, folder, tokens))
    clients = [await RemoteAgent.connect(server.address, token=token) for token in tokens.values()]
    for client in clients:
        stack.push_async_callback(client.aclose)
    return Measured(server.process, clients)


async def _litellm(base_url: str, folder: Path, stack: AsyncExitStack) -> Measured:
    model = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": base_url, "api_key": "sk-of-the-provider"}}
    key = "sk-" + secrets.token_urlsafe(32)
    proxy = litellm_proxy({"model_list": [model], "general_settings": {"master_key": key}}, folder)
    address = await asyncio.to_thread(stack.enter_context, proxy)
    clients = [_asking(f"{address}/v1", key) for _ in range(STREAMS)]
    for client in clients:
        stack.push_async_callback(client.aclose)
    return Measured(listener(address), clients)


async def _first_tokens(direct: Agent, programs: dict[str, Measured], count: int) -> dict[str, float]:
    """Milliseconds that each program adds to the median time to the first token; the ways are taken by turns."""
    ways = {"direct": direct, **{name: program.clients[0] for name, program in programs.items()}}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + _WARM_UP):
        for name, agent in ways.items():
            taken = await _read(agent, "stream 1 0")
            if number >= _WARM_UP:  # connections and caches are warm
                seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {name: round((medians[name] - medians["direct"]) * 1000, 2) for name in programs}


async def _streams_per_core(programs: dict[str, Measured], plan: Plan, *, pace: float, streams: int) -> dict[str, float]:
    """How many streams each program serves in a second of CPU time: the median of the rounds, which the programs have by turns."""
    costs: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(plan.rounds):
        for name, program in programs.items():
            costs[name].append(await program.cpu_of_a_stream(pace, streams))
    return {name: 1 / statistics.median(values) for name, values in costs.items()}


async def _read(agent: Agent, prompt: str) -> float:
    """Read a whole stream; returns the seconds to its first token."""
    request = StepRequest(messages=(Message.user(prompt),), sensitivity=Sensitivity.PUBLIC)
    begin = time.perf_counter()
    first = None
    async with stream(agent, request) as events:
        async for event in events:
            if first is None and isinstance(event, TextDelta):
                first = time.perf_counter() - begin
    assert first is not None, "every answer holds text"
    return first
