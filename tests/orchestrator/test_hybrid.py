"""`Hybrid`: one task through both sides, with scripted agents."""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import date
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.memory import InMemoryStore

from nearfar import Hybrid, Records, Tool, tool
from nearfar.orchestrator.agents import AgentHandle, AgentPool
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.events import AttemptEnded, AttemptStarted, TaskFinished
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import (
    Capabilities,
    ConfigError,
    ContextOverflow,
    DeadlineExceeded,
    Finished,
    FinishReason,
    InvalidOutput,
    InvalidRequest,
    Message,
    NearfarError,
    Prices,
    PrivacyViolation,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    Unauthenticated,
    Unavailable,
    Usage,
)

pytestmark = pytest.mark.anyio

PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)
LOOKUP = ToolCall(id="1", name="lookup", arguments={"entity": "Orbix Labs", "attribute": "ceo"})
FREE = Prices(input=Decimal(0), output=Decimal(0), source="test", as_of=date(2026, 11, 20))
PAID = Prices(input=Decimal(2), output=Decimal(10), source="test", as_of=date(2026, 11, 20))


@tool(effect="read")
async def lookup(entity: str, attribute: str) -> str:
    """Look up one attribute of one entity."""
    return "Mira Falk"


def near(script: Sequence[object], *, confidence: float | None = 0.9) -> ScriptedAgent:
    return ScriptedAgent(script, name="near", prices=FREE, confidence=confidence)  # type: ignore[arg-type]  # scripts mix kinds


def far(script: Sequence[object]) -> ScriptedAgent:
    return ScriptedAgent(script, name="far", side=Side.FAR, prices=PAID)  # type: ignore[arg-type]  # scripts mix kinds


def hybrid(near_agent: ScriptedAgent, far_agent: ScriptedAgent, *tools: Tool, policy: Policy = PUBLIC) -> Hybrid:
    return Hybrid(near=near_agent, far=far_agent, tools=tools, policy=policy)


async def test_a_draft_stands_where_the_one_who_takes_over_says_nothing() -> None:
    async with hybrid(near(["Lima."], confidence=0.1), far([" \n"])) as agents:
        result = await agents.run("Capital of Peru?")
    assert (result.text, result.side) == ("Lima.", Side.NEAR)
    assert any("far failed: InvalidOutput: the answer is empty" in reason for reason in result.reasons)
    assert [call.dollars for call in result.calls if call.agent == "far"] != [None]  # it was paid all the same


@pytest.mark.parametrize("strategy", ["cloud", "route"])
async def test_the_next_agent_answers_where_the_first_one_says_nothing(strategy: str) -> None:
    async with hybrid(near(["Lima."]), far([" "])) as agents:
        result = await agents.run("Capital of Peru?", strategy=strategy, mode="prefer_in_cloud")
    assert (result.text, result.side) == ("Lima.", Side.NEAR)


async def test_an_agent_that_nobody_follows_or_that_has_acted_may_say_nothing() -> None:
    async with hybrid(near(["Lima."]), far([LOOKUP, " "]), lookup) as agents:
        result = await agents.run("Look it up.", strategy="cloud")
        assert (result.text, result.side) == (" ", Side.FAR)
    async with Hybrid(far=far([" "]), policy=PUBLIC) as agents:
        assert (await agents.run("Say nothing.")).text == " "


async def test_a_cascade_keeps_a_grounded_and_sure_draft() -> None:
    far_agent = far([])
    async with hybrid(near([LOOKUP, "Mira Falk"]), far_agent, lookup) as agents:
        result = await agents.run("Who leads Orbix Labs?")
    assert (result.text, result.side, result.served_on_device, result.was_fallback) == ("Mira Falk", Side.NEAR, True, False)
    assert result.confidence == 0.9
    assert result.dollars == 0
    assert far_agent.requests == []


@pytest.mark.parametrize(
    ("script", "confidence", "reason"),
    [
        ([LOOKUP, "Tomas Berg"], 0.9, "no tool result"),
        ([LOOKUP, "Mira Falk"], 0.2, "confidence"),
        ([LOOKUP, " "], 0.9, "empty"),
        ([Unavailable("the model is gone")], 0.9, "the model is gone"),
        ([ContextOverflow("too long")], 0.9, "too long"),
    ],
)
async def test_a_cascade_escalates_on_evidence_against_the_draft(script: Sequence[object], confidence: float, reason: str) -> None:
    async with hybrid(near(script, confidence=confidence), far([LOOKUP, "Mira Falk"]), lookup) as agents:
        result = await agents.run("Who leads Orbix Labs?", strategy="cascade")
    assert (result.text, result.side, result.was_fallback) == ("Mira Falk", Side.FAR, True)
    assert reason in result.attempts[0].reason
    assert any(reason in line for line in result.reasons)


