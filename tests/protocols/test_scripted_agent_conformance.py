"""ScriptedAgent keeps the contract over every transport."""

import pytest
from anyio.lowlevel import checkpoint

from nearfar.protocols import Capabilities, Limits, ScriptedAgent, Side, StepRequest, ToolCall, ToolSpec
from nearfar.protocols.agent import Agent
from nearfar.protocols.fakes import Reply
from nearfar.protocols.testing import TRANSPORTS, Transport
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, UnicodeUse, run_check

CAPITAL = ToolSpec(
    name="capital",
    parameters={"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
)
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
FAMILY = "\N{FAMILY} na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{CJK UNIFIED IDEOGRAPH-6F22}"


def answer(request: StepRequest) -> Reply:
    """What the agent says to each of the prompts below."""
    last = request.messages[-1]
    if last.tool_result is not None:
        return f"It is {last.tool_result.content}."
    match last.text:
        case "capital":
            return ToolCall(id="call-1", name="capital", arguments={"country": "France"})
        case "person":
            return ['{"age', '": 3', "}"]
        case "unicode":
            return list(FAMILY)
        case "long":
            return [f"word{number} " for number in range(200)]
    return ["Hello", ", ", "world"]


def scripted(**options: object) -> Agent:
    claimed = Capabilities(tools=True, json_schema=True, seed=True, cancellation=True, logprobs=True, images=True)
    defaults: dict[str, object] = {"capabilities": claimed, "limits": Limits(context_tokens=500, concurrency=4), "confidence": 0.5}
    return ScriptedAgent(answer, pace=checkpoint, **{**defaults, **options})  # type: ignore[arg-type]  # options are free here


async def near_agent() -> Agent:
    return scripted()


async def far_agent_without_claims() -> Agent:
    return scripted(side=Side.FAR, capabilities=Capabilities(), limits=Limits(concurrency=1), confidence=None)


def live_steps(agent: Agent) -> int:
    assert isinstance(agent, ScriptedAgent)
    return agent.live_steps


def tokens_decoded(agent: Agent) -> int:
    assert isinstance(agent, ScriptedAgent)
    return agent.tokens_decoded


CLAIMS_ALL = Subject(
    create=near_agent,
    prompt="short",
    long_prompt="long",
    tool_use=ToolUse(prompt="capital", tools=(CAPITAL,), result="Paris"),
    schema_use=SchemaUse(prompt="person", schema=PERSON),
    unicode_use=UnicodeUse(prompt="unicode", expected=FAMILY),
    live_steps=live_steps,
    tokens_decoded=tokens_decoded,
)
CLAIMS_NOTHING = Subject(create=far_agent_without_claims, prompt="short", long_prompt="long", live_steps=live_steps)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("subject", [CLAIMS_ALL, CLAIMS_NOTHING], ids=["claims_all", "claims_nothing"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_scripted_agent_keeps_the_contract(check: Check, subject: Subject, transport: Transport) -> None:
    await run_check(check, subject, transport)
