"""Private text goes to this machine, or to a server that the user declares their own, and nowhere else."""

import socket
import ssl
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from certificates import write_certificate
from http_server import Exchange, Server, http_server
from near_servers import FakeServer, running

from nearfar import Hybrid, Records, Tier, tool
from nearfar.cloud import server_trials
from nearfar.cloud.near_server import NearServerConfig, near_addresses, parse_server
from nearfar.cloud.server_trials import open_near_server
from nearfar.orchestrator.compose import near_handle, parse_near
from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.safety.outbound_filter import PrivacyRecords
from nearfar.protocols import ConfigError, Message, ScriptedAgent, Side, StepRequest, Unavailable, Unsupported, complete

pytestmark = pytest.mark.anyio

SECRET = "my account is DE02 1203 0000 0000 2020 51"


@pytest.fixture(autouse=True)
def fresh_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_trials, "_shown", {})
    monkeypatch.delenv("OLLAMA_HOST", raising=False)


def answers(*addresses: str) -> list[Any]:
    """The result of looking a name up."""
    return [(socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 80)) for each in addresses]


def resolving(monkeypatch: pytest.MonkeyPatch, *turns: list[Any]) -> list[str]:
    """Let each look-up of a name give the next answer, the last one for ever; return the names that are looked up."""
    asked: list[str] = []

    def look_up(host: bytes, *arguments: object, **options: object) -> list[Any]:
        asked.append(host.decode())
        found = turns[min(len(asked), len(turns)) - 1]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def at(seen: Server, host: str, *, trusted: bool = False) -> NearServerConfig:
    """The configuration of a server under another name of this machine."""
    return NearServerConfig(provider="openai", base_url=seen.base_url.replace("127.0.0.1", host), trusted=trusted)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.168.1.5:8080/v1",
        "http://10.0.0.1",
        "https://203.0.113.7/v1",
        "http://[::ffff:8.8.8.8]:80/v1",
        "http://[fe80::1]:80/v1",
        "http://169.254.169.254/v1",
        "http://127.0.0.1@evil.example/v1",
        "http://evil.example@127.0.0.1/v1",
        "http://user:word@127.0.0.1:1/v1",
        "http://127.0.0.1\\@evil.example/v1",
        "http://evil.example\\@127.0.0.1/v1",
        "http://127.0.0.1\\.evil.example/v1",
        "http://127.0.0.1%2eevil.example/v1",
        "http://127.0.0.1:1/v1?to=evil.example",
        "http://",
        "http:///v1",
        "http://127.0.0.1:99999/v1",
        "ollama:http://192.168.1.5:11434",
        "llama-server:192.168.1.5:8080",
    ],
)
def test_an_address_that_is_not_this_machines_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Hybrid(near=url)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1.evil.example", "localhost.evil.example", "evil.example", "0x7f000001.evil.example"])
@pytest.mark.parametrize("found", [(), ("203.0.113.7",), ("127.0.0.1", "203.0.113.7"), ("::ffff:192.0.2.1",), ("0.0.0.0",)])
async def test_a_name_is_near_only_if_it_is_this_machines(host: str, found: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, answers(*found))
    with pytest.raises(ConfigError, match=r"this machine"):
        await open_near_server(NearServerConfig(provider="openai", base_url=f"http://{host}:80/v1"), name="near")