async def test_a_cascade_escalates_when_the_draft_breaks_the_schema() -> None:
    loose = Capabilities(json_schema=True)
    near_agent = ScriptedAgent(["not json", "still not json"], name="near", capabilities=loose)
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    async with hybrid(near_agent, far(['{"age": 41}'])) as agents:
        result = await agents.run("How old?", output=schema)
    assert result.output == {"age": 41}
    assert result.side is Side.FAR


async def test_a_cascade_escalates_when_the_draft_takes_too_long() -> None:
    never = anyio.Event()
    policy = PUBLIC.model_copy(update={"attempt_timeout": 0.05})
    async with hybrid(near([never]), far(["Mira Falk"]), policy=policy) as agents:
        result = await agents.run("Who?")
    assert result.side is Side.FAR
    assert "DeadlineExceeded" in result.attempts[0].reason


async def test_the_far_agent_starts_from_the_task_and_never_sees_the_draft() -> None:
    far_agent = far(["Mira Falk"])
    async with hybrid(near([LOOKUP, "Tomas Berg"]), far_agent, lookup) as agents:
        await agents.run("Who leads Orbix Labs?")
    assert far_agent.requests[0].messages == (Message.user("Who leads Orbix Labs?"),)


async def test_a_private_task_stays_on_the_device_however_bad_the_draft() -> None:
    far_agent = far([])
    async with hybrid(near(["I guess"], confidence=0.1), far_agent, policy=Policy()) as agents:
        result = await agents.run("My secret?")
    assert result.side is Side.NEAR
    assert far_agent.requests == []
    assert any("private" in reason for reason in result.reasons)


async def test_a_private_task_for_the_cloud_is_refused_with_advice() -> None:
    async with hybrid(near([]), far([]), policy=Policy()) as agents:
        with pytest.raises(PrivacyViolation, match="sensitivity"):
            await agents.run("My secret?", strategy="cloud", mode="only_in_cloud")


async def test_the_cloud_strategy_falls_back_to_the_device_where_the_mode_allows() -> None:
    async with hybrid(near(["from here"]), far([Unavailable("gateway down")])) as agents:
        result = await agents.run("Hello?", strategy="cloud")
    assert (result.text, result.served_on_device, result.was_fallback) == ("from here", True, True)


async def test_the_cloud_strategy_fails_where_the_mode_forbids_the_device() -> None:
    async with hybrid(near([]), far([Unavailable("gateway down")])) as agents:
        with pytest.raises(Unavailable, match="gateway down"):
            await agents.run("Hello?", strategy="cloud", mode="only_in_cloud")


async def test_a_wrong_token_is_the_users_to_mend_and_no_reason_to_fall_back() -> None:
    async with hybrid(near(["never asked"]), far([Unauthenticated("wrong token")])) as agents:
        with pytest.raises(Unauthenticated):
            await agents.run("Hello?", strategy="cloud")


async def test_when_all_agents_fail_the_last_error_tells_of_the_first() -> None:
    async with hybrid(near([Unavailable("no model")]), far([Unavailable("no gateway")])) as agents:
        with pytest.raises(Unavailable, match="no gateway") as caught:
            await agents.run("Hello?")
    assert any("no model" in note for note in caught.value.__notes__)


async def test_usage_and_dollars_are_kept_apart_by_side() -> None:
    usage = Usage(input_tokens=1000, output_tokens=100)
    done = Finished(reason=FinishReason.STOP, usage=usage, model="frontier-1")
    async with hybrid(near(["bad"], confidence=0.1), far([["good", done]])) as agents:
        result = await agents.run("Hello?")
    assert result.far.usage == usage
    assert result.far.dollars == Decimal("0.003")
    assert result.near.dollars == 0
    assert result.near.usage.output_tokens > 0
    assert result.model == "frontier-1"


async def test_an_unknown_price_is_unknown_and_not_free() -> None:
    unpriced = ScriptedAgent(["answer"], name="far", side=Side.FAR)
    async with Hybrid(far=unpriced, policy=PUBLIC) as agents:
        result = await agents.run("Hello?", strategy="cloud")
    assert result.far.dollars is None
    assert result.dollars is None


