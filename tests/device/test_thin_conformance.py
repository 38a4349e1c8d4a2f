"""A phone keeps the contract through its hub: llama.cpp behind llama-server's interface, a thin worker, and the hub's agent.

Where llama-server itself is installed, it is tested too, else an imitation of its interface in front of the same engine.
"""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from llama_engine import require_llama

require_llama()
from near_model import NEAR, OPEN, QUESTION, long_prompt
from thin_phone import PhoneAgent, lent, llama_http

from nearfar import LlamaAgent
from nearfar.protocols import Agent
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, run_check

LLAMA_SERVER = shutil.which("llama-server")
CONTEXT = 512
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 120}},
    "required": ["age"],
    "additionalProperties": False,
}

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)]


class ImitatedPhone:
    """The near model behind the imitation; a fresh one for each agent."""

    def __init__(self) -> None:
        self.model: LlamaAgent | None = None

    async def create(self) -> Agent:
        self.model = await LlamaAgent.load(NEAR, parallel=2, context_tokens=CONTEXT)
        opened = AsyncExitStack()
        opened.push_async_callback(self.model.aclose)
        http = await opened.enter_async_context(llama_http(self.model))
        return PhoneAgent((await opened.enter_async_context(lent(http.url))).agent, opened)

    def live_steps(self, _: Agent) -> int:
        return 0 if self.model is None else self.model.live_steps


async def test_a_phone_keeps_the_contract(check: Check) -> None:
    phone = ImitatedPhone()
    await run_check(check, Subject(create=phone.create, live_steps=phone.live_steps, **await uses()))


@pytest.mark.skipif(LLAMA_SERVER is None, reason="llama-server is not installed")
async def test_a_phone_with_the_real_llama_server_keeps_the_contract(check: Check, llama_server: str) -> None:
    subject = Subject(create=partial(lend, llama_server), live_steps=lambda _: busy_slots(llama_server), **await uses())
    await run_check(check, subject)


async def uses() -> dict[str, Any]:
    """What the near model does on which prompt."""
    return {
        "prompt": QUESTION,
        "long_prompt": await long_prompt(),
        "tool_use": ToolUse(prompt=QUESTION, tools=(OPEN,), result="Vera Falk"),
        "schema_use": SchemaUse(prompt=QUESTION, schema=SCHEMA),
    }


async def lend(url: str) -> Agent:
    opened = AsyncExitStack()
    return PhoneAgent((await opened.enter_async_context(lent(url))).agent, opened)


def busy_slots(url: str) -> int:
    with urlopen(f"{url}/slots", timeout=10) as response:
        return sum(slot["is_processing"] for slot in json.load(response))


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real llama-server on the near model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--port", str(port), "--ctx-size", str(2 * CONTEXT), "--parallel", "2", "--threads", "1", "--alias", "near")
    log = tmp_path_factory.mktemp("llama-server") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(LLAMA_SERVER), "--model", str(NEAR), *options], stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for_health(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_for_health(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < give_up:
        try:
            urlopen(url, timeout=5).close()
        except (URLError, ConnectionError):
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"llama-server did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
