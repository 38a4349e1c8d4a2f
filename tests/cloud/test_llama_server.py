"""Far and near agents keep the contract against a real llama.cpp HTTP server, in-process and over gRPC."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from llama_engine import require_llama

pytest.importorskip("uvicorn", reason="the server needs packages of its own: pip install 'nearfar[test]'")
require_llama()

from llama_server import llama_server

from nearfar import Hybrid
from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.cloud.near_server import NearServerConfig
from nearfar.cloud.provider import ProviderAgent
from nearfar.cloud.server_trials import ServerAgent, open_near_server
from nearfar.protocols import Message, ScriptedAgent, Side, StepRequest, complete
from nearfar.protocols.steps import Sensitivity
from nearfar.protocols.testing import TRANSPORTS, Transport
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, run_check

_COMMAND = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from nearfar.orchestrator.cli import main
main()
"""
QUESTION = "What is the ceo of Helvar Group?"
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 8}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("llama") / "server.log") as address:
        yield address


def configured(base_url: str, **options: object) -> ProviderConfig:
    """This server ignores tools and `json_schema`, and takes one request at a time: the configuration says so."""
    fixed = {"provider": "openai", "model": "near", "base_url": base_url, "tools": False, "json_schema": "llama", "concurrency": 1}
    return ProviderConfig.model_validate({**fixed, **options})


async def create(base_url: str, **options: object) -> ProviderAgent:
    return build_provider(configured(base_url, **options))


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_provider_agent_keeps_the_contract(check: Check, transport: Transport, base_url: str) -> None:
    subject = Subject(
        create=partial(create, base_url, logprobs=True, seed=True),
        prompt=QUESTION,
        long_prompt=QUESTION,
        schema_use=SchemaUse(prompt=QUESTION, schema=ANSWER),
    )
    await run_check(check, subject, transport)


@pytest.mark.anyio
async def test_without_logprobs_no_confidence_is_claimed_or_given(base_url: str) -> None:
    agent = await create(base_url)
    request = StepRequest(messages=(Message.user(QUESTION),), sensitivity=Sensitivity.PUBLIC)
    reply = await complete(agent, request)
    await agent.aclose()
    assert not agent.card.capabilities.confidence
    assert reply.finished.confidence is None


async def near(base_url: str) -> ServerAgent:
    return await open_near_server(NearServerConfig(provider="llama-server", base_url=base_url), name="near")


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_near_agent_of_a_server_keeps_the_contract(check: Check, transport: Transport, base_url: str) -> None:
    """The suite's requests are private, as the agent is near; this server ignores tools and takes schemas in a form of its own."""
    schema_use = SchemaUse(prompt=QUESTION, schema=ANSWER)
    await run_check(check, Subject(create=partial(near, base_url), prompt=QUESTION, long_prompt=QUESTION, schema_use=schema_use), transport)


@pytest.mark.anyio
async def test_private_tasks_never_touch_the_far_agent(base_url: str) -> None:
    far = ScriptedAgent([], name="far", side=Side.FAR)
    async with Hybrid(near=base_url, far=far) as hybrid:
        plain = await hybrid.run(QUESTION)
        shaped = await hybrid.run(QUESTION, output=ANSWER, strategy="cascade")
    assert plain.served_on_device
    assert shaped.served_on_device
    assert isinstance(shaped.output["answer"], str)
    assert (plain.dollars, plain.model) == (Decimal(0), "near")
    assert far.requests == []


def nearfar(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a fresh interpreter, under proxies that lead nowhere. Its standard error ends with the modules that it loaded."""
    command = [sys.executable, "-c", _COMMAND, *arguments]
    proxies = dict.fromkeys(("ALL_PROXY", "HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    environment = {**os.environ, **proxies, "NO_PROXY": "", "NEARFAR_HOME": str(tmp_path)}
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, env=environment)


def test_the_command_line_takes_a_server_and_loads_no_engine_for_it(base_url: str, tmp_path: Path) -> None:
    ended = nearfar(tmp_path, "run", QUESTION, "--near", base_url, "--json")
    result = json.loads(ended.stdout)
    assert (result["served_on_device"], result["model"], result["near"]["dollars"]) == (True, "near", "0"), ended.stderr
    assert set(ended.stderr.split()) & {"grpc", "llama_cpp", "llguidance", "numpy", "onnxruntime", "torch"} == set()


def test_the_command_line_takes_an_address_as_the_far_side(base_url: str, tmp_path: Path) -> None:
    ended = nearfar(tmp_path, "run", QUESTION, "--far", base_url, "--public", "--strategy", "cloud", "--json")
    result = json.loads(ended.stdout)
    assert (result["served_on_device"], result["model"]) == (False, "near"), ended.stderr


def test_the_command_line_refuses_a_near_server_elsewhere(tmp_path: Path) -> None:
    ended = nearfar(tmp_path, "run", "hello", "--near", "http://192.168.1.5:8080/v1", "--json")
    error = json.loads(ended.stdout)["error"]
    assert (ended.returncode, error["type"]) == (2, "ConfigError")
    assert "trusted = true" in error["message"]