async def test_a_reply_that_breaks_the_contract_is_corrected_once() -> None:
    near_agent = near([ToolCall(id="1", name="unknown_tool"), LOOKUP, "Mira Falk"])
    async with hybrid(near_agent, far([]), lookup) as agents:
        result = await agents.run("Who leads Orbix Labs?")
    assert result.text == "Mira Falk"
    assert "could not be used" in near_agent.requests[1].messages[-1].text


async def test_an_agent_that_calls_tools_forever_is_stopped() -> None:
    near_agent = ScriptedAgent(lambda request: LOOKUP, name="near")
    async with Hybrid(near=near_agent, tools=[lookup], policy=Policy(maximum_turns=3)) as agents:
        with pytest.raises(InvalidOutput, match="3 turns"):
            await agents.run("Who leads Orbix Labs?", strategy="device")
    assert len(near_agent.requests) == 3


async def test_calls_of_one_turn_run_side_by_side_and_answer_in_order() -> None:
    met = {"first": anyio.Event(), "second": anyio.Event()}

    @tool
    async def meet(me: str, other: str) -> str:
        """Return when both calls are under way."""
        met[me].set()
        with anyio.fail_after(10):
            await met[other].wait()
        return f"{me} was here"

    both = [
        ToolCall(id="1", name="meet", arguments={"me": "first", "other": "second"}),
        ToolCall(id="2", name="meet", arguments={"me": "second", "other": "first"}),
    ]
    near_agent = near([both, "first was here"])
    async with hybrid(near_agent, far([]), meet) as agents:
        await agents.run("Meet, first and second!")
    results = [message.tool_result for message in near_agent.requests[1].messages if message.tool_result]
    assert [(result.call_id, result.content) for result in results] == [("1", "first was here"), ("2", "second was here")]


async def test_a_stream_tells_what_happens_in_order_and_ends_with_the_result() -> None:
    async with hybrid(near(["bad"], confidence=0.1), far(["good"])) as agents:
        events = [event async for event in agents.stream("Hello?")]
    assert [event.type for event in events] == [
        "routed",
        "attempt_started",
        "text",
        "call_ended",
        "attempt_ended",
        "attempt_started",
        "text",
        "call_ended",
        "attempt_ended",
        "task_finished",
    ]
    assert [event.side for event in events if isinstance(event, AttemptStarted)] == [Side.NEAR, Side.FAR]
    assert [event.attempt.outcome for event in events if isinstance(event, AttemptEnded)] == ["rejected", "accepted"]
    assert isinstance(events[-1], TaskFinished)


async def test_leaving_a_stream_cancels_the_step() -> None:
    never = anyio.Event()
    near_agent = near([["first words", never]])
    async with hybrid(near_agent, far([])) as agents:
        async with aclosing(agents.stream("Hello?")) as events:
            async for event in events:
                if event.type == "text":
                    break
        with anyio.fail_after(10):
            while near_agent.live_steps:
                await anyio.lowlevel.checkpoint()
    assert near_agent.cancelled_steps == 1


async def test_a_task_that_takes_too_long_is_stopped_with_its_agents() -> None:
    near_agent = near([anyio.Event()])
    async with hybrid(near_agent, far([])) as agents:
        with pytest.raises(DeadlineExceeded):
            await agents.run("Hello?", strategy="device", timeout=0.05)
    assert near_agent.live_steps == 0


@pytest.mark.parametrize("prompt", ["", "   ", [], [Message.system("Be brief.")]])
async def test_an_empty_prompt_is_refused(prompt: str | list[Message]) -> None:
    async with hybrid(near([]), far([])) as agents:
        with pytest.raises(InvalidRequest, match="empty"):
            await agents.run(prompt)


@pytest.mark.parametrize("option", [{"strategy": "clowd"}, {"mode": "cheap"}, {"sensitivity": "secret"}])
async def test_an_unknown_option_is_refused_with_the_known_ones(option: dict[str, str]) -> None:
    async with hybrid(near([]), far([])) as agents:
        with pytest.raises(InvalidRequest, match="cascade"):
            await agents.run("Hello?", **option)  # type: ignore[arg-type]  # the mistake under test


async def test_a_broken_schema_is_refused_before_any_agent_is_asked() -> None:
    near_agent = near([])
    async with hybrid(near_agent, far([])) as agents:
        with pytest.raises(InvalidRequest):
            await agents.run("Hello?", output={"type": "no such type"})
    assert near_agent.requests == []


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="lookup"):
        Hybrid(near=near([]), tools=[lookup, lookup])


