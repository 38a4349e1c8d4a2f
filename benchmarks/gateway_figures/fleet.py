"""A fleet of devices at one gateway, as it is by default: idle connections, a stream of each device, and many of one token."""

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nearfar.protocols import Message, NearfarError, Sensitivity, StepRequest, complete
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.limits import ask_for_open_files, open_file_limit

from .programs import gateway, megabytes
from .provider import provider

DEVICES: Final = 1024
IDLE: Final = 1000
"""Of the devices, those whose connections are weighed."""
OF_ONE_TOKEN: Final = 256
_WAIT: Final = 15
"""Seconds in which all streams have to be open."""
_BATCH: Final = 64


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`idle_1000_mb`, `fleet_...` and `token_...`. `data` is not needed, and a quick run measures no less."""
    ask_for_open_files()  # a connection of this process for each device
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_figures(Path(folder)))


async def _figures(folder: Path) -> dict[str, Any]:
    tokens = {f"device-{number}": secrets.token_urlsafe(32) for number in range(DEVICES)}
    one, *others = tokens.values()
    async with provider() as base_url, gateway(base_url, folder, tokens) as server:
        first = await _connected(server.address, [one])
        await _streams(first, 1)
        before = megabytes(server.process)
        devices = await _connected(server.address, others[:IDLE])
        idle = megabytes(server.process) - before
        devices += await _connected(server.address, others[IDLE:])
        fleet = await _streams([*first, *devices], 1)
        token = await _streams(first, OF_ONE_TOKEN)
        await asyncio.gather(*(agent.aclose() for agent in [*first, *devices]))
    return {
        "idle_1000_mb": round(idle, 1),
        **{f"fleet_{name}": value for name, value in fleet.items()},
        **{f"token_{name}": value for name, value in token.items()},
        "open_files": open_file_limit(),
    }


async def _connected(address: str, tokens: Sequence[str]) -> list[RemoteAgent]:
    """Agents that have each fetched a card over a connection of their own."""
    agents: list[RemoteAgent] = []
    for start in range(0, len(tokens), _BATCH):
        agents += await asyncio.gather(*(RemoteAgent.connect(address, token=token) for token in tokens[start : start + _BATCH]))
    return agents


async def _streams(agents: Sequence[RemoteAgent], each: int) -> dict[str, Any]:
    """How many streams were served of those that all agents begin at once, how many were open together, and what the others ended with."""
    count = each * len(agents)
    request = f"together {count} {_WAIT}"
    answers = await asyncio.gather(*(_answer(agent, request) for agent in agents for _ in range(each)))
    served = [answer for answer in answers if isinstance(answer, int)]
    return {
        "served": len(served),
        "at_once": max(served, default=0),
        "failed_with": sorted({answer for answer in answers if isinstance(answer, str)}),
    }


async def _answer(agent: RemoteAgent, prompt: str) -> int | str:
    """The number in the answer, or the class of the error."""
    try:
        reply = await complete(agent, StepRequest(messages=(Message.user(prompt),), sensitivity=Sensitivity.PUBLIC))
    except NearfarError as error:
        return type(error).__name__
    return int(reply.text)
