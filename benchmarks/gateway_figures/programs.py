"""The programs that are measured: `nearfar serve gateway`, and what a process takes of the machine."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_CONFIG = """
[far]
provider = "openai"
model = "m"
base_url = "{base_url}"
"""


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs."""

    address: str
    process: psutil.Process


@asynccontextmanager
async def gateway(base_url: str, folder: Path, tokens: Mapping[str, str]) -> AsyncIterator[Gateway]:
    """A gateway to the provider at `base_url`, for these callers; it is stopped when the context ends."""
    config = folder / "nearfar.toml"
    config.write_text(_CONFIG.format(base_url=base_url), encoding="utf-8")
    command = ("-m", "nearfar", "serve", "gateway", "--config", str(config), "--address", "127.0.0.1:0", "--json")
    environment = os.environ | {"NEARFAR_GATEWAY_TOKENS": ",".join(f"{caller}={token}" for caller, token in tokens.items())}
    quiet, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment, stdout=pipe, stderr=quiet)
    try:
        assert process.stdout is not None, "a pipe, as asked for"
        announced = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        yield Gateway(str(announced["address"]), psutil.Process(process.pid))
    finally:
        process.terminate()
        await process.wait()


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process and of its children so far."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def megabytes(process: psutil.Process) -> float:
    """Memory of a process and of its children now."""
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 1e6


def listener(address: str) -> psutil.Process:
    """The child of this process that listens at `http://HOST:PORT`."""
    port = int(address.rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        if any(each.laddr and each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in child.net_connections("tcp")):
            return child
    raise LookupError(f"no child of this process listens at {address}")
