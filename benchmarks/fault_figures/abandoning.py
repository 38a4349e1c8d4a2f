"""What a call still costs whose client has left it: the words that its provider goes on to write, through real gateway processes."""

import asyncio
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final

from nearfar.protocols import Message, Sensitivity, StepRequest, TextDelta, Unavailable, stream
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.testing import chaos_proxy

from .gateways import gateway
from .upstream import Upstream, upstream

_CLIENT: Final = Path(__file__).with_name("abandoning_client.py")
_PIECES: Final = 3
"""That the client waits for before it leaves."""
_PAUSE: Final = 0.1
"""Seconds between two words, one of which is a chunk."""
_LONGEST: Final = 60.0


def abandoned(*, quick: bool) -> dict[str, Any]:
    """`abandoned_extra_tokens`: where the client leaves by itself, or dies with its own gateway; and what a lost connection costs."""
    return asyncio.run(_abandoned(quick=quick))


async def _abandoned(*, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with upstream() as provider, gateway(provider.base_url, Path(folder)) as shared:
            cases: dict[str, Callable[[str], Awaitable[int]]] = {
                "left": lambda prompt: _left(provider, shared.address, prompt),
                "killed": lambda prompt: _killed(provider, ("own", provider.base_url), prompt),
            }
            lost: dict[str, Callable[[str], Awaitable[int]]] = {
                "killed_elsewhere": lambda prompt: _killed(provider, ("gateway", shared.address), prompt),
                "cut": lambda prompt: _cut(provider, shared.address, prompt),
                "silent": lambda prompt: _cut(provider, shared.address, prompt, silently=True),
            }
            cases |= {} if quick else lost
            found = await asyncio.gather(*(_after(provider, name, case) for name, case in cases.items()))
    words = {name: extra for name, extra, _ in found}
    return {
        "abandoned_extra_tokens": max(words["left"], words["killed"]),
        "abandoned_extra_tokens_by_case": words,
        "abandoned_seconds_by_case": {name: round(seconds, 2) for name, _, seconds in found},
    }


async def _after(provider: Upstream, name: str, case: Callable[[str], Awaitable[int]]) -> tuple[str, int, float]:
    """Words that were written after the client had left, and for how long."""
    prompt = f"{name} 1000 {_PAUSE}"
    written, began = await case(prompt), time.monotonic()
    async with asyncio.timeout(_LONGEST):
        await provider.ended[prompt].wait()
    return name, provider.written[prompt] - written, time.monotonic() - began


async def _left(provider: Upstream, address: str, prompt: str) -> int:
    """The client closes the stream; returns the words written until then, as the other cases do."""
    async with aclosing(await RemoteAgent.connect(address)) as remote, stream(remote, _request(prompt)) as events:
        pieces = 0
        async for event in events:
            pieces += isinstance(event, TextDelta)
            if pieces == _PIECES:
                break
        return provider.written[prompt]


async def _killed(provider: Upstream, way: tuple[str, str], prompt: str) -> int:
    """The client's process is killed."""
    client = await asyncio.create_subprocess_exec(sys.executable, str(_CLIENT), *way, prompt, stdout=PIPE)
    assert client.stdout is not None, "a pipe, as asked for"
    async with asyncio.timeout(_LONGEST):
        for _ in range(_PIECES):
            await client.stdout.readline()
    client.kill()
    written = provider.written[prompt]
    await client.wait()
    return written


async def _cut(provider: Upstream, address: str, prompt: str, *, silently: bool = False) -> int:
    """The connection breaks, or nothing comes through it any more, and there is no other one to be had."""
    async with chaos_proxy(address) as proxy, aclosing(await RemoteAgent.connect(proxy.address)) as remote:
        pieces, written = 0, 0
        with suppress(Unavailable):  # the client gives up, as it should
            async with stream(remote, _request(prompt)) as events:
                async for event in events:
                    pieces += isinstance(event, TextDelta)
                    if pieces == _PIECES:
                        await proxy.refuse()
                        proxy.black_hole() if silently else proxy.reset()
                        written = provider.written[prompt]
        if silently:  # as long as the proxy is there, no end of the connection reaches the gateway
            await provider.ended[prompt].wait()
        return written


def _request(prompt: str) -> StepRequest:
    return StepRequest(messages=(Message.user(prompt),), sensitivity=Sensitivity.PUBLIC)
