"""Keys, tokens, passwords and private words are planted wherever there are any; what nearfar logs, prints and shows holds none of them."""

import json
import logging
import socket
import traceback
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import anyio
import pytest
from http_server import Exchange, http_server
from pydantic import ValidationError
from typer.testing import CliRunner

from nearfar import Hybrid, tool
from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.failures import RetryPolicy
from nearfar.cloud.gateway import serve_gateway
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.device.thin.llama_server import LlamaServer
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync.messages import Peer
from nearfar.orchestrator.memory.sync.service import serve_memory
from nearfar.orchestrator.memory.sync.session import Neighbour, sync_once
from nearfar.orchestrator.storage.postgres import PostgresDatabase
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Message, NearfarError, ScriptedAgent, Sensitivity, StepEvent, StepRequest, ToolCall, complete
from nearfar.protocols.access import Access
from nearfar.protocols.address import Pairing
from nearfar.protocols.attach import Worker
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.hub import Hub, serve_hub
from nearfar.protocols.items import Tier
from nearfar.protocols.secrets import GivenKey, StoredKey
from nearfar.protocols.security import Authenticator, Credentials
from nearfar.protocols.server import serve

KEY = "canary-of-a-provider-key-1f6b"
TOKEN = "canary-of-a-bearer-token-2e5c"
DEVICE = "canary-of-a-device-secret-3d4a"
PASSWORD = "canary-of-a-postgres-password-4c3b"
PRIVATE = "canary of a private word 5b2a"
SECRETS = (KEY, TOKEN, DEVICE, PASSWORD)
"""None of them looks like a key, so that no pattern finds them."""

DIALECTS: list[Dialect] = [OpenAIDialect(), AnthropicDialect(), GeminiDialect()]


