"""`nearfar serve http` and LiteLLM's proxy in front of the same provider, asked by turns."""

import asyncio
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.gateway_figures.programs import listener, megabytes
from benchmarks.gateway_figures.provider import provider
from nearfar import Hybrid
from nearfar.orchestrator.compose.config import Config, load_config
from nearfar.orchestrator.compose.gateway_process import ask_providers_here
from scripts.judges import JudgeMissingError
from scripts.litellm_proxy import litellm_proxy

CONNECTIONS: Final = 64
PROMPT: Final = "stream 20 0"
"""Twenty tokens, without a pause."""
_WARM_UP: Final = 20
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CONFIG: Final = """
[far]
provider = "openai"
model = "m"
base_url = "{base_url}"

[policy]
sensitivity = "public"
"""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure."""

    rounds: int
    answers: int
    """Of each connection in a round."""
    singles: int
    """One at a time."""


QUICK: Final = Effort(rounds=2, answers=3, singles=60)
FULL: Final = Effort(rounds=5, answers=10, singles=400)


@dataclass(frozen=True, slots=True)
class Program:
    """A server of chat completions."""

    address: str
    path: str
    key: str
    model: str
    process: psutil.Process | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one answer."""

    first: float
    """To its first byte."""
    whole: float


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Every figure; those that need LiteLLM are null where it is not installed. `data` is not needed."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_figures(Path(folder), QUICK if quick else FULL))


async def _figures(folder: Path, effort: Effort) -> dict[str, Any]:
    missing = ""
    async with AsyncExitStack() as stack:
        base_url = await stack.enter_async_context(provider())
        config = folder / "nearfar.toml"
        config.write_text(_CONFIG.format(base_url=base_url), encoding="utf-8")
        hybrid = await stack.enter_async_context(_hybrid(load_config(config)))
        programs = {"nearfar": await stack.enter_async_context(_nearfar(config))}
        try:
            programs["litellm"] = await _litellm(base_url, folder, stack)
        except JudgeMissingError as error:
            missing = str(error)
        direct = Program(base_url.removesuffix("/v1"), "/v1/chat/completions", "sk-of-the-provider", "m")
        firsts, wholes = await _one_at_a_time({"direct": direct, **programs}, hybrid, effort.singles)
        per_second = await _at_once(programs, effort)
        memory = {name: round(megabytes(program.process), 1) for name, program in programs.items() if program.process is not None}
    added = {name: wholes[name] - wholes["direct"] for name in programs}
    return {
        "first_byte_added_ms_p50": round(firsts["nearfar"] - firsts["turn"], 2),
        "throughput_over_litellm": _ratio(per_second),
        "added_latency_over_litellm": _ratio(added),
        "rss_over_litellm": _ratio(memory),
        **{f"{name}_answers_per_s": round(value, 1) for name, value in per_second.items()},
        **{f"{name}_added_ms": round(value, 2) for name, value in added.items()},
        **{f"{name}_mb": value for name, value in memory.items()},
        "turn_first_word_ms": round(firsts["turn"], 2),
        **({"litellm_missing": missing} if missing else {}),
    }


def _hybrid(config: Config) -> Hybrid:
    """Return what the server serves."""
    hybrid = Hybrid.from_config(config)
    ask_providers_here(hybrid.pool, {"far": config.far})
    return hybrid


def _ratio(values: Mapping[str, float]) -> float | None:
    return round(values["nearfar"] / values["litellm"], 3) if "litellm" in values else None


@asynccontextmanager
async def _nearfar(config: Path) -> AsyncIterator[Program]:
    command = ("-m", "nearfar", "serve", "http", "--config", str(config), "--address", "127.0.0.1:0", "--json")
    quiet, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=quiet)
    try:
        assert process.stdout is not None, "a pipe, as asked for"
        told = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        yield Program(told["url"], "/v1/chat/completions", told["token"], "nearfar/auto", psutil.Process(process.pid))
    finally:
        process.terminate()
        await process.wait()


async def _litellm(base_url: str, folder: Path, stack: AsyncExitStack) -> Program:
    model = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": base_url, "api_key": "sk-of-the-provider"}}
    key = "sk-" + secrets.token_urlsafe(32)
    proxy = litellm_proxy({"model_list": [model], "general_settings": {"master_key": key}}, folder)
    address = await asyncio.to_thread(stack.enter_context, proxy)
    return Program(address, "/v1/chat/completions", key, "m", listener(address))


async def _one_at_a_time(programs: Mapping[str, Program], hybrid: Hybrid, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median milliseconds to the first byte, by program and for the `turn` itself, and to the end."""
    first: dict[str, list[float]] = {name: [] for name in (*programs, "turn")}
    whole: dict[str, list[float]] = {name: [] for name in programs}
    async with AsyncExitStack() as stack:
        connections = {name: await stack.enter_async_context(_Connection.to(program)) for name, program in programs.items()}
        for number in range(count + _WARM_UP):
            for name, connection in connections.items():
                taken = await connection.ask()
                if number >= _WARM_UP:
                    first[name].append(taken.first)
                    whole[name].append(taken.whole)
            turn = await _turn(hybrid)
            if number >= _WARM_UP:
                first["turn"].append(turn)
    return _medians(first), _medians(whole)


def _medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) * 1000 for name, each in times.items()}


async def _turn(hybrid: Hybrid) -> float:
    """Return the seconds to the first word of a turn."""
    began, first = time.perf_counter(), 0.0
    async for event in hybrid.stream_turn(PROMPT):
        if not first and event.type == "text":
            first = time.perf_counter() - began
    return first


async def _at_once(programs: Mapping[str, Program], effort: Effort) -> dict[str, float]:
    """Return the answers per second over all connections: the median of rounds that the programs have by turns."""
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(effort.rounds + 1):
        for name, program in programs.items():
            rate = await _rate(program, effort.answers)
            if number:  # the first round warms up
                rates[name].append(rate)
    return {name: statistics.median(each) for name, each in rates.items()}


async def _rate(program: Program, answers: int) -> float:
    """Return a program's answers per second in one round, over new connections: LiteLLM closes idle ones after 5 s."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(_Connection.to(program)) for _ in range(CONNECTIONS)]
        began = time.perf_counter()
        await asyncio.gather(*(connection.ask_often(answers) for connection in connections))
        return CONNECTIONS * answers / (time.perf_counter() - began)


class _Connection:
    """One connection of a client that does nothing but ask and read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, program: Program) -> None:
        self._reader, self._writer = reader, writer
        body = json.dumps({"model": program.model, "messages": [{"role": "user", "content": PROMPT}], "stream": True})
        headers = ["host: 127.0.0.1", f"authorization: Bearer {program.key}", "content-type: application/json"]
        lines = [f"POST {program.path} HTTP/1.1", *headers, f"content-length: {len(body)}", "", body]
        self._request = "\r\n".join(lines).encode()

    @classmethod
    @asynccontextmanager
    async def to(cls, program: Program) -> AsyncIterator["_Connection"]:
        """Connect to a program."""
        host, port = program.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield cls(reader, writer, program)
        finally:
            writer.close()

    async def ask(self) -> Taken:
        began = time.perf_counter()
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n", 1)[0], head
        data = await self._reader.read(65536)
        first = time.perf_counter() - began
        while not data.endswith(_LAST_CHUNK):
            data = data[-len(_LAST_CHUNK) :] + await self._reader.read(65536)
        return Taken(first, time.perf_counter() - began)

    async def ask_often(self, times: int) -> None:
        for _ in range(times):
            await self.ask()
