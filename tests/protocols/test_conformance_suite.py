"""The conformance suite itself: each way to break the contract is caught by the check that is named for it."""

from collections.abc import AsyncGenerator, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nearfar.protocols import (
    AgentCard,
    Capabilities,
    Finished,
    FinishReason,
    InvalidOutput,
    Limits,
    ScriptedAgent,
    Side,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolSpec,
    Usage,
)
from nearfar.protocols.testing import agent_conformance as checks
from nearfar.protocols.testing.agent_conformance import Check, SchemaUse, Subject, ToolUse, UnicodeUse, run_check

pytestmark = pytest.mark.anyio

USAGE = Usage(input_tokens=1, output_tokens=1)
ALL = Capabilities(tools=True, json_schema=True, confidence=True, seed=True, cancellation=True)
Events = AsyncGenerator[StepEvent, None]
Behaviour = Callable[["Broken", StepRequest], Events]


class Broken:
    """An agent without any manners but those that its `behaviour` has."""

    def __init__(self, behaviour: Behaviour, card: AgentCard) -> None:
        self.behaviour = behaviour
        self.card = card
        self.live_steps = 0
        self.tokens_decoded = 0
        self.steps = 0
        self.turn = anyio.Lock()

    def step(self, request: StepRequest) -> Events:
        self.steps += 1
        return self.behaviour(self, request)

    async def aclose(self) -> None:
        """Closing changes nothing, which is one of the faults."""


def finished(reason: FinishReason = FinishReason.STOP, **fields: object) -> Finished:
    return Finished.model_validate({"reason": reason, "usage": USAGE, "model": "m", **fields})


async def says_all_at_once(agent: Broken, request: StepRequest) -> Events:
    yield TextDelta(text="a b c d")
    yield finished(confidence=0.5)


async def finishes_twice(agent: Broken, request: StepRequest) -> Events:
    for text in ("a", "b"):
        yield TextDelta(text=text)
    yield finished()
    yield finished()


async def never_finishes(agent: Broken, request: StepRequest) -> Events:
    for text in ("a", "b"):
        yield TextDelta(text=text)


async def calls_an_unknown_tool(agent: Broken, request: StepRequest) -> Events:
    yield ToolCalled(call=ToolCall(id="1", name="unknown"))
    yield finished(FinishReason.TOOL_CALLS)


async def cuts_a_character(agent: Broken, request: StepRequest) -> Events:
    yield TextDelta(text="\N{REPLACEMENT CHARACTER}\N{SNOWMAN}")
    yield finished()


async def differs_every_time(agent: Broken, request: StepRequest) -> Events:
    yield TextDelta(text=f"text {agent.steps}")
    yield finished()


async def counts_nothing(agent: Broken, request: StepRequest) -> Events:
    yield TextDelta(text="a")
    yield Finished(reason=FinishReason.STOP, usage=Usage(), model="")


async def goes_on_after_it_was_left(agent: Broken, request: StepRequest) -> Events:
    agent.live_steps += 1
    yield TextDelta(text="a")
    yield TextDelta(text="b")
    agent.live_steps -= 1
    yield finished()


async def decodes_in_secret(agent: Broken, request: StepRequest) -> Events:
    agent.tokens_decoded += 100
    yield TextDelta(text="a")
    yield finished()


async def runs_one_after_the_other(agent: Broken, request: StepRequest) -> Events:
    async with agent.turn:
        for text in ("a", "b"):
            await checkpoint()
            yield TextDelta(text=text)
        yield finished()


def card(**fields: object) -> AgentCard:
    return AgentCard.model_validate({"name": "broken", "side": Side.NEAR, "model": "m", "capabilities": ALL, **fields})


BREACHES: list[tuple[Check, Behaviour, AgentCard]] = [
    (checks.text_streams_and_ends_with_one_finished, says_all_at_once, card()),
    (checks.text_streams_and_ends_with_one_finished, finishes_twice, card()),
    (checks.text_streams_and_ends_with_one_finished, never_finishes, card()),
    (checks.usage_is_counted, counts_nothing, card()),
    (checks.usage_is_counted, says_all_at_once, card()),
    (checks.finished_names_the_model, counts_nothing, card()),
    (checks.output_limit_is_kept, says_all_at_once, card()),
    (checks.stop_sequence_ends_the_text, says_all_at_once, card()),
    (checks.tool_call_makes_a_round_trip, says_all_at_once, card()),
    (checks.tool_call_makes_a_round_trip, calls_an_unknown_tool, card()),
    (checks.tool_choice_none_calls_no_tool, calls_an_unknown_tool, card()),
    (checks.output_schema_is_kept, says_all_at_once, card()),
    (checks.output_schema_is_kept, says_all_at_once, card(capabilities=Capabilities())),
    (checks.broken_output_schema_is_refused, says_all_at_once, card()),
    (checks.closing_the_stream_stops_the_compute, goes_on_after_it_was_left, card()),
    (checks.closing_the_stream_stops_the_compute, decodes_in_secret, card()),
    (checks.abandoning_the_stream_stops_the_compute, goes_on_after_it_was_left, card()),
    (checks.deadline_ends_the_step, says_all_at_once, card()),
    (checks.characters_split_across_tokens_arrive_whole, cuts_a_character, card()),
    (checks.overlong_prompt_overflows_the_context, says_all_at_once, card(limits=Limits(context_tokens=5))),
    (checks.empty_prompt_is_refused, says_all_at_once, card()),
    (checks.concurrent_steps_interleave, runs_one_after_the_other, card(limits=Limits(concurrency=2))),
    (checks.closing_a_busy_agent_ends_its_steps, says_all_at_once, card()),
    (checks.confidence_is_a_probability, says_all_at_once, card(capabilities=Capabilities())),
    (checks.confidence_is_a_probability, finishes_twice, card()),
    (checks.same_seed_gives_the_same_text, differs_every_time, card()),
    (checks.far_agent_refuses_private_text, says_all_at_once, card(side=Side.FAR)),
]


@pytest.mark.parametrize(("check", "behaviour", "described"), BREACHES, ids=lambda value: getattr(value, "__name__", ""))
async def test_breach_of_the_contract_is_caught(check: Check, behaviour: Behaviour, described: AgentCard) -> None:
    with anyio.fail_after(30), pytest.raises((AssertionError, TimeoutError, InvalidOutput)):
        await run_check(check, subject_of(behaviour, described))


def subject_of(behaviour: Behaviour, described: AgentCard) -> Subject:
    async def create() -> Broken:
        return Broken(behaviour, described)

    return Subject(
        create=create,
        prompt="short",
        long_prompt="long",
        tool_use=ToolUse(prompt="use it", tools=(ToolSpec(name="known"),), result="done"),
        schema_use=SchemaUse(prompt="as JSON", schema={"type": "object"}),
        unicode_use=UnicodeUse(prompt="snow", expected="\N{SNOWMAN}"),
        live_steps=lambda agent: getattr(agent, "live_steps", 0),
        tokens_decoded=lambda agent: getattr(agent, "tokens_decoded", 0),
        time_limit=0.5,
    )


async def test_claims_without_a_use_are_caught() -> None:
    async def create() -> ScriptedAgent:
        return ScriptedAgent(lambda request: "x")

    for check in (checks.tool_call_makes_a_round_trip, checks.output_schema_is_kept, checks.closing_the_stream_stops_the_compute):
        with pytest.raises(AssertionError, match="card claims"):
            await run_check(check, Subject(create=create, prompt="short", long_prompt="long"))