def check(*shown: object, canaries: tuple[str, ...] = SECRETS) -> None:
    """No canary is in what was shown; of an error, also not in its traceback."""
    for one in shown:
        text = "".join(traceback.format_exception(one)) + str(one) + repr(one) if isinstance(one, BaseException) else str(one)
        assert not [canary for canary in canaries if canary in text or canary in text.replace("\\", "")], text


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that any library logs."""
    caplog.set_level(logging.DEBUG)
    return caplog


async def _quoting(exchange: Exchange, status: int) -> None:
    said = json.dumps({"error": {"message": f"you sent {exchange.headers} to {exchange.path}", "code": str(exchange.headers)}})
    await exchange.respond(status, said)


async def _unauthorized(exchange: Exchange) -> None:
    await _quoting(exchange, 401)


async def _broken(exchange: Exchange) -> None:
    await _quoting(exchange, 500)


async def _moved(exchange: Exchange) -> None:
    await exchange.respond(307, "", location=f"https://elsewhere.example/v1?key={KEY}")


async def _in_the_stream(exchange: Exchange) -> None:
    await exchange.stream(["data: " + json.dumps({"error": {"message": f"wrong: {exchange.headers}"}}) + "\n\n"])


async def _cut_off(exchange: Exchange) -> None:
    await exchange.open_stream()
    exchange.writer.close()


async def _no_protocol(exchange: Exchange) -> None:
    exchange.writer.write(f"what is {exchange.headers}?\r\n\r\n".encode())
    exchange.writer.close()


async def _garbage(exchange: Exchange) -> None:
    await exchange.stream([f"data: {exchange.headers}\n\n"])


@pytest.mark.anyio
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("answer", [_unauthorized, _broken, _moved, _in_the_stream, _cut_off, _no_protocol, _garbage])
async def test_a_provider_that_repeats_the_key_spreads_it_nowhere(
    dialect: Dialect, answer: Callable[[Exchange], object], log: pytest.LogCaptureFixture
) -> None:
    request = StepRequest(messages=(Message.user(PRIVATE),), sensitivity=Sensitivity.PUBLIC)
    async with http_server(answer) as server:  # type: ignore[arg-type]  # each is a coroutine
        at_once = RetryPolicy(calls=2, first_delay=0.0)
        agent = ProviderAgent(dialect, "model", key=GivenKey(KEY), base_url=server.base_url, retry=at_once)
        async with serve_gateway({"far": agent}, tokens={"laptop": TOKEN}) as gateway:
            remote = await RemoteAgent.connect(gateway.address, token=TOKEN)
            with pytest.raises(NearfarError) as here, anyio.fail_after(30):
                await complete(agent, request)
            with pytest.raises(NearfarError) as there, anyio.fail_after(30):
                await complete(remote, request)
            check(here.value, there.value, repr(agent), repr(remote))
            await remote.aclose()
        await agent.aclose()
    check(log.text)
    check(log.text, canaries=(PRIVATE,))


class Defective(ScriptedAgent):
    """Fails with what it was asked in its error, as careless code does."""

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        try:
            raise KeyError(request.messages[0].text)
        except KeyError as error:
            raise ExceptionGroup(request.messages[0].text, [ValueError(request.messages[0].text)]) from error
        yield  # an async generator


@pytest.mark.anyio
async def test_a_defect_of_an_agent_is_logged_without_what_it_was_asked(log: pytest.LogCaptureFixture) -> None:
    async with serve(Defective([]), tokens={"laptop": TOKEN}) as server:
        remote = await RemoteAgent.connect(server.address, token=TOKEN)
        with pytest.raises(NearfarError) as caught:
            await complete(remote, StepRequest(messages=(Message.user(PRIVATE),)))
        await remote.aclose()
    check(caught.value, log.text, canaries=(*SECRETS, PRIVATE))
    assert "in step" in log.text, "the log says where"
    assert all(name in log.text for name in ("KeyError", "ValueError", "ExceptionGroup"))


@pytest.mark.anyio
async def test_tokens_are_in_no_log_and_no_error_of_servers_and_their_callers(log: pytest.LogCaptureFixture) -> None:
    agent = ScriptedAgent(lambda _: PRIVATE)
    with anyio.fail_after(60):
        async with serve(agent, tokens={"laptop": TOKEN}) as server, serve_hub(Hub({"phone": DEVICE})) as hub_address:
            for wrong in (TOKEN.upper(), TOKEN[:-1]):
                with pytest.raises(NearfarError) as caught:
                    await RemoteAgent.connect(server.address, token=wrong)
                check(caught.value, canaries=(*SECRETS, wrong))
            worker = Worker(agent, hub_address, token=DEVICE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                await worker.attached.wait()
                await worker.drain(0)
                tasks.cancel_scope.cancel()
            with pytest.raises(NearfarError) as caught:
                await Worker(agent, hub_address, token=DEVICE[:-1]).run()
            check(caught.value, repr(worker), repr(server), canaries=(*SECRETS, DEVICE[:-1]))
        with MemoryStore.open(":memory:", user="anna", embedder=None) as phone, MemoryStore.open(":memory:", embedder=None) as hub:
            phone.put(("notes",), "secret", {"text": PRIVATE}, tier=Tier.USER)
            async with serve_memory(hub, "localhost:0", tokens={"phone": DEVICE}, users={"phone": "anna"}, is_hub=True) as memory:
                neighbour = Neighbour(peer=Peer("hub", "", is_relay=True), address=memory.address, token=DEVICE)
                await sync_once(phone, neighbour)
                with pytest.raises(NearfarError) as caught:
                    await sync_once(phone, Neighbour(peer=neighbour.peer, address=memory.address, token=DEVICE[:-1]))
                check(caught.value, repr(memory), repr(neighbour), repr(phone), canaries=(*SECRETS, PRIVATE))
    check(log.text, canaries=(*SECRETS, PRIVATE, TOKEN.upper(), TOKEN[:-1], DEVICE[:-1]))


OBJECTS: list[Callable[[], object]] = [
    lambda: GivenKey(KEY),
    lambda: StoredKey("CANARY_KEY"),
    lambda: ProviderAgent(OpenAIDialect(), "model", key=GivenKey(KEY), base_url="http://localhost:1"),
    lambda: Credentials(f"Bearer {TOKEN}"),
    lambda: Authenticator({"laptop": TOKEN}),
    lambda: Access({"laptop": TOKEN}),
    lambda: Hub({"phone": DEVICE}),
    lambda: RemoteAgent("localhost:1", token=TOKEN),
    lambda: RemoteAgent("localhost:1", token=TOKEN)._connected(),
    lambda: Worker(ScriptedAgent([]), "localhost:1", token=DEVICE),
    lambda: Pairing(address="localhost:1", token=DEVICE),
    lambda: Neighbour(peer=Peer("hub", ""), address="localhost:1", token=DEVICE),
    lambda: LlamaServer("http://127.0.0.1:1", key=KEY),
    lambda: GatewayConfig(provider="gateway", address="localhost:1", token_variable="CANARY_TOKEN"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("make", OBJECTS, ids=range(len(OBJECTS)))
async def test_what_holds_a_secret_does_not_show_it(make: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("CANARY_TOKEN", TOKEN)
    made = make()
    check(repr(made), str(made), f"{made}", repr([made]))


def test_what_is_wrong_with_a_value_is_told_without_the_value() -> None:
    for given in ({"role": PRIVATE}, {"role": "user", "tool_calls": PRIVATE}, {"role": "user", "text": [PRIVATE]}):
        with pytest.raises(ValidationError) as caught:
            Message.model_validate(given)
        check(caught.value, canaries=(PRIVATE,))


@pytest.mark.parametrize("address", [
    f"postgresql://anna:{PASSWORD}@127.0.0.1:{{port}}/runs",
    f"postgresql://anna:{PASSWORD}%zz@127.0.0.1:{{port}}/runs",
    f"postgresql://anna:{PASSWORD}@@127.0.0.1:{{port}}/runs",
    f"host=127.0.0.1 port={{port}} user=anna password={PASSWORD}",
    f"host=127.0.0.1 port={{port}} user=anna password='{PASSWORD}",
    f"{PASSWORD}",
])  # fmt: skip
def test_the_password_of_a_database_is_in_no_error(address: str, log: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("psycopg_pool")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(NearfarError) as caught:
            PostgresDatabase(address.format(port=unused.getsockname()[1]), what="record of runs")
    check(caught.value, log.text)


@tool(effect="read", returns="device", source="internal_tool")
def read_diary() -> str:
    """What was written."""
    return PRIVATE


@tool(effect="read", source="internal_tool")
def broken() -> str:
    """A tool that fails."""
    raise ValueError(PRIVATE)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A configuration whose every secret is in a variable."""
    for name, value in {
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "GEMINI_API_KEY": KEY,
        "NEARFAR_TOKEN": TOKEN,
        "NEARFAR_GATEWAY_TOKENS": f"laptop={TOKEN}",
        "CANARY_POSTGRES": f"postgresql://anna:{PASSWORD}@127.0.0.1:1/runs",
        "CANARY_MEMORY": DEVICE,
    }.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "nearfar.toml"
    path.write_text(
        '[near]\nmodel = "near"\n[far]\nprovider = "gateway"\naddress = "127.0.0.1:1"\ntoken_variable = "NEARFAR_TOKEN"\n'
        f'[runs]\nfolder = "{tmp_path / "runs"}"\n[memory]\npath = "{tmp_path / "memory.db"}"\n',
        encoding="utf-8",
    )
    return path


