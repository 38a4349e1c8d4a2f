"""The client in JavaScript that the page on far models shows, against a gateway over real sockets."""

import asyncio
import json
import os
import shutil
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from certificates import write_certificate
from node_environment import node_environment
from pages import ROOT

from nearfar.cloud.gateway import serve_gateway
from nearfar.protocols import IdempotencyConflict, RateLimited, ScriptedAgent, Side
from nearfar.protocols.fakes import Script
from nearfar.protocols.server import Server, ServerTls
from nearfar.protocols.testing import chaos_proxy, eventually

pytestmark = pytest.mark.anyio
TOKEN = "a-long-random-token"
PIECES = [f"piece {number}; " for number in range(20)]

ASK_AND_LEAVE = """
import { Client } from "./nearfar.mjs";
const client = new Client(process.env.NEARFAR_ADDRESS, { token: process.env.NEARFAR_TOKEN });
console.log((await client.describe())[0].name);
const request = { messages: [{ role: "ROLE_USER", text: "go" }], sensitivity: "SENSITIVITY_PUBLIC" };
for await (const event of client.step(request)) break;
client.close();
"""
ASK_TWICE = """
import { Client } from "./nearfar.mjs";
const client = new Client(process.env.NEARFAR_ADDRESS, { token: process.env.NEARFAR_TOKEN });
const ask = async (text) => {
  const request = { messages: [{ role: "ROLE_USER", text }], sensitivity: "SENSITIVITY_PUBLIC" };
  const events = [];
  for await (const event of client.step(request, { key: "the-same-key" })) events.push(event);
  return events;
};
try {
  for (const text of ["go", "go", "something else"]) console.log(JSON.stringify(await ask(text)));
} catch (error) {
  console.log(JSON.stringify(error.reason));
}
client.close();
"""
ASK_BRIEFLY = """
import { Client } from "./nearfar.mjs";
const client = new Client(process.env.NEARFAR_ADDRESS, { token: process.env.NEARFAR_TOKEN });
const request = { messages: [{ role: "ROLE_USER", text: "go" }], sensitivity: "SENSITIVITY_PUBLIC" };
try {
  for await (const event of client.step(request, { seconds: 0.5 }));
} catch (error) {
  console.log(error.code ?? error.reason);
}
client.close();
"""


@dataclass(frozen=True)
class Programs:
    """The page's programs in a folder, as its reader would have them."""

    node: Path
    folder: Path

    async def start(self, address: str, program: str, *arguments: str, **variables: str) -> Process:
        pipe = subprocess.PIPE
        environment = {"PATH": os.environ["PATH"], "NEARFAR_ADDRESS": address, "NEARFAR_TOKEN": TOKEN} | variables
        return await asyncio.create_subprocess_exec(
            self.node, program, *arguments, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )

    async def run(self, address: str, program: str, *arguments: str, **variables: str) -> tuple[int | None, str, str]:
        """The exit status, the output and the error output."""
        process = await self.start(address, program, *arguments, **variables)
        output, errors = await process.communicate()
        return process.returncode, output.decode(), errors.decode()

    async def run_written(self, address: str, code: str) -> str:
        """The output of a program that uses the page's client."""
        (self.folder / "written.mjs").write_text(code, encoding="utf-8")
        status, output, errors = await self.run(address, "written.mjs")
        assert status == 0, errors
        return output


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    venv = node_environment()
    for name in ("nearfar.mjs", "ask.mjs"):
        shutil.copy(ROOT / "docs" / "client" / name, tmp_path)
    (tmp_path / "proto").symlink_to(ROOT / "protocols" / "proto")
    (tmp_path / "node_modules").symlink_to(venv / "node_modules")
    return Programs(venv / "bin" / "node", tmp_path)


@asynccontextmanager
async def gateway(script: Script, *, tls: ServerTls | None = None) -> AsyncIterator[tuple[Server, ScriptedAgent]]:
    agent = ScriptedAgent(script, name="far", side=Side.FAR)
    with anyio.fail_after(60):
        async with serve_gateway({"far": agent}, tokens={"phone": TOKEN}, tls=tls) as server:
            yield server, agent