async def test_an_agent_on_the_wrong_side_is_refused() -> None:
    with pytest.raises(ConfigError, match="far side"):
        Hybrid(near=far([]))


async def test_a_hybrid_without_agents_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match="near="):
        Hybrid()


async def test_agents_that_were_passed_in_stay_open() -> None:
    near_agent = near(["one", "two"])
    async with Hybrid(near=near_agent) as agents:
        await agents.run("Hello?", strategy="device")
    async with Hybrid(near=near_agent) as agents:
        assert (await agents.run("Hello?", strategy="device")).text == "two"


async def test_steps_of_a_task_derive_their_keys_from_it() -> None:
    near_agent = near([LOOKUP, "Mira Falk"])
    async with Hybrid(near=near_agent, tools=[lookup]) as agents:
        await agents.run("Who?", strategy="device", idempotency_key="order-7")
    assert [request.idempotency_key for request in near_agent.requests] == ["order-7/0/0", "order-7/0/1"]


async def test_every_step_keeps_the_policys_temperature_and_output_limit() -> None:
    near_agent = near([LOOKUP, "Mira Falk"])
    policy = Policy(temperature=0.6, maximum_output_tokens=64)
    async with Hybrid(near=near_agent, tools=[lookup], policy=policy) as agents:
        await agents.run("Who?", strategy="device")
    assert [(request.temperature, request.max_output_tokens) for request in near_agent.requests] == [(0.6, 64), (0.6, 64)]


async def test_a_near_only_task_needs_no_cloud_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    async with Hybrid(near=near(["here"]), far="openai:gpt-4o") as agents:
        result = await agents.run("Hello?", mode="only_on_device")
    assert result.text == "here"


async def test_the_graph_takes_any_checkpointer_and_store(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "runs.db")) as saver:
        for checkpointer in (InMemorySaver(), saver):
            agents = Hybrid(
                near=near([LOOKUP, "Mira Falk"]), tools=[lookup], records=Records(checkpointer=checkpointer), memory=InMemoryStore()
            )
            await agents.run("Who?", strategy="device", thread_id="thread-1")
            state = await agents.graph.aget_state({"configurable": {"thread_id": "thread-1"}})
            assert [message["role"] for message in state.values["messages"]] == ["user", "assistant", "tool", "assistant"]


async def test_the_graph_runs_by_itself_inside_another_langgraph_app() -> None:
    agents = Hybrid(near=near(["hello"]))
    state = await agents.graph.ainvoke({"task": Task(messages=(Message.user("Hi"),)).model_dump(mode="json")})
    assert state["messages"][-1]["text"] == "hello"


async def test_concurrent_tasks_do_not_mix() -> None:
    def echo(request: StepRequest) -> str:
        return f"echo {request.messages[-1].text}"

    results: dict[int, str] = {}
    agents = Hybrid(near=ScriptedAgent(echo, name="near"))

    async def one(number: int) -> None:
        results[number] = (await agents.run(f"task {number}", strategy="device")).text

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
    assert results == {number: f"echo task {number}" for number in range(20)}


async def test_every_error_of_the_tree_reaches_the_caller_as_itself() -> None:
    for error in (Unavailable("a"), InvalidRequest("b"), Unauthenticated("c")):
        async with Hybrid(near=near([error])) as agents:
            with pytest.raises(NearfarError) as caught:
                await agents.run("Hello?", strategy="device")
        assert caught.value is error


async def test_a_rejected_draft_stands_where_the_far_agent_cannot_be_reached() -> None:
    async with hybrid(near([LOOKUP, "Mira Falk, perhaps"], confidence=0.1), far([Unavailable("gateway down")]), lookup) as agents:
        events = [event async for event in agents.stream("Who leads Orbix Labs?")]
    assert isinstance(events[-1], TaskFinished)
    result = events[-1].result
    assert (result.text, result.side, result.served_on_device, result.was_fallback) == ("Mira Falk, perhaps", Side.NEAR, True, False)
    assert [attempt.outcome for attempt in result.attempts] == ["accepted", "failed"]
    assert "confidence 0.10" in result.attempts[0].reason
    assert "gateway down" in result.attempts[1].reason


async def test_an_empty_draft_never_stands() -> None:
    async with hybrid(near([" "]), far([Unavailable("gateway down")])) as agents:
        with pytest.raises(Unavailable, match="gateway down"):
            await agents.run("Hello?")