def test_nothing_private_of_a_run_is_logged_and_nothing_secret_of_it_shown(
    environment: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    calls = [ToolCall(id="1", name="read_diary", arguments={}), ToolCall(id="2", name="broken", arguments={})]

    async def run() -> None:
        agent = ScriptedAgent([*calls, f"it says {PRIVATE}"], name="near")
        async with Hybrid(near=agent, tools=(read_diary, broken), records=RunsConfig(folder=tmp_path / "runs")) as hybrid:
            await hybrid.run(f"What does my diary say about {PRIVATE}?", idempotency_key="r1")
            with pytest.raises(NearfarError):
                await hybrid.run(f"And now about {PRIVATE}?", idempotency_key="r2", output={"type": "object"})

    anyio.run(run)
    check(log.text, canaries=(*SECRETS, PRIVATE))
    page = tmp_path / "page.html"
    for command in (["runs", "show", "r1", "--json"], ["runs", "show", "r1"], ["runs", "list"], ["trace", "show", "r1", "--json"]):
        shown = CliRunner().invoke(app, [*command, "--config", str(environment)])
        assert shown.exit_code == 0, shown.output
        check(shown.output)
    CliRunner().invoke(app, ["trace", "show", "r1", "--html", str(page), "--config", str(environment)])
    check(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["doctor"]])
def test_doctor_says_that_there_are_keys_and_not_which(arguments: list[str], environment: Path, log: pytest.LogCaptureFixture) -> None:
    text = environment.read_text(encoding="utf-8").split("[runs]")[0]
    environment.write_text(f'{text}[runs]\npostgres_variable = "CANARY_POSTGRES"\n', encoding="utf-8")
    shown = CliRunner().invoke(app, [*arguments, "--config", str(environment)])
    assert "OPENAI_API_KEY" in shown.output
    check(shown.output, log.text)


def test_a_command_that_fails_shows_no_password(environment: Path, log: pytest.LogCaptureFixture) -> None:
    environment.write_text('[near]\nmodel = "near"\n[runs]\npostgres_variable = "CANARY_POSTGRES"\n', encoding="utf-8")
    shown = CliRunner().invoke(app, ["runs", "list", "--config", str(environment)])
    assert shown.exit_code != 0
    check(shown.output, log.text, shown.exception or "")
