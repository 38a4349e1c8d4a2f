"""`nearfar doctor` finds the servers that run here, and says which one is trusted with private text."""

import json
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import pytest
from http_server import Exchange, Server, http_server
from near_servers import FakeServer, running
from typer.testing import CliRunner

from nearfar.cloud import near_server, server_info
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.doctor import server_findings, trust_findings
from nearfar.orchestrator.compose.config import parse_config

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_ollama_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)


def place(monkeypatch: pytest.MonkeyPatch, **servers: Server) -> None:
    """Let these servers stand at their programs' usual ports, and nothing at those of the others."""
    ports = {name: int(server.base_url.split(":")[2].removesuffix("/v1")) for name, server in servers.items()}
    programs = {name: replace(program, port=ports.get(name, 9)) for name, program in near_server.PROGRAMS.items()}
    for module in (near_server, server_info):
        monkeypatch.setattr(module, "PROGRAMS", programs)


async def test_each_model_is_listed_with_the_line_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ollama = FakeServer("ollama", models=("qwen3:4b", "embed", "big-cloud"), remote={"big-cloud": "ollama.com"})
    async with running(ollama) as first, running(FakeServer("lmstudio", models=("a b",))) as second:
        place(monkeypatch, ollama=first, lmstudio=second)
        found = [(each.name, each.status, each.advice) for each in await server_findings()]
    assert found == [
        ("Ollama", "ok", 'nearfar run "..." --near ollama:qwen3:4b'),
        ("Ollama", "risky", "it is no near agent"),
        ("LM Studio", "ok", "nearfar run \"...\" --near 'lmstudio:a b'"),
    ]


async def test_a_long_list_of_models_is_cut_and_what_is_no_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ("a\x1b[2J", "b\nc", "d" * 5000, *(f"m{number}" for number in range(50)))
    async with running(FakeServer("vllm", models=models)) as seen:
        place(monkeypatch, vllm=seen)
        details = [each.detail for each in await server_findings()]
        assert (details[0], details[-1], len(details)) == (f"m0 at {seen.base_url}", f"30 more models at {seen.base_url}", 21)


async def test_a_server_that_asks_for_a_key_is_told_with_the_lines_that_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def locked(exchange: Exchange) -> None:
        await exchange.respond(401, '{"error": "Unauthorized"}')

    async with http_server(locked) as seen:
        place(monkeypatch, vllm=seen)
        (found,) = await server_findings()
    assert (found.status, found.detail) == ("absent", f"at {seen.base_url}, asks for a key")
    assert 'provider = "vllm", key_variable' in found.advice


async def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch)
    (found,) = await server_findings()
    assert (found.area, found.status) == ("servers", "absent")


async def test_doctor_tells_scripts_about_servers_and_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(FakeServer("vllm")) as seen:
        place(monkeypatch, vllm=seen)
        file = tmp_path / "nearfar.toml"
        file.write_text('[near]\nprovider = "vllm"\n', encoding="utf-8")
        ended = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["doctor", "--json", "--config", str(file)]))
    findings = json.loads(ended.output)["findings"]
    assert [each["advice"] for each in findings if each["area"] == "servers"] == ['nearfar run "..." --near vllm:tiny']
    (agent,) = [each for each in findings if each["area"] == "agents"]
    assert (agent["status"], "tiny, context 4096" in agent["detail"]) == ("ok", True)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            'base_url = "http://192.168.1.5:8000"\ntrusted = true',
            [("risky", "private text goes to 192.168.1.5: trusted = true, in plain text")],
        ),
        ('base_url = "https://my-box"\ntrusted = true', [("ok", "private text goes to my-box: trusted = true")]),
        ('base_url = "http://127.0.0.1:8000"\ntrusted = true', []),
        ("", []),
    ],
)
async def test_a_trusted_server_is_said(lines: str, expected: list[tuple[str, str]]) -> None:
    config = parse_config(f'[near]\nprovider = "vllm"\n{lines}\n', "nearfar.toml")
    assert [(each.status, each.detail) for each in trust_findings(config)] == expected


async def test_a_trusted_ollama_host_that_is_no_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "nonsense:port")
    config = parse_config('[near]\nprovider = "ollama"\ntrusted = true\n', "nearfar.toml")
    assert [each.status for each in trust_findings(config)] == ["broken"]