@pytest.mark.parametrize(("trusted", "words"), [(False, "cannot be resolved"), (True, "is not known here")])
async def test_a_name_without_an_address_is_no_server(trusted: bool, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", ("/tmp/socket", 0))])
    with pytest.raises(ConfigError, match=words):
        await near_addresses("http", "my-box", 80, trusted=trusted)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"])
async def test_loopback_is_near(host: str) -> None:
    assert all(address.is_loopback for address in await near_addresses("http", host, 80, trusted=False))


async def test_a_server_at_one_address_of_localhost_is_found() -> None:
    async with running(FakeServer()) as seen:  # at 127.0.0.1 alone
        agent = await open_near_server(at(seen, "localhost"), name="near")
        await agent.aclose()
    assert {exchange.headers["host"].partition(":")[0] for exchange in seen.exchanges} == {"localhost"}


async def test_a_name_that_resolves_elsewhere_a_moment_later_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    async with running(server) as seen:
        turns = [answers("127.0.0.1")] * 50
        asked = resolving(monkeypatch, *turns, answers("203.0.113.7"))
        config = at(seen, "my-box")
        agent = await open_near_server(config, name="near")
        before = len(server.bodies)
        asked += ["my-box"] * 50
        with pytest.raises(ConfigError, match=r"my-box \(203\.0\.113\.7\) is not this machine"):
            await complete(agent, StepRequest(messages=(Message.user(SECRET),)))
        await agent.aclose()
    assert len(server.bodies) == before


async def test_a_name_is_looked_up_once_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was checked is the one that is connected to: no second look-up could give another."""
    async with running(FakeServer()) as seen:
        asked = resolving(monkeypatch, answers("127.0.0.1"))
        agent = await open_near_server(at(seen, "my-box"), name="near")
        await agent.aclose()
    assert asked == ["my-box"] * len(seen.exchanges)


@pytest.mark.parametrize("trusted", [False, True])
async def test_no_proxy_sees_private_text(trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(exchange: Exchange) -> None:
        raise NotImplementedError

    async with http_server(proxy) as spy, running(FakeServer()) as seen:
        for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, spy.base_url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        resolving(monkeypatch, answers("127.0.0.1"))
        config = at(seen, "my-box", trusted=trusted)
        agent = await open_near_server(config, name="near")
        assert (await complete(agent, StepRequest(messages=(Message.user(SECRET),)))).text == "It is fine."
        await agent.aclose()
    assert spy.connections == 0


async def test_a_certificate_of_an_own_authority_is_taken_once_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with http_server(FakeServer().answer, tls) as seen:
        with pytest.raises(Unavailable, match="self-signed") as caught:
            await open_near_server(at(seen, "localhost"), name="near")
        assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        agent = await open_near_server(at(seen, "localhost"), name="near")
        assert (await complete(agent, StepRequest(messages=(Message.user(SECRET),)))).text == "It is fine."
        await agent.aclose()


@pytest.mark.parametrize(("host", "is_elsewhere"), [("127.0.0.1", False), ("0.0.0.0", False), ("localhost", True), ("192.168.1.5", True)])
def test_a_trusted_server_is_elsewhere_unless_its_address_is_this_machine(host: str, is_elsewhere: bool) -> None:
    config = NearServerConfig(provider="openai", base_url=f"http://{host}:1", trusted=True)
    assert config.is_elsewhere is is_elsewhere


async def test_no_redirect_is_followed_with_private_text() -> None:
    server = FakeServer()

    async def spied(exchange: Exchange) -> None:
        raise NotImplementedError

    async with http_server(spied) as spy:

        async def answer(exchange: Exchange) -> None:
            if "DE02" in str(exchange.body):
                await exchange.respond(307, "", location=f"{spy.base_url}/chat/completions")
            else:
                await server.answer(exchange)

        async with http_server(answer) as seen:
            agent = await open_near_server(NearServerConfig(provider="openai", base_url=seen.base_url), name="near")
            with pytest.raises(Exception, match="redirects"):
                await complete(agent, StepRequest(messages=(Message.user(SECRET),)))
            await agent.aclose()
    assert spy.connections == 0


async def test_a_trusted_server_is_not_reached_in_plain_text_over_the_internet() -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        Hybrid(near={"provider": "vllm", "base_url": "http://8.8.8.8:8000", "trusted": True})
    with pytest.raises(ConfigError, match="in the clear"):
        await near_addresses("http", "8.8.8.8", 80, trusted=True)
    assert await near_addresses("https", "8.8.8.8", 443, trusted=True)
    assert await near_addresses("http", "192.168.1.5", 80, trusted=True)


def test_ollama_host_is_honoured_and_held_to_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    ollama = NearServerConfig(provider="ollama")
    for given, url in {
        "0.0.0.0": "http://127.0.0.1:11434/v1",
        ":99": "http://127.0.0.1:99/v1",
        "http://127.0.0.1:99/ollama": "http://127.0.0.1:99/ollama/v1",
        "http://127.0.0.1:99/v1/": "http://127.0.0.1:99/v1",
        "http://localhost": "http://localhost:80/v1",
    }.items():
        assert ollama.located({"OLLAMA_HOST": given}).base_url == url
    monkeypatch.setenv("OLLAMA_HOST", "192.168.1.5")
    with pytest.raises(ConfigError, match=r"OLLAMA_HOST: 192\.168\.1\.5 is not this machine"):
        near_handle("ollama:qwen3:4b")
    monkeypatch.setenv("OLLAMA_HOST", "ana:word@127.0.0.1")
    with pytest.raises(ConfigError, match="OLLAMA_HOST") as caught:
        near_handle("ollama:qwen3:4b")
    assert "word" not in str(caught.value)
    assert NearServerConfig(provider="vllm").located().base_url == "http://127.0.0.1:8000/v1"


@tool(returns="device", effect="read", source="internal_tool")
def read_diary() -> str:
    """The diary."""
    return "nine"


async def test_a_trusted_server_is_said_in_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, answers("127.0.0.1"))
    records = PrivacyRecords(tmp_path)
    async with running(FakeServer()) as seen, Hybrid(near=at(seen, "my-box", trusted=True), records=Records(privacy=records)) as hybrid:
        assert (await hybrid.run(SECRET, idempotency_key="run-1")).served_on_device
    (left,) = records.outbound_log("run-1")
    records.close()
    assert (left.agent, left.outcome, left.tier) == ("near", "left", Tier.USER)
    assert left.reason == "a server at my-box, which the configuration trusts as the user's own"


async def test_a_server_on_this_machine_takes_private_text_and_the_far_agent_none(tmp_path: Path) -> None:
    far = ScriptedAgent(["no"], name="far", side=Side.FAR)
    server = FakeServer()
    records = PrivacyRecords(tmp_path)
    async with running(server) as seen, Hybrid(near=seen.base_url, far=far, records=Records(privacy=records)) as hybrid:
        result = await hybrid.run(SECRET, idempotency_key="run-1")
    assert (result.served_on_device, result.dollars, result.text) == (True, Decimal(0), "It is fine.")
    assert SECRET in str(server.bodies[-1])
    assert far.requests == []
    assert records.outbound_log("run-1") == []
    records.close()


async def test_the_router_acts_on_what_the_server_cannot_do() -> None:
    """Tools and schemas go to the far agent if the task may, and to none if it is private."""
    far = ScriptedAgent(["from afar"] * 2, name="far", side=Side.FAR)
    server = FakeServer(calls_tools=False, takes_tool_choice=False)
    async with running(server) as seen, Hybrid(near=seen.base_url, far=far, tools=[read_diary]) as hybrid:
        assert (await hybrid.run("When?", sensitivity="public")).text == "from afar"
        with pytest.raises(Unsupported):
            await hybrid.run("When?")
    assert len(far.requests) == 1


async def test_a_server_that_is_gone_leaves_a_private_task_on_this_device() -> None:
    far = ScriptedAgent(["no"], name="far", side=Side.FAR)
    async with running(FakeServer()) as seen:
        gone = seen.base_url
    async with Hybrid(near=gone, far=far) as hybrid:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await hybrid.run(SECRET)
    assert far.requests == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[near]\nprovider = "openai"\n', "base_url is missing"),
        ('[near]\nprovider = "olama"\n', "near.provider"),
        ('[near]\nprovider = "vllm"\nbase_url = "http://192.168.1.5:8000"\n', "is not this machine"),
        ('[near]\nprovider = "ollama"\ntrust = true\n', "did you mean 'trusted'?"),
        ('[near]\nprovider = "ollama"\nthreads = 4\n', "near.threads: unknown key"),
        ('[near]\nbase_url = "http://127.0.0.1:1"\n', "near.provider is missing"),
        ('[near]\nprovider = "ollama"\nbase_url = "http://ana:hunter2@127.0.0.1"\n', "a secret must not stand"),
        ('[near]\nprovider = "ollama"\nbase_url = "http://127.0.0.1/#hunter2"\n', "no credentials"),
        ('[other_near.second]\nprovider = "vllm"\nmodel = ""\n', "other_near.second.model"),
        ('[near]\nmodel = "m.gguf"\ntrusted = true\n', "near.trusted: unknown key"),
    ],
)
def test_a_mistake_in_the_section_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "nearfar.toml")
    assert words in caught.value.message
    assert "hunter2" not in str(caught.value)
    assert "{" not in caught.value.message


def test_a_file_names_servers_of_both_sorts() -> None:
    first = '[near]\nprovider = "ollama"\nmodel = "qwen3:4b"\n'
    second = '[other_near.box]\nprovider = "vllm"\nbase_url = "http://192.168.1.5:8000"\ntrusted = true\n'
    config = parse_config(first + second, "nearfar.toml")
    assert config.near == NearServerConfig(provider="ollama", model="qwen3:4b")
    box = config.others["box"]
    assert isinstance(box, NearServerConfig)
    assert (box.base_url, box.is_elsewhere) == ("http://192.168.1.5:8000/v1", True)


@pytest.mark.parametrize("text", ["openai:gpt-6", "anthropic:claude", "gateway:host:1"])
def test_a_far_agent_is_no_near_one(text: str) -> None:
    with pytest.raises(ConfigError, match="is a far agent"):
        parse_near(text)


@pytest.mark.parametrize(
    ("text", "base_url", "model"),
    [
        ("HTTP://127.0.0.1:80/v1#a", "http://127.0.0.1:80/v1", "a"),
        ("Ollama:HTTP://127.0.0.1:80", "http://127.0.0.1:80/v1", None),
        ("llama-server:localhost:80/v1", "http://localhost:80/v1", None),
        ("LMStudio:a", None, "a"),
    ],
)
def test_a_server_is_read_however_it_is_written(text: str, base_url: str | None, model: str | None) -> None:
    config = parse_server(text)
    assert config is not None
    assert (config.base_url, config.model) == (base_url, model)


@pytest.mark.parametrize("text", ["near", "/models/x.gguf", "hf:owner/model:Q4", "C:\\models\\x.gguf", "qwen"])
def test_a_models_name_is_no_server(text: str) -> None:
    assert parse_server(text) is None