async def test_the_program_of_the_page_prints_the_answer(programs: Programs) -> None:
    async with gateway(["Paris."]) as (server, agent):
        status, output, errors = await programs.run(server.address, "ask.mjs", "What is the capital of France?")
    assert (status, output) == (0, "Paris.")
    assert "scripted: 2 tokens" in errors
    assert agent.requests[0].messages[0].text == "What is the capital of France?"
    assert agent.requests[0].max_output_tokens == 500
    assert 55 < (agent.requests[0].timeout or 0) <= 60


async def test_over_tls_the_authority_decides_whom_the_client_trusts(programs: Programs, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with gateway(["Paris."], tls=ServerTls(certificate=certificate, private_key=key)) as (server, _):
        status, output, _ = await programs.run(server.address, "ask.mjs", "go", NEARFAR_AUTHORITY=str(certificate))
    assert (status, output) == (0, "Paris.")


async def test_an_error_arrives_with_its_class_its_hint_and_when_to_try_again(programs: Programs) -> None:
    async with gateway([RateLimited("slow down", hint="ask for less", retry_after=2.5)]) as (server, _):
        status, _, errors = await programs.run(server.address, "ask.mjs", "go")
    assert status == 1
    assert "RateLimited: slow down" in errors
    assert "hint: 'ask for less'" in errors
    assert "retryAfter: 2.5" in errors


async def test_a_wrong_token_is_told_by_its_class(programs: Programs) -> None:
    async with gateway(["never given"]) as (server, agent):
        status, _, errors = await programs.run(server.address, "ask.mjs", "go", NEARFAR_TOKEN="guessed")
    assert status == 1
    assert "Unauthenticated" in errors
    assert not agent.requests


@pytest.mark.parametrize("read", [0, 7])
async def test_a_connection_that_breaks_loses_no_text_and_asks_the_agent_once(programs: Programs, read: int) -> None:
    gate = anyio.Event()
    async with gateway([[*PIECES[:read], gate, *PIECES[read:]]]) as (server, agent), chaos_proxy(server.address) as proxy:
        process = await programs.start(proxy.address, "ask.mjs", "go")
        assert process.stdout is not None
        shown = await process.stdout.readexactly(len("".join(PIECES[:read])))
        await eventually(lambda: server.live_calls == 1)
        proxy.reset()
        await eventually(lambda: proxy.connections == 2)
        gate.set()
        rest, errors = await process.communicate()
    assert (shown + rest).decode() == "".join(PIECES), errors.decode()
    assert len(agent.requests) == 1
    assert process.returncode == 0


async def test_a_server_that_is_not_there_is_an_error_and_no_endless_wait(programs: Programs) -> None:
    async with gateway(["never given"]) as (server, _), chaos_proxy(server.address) as proxy:
        await proxy.refuse()
        status, _, errors = await programs.run(proxy.address, "ask.mjs", "go")
    assert status == 1
    assert "UNAVAILABLE" in errors


async def test_leaving_the_loop_stops_the_compute(programs: Programs) -> None:
    async with gateway([["first", anyio.Event()]]) as (server, agent):
        output = await programs.run_written(server.address, ASK_AND_LEAVE)
        assert agent.live_steps == 0  # long before the time in which a lost reader may come back
        assert agent.cancelled_steps == 1
    assert output == "far\n"


async def test_a_key_computes_one_step_and_refuses_another_request(programs: Programs) -> None:
    async with gateway([["Par", "is."]]) as (server, agent):
        first, second, refused = map(json.loads, (await programs.run_written(server.address, ASK_TWICE)).splitlines())
    assert [event.get("text") for event in first] == ["Par", "is.", None]
    assert first == second
    assert refused == IdempotencyConflict.__name__
    assert len(agent.requests) == 1


async def test_a_deadline_ends_the_step_on_both_sides(programs: Programs) -> None:
    async with gateway([[anyio.Event()]]) as (server, agent):
        output = await programs.run_written(server.address, ASK_BRIEFLY)
        await eventually(lambda: agent.live_steps == 0)
    assert output in ("4\n", "DeadlineExceeded\n")
