"""A gateway in a process of its own, in front of a provider that the test plays."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from http_server import sse


@asynccontextmanager
async def real_gateway(base_url: str, folder: Path) -> AsyncIterator[tuple[str, Process]]:
    """Its address and its process, which is killed when the context ends if it has not ended before."""
    config = folder / "nearfar.toml"
    config.write_text(f'[far]\nprovider = "openai"\nmodel = "m"\nbase_url = "{base_url}"\n', encoding="utf-8")
    command = ("-m", "nearfar", "serve", "gateway", "--config", str(config), "--address", "127.0.0.1:0", "--json")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout is not None, "a pipe, as asked for"
        yield json.loads(await process.stdout.readline())["address"], process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def said(text: str, *, finish: str | None = None) -> str:
    """A piece of an answer, as the provider streams it."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return sse({"id": "c", "model": "m", "choices": [choice]})
