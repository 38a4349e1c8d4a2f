"""A `Hybrid` as an MCP server, for hosts of both eras."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="MCP is an extra: pip install 'nearfar[mcp]'")

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server import request_state
from mcp_types import METHOD_NOT_FOUND, CallToolResult, ElicitResult, ErrorData

from nearfar import Hybrid, MemoryStore, Mode, Policy, RecallConfig, ScriptedAgent, Sensitivity, Side, TaskMemory, Tier, ToolCall, tool
from nearfar.orchestrator.compose.hub import CallerConfig, ServeConfig
from nearfar.orchestrator.serve import HttpServer, serve_hybrid, serving_mcp
from nearfar.orchestrator.serve.mcp_server import mcp_server
from nearfar.protocols import ConfigError
from nearfar.protocols.access import Access
from nearfar.protocols.security import Scope, TokenRecord, hashed

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["2026-07-28", "2025-11-25"])
LOOPBACK = ServeConfig(address="127.0.0.1:0")
TOKENS = {"ann": "a" * 40, "bob": "b" * 40}


def deleting() -> tuple[Any, list[str]]:
    """Return a tool that needs approval, and the list of what it has deleted."""
    deleted: list[str] = []

    @tool(approval=True)
    def delete(name: str) -> str:
        """Delete a file."""
        deleted.append(name)
        return "deleted"

    return delete, deleted


def waiting() -> tuple[Any, anyio.Event, anyio.Event]:
    """Return a tool that waits for ever, and the events that it has begun and that it was ended."""
    began, ended = anyio.Event(), anyio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    return wait, began, ended


async def run(client: Client, prompt: str = "hello", **arguments: Any) -> CallToolResult:  # noqa: ANN401 - any JSON
    """Call the tool `run`."""
    with anyio.fail_after(30):
        return await client.call_tool("run", {"prompt": prompt, **arguments})


def text_of(result: CallToolResult) -> str:
    """Return the text of a result."""
    return "".join(block.text for block in result.content if block.type == "text")


@ERAS
async def test_a_task_is_run_and_its_answer_says_what_it_cost_and_who_gave_it(mode: str) -> None:
    async with Hybrid(near=ScriptedAgent(["hi there"], model="tiny")) as hybrid, Client(mcp_server(hybrid), mode=mode) as client:
        told: list[str | None] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            told.append(message)

        result = await client.call_tool("run", {"prompt": "hello"}, progress_callback=progress)
    answer = result.structured_content
    assert answer is not None
    assert (answer["text"], answer["side"], answer["model"]) == ("hi there", "near", "tiny")
    assert answer["run"].startswith("mcp-")
    assert told == ["scripted (near: tiny) works on it"]


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        (Policy(), {"sensitivity": "public"}),
        (Policy(mode=Mode.ONLY_ON_DEVICE), {"mode": "auto"}),
        (Policy(mode=Mode.ONLY_ON_DEVICE), {"mode": "only_in_cloud"}),
        (Policy(mode=Mode.ONLY_IN_CLOUD, sensitivity=Sensitivity.PUBLIC), {"mode": "prefer_on_device"}),
    ],
)
async def test_a_request_cannot_widen_what_the_policy_allows(policy: Policy, asked: dict[str, str]) -> None:
    far = ScriptedAgent(["far"], name="far", side=Side.FAR)
    async with Hybrid(near=ScriptedAgent(["near"]), far=far, policy=policy) as hybrid, Client(mcp_server(hybrid)) as client:
        result = await run(client, **asked)
    assert result.is_error
    assert "PermissionDenied" in text_of(result)


async def test_a_caller_may_do_what_its_section_says_and_no_more() -> None:
    near, far = ScriptedAgent(["near"]), ScriptedAgent(["far"], name="far", side=Side.FAR)
    bob = CallerConfig(sensitivity=Sensitivity.PUBLIC, mode=Mode.ONLY_IN_CLOUD)
    config = LOOPBACK.model_copy(update={"callers": {"bob": bob}})
    async with Hybrid(near=near, far=far) as hybrid, served(hybrid, TOKENS, config) as url:
        async with connected(url, TOKENS["bob"]) as client:
            answer = (await run(client)).structured_content
        async with connected(url, TOKENS["ann"]) as client:
            refused = await run(client, sensitivity="public")
    assert answer is not None
    assert answer["side"] == "far"
    assert refused.is_error


async def test_a_request_can_narrow_what_the_policy_allows() -> None:
    far = ScriptedAgent(["far"], name="far", side=Side.FAR)
    policy = Policy(sensitivity=Sensitivity.PUBLIC, mode=Mode.PREFER_IN_CLOUD)
    async with Hybrid(near=ScriptedAgent(["near", "near"]), far=far, policy=policy) as hybrid, Client(mcp_server(hybrid)) as client:
        answers = [await run(client, sensitivity="private"), await run(client, mode="only_on_device")]
    assert [answer.structured_content and answer.structured_content["side"] for answer in answers] == ["near", "near"]


async def test_no_text_goes_to_the_cloud_unless_the_owner_has_said_so() -> None:
    far = ScriptedAgent(["far"], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid, Client(mcp_server(hybrid)) as client:
        result = await run(client)
    assert result.is_error
    assert "private" in text_of(result)


async def test_an_error_of_a_task_is_told_as_an_error() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, Client(mcp_server(hybrid)) as client:
        result = await run(client)
    assert result.is_error
    assert "NotFound" in text_of(result)


@ERAS
async def test_a_host_that_cancels_or_leaves_ends_its_task(mode: str) -> None:
    wait, began, cancelled = waiting()
    near = ScriptedAgent([ToolCall(id="1", name="wait")])
    async with Hybrid(near=near, tools=[wait]) as hybrid, served(hybrid, TOKENS) as url, connected(url, TOKENS["ann"], mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client)
            await began.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            await cancelled.wait()


@pytest.mark.parametrize("says", [True, False])
@ERAS
async def test_a_call_that_needs_approval_is_put_to_the_user_of_the_host(mode: str, says: bool, tmp_path: Path) -> None:
    delete, deleted = deleting()
    near = ScriptedAgent([ToolCall(id="1", name="delete", arguments={"name": "a.txt"}), "done"])
    asked: list[str] = []

    async def answer(context: object, params: Any) -> ElicitResult:  # noqa: ANN401 - forms and addresses
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": says})

    async with (
        Hybrid(near=near, tools=[delete], records=tmp_path / "runs") as hybrid,
        Client(mcp_server(hybrid), mode=mode, elicitation_callback=answer) as client,
    ):
        result = await run(client)
    assert asked == ['delete needs approval: delete {"name": "a.txt"}']
    assert deleted == (["a.txt"] if says else [])
    assert result.structured_content is not None
    assert result.structured_content["text"] == "done"


async def test_a_yes_may_come_hours_after_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delete, deleted = deleting()
    near = ScriptedAgent([ToolCall(id="1", name="delete", arguments={"name": "a.txt"}), "done"])

    async def answer(context: object, params: object) -> ElicitResult:
        monkeypatch.setattr(request_state, "time", SimpleNamespace(time=lambda: time.time() + 8 * 60 * 60))
        return ElicitResult(action="accept", content={"approve": True})

    async with (
        Hybrid(near=near, tools=[delete], records=tmp_path / "runs") as hybrid,
        Client(mcp_server(hybrid), mode="auto", elicitation_callback=answer) as client,
    ):
        await run(client)
    assert deleted == ["a.txt"]


@pytest.mark.parametrize("content", [None, {}, {"approve": "true"}, {"approve": "yes"}, {"approve": 1}, {"other": True}])
@ERAS
async def test_an_answer_that_is_no_plain_yes_is_a_no(
    mode: str, content: dict[str, str | int | float | bool | list[str] | None] | None, tmp_path: Path
) -> None:
    delete, deleted = deleting()
    near = ScriptedAgent([ToolCall(id="1", name="delete", arguments={"name": "a.txt"}), "done"])

    async def answer(context: object, params: object) -> ElicitResult:
        return ElicitResult(action="accept", content=content)

    async with (
        Hybrid(near=near, tools=[delete], records=tmp_path / "runs") as hybrid,
        Client(mcp_server(hybrid), mode=mode, elicitation_callback=answer) as client,
    ):
        result = await run(client)
    assert deleted == []
    assert result.structured_content is not None
    assert result.structured_content["text"] == "done"


async def test_a_host_that_answers_a_question_with_an_error_is_told_that_nobody_was_asked() -> None:
    delete, deleted = deleting()
    near = ScriptedAgent([ToolCall(id="1", name="delete", arguments={"name": "a.txt"}), "done"])

    async def answer(context: object, params: object) -> ErrorData:
        return ErrorData(code=METHOD_NOT_FOUND, message="no such method")

    async with (
        Hybrid(near=near, tools=[delete]) as hybrid,
        Client(mcp_server(hybrid), mode="legacy", elicitation_callback=answer) as client,
    ):
        result = await run(client)
    assert "PermissionDenied: delete needs approval, and the host could not ask its user: no such method" in text_of(result)
    assert (result.is_error, deleted) == (True, [])


@ERAS
async def test_a_host_that_cannot_ask_is_told_that_approval_is_needed(mode: str, tmp_path: Path) -> None:
    delete, deleted = deleting()
    near = ScriptedAgent([ToolCall(id="1", name="delete", arguments={"name": "a.txt"}), "done"])
    async with Hybrid(near=near, tools=[delete], records=tmp_path / "runs") as hybrid, Client(mcp_server(hybrid), mode=mode) as client:
        result = await run(client)
    assert "ApprovalNeeded" in text_of(result)
    assert not deleted


async def test_runs_and_traces_are_resources(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent(["secret answer", "other"]), records=tmp_path / "runs") as hybrid:
        await hybrid.run("another app's task", idempotency_key="other-app")
        async with Client(mcp_server(hybrid)) as client:
            answer = (await run(client)).structured_content
            assert answer is not None
            listed = json.loads(await read(client, "nearfar://runs"))
            assert [each["id"] for each in listed] == [answer["run"]]
            shown = json.loads(await read(client, f"nearfar://runs/{answer['run']}"))
            assert (shown["prompt"], shown["answer"]) == ("hello", "other")
            trace = await read(client, f"nearfar://traces/{answer['run']}")
            assert "step" in {row["kind"] for row in json.loads(trace)}
            assert "hello" not in trace
            for kind in ("runs", "traces"):
                with pytest.raises(MCPError, match="there is no run"):
                    await read(client, f"nearfar://{kind}/other-app")


async def read(client: Client, uri: str) -> str:
    """Return the text of a resource."""
    return "".join(getattr(content, "text", "") for content in (await client.read_resource(uri)).contents)


async def test_memory_is_recalled_as_far_as_it_may_leave_the_device(tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "memory.db", embedder=None) as store:
        store.put(("notes",), "1", {"text": "the boat is called Albatross"}, tier=Tier.SHARED)
        store.put(("notes",), "2", {"text": "the boat costs 90 a day"}, tier=Tier.DEVICE)
        memory = TaskMemory(store, recall=RecallConfig())
        async with Hybrid(near=ScriptedAgent([]), memory=memory) as hybrid, Client(mcp_server(hybrid)) as client:
            found = text_of(await client.call_tool("recall", {"query": "boat"}))
    assert "Albatross" in found
    assert "costs" not in found


async def test_without_memory_and_records_neither_is_offered() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, Client(mcp_server(hybrid)) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ["run"]
        assert not (await client.list_resources()).resources


@asynccontextmanager
async def served(hybrid: Hybrid, tokens: Any = None, config: ServeConfig = LOOPBACK) -> AsyncIterator[str]:  # noqa: ANN401 - any form of tokens
    """Serve by HTTP, and yield the URL."""
    async with serving_mcp(mcp_server(hybrid, config), config, Access(tokens)) as url:
        yield url


@asynccontextmanager
async def connected(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    """Connect with a token."""
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@ERAS
async def test_callers_see_their_own_runs_alone(mode: str, tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent(["for ann"]), records=tmp_path / "runs") as hybrid, served(hybrid, TOKENS) as url:
        async with connected(url, TOKENS["ann"], mode) as ann:
            answer = (await run(ann)).structured_content
            assert answer is not None
        async with connected(url, TOKENS["bob"], mode) as bob:
            assert json.loads(await read(bob, "nearfar://runs")) == []
            with pytest.raises(MCPError, match="there is no run"):
                await read(bob, f"nearfar://runs/{answer['run']}")


@ERAS
async def test_a_revoked_token_ends_the_task_that_was_begun_with_it(mode: str) -> None:
    wait, began, ended = waiting()
    access = Access(TOKENS)
    near = ScriptedAgent([ToolCall(id="1", name="wait")])
    async with (
        Hybrid(near=near, tools=[wait]) as hybrid,
        serving_mcp(mcp_server(hybrid, LOOPBACK), LOOPBACK, access) as url,
        connected(url, TOKENS["ann"], mode) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(run, client)
        with anyio.fail_after(30):
            await began.wait()
            access.replace_tokens({"bob": TOKENS["bob"]})
            await ended.wait()
        tasks.cancel_scope.cancel()


async def test_a_session_is_used_and_ended_by_its_own_caller_alone() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, served(hybrid, TOKENS) as url, httpx2.AsyncClient() as http:
        ann, bob = ({"authorization": f"Bearer {TOKENS[name]}", "accept": "application/json, text/event-stream"} for name in ("ann", "bob"))
        begun = await http.post(url, json=INITIALIZE, headers=ann)
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        statuses = [
            (await http.post(url, json=asked, headers=bob | session)).status_code,
            (await http.delete(url, headers=bob | session)).status_code,
            (await http.post(url, json=asked, headers=ann | session)).status_code,
        ]
    assert statuses == [404, 404, 200]


async def test_a_token_without_the_scope_is_refused() -> None:
    record = TokenRecord(id="1", caller="eve", digest=hashed("e" * 40), scopes=frozenset({Scope.DESCRIBE}))
    headers = {"authorization": f"Bearer {'e' * 40}"}
    async with Hybrid(near=ScriptedAgent([])) as hybrid, served(hybrid, [record]) as url, httpx2.AsyncClient() as http:
        answer = await http.post(url, json=INITIALIZE, headers=headers)
    assert answer.status_code == 403
    assert "lacks the scope 'tasks'" in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Bearer {TOKENS['ann']}", "origin": "https://eve.example"}, 403),
        ({"authorization": f"Bearer {TOKENS['ann']}", "origin": "null"}, 403),
        ({"authorization": f"Bearer {TOKENS['ann']}", "host": "eve.example:80"}, 403),
        ({"authorization": f"Bearer {TOKENS['ann']}", "origin": "http://localhost:3000"}, 403),
        ({"authorization": f"Bearer {TOKENS['ann']}"}, 200),
    ],
)
async def test_requests_without_a_token_and_from_pages_of_other_hosts_are_refused(headers: dict[str, str], status: int) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, served(hybrid, TOKENS) as url, httpx2.AsyncClient() as http:
        answer = await http.post(url, json=INITIALIZE, headers={"accept": "application/json, text/event-stream", **headers})
    assert answer.status_code == status


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


async def test_a_body_that_is_too_long_is_refused() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, served(hybrid) as url, httpx2.AsyncClient() as http:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        answer = await http.post(url, content=b" " * 20_000_000, headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize("tokens", [None, TOKENS])
async def test_no_address_outside_of_this_machine_is_served_in_plain_text(tokens: dict[str, str] | None) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        with pytest.raises(ConfigError, match="needs TLS"):
            async with serving_mcp(mcp_server(hybrid), ServeConfig(address="0.0.0.0:0"), Access(tokens)):
                pass


async def test_an_address_that_is_taken_is_an_error_that_says_so() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, served(hybrid) as url:
        taken = ServeConfig(address=url.removeprefix("http://").removesuffix("/mcp"))
        with pytest.raises(ConfigError, match="cannot be used"):
            async with serving_mcp(mcp_server(hybrid), taken, Access(None)):
                pass


@asynccontextmanager
async def mounted(hybrid: Hybrid, drain: float = 0.0) -> AsyncIterator[HttpServer]:
    """Serve MCP as a path of the server for clients of OpenAI and Anthropic."""
    config = ServeConfig(address="127.0.0.1:0", callers={"ann": CallerConfig(sensitivity=Sensitivity.PUBLIC)})
    eve = TokenRecord(id="1", caller="eve", digest=hashed("e" * 40), scopes=frozenset({Scope.METRICS}))
    ann = TokenRecord(id="2", caller="ann", digest=hashed(TOKENS["ann"]), scopes=frozenset({Scope.TASKS}))
    async with serve_hybrid(hybrid, config, tokens=[eve, ann], drain=drain) as server:
        yield server


@ERAS
async def test_one_server_has_turns_and_tasks_of_mcp_hosts_served_by_one_token(mode: str) -> None:
    far = ScriptedAgent(["far away", "a turn"], side=Side.FAR, name="far")
    async with Hybrid(far=far) as hybrid, mounted(hybrid) as server:
        async with connected(f"{server.address}/mcp", TOKENS["ann"], mode) as host:
            answer = (await run(host)).structured_content
        asked = {"model": "nearfar/auto", "messages": [{"role": "user", "content": "hello"}]}
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKENS['ann']}"}) as client:
            turn = (await client.post(f"{server.address}/v1/chat/completions", json=asked)).json()
    assert answer is not None
    assert (answer["side"], answer["text"]) == ("far", "far away")  # the caller's section declares its tasks public
    assert turn["choices"][0]["message"]["content"] == "a turn"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {'e' * 40}"}, 403),
        ({"authorization": f"Bearer {TOKENS['ann']}", "host": "eve.example"}, 403),
        ({"authorization": f"Bearer {TOKENS['ann']}"}, 200),
    ],
)
async def test_the_mounted_server_is_guarded_like_the_rest(headers: dict[str, str], status: int) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, mounted(hybrid) as server, httpx2.AsyncClient() as http:
        accepting = {"accept": "application/json, text/event-stream", **headers}
        answers = [await http.post(f"{server.address}/mcp", json=INITIALIZE, headers=accepting) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]


async def test_a_host_that_listens_does_not_hold_up_the_end_of_the_server() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid, mounted(hybrid, drain=600) as server:
        headers = {"authorization": f"Bearer {TOKENS['ann']}", "accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(headers=headers) as http:
            began = await http.post(f"{server.address}/mcp", json=INITIALIZE)
            session = {"mcp-session-id": began.headers["mcp-session-id"]}
            async with http.stream("GET", f"{server.address}/mcp", headers=session) as listening:
                assert listening.status_code == 200
                with anyio.fail_after(30):
                    await server.drain()
                    assert await listening.aread() == b""


def test_the_server_loads_the_package_of_mcp_when_a_host_asks() -> None:
    code = "import sys, nearfar.orchestrator.serve; print('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"


COMMAND = [sys.executable, "-c", "from nearfar.orchestrator.cli import main; main()", "serve", "mcp"]


@ERAS
async def test_nothing_but_the_protocol_is_on_standard_output_whatever_tools_print(mode: str) -> None:
    program = Path(__file__).with_name("talkative_server.py")
    host = StdioServerParameters(command=sys.executable, args=[str(program)], env=dict(os.environ))
    async with Client(host, mode=mode) as client:
        result = await run(client)
    assert result.structured_content is not None
    assert result.structured_content["text"] == "done"


async def test_standard_output_has_no_line_that_is_not_the_protocol() -> None:
    program = Path(__file__).with_name("talkative_server.py")
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run", "arguments": {"prompt": "hello"}}}
    messages = [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call]
    async with await anyio.open_process([sys.executable, str(program)], stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for message in messages:
            await process.stdin.send(json.dumps(message).encode() + b"\n")
        told = b""
        with anyio.fail_after(30):
            while b'"id":2' not in told:
                told += await process.stdout.receive()
            await process.stdin.aclose()
            async for piece in process.stdout:
                told += piece
            errors = b"".join([piece async for piece in process.stderr])
    assert [json.loads(line)["id"] for line in told.splitlines()] == [1, 2]
    assert b"the tool prints" in errors
    assert b"a child prints" in errors


MALFORMED: list[Any] = [
    {"content": {"approve": True}},
    {"action": "ACCEPT", "content": {"approve": True}},
    {"action": "accept", "content": [True]},
    {"action": "accept", "content": {"approve": True, "more": {"deep": 1}}},
]


@pytest.mark.parametrize("answer", MALFORMED)
async def test_an_answer_that_is_none_of_the_protocols_is_a_no(answer: Any) -> None:  # noqa: ANN401 - JSON
    program = Path(__file__).with_name("paying_server.py")
    able = json.loads(json.dumps(INITIALIZE))
    able["params"]["capabilities"] = {"elicitation": {}}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run", "arguments": {"prompt": "hello"}}}
    async with await anyio.open_process([sys.executable, str(program)], stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for message in (able, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call):
            await process.stdin.send(json.dumps(message).encode() + b"\n")
        told = b""
        with anyio.fail_after(60):
            while b"elicitation/create" not in told or not told.endswith(b"\n"):
                told += await process.stdout.receive()
            asked = next(message for message in map(json.loads, told.splitlines()) if message.get("method") == "elicitation/create")
            await process.stdin.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}).encode() + b"\n")
            while b'"id":2' not in told or not told.endswith(b"\n"):
                told += await process.stdout.receive()
            await process.stdin.aclose()
            errors = b"".join([piece async for piece in process.stderr])
    (result,) = (message["result"] for message in map(json.loads, told.splitlines()) if message.get("id") == 2)
    assert result["structuredContent"]["text"] == "not run: pay needs approval: the user said no"
    assert b"Traceback" not in errors


@ERAS
async def test_the_text_of_an_unexpected_error_is_neither_sent_nor_logged(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = "ana's letter"

    def breaks(request: object) -> ToolCall:
        raise KeyError(secret)

    async with Hybrid(near=ScriptedAgent(breaks)) as hybrid, Client(mcp_server(hybrid), mode=mode) as client:
        result = await run(client)
    assert result.is_error
    assert secret not in text_of(result) + caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("leave", ["close", "terminate"])
async def test_the_command_ends_when_the_host_leaves_and_at_a_signal(leave: str, tmp_path: Path) -> None:
    command = [*COMMAND, "--near", "near"]
    async with await anyio.open_process(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(json.dumps(INITIALIZE).encode() + b"\n")
        answer = json.loads(await process.stdout.receive())
        assert answer["result"]["serverInfo"]["name"] == "nearfar"
        if leave == "close":
            await process.stdin.aclose()
        else:
            process.terminate()
        with anyio.fail_after(20):
            assert await process.wait() == (0 if leave == "close" else 130)
