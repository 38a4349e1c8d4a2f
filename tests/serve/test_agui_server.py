"""AG-UI over HTTP: who is let in, what a caller may ask for, and the protocol's own client."""

import json
import subprocess
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from node_environment import node_environment

from nearfar import Hybrid, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, tool
from nearfar.orchestrator.compose.hub import CallerConfig, ServeConfig
from nearfar.orchestrator.serve import HttpServer, serve_hybrid
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio
TOKEN = "t" * 32
CLIENT = Path(__file__).with_name("agui_client.mjs")
ASK = {"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "Hello"}]}


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@asynccontextmanager
async def served(hybrid: Hybrid, allowed: CallerConfig) -> AsyncIterator[HttpServer]:
    config = ServeConfig(address="127.0.0.1:0", callers={"app": allowed})
    async with serve_hybrid(hybrid, config, tokens={"app": TOKEN}) as server:
        yield server


@asynccontextmanager
async def client_of(server: HttpServer, token: str = TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.address, headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
        yield client


def told(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data: ")]


async def test_a_caller_with_a_token_hears_the_events_of_its_run() -> None:
    async with Hybrid(near=ScriptedAgent([["Hel", "lo"]])) as hybrid, served(hybrid, CallerConfig()) as server:
        async with client_of(server, "x" * 32) as stranger:
            assert (await stranger.post("/agui", json=ASK)).status_code == 401
        async with client_of(server) as client:
            assert (await client.post("/agui", json={"threadId": "t1"})).status_code == 400
            answer = await client.post("/agui", json=ASK)
    assert answer.headers["content-type"] == "text/event-stream"
    assert len(answer.headers["x-nearfar-run"]) == 64
    assert [event["type"] for event in told(answer)][:: len(told(answer)) - 1] == ["RUN_STARTED", "RUN_FINISHED"]


async def test_an_interface_may_narrow_what_its_token_allows_and_no_more() -> None:
    near, far = ScriptedAgent(["from here"], name="near"), ScriptedAgent(["from there"], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far) as hybrid:
        async with served(hybrid, CallerConfig(sensitivity=Sensitivity.PUBLIC)) as server, client_of(server) as client:
            props: dict[str, Any] = {"model": "nearfar/far"}
            answer = await client.post("/agui", json={**ASK, "forwardedProps": props})
            assert "from there" in answer.text
            props = {"nearfar": {"mode": "only_on_device"}}
            answer = await client.post("/agui", json={**ASK, "runId": "r2", "forwardedProps": props})
            assert "from here" in answer.text
        async with served(hybrid, CallerConfig()) as server, client_of(server) as client:
            props = {"nearfar": {"sensitivity": "public"}}
            assert (await client.post("/agui", json={**ASK, "forwardedProps": props})).status_code == 403
            assert (await client.post("/agui", json={**ASK, "forwardedProps": {"model": "gpt-7"}})).status_code == 404
    assert (len(near.requests), len(far.requests)) == (1, 1)


async def test_a_client_that_leaves_cancels_its_run() -> None:
    agent = ScriptedAgent([["one", anyio.Event()]])
    async with Hybrid(near=agent, policy={"strategy": "device"}) as hybrid, served(hybrid, CallerConfig()) as server:
        async with client_of(server) as client, client.stream("POST", "/agui", json=ASK) as answer:
            async for line in answer.aiter_lines():
                if "TEXT_MESSAGE_CONTENT" in line:
                    break
        with anyio.fail_after(10):
            while server.live_requests:
                await anyio.lowlevel.checkpoint()
        assert (agent.live_steps, agent.cancelled_steps) == (0, 1)


def reply(request: StepRequest) -> Reply:
    last = request.messages[-1]
    if last.role == "tool":
        return ["Do", "ne."]
    if "Pay" in last.text:
        return ["I pay.", ToolCall(id="call_3", name="pay", arguments={"amount": 5})]
    return ["I paint.", *(ToolCall(id=f"call_{n}", name="paint", arguments={"color": color}) for n, color in enumerate(("red", "blue")))]


async def test_the_protocols_own_client_runs_tools_and_approves(tmp_path: Path) -> None:
    venv = node_environment()
    if not (venv / "node_modules" / "@ag-ui" / "client").is_dir():
        pytest.skip("AG-UI's client is not installed: run `make node`, which says why where it fails")
    agent = ScriptedAgent(reply)
    options: dict[str, Any] = {"input": CLIENT.read_text(encoding="utf-8"), "cwd": venv, "capture_output": True, "text": True}
    hybrid = Hybrid(near=agent, tools=[pay], policy={"strategy": "device"}, records=tmp_path)
    async with hybrid, served(hybrid, CallerConfig()) as server:
        node = [str(venv / "bin" / "node"), "--input-type=module", "-", f"{server.address}/agui", TOKEN]
        ended = await to_thread(partial(subprocess.run, node, timeout=60, check=False, **options))
    assert ended.returncode == 0, ended.stderr
    heard = json.loads(ended.stdout)
    assert [kinds[-1] for kinds in heard["kinds"]] == ["RUN_FINISHED"] * 4
    assert "TOOL_CALL_START" not in heard["kinds"][3]
    assert [(each["toolCallId"], each["reason"]) for each in heard["interrupts"]] == [("call_3", "tool_call")]
    assert [(each["role"], each["content"], [json.loads(call["arguments"]) for call in each["calls"]]) for each in heard["messages"]] == [
        ("user", "Paint it.", []),
        ("assistant", "I paint.", [{"color": "red"}, {"color": "blue"}]),
        ("tool", "painted", []),
        ("tool", "painted", []),
        ("assistant", "Done.", []),
        ("user", "Pay 5.", []),
        ("assistant", "I pay.", [{"amount": 5}]),
        ("tool", "paid 5", []),
        ("assistant", "Done.", []),
    ]
