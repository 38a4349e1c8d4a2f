"""LlamaAgent on the shipped near model keeps the contract, in-process and over gRPC."""

from typing import cast

import pytest
from llama_engine import require_llama

require_llama()
from near_model import CONTEXT_TOKENS, NEAR, OPEN, QUESTION, long_prompt

from nearfar import LlamaAgent
from nearfar.protocols import Agent
from nearfar.protocols.testing import TRANSPORTS, Transport
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, run_check

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def _create() -> Agent:
    return await LlamaAgent.load(NEAR, context_tokens=CONTEXT_TOKENS)


def _llama(agent: Agent) -> LlamaAgent:
    return cast(LlamaAgent, agent)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_llama_agent_keeps_the_contract(check: Check, transport: Transport) -> None:
    subject = Subject(
        create=_create,
        prompt=QUESTION,
        long_prompt=await long_prompt(),
        tool_use=ToolUse(prompt=QUESTION, tools=(OPEN,), result="Vera Falk"),
        schema_use=SchemaUse(prompt=QUESTION, schema=SCHEMA),
        live_steps=lambda agent: _llama(agent).live_steps,
        tokens_decoded=lambda agent: _llama(agent).tokens_decoded,
    )
    await run_check(check, subject, transport)
