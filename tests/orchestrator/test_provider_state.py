"""A provider's own form of a turn comes back to that provider within a run, and to nobody else."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import JsonValue

from nearfar import Hybrid, Records, tool
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.budgets.account import most_prompt_tokens
from nearfar.orchestrator.cache.admission import exact_key
from nearfar.orchestrator.safety.placeholders import map_request_texts
from nearfar.orchestrator.safety.privacy import RunPrivacy
from nearfar.orchestrator.task import TaskScope
from nearfar.orchestrator.task.labels import Label
from nearfar.orchestrator.task.policy import Policy, PrivacyConfig
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import open_traces
from nearfar.protocols import (
    Finished,
    FinishReason,
    Message,
    ProviderState,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    ToolResult,
    Usage,
)

pytestmark = pytest.mark.anyio
PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)
CALL = ToolCall(id="call_1", name="look", arguments={})
QUESTION = Message.user("Which way?")


def state_of(model: str, text: str = "gAAAAencrypted") -> ProviderState:
    return ProviderState(provider="openai https://far.example/v1", model=model, parts=({"type": "reasoning", "encrypted_content": text},))


def called(model: str) -> tuple[ToolCall, Finished]:
    return CALL, Finished(reason=FinishReason.TOOL_CALLS, usage=Usage(input_tokens=1, output_tokens=1), model=model, state=state_of(model))


def agent_of(side: Side, *replies: object, model: str = "far-1") -> ScriptedAgent:
    return ScriptedAgent(replies, name=side.value, side=side, model=model)  # type: ignore[arg-type]  # replies of any kind


def conversation(text: str = "", state: ProviderState | None = None) -> tuple[Message, ...]:
    result = ToolResult(call_id="call_1", name="look", content="north")
    return QUESTION, Message.assistant(text, (CALL,), state or state_of("far-1")), Message.tool(result), Message.user("Sure?")


def asking(messages: tuple[Message, ...]) -> StepRequest:
    return StepRequest(messages=messages, sensitivity=Sensitivity.PUBLIC)


@tool
def look() -> str:
    """Look around."""
    return "north"


def states(request: StepRequest) -> list[ProviderState | None]:
    return [message.state for message in request.messages if message.role == "assistant"]


def _without(name: str) -> Callable[[str], str]:
    return lambda text: text.replace(name, "X")


async def test_a_turns_state_comes_back_with_the_results_of_its_calls() -> None:
    agent = agent_of(Side.FAR, called("far-1"), "north")
    async with Hybrid(far=agent, tools=[look], policy=PUBLIC, records=Records(checkpointer=InMemorySaver())) as hybrid:
        await hybrid.run("Which way?")
    assert states(agent.requests[1]) == [state_of("far-1")]


@pytest.mark.parametrize(("side", "model", "kept"), [(Side.FAR, "far-1", True), (Side.FAR, "far-2", False), (Side.NEAR, "far-1", False)])
async def test_only_the_model_that_it_came_from_gets_a_state(side: Side, model: str, kept: bool) -> None:
    agent = agent_of(side, "yes", model=model)
    agents = {"far": agent} if side is Side.FAR else {"near": agent}
    async with Hybrid(**agents, tools=[look], policy=PUBLIC) as hybrid:  # type: ignore[arg-type]  # one of two names
        await hybrid.run(conversation())
    assert states(agent.requests[0]) == [state_of("far-1") if kept else None]


def test_an_answers_key_does_not_depend_on_the_thoughts_before_it() -> None:
    card = agent_of(Side.FAR).card
    keys = {exact_key(asking(conversation(state=state_of("far-1", thoughts))), card, TaskScope()) for thoughts in ("a", "b")}
    assert len(keys) == 1


def test_a_message_whose_words_change_on_the_way_loses_its_state() -> None:
    kept, lost = (map_request_texts(asking(conversation("Ann is there.")), _without(name)) for name in ("Bo", "Ann"))
    assert (states(kept), states(lost)) == ([state_of("far-1")], [None])


@pytest.mark.parametrize(("thoughts", "kept"), [("gAAAAencrypted", True), ("The safe's code is 7741-2209-8830.", False)])
async def test_thoughts_that_hold_what_became_private_stay_here(thoughts: str, kept: bool) -> None:
    member = AgentHandle("far", Side.FAR, agent_of(Side.FAR))
    privacy = RunPrivacy(PrivacyConfig(), [])
    privacy.known_secrets.add_text("The safe's code is 7741-2209-8830.")
    outbound = await privacy.filter_request(member, asking(conversation(state=state_of("far-1", thoughts))), Label(), role="execute")
    assert [state is not None for state in states(outbound.request)] == [kept]


def test_thoughts_that_go_back_count_as_prompt_once() -> None:
    words = "a long answer " * 50
    parts: tuple[dict[str, JsonValue], ...] = ({"type": "text", "text": words}, {"type": "thinking", "signature": "c2ln" * 300})
    state = ProviderState(provider="p", model="m", parts=parts)
    plain, kept = (most_prompt_tokens(asking((QUESTION, Message.assistant(words, state=each), QUESTION))) for each in (None, state))
    assert plain + 300 < kept < plain + 600


async def test_no_trace_keeps_a_providers_thoughts(tmp_path: Path) -> None:
    agent = agent_of(Side.FAR, called("far-1"), "north")
    with closing(open_traces(RunsConfig(folder=tmp_path))) as traces:
        async with Hybrid(far=agent, tools=[look], policy=PUBLIC, records=Records(traces=traces)) as hybrid:
            await hybrid.run("Which way?", idempotency_key="run-1")
        kept = "".join(entry.model_dump_json() for entry in traces.entries("run-1"))
    assert "north" in kept
    assert "gAAAA" not in kept