async def test_a_thread_used_again_forgets_the_draft_of_the_task_before() -> None:
    near_agent = near(["unsure", Unavailable("no model")], confidence=0.1)
    far_agent = far([Unavailable("down"), Unavailable("still down")])
    async with Hybrid(near=near_agent, far=far_agent, policy=PUBLIC, records=Records(checkpointer=InMemorySaver())) as agents:
        assert (await agents.run("One?", thread_id="thread")).text == "unsure"
        with pytest.raises(Unavailable, match="still down"):
            await agents.run("Two?", thread_id="thread")


async def test_tokens_of_a_reply_that_breaks_the_schema_are_paid_for() -> None:
    usage = Usage(input_tokens=1000, output_tokens=100)
    done = Finished(reason=FinishReason.STOP, usage=usage, model="frontier-1")
    far_agent = far([["not json", done], ["42", done]])
    async with Hybrid(far=far_agent, policy=PUBLIC) as agents:
        result = await agents.run("How many?", strategy="cloud", output={"type": "integer"})
    assert result.output == 42
    assert result.far.usage == usage + usage
    assert result.far.dollars == Decimal("0.006")
    assert result.far.steps == 2


@pytest.mark.parametrize("broken", [["half an ans", Unavailable("cut off")], DeadlineExceeded("too slow")])
async def test_a_paid_step_that_broke_after_it_began_has_an_unknown_price(broken: object) -> None:
    async with hybrid(near(["from here"]), far([broken])) as agents:
        result = await agents.run("Hello?", strategy="cloud")
    assert result.side is Side.NEAR
    assert result.far.dollars is None
    assert result.dollars is None


async def test_a_far_agent_that_refused_at_once_has_cost_nothing() -> None:
    async with hybrid(near(["from here"]), far([Unavailable("gateway down")])) as agents:
        result = await agents.run("Hello?", strategy="cloud")
    assert result.far.dollars == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"timeout": 0}, "timeout"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "x" * 101}, "idempotency_key"),
        ({"sensitivty": "private"}, "sensitivity"),
        ({"thread_id": "errands"}, "checkpointer"),
    ],
)
async def test_an_option_that_cannot_be_kept_is_refused(option: dict[str, object], words: str) -> None:
    near_agent = near([])
    async with hybrid(near_agent, far([])) as agents:
        with pytest.raises(InvalidRequest, match=words):
            await agents.run("Hello?", **option)  # type: ignore[arg-type]  # the mistake under test
    assert near_agent.requests == []


async def test_no_checkpointer_keeps_no_thread() -> None:
    async with Hybrid(near=near(["hi"]), records=Records(checkpointer=False)) as agents:
        with pytest.raises(InvalidRequest, match="needs a checkpointer"):
            await agents.run("Hello?", thread_id="errands")
        assert (await agents.run("Hello?")).text == "hi"


@pytest.mark.parametrize("prompt", [None, 5, ["Hello?"], Message.user("Hello?")])
async def test_a_prompt_of_the_wrong_type_is_refused(prompt: object) -> None:
    async with hybrid(near([]), far([])) as agents:
        with pytest.raises(InvalidRequest, match="list of messages|is no message"):
            await agents.run(prompt)  # type: ignore[arg-type]  # the mistake under test


def test_a_bare_function_is_refused_as_a_tool() -> None:
    def plain(number: int) -> int:
        raise NotImplementedError

    with pytest.raises(ConfigError, match="@tool"):
        Hybrid(near=near([]), tools=[plain])  # type: ignore[list-item]  # the mistake under test


async def test_a_closed_hybrid_opens_no_agent_again() -> None:
    agents = Hybrid(near="near")
    await agents.aclose()
    with pytest.raises(Unavailable, match="closed"):
        await agents.run("Hello?", strategy="device")


class Reluctant(ScriptedAgent):
    """Cannot be closed in order."""

    async def aclose(self) -> None:
        raise OSError("the line is dead")


async def test_agents_that_cannot_be_closed_do_not_hide_what_happened(caplog: pytest.LogCaptureFixture) -> None:
    async def open_one() -> Reluctant:
        return Reluctant([])

    members = (AgentHandle("near", Side.NEAR, open_one), AgentHandle("far", Side.FAR, open_one))
    for member in members:
        await member.open()
    await AgentPool(members).aclose()
    assert caplog.text.count("could not be closed") == 2
