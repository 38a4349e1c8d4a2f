"""A busy server without pages, and with 20 of them."""

import asyncio
import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.console_figures.viewers import Seen
from nearfar import Hybrid, Records, ScriptedAgent
from nearfar.orchestrator.compose.config import Config
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.orchestrator.console import console_around
from nearfar.orchestrator.serve import serve_hybrid
from nearfar.orchestrator.task.stores import RunsConfig

RUNS: Final = 50
"""Tasks at once."""
PAGES: Final = 20
_PIECES: Final = 10
_PACE: Final = 0.2
"""Seconds before each piece of an answer: a task takes about two."""
_MOST_GROWTH: Final = 10_000
_VIEWERS: Final = ("-m", "benchmarks.console_figures.viewers")
_COOKIE: Final = re.compile(r"nearfar_console=([^;]+)")


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the measurement."""

    cpu: float
    """Seconds of processor time for each second."""
    megabytes: float
    events: int
    """Runs that began."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Every figure. `data` is not needed."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_figures(Path(folder), rounds=2 if quick else 6, seconds=6.0 if quick else 20.0))


async def _figures(folder: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        hybrid = await stack.enter_async_context(_hybrid(folder))
        served = await stack.enter_async_context(_served(hybrid, folder))
        load = _Load(hybrid)
        stack.push_async_callback(load.stop)
        await load.warm_up(seconds)
        alone, watched, seen = [], [], []
        for _ in range(rounds):
            alone.append(await load.measure(seconds))
            async with served.pages(PAGES) as viewers:
                watched.append(await load.measure(seconds))
            seen.append(await viewers.result())
        await load.stop()
        grown = await _grown(hybrid, served, _MOST_GROWTH if rounds > 2 else _MOST_GROWTH // 10)
    delays = sorted(delay for each in seen for delay in each.delays)
    cpu = [statistics.median(phase.cpu for phase in phases) for phases in (alone, watched)]
    memory = [max(phase.megabytes for phase in phases) for phases in (alone, watched)]
    return {
        "event_ms_p95": round(1000 * delays[int(0.95 * len(delays))], 1),
        "event_ms_p50": round(1000 * statistics.median(delays), 1),
        "pages_cpu_share": round(cpu[1] / cpu[0] - 1, 3),
        "page_mb": round(max(0.0, memory[1] - memory[0]) / PAGES, 2),
        "page_kb_grown": round(grown / 1024, 2),
        "events_seen": len(delays),
        "runs_per_s": round(statistics.median(phase.events / seconds for phase in watched), 1),
    }


@asynccontextmanager
async def _hybrid(folder: Path) -> AsyncIterator[Hybrid]:
    agent = ScriptedAgent(lambda _: ["word "] * _PIECES, name="near", confidence=0.9, pace=_PACE)
    async with Hybrid(near=agent, records=Records(folder / "runs")) as hybrid:
        yield hybrid


class _Served:
    """A console that is served."""

    def __init__(self, address: str, cookie: str) -> None:
        self.address = address
        self.cookie = cookie

    @asynccontextmanager
    async def pages(self, count: int) -> AsyncIterator["_Viewers"]:
        """Have another process keep so many pages of runs open within the block."""
        pipe = asyncio.subprocess.PIPE
        arguments = (self.address.removeprefix("http://"), self.cookie, str(count))
        process = await asyncio.create_subprocess_exec(sys.executable, *_VIEWERS, *arguments, stdin=pipe, stdout=pipe, limit=2**24)
        assert process.stdout is not None
        await process.stdout.readline()  # all of them are open
        viewers = _Viewers(process)
        try:
            yield viewers
        finally:
            await viewers.end()


class _Viewers:
    """The process that has pages open."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said = b""

    async def end(self) -> None:
        self._said, _ = await self._process.communicate(b"\n")

    async def result(self) -> Seen:
        return Seen(**json.loads(self._said))


@asynccontextmanager
async def _served(hybrid: Hybrid, folder: Path) -> AsyncIterator[_Served]:
    serve = ServeConfig(address="127.0.0.1:0")
    config = Config(runs=RunsConfig(folder=folder / "runs"))
    async with (
        console_around(hybrid, config, serve) as (logins, front),
        serve_hybrid(hybrid, serve, tokens={"app": "t" * 32}, front=front) as server,
    ):
        host = server.address.removeprefix("http://")
        yield _Served(server.address, logins.enter(logins.link(), host))


class _Load:
    """Tasks without end, as many at once as there are runners."""

    def __init__(self, hybrid: Hybrid) -> None:
        self._hybrid = hybrid
        self._began = 0
        self._runners = [asyncio.create_task(self._run(number)) for number in range(RUNS)]

    async def _run(self, number: int) -> None:
        await asyncio.sleep(number * _PIECES * _PACE / RUNS)
        while True:
            self._began += 1
            await self._hybrid.run(f"at {time.monotonic():.6f} of {number}")

    async def warm_up(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def measure(self, seconds: float) -> Phase:
        used, began = _processor_time(), self._began
        started = time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - started
        return Phase((_processor_time() - used) / passed, psutil.Process().memory_info().rss / 1e6, self._began - began)

    async def stop(self) -> None:
        for runner in self._runners:
            runner.cancel()
        await asyncio.wait(self._runners)


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _grown(hybrid: Hybrid, served: _Served, events: int) -> float:
    """Return the bytes that the list on an open page has grown by after so many further events."""
    agent_free = ScriptedAgent(lambda _: "word", name="near", confidence=0.9)
    hybrid.pool["near"]._keep(agent_free)
    async with served.pages(1) as viewers:
        await asyncio.sleep(1.0)
        for _ in range(events // 10 // 50):  # a run of this kind has about ten
            await asyncio.gather(*(hybrid.run(f"at {time.monotonic():.6f} of all") for _ in range(50)))
        await asyncio.sleep(1.0)
    seen = await viewers.result()
    return seen.last_bytes - seen.first_bytes
