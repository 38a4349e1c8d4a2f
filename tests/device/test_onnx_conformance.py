"""OnnxAgent on the shipped near model, exported to ONNX, keeps the contract, in-process and over gRPC.

That the other ways to reach an agent lose nothing does not depend on its engine: LlamaAgent's tests see to that.
"""

from pathlib import Path
from typing import cast

import anyio
import pytest

pytest.importorskip("llguidance", reason="running models needs llguidance: pip install 'nearfar[onnx]'")
from near_model import CONTEXT_TOKENS, OPEN, QUESTION, prompt_with_long_answer

from nearfar.device.onnx import OnnxAgent
from nearfar.protocols import Agent
from nearfar.protocols.testing import Transport, attached, grpc_tcp, in_process
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, run_check

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _onnx(agent: Agent) -> OnnxAgent:
    return cast(OnnxAgent, agent)


@pytest.fixture(scope="module")
def long_prompt(near_folder: Path) -> str:
    async def find() -> str:
        async with await OnnxAgent.load(near_folder) as agent:
            return await prompt_with_long_answer(agent)

    return anyio.run(find)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", [in_process, grpc_tcp, attached], ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_onnx_agent_keeps_the_contract(check: Check, transport: Transport, near_folder: Path, long_prompt: str) -> None:
    async def create() -> Agent:
        return await OnnxAgent.load(near_folder, context_tokens=CONTEXT_TOKENS)

    subject = Subject(
        create=create,
        prompt=QUESTION,
        long_prompt=long_prompt,
        tool_use=ToolUse(prompt=QUESTION, tools=(OPEN,), result="Vera Falk"),
        schema_use=SchemaUse(prompt=QUESTION, schema=SCHEMA),
        live_steps=lambda agent: _onnx(agent).live_steps,
        tokens_decoded=lambda agent: _onnx(agent).tokens_decoded,
    )
    await run_check(check, subject, transport)
