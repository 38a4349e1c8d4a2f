"""ProviderAgent keeps the contract against a real llama.cpp HTTP server, in-process and over gRPC."""

from collections.abc import Iterator
from functools import partial

import pytest
from llama_engine import require_llama

pytest.importorskip("uvicorn", reason="the server needs packages of its own: pip install 'nearfar[test]'")
require_llama()

from llama_server import llama_server

from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.cloud.provider import ProviderAgent
from nearfar.protocols import Message, StepRequest, complete
from nearfar.protocols.steps import Sensitivity
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, run_check
from nearfar.protocols.testing.transports import TRANSPORTS, Transport

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
