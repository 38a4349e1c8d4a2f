"""Worker processes of the device's models that are stopped (SIGSTOP), and how soon another agent answers in their place."""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.llama import MODELS, endless
from nearfar import Hybrid, Policy
from nearfar.protocols import AgentError, ScriptedAgent, Side

_QUESTION = "What is the mayor of the city of Orbix Labs?"
_TIMEOUT = 3.0
_BEAT = 1.0
"""How soon silence is noticed depends on when the last heartbeat was."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`stopped_worker_s`: from SIGSTOP to the far side's answer, the slowest case; a case with a timeout ends with its error. No `data`."""
    return asyncio.run(_figures(rounds=1 if quick else 5))


async def _figures(*, rounds: int) -> dict[str, Any]:
    slowest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        model = endless(MODELS / "near.gguf", Path(name) / "endless.gguf")
        for _ in range(rounds):
            for case, measure in _CASES.items():
                slowest[case] = max(slowest.get(case, 0.0), await measure(model))
    return {"stopped_worker_s": round(max(slowest.values()), 2), "stopped_worker_s_by_case": {k: round(v, 2) for k, v in slowest.items()}}


@asynccontextmanager
async def _pair(model: Path) -> AsyncIterator[Hybrid]:
    """The device first, and a far side that answers at once."""
    far = ScriptedAgent(lambda _: "from afar", name="far", side=Side.FAR)
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "maximum_output_tokens": 1500})
    async with Hybrid(near=model, far=far, policy=policy) as hybrid:
        yield hybrid


async def _answered_from_afar(hybrid: Hybrid, stop: Callable[[], Awaitable[None]]) -> float:
    """Seconds from when the worker is stopped, in the middle of a task, until the task is done."""
    serving = asyncio.create_task(hybrid.run(_QUESTION))
    await stop()
    started = time.monotonic()
    result = await serving
    if [(attempt.agent, attempt.error) for attempt in result.attempts] != [("near", "Stalled"), ("far", None)]:
        raise RuntimeError(f"the worker was not stopped in time: {result.attempts}")
    return time.monotonic() - started


async def _in_mid_answer(model: Path) -> float:
    async with _pair(model) as hybrid:
        worker = await _loaded(hybrid)

        async def stop() -> None:
            await asyncio.sleep(0.1)
            worker.suspend()

        return await _answered_from_afar(hybrid, stop)


async def _while_idle(model: Path) -> float:
    async with _pair(model) as hybrid:
        worker = await _loaded(hybrid)
        await asyncio.sleep(random.uniform(0, _BEAT))
        worker.suspend()

        async def stop() -> None:
            """It is stopped already."""

        return await _answered_from_afar(hybrid, stop)


async def _while_loading(model: Path) -> float:
    async with _pair(model) as hybrid:
        before = _children()

        async def stop() -> None:
            while not (new := _children() - before):  # noqa: ASYNC110 - another process sets no event here
                await asyncio.sleep(0.001)
            new.pop().suspend()

        return await _answered_from_afar(hybrid, stop)


async def _with_a_timeout(model: Path) -> float:
    """Seconds until the task's error, of which its timeout is a part."""
    async with _pair(model) as hybrid:
        (await _loaded(hybrid)).suspend()
        started = time.monotonic()
        with suppress(AgentError):
            await hybrid.run(_QUESTION, timeout=_TIMEOUT)
        return time.monotonic() - started


async def _loaded(hybrid: Hybrid) -> psutil.Process:
    """The worker process of the near agent, once it has loaded its model."""
    before = _children()
    await hybrid.pool["near"].open()
    (worker,) = _children() - before
    return worker


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children())


_CASES = {"in_mid_answer": _in_mid_answer, "while_idle": _while_idle, "while_loading": _while_loading, "with_a_timeout": _with_a_timeout}
