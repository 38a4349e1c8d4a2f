"""Real gateways for the benchmark: `nearfar serve gateway` in processes of their own, in front of a provider on loopback."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

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
    process: Process

    def stop(self) -> None:
        """Stop its process as a debugger or a swapping machine does; the kernel goes on accepting connections for it."""
        os.kill(self.process.pid, signal.SIGSTOP)


@asynccontextmanager
async def gateway(base_url: str, folder: Path) -> AsyncIterator[Gateway]:
    """A gateway to the provider at `base_url`, killed when the context ends."""
    config = folder / "nearfar.toml"
    config.write_text(_CONFIG.format(base_url=base_url), encoding="utf-8")
    command = ("-m", "nearfar", "serve", "gateway", "--config", str(config), "--address", "127.0.0.1:0", "--json")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL)
    try:
        assert process.stdout is not None, "a pipe, as asked for"
        announced = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        yield Gateway(str(announced["address"]), process)
    finally:
        if process.returncode is None:
            process.kill()  # also one that was stopped
        await process.wait()
