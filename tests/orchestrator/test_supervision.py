"""Supervision where something is unusual: roles reversed, shadow mode, agents that fail, tasks that may not leave the device."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from linked import LINKS
from supervised_pair import TASK, Pair, look, looks_at, supervised, turn_of, working

from nearfar import Hybrid, Records, tool
from nearfar.orchestrator.agents import AgentHandle, AgentPool
from nearfar.orchestrator.routing.eligibility import eligible
from nearfar.orchestrator.strategies.prompts import with_plan
from nearfar.orchestrator.task import Needs
from nearfar.orchestrator.task.events import AgentText, CallEnded, SupervisorSpoke, TaskEvent, TaskFinished
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.orchestrator.task.results import Call
from nearfar.protocols import (
    ConfigError,
    DeadlineExceeded,
    InvalidOutput,
    InvalidRequest,
    Message,
    NearfarError,
    PrivacyViolation,
    RateLimited,
    ScriptedAgent,
    Sensitivity,
    Side,
    Unauthenticated,
    Unavailable,
)
from nearfar.protocols.fakes import Reply
from nearfar.protocols.testing import eventually

pytestmark = pytest.mark.anyio

PLAN = "1. look(page=1)\n2. answer"
ANSWER = "The emblem is a bridge."
ADVICE = "INTERVENE\n1. Page 1 was read.\nRead page 2."


def words(strategy: str, *verdicts: Reply) -> list[Reply]:
    return [*([PLAN] if strategy == "pevr" else []), *verdicts]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_reversed_roles_let_the_far_side_work_and_the_near_side_supervise(strategy: str, link: str) -> None:
    pair = Pair([looks_at(1), ANSWER], words(strategy, ADVICE), executor_side=Side.FAR)
    with anyio.fail_after(120):
        async with working(pair, supervised(strategy, interval=1, executor="far"), link=link) as hybrid:
            result = await hybrid.run(TASK)
    assert (result.text, result.side, result.was_fallback, result.interventions) == (ANSWER, Side.FAR, False, 1)
    assert {call.role for call in result.calls if call.side is Side.NEAR} == set({"pevr": ["plan", "verify"], "eva": ["verify"]}[strategy])
    assert {call.role for call in result.calls if call.side is Side.FAR} == {"execute"}


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_in_shadow_mode_verdicts_are_recorded_and_change_nothing(strategy: str) -> None:
    pair = Pair([looks_at(1), looks_at(2), ANSWER], words(strategy, ADVICE, ADVICE))
    async with working(pair, supervised(strategy, interval=1, shadow=True)) as hybrid:
        events = [event async for event in hybrid.stream(TASK)]
    assert isinstance(events[-1], TaskFinished)
    result = events[-1].result
    checks = [call for call in result.calls if call.role == "verify"]
    assert [(call.turn, call.verdict, call.shadow) for call in checks] == [(1, "intervene", True), (2, "intervene", True)]
    assert result.interventions == 0
    assert pair.journal[-1][1][1:] == (*turn_of(1), *turn_of(2))
    assert [event.shadow for event in events if isinstance(event, SupervisorSpoke) and event.verdict] == [True, True]


@pytest.mark.parametrize("error", [Unavailable("gateway down"), RateLimited("slow down")])
@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_a_supervisor_that_fails_in_mid_run_leaves_the_executor_alone(strategy: str, error: NearfarError) -> None:
    pair = Pair([looks_at(1), looks_at(2), looks_at(3), ANSWER], words(strategy, "CONTINUE", error))
    async with working(pair, supervised(strategy, interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert (result.text, result.side) == (ANSWER, Side.NEAR)
    assert pair.journal[-1][1][1:] == (*turn_of(1), *turn_of(2), *turn_of(3)), "nothing of the work is lost"
    assert [call.turn for call in result.calls if call.role == "verify"] == [1, 2], "and it is not asked again"
    assert any("could not check turn 2" in reason and "near goes on alone" in reason for reason in result.reasons)


async def test_a_supervisor_that_is_silent_is_given_up_after_the_limit_of_a_step() -> None:
    pair = Pair([looks_at(1), ANSWER], [anyio.Event()])
    policy = supervised("eva", interval=1).model_copy(update={"attempt_timeout": 0.05})
    with anyio.fail_after(60):
        async with working(pair, policy) as hybrid:
            result = await hybrid.run(TASK)
    assert any("DeadlineExceeded" in reason for reason in result.reasons)
    assert result.far.dollars is None, "what the silent step has cost is not known"


async def test_a_wrong_token_is_the_users_to_mend() -> None:
    pair = Pair([looks_at(1), ANSWER], [Unauthenticated("wrong token")])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        with pytest.raises(Unauthenticated):
            await hybrid.run(TASK)


async def test_an_executor_that_fails_hands_over_to_the_supervisor_and_its_plan() -> None:
    near = ScriptedAgent([looks_at(1), Unavailable("out of memory")], name="near")
    far = ScriptedAgent([PLAN, "CONTINUE", looks_at(2), ANSWER], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, tools=[look], policy=supervised("pevr", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert (result.text, result.side, result.was_fallback) == (ANSWER, Side.FAR, True)
    assert far.requests[2].messages == (Message.user(with_plan(TASK, PLAN)),)
    assert [call.role for call in result.calls] == ["plan", "execute", "verify", "execute", "execute", "execute"]


async def test_an_executor_that_fails_ends_the_task_where_the_mode_keeps_the_other_side_out() -> None:
    near = ScriptedAgent([Unavailable("out of memory")], name="near")
    far = ScriptedAgent([], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, tools=[look], policy=supervised("eva")) as hybrid:
        with pytest.raises(Unavailable, match="out of memory"):
            await hybrid.run(TASK, mode="only_on_device")


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
@pytest.mark.parametrize(
    ("option", "why"), [({"sensitivity": Sensitivity.PRIVATE}, "private"), ({"mode": Mode.ONLY_ON_DEVICE}, "only_on_device")]
)
async def test_a_task_that_stays_on_the_device_is_worked_on_alone(strategy: str, option: dict[str, str], why: str) -> None:
    pair = Pair([looks_at(1), looks_at(2), ANSWER], [])
    async with working(pair, supervised(strategy, interval=1)) as hybrid:
        result = await hybrid.run(TASK, **option)  # type: ignore[arg-type]  # one of two options
    assert pair.roles == ["executor"] * 3
    assert pair.journal[0][1] == (Message.user(TASK),)
    assert any(why in reason for reason in result.reasons)


@pytest.mark.parametrize("strategy", [Strategy.PEVR, Strategy.EVA])
@pytest.mark.parametrize(
    ("sides", "executor", "mode", "sensitivity", "outcome"),
    [
        ("near far", "near", "auto", "public", ("near", "far")),
        ("near far", "near", "prefer_in_cloud", "public", ("near", "far")),
        ("near far", "near", "only_on_device", "public", ("near", None)),
        ("near far", "near", "auto", "private", ("near", None)),
        ("near", "near", "only_on_device", "private", ("near", None)),
        ("near", "near", "auto", "private", ConfigError),
        ("far", "near", "auto", "public", ConfigError),
        ("near far", "near", "only_in_cloud", "public", ConfigError),
        ("near far", "far", "auto", "public", ("far", "near")),
        ("near far", "far", "only_in_cloud", "public", ("far", None)),
        ("near far", "far", "only_on_device", "public", ConfigError),
        ("near far", "far", "auto", "private", PrivacyViolation),
        ("near far", "far", "only_in_cloud", "private", PrivacyViolation),
    ],
)
def test_roles_follow_mode_sensitivity_and_configuration(
    strategy: Strategy, sides: str, executor: str, mode: str, sensitivity: str, outcome: tuple[str, str | None] | type[NearfarError]
) -> None:
    team = AgentPool(tuple(AgentHandle(side, Side(side), ScriptedAgent([], name=side, side=Side(side))) for side in sides.split()))
    given = {"strategy": strategy, "mode": Mode(mode), "sensitivity": Sensitivity(sensitivity), "executor": Side(executor)}
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            eligible(list(team), needs=Needs(), **given)  # type: ignore[arg-type]  # keywords of several types
        return
    found = eligible(list(team), needs=Needs(), **given)  # type: ignore[arg-type]  # as above
    assert (found.agents[0].name, found.supervisor) == outcome


async def test_a_stream_tells_the_executors_text_from_the_supervisors_words() -> None:
    pair = Pair([looks_at(1), ANSWER], [PLAN, "CONTINUE"])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        events = [event async for event in hybrid.stream(TASK)]
    assert [event.text for event in events if isinstance(event, AgentText)] == [ANSWER]
    spoken = [event for event in events if isinstance(event, SupervisorSpoke)]
    assert [(event.agent, event.text, event.verdict, event.trigger) for event in spoken] == [
        ("far", PLAN, None, None),
        ("far", "CONTINUE", "continue", "interval"),
    ]


async def test_calls_are_in_order_and_add_up_to_both_sides() -> None:
    pair = Pair([looks_at(1), ANSWER], [PLAN, "CONTINUE"], confidence=0.8)
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        events = [event async for event in hybrid.stream(TASK)]
    assert isinstance(events[-1], TaskFinished)
    result = events[-1].result
    assert [call.role for call in result.calls] == ["plan", "execute", "verify", "execute"]
    assert [call.turn for call in result.calls] == [0, 0, 1, 1]
    assert result.calls == tuple(event.call for event in events if isinstance(event, CallEnded))
    for side, total in ((Side.NEAR, result.near), (Side.FAR, result.far)):
        calls = [call for call in result.calls if call.side is side]
        assert total.steps == len(calls) == 2
        assert total.usage.total_tokens == sum(call.usage.total_tokens for call in calls)
        assert total.dollars == sum(call.dollars or 0 for call in calls)
    assert result.far.dollars


async def test_a_task_that_fails_has_told_what_its_calls_cost() -> None:
    pair = Pair([looks_at(1), looks_at(2)], [PLAN, "CONTINUE"])
    calls: list[Call] = []
    async with working(pair, supervised("pevr", turns=2, interval=1)) as hybrid, aclosing(hybrid.stream(TASK)) as events:
        with pytest.raises(InvalidOutput, match="2 turns"):
            await gather(calls, events)
    assert [call.role for call in calls] == ["plan", "execute", "verify", "execute"]
    assert all(call.dollars is not None for call in calls)


@pytest.mark.parametrize("silent", ["executor", "supervisor"])
@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_cancelling_a_task_cancels_the_step_under_way(strategy: str, silent: str) -> None:
    never = anyio.Event()
    near = ScriptedAgent([looks_at(1), ["word", never] if silent == "executor" else ANSWER], name="near")
    far = ScriptedAgent(words(strategy, "CONTINUE" if silent == "executor" else ["CON", never]), name="far", side=Side.FAR)
    watched = near if silent == "executor" else far
    running = 2 if silent == "executor" else len(words(strategy)) + 1
    async with Hybrid(near=near, far=far, tools=[look], policy=supervised(strategy, interval=1)) as hybrid:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hybrid.run, TASK)
                await eventually(lambda: len(watched.requests) == running and watched.live_steps == 1)
                tasks.cancel_scope.cancel()
        assert (near.live_steps, far.live_steps) == (0, 0)
        assert watched.cancelled_steps == 1


async def test_the_tasks_time_limit_holds_during_a_check() -> None:
    pair = Pair([looks_at(1)], [anyio.Event()])
    with anyio.fail_after(60):
        async with working(pair, supervised("eva", interval=1)) as hybrid:
            with pytest.raises(DeadlineExceeded):
                await hybrid.run(TASK, timeout=0.2)


@pytest.mark.parametrize("strategy", ["device", "pevr", "eva"])
async def test_a_stream_whose_time_is_up_has_ended_the_step_under_way_and_tells_of_it(strategy: str) -> None:
    near = ScriptedAgent([looks_at(1), ["word", anyio.Event()]], name="near")
    far = ScriptedAgent(words(strategy, "CONTINUE"), name="far", side=Side.FAR)
    calls: list[Call] = []
    with anyio.fail_after(60):
        async with Hybrid(near=near, far=far, tools=[look], policy=supervised(strategy, interval=1)) as hybrid:
            with pytest.raises(DeadlineExceeded):
                await gather(calls, hybrid.stream(TASK, timeout=1))
            assert (near.live_steps, near.cancelled_steps) == (0, 1)
    assert [call.error for call in calls if call.role == "execute"] == [None, "CancelledError"]


@pytest.mark.parametrize("strategy", ["device", "eva"])
@pytest.mark.parametrize("is_busy", [True, False])
async def test_cancelling_whoever_reads_a_stream_ends_the_step_under_way(strategy: str, is_busy: bool) -> None:
    """Also where the reader is not waiting for an event but at work on one."""
    near = ScriptedAgent([["word", anyio.Event()]], name="near")
    far = ScriptedAgent([], name="far", side=Side.FAR)
    read = anyio.Event()

    async def reader() -> None:
        async with aclosing(hybrid.stream(TASK)) as events:
            async for event in events:
                if isinstance(event, AgentText):
                    read.set()
                    await anyio.sleep_forever() if is_busy else None

    with anyio.fail_after(60):
        async with Hybrid(near=near, far=far, tools=[look], policy=supervised(strategy)) as hybrid:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader)
                await read.wait()
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert (near.live_steps, near.cancelled_steps) == (0, 1)


async def gather(calls: list[Call], events: AsyncIterator[TaskEvent]) -> None:
    """Note the calls that a stream tells of."""
    async for event in events:
        calls.extend([event.call] if isinstance(event, CallEnded) else [])


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_words_that_a_task_ends_with_are_not_taken_for_the_answer_after_a_reset(strategy: str) -> None:
    pair = Pair([looks_at(1), ANSWER], words(strategy, ADVICE, "CONTINUE"))
    async with working(pair, supervised(strategy, interval=1)) as hybrid:
        result = await hybrid.run([Message.user(TASK), Message.assistant("Let me look.")])
    assert (result.text, result.interventions) == (ANSWER, 1)


async def test_a_task_brings_its_own_tools_beside_those_of_the_hybrid() -> None:
    @tool
    async def count(words: str) -> str:
        """Count words."""
        return str(len(words.split()))

    pair = Pair([looks_at(1), ANSWER, ANSWER], [PLAN, "CONTINUE", PLAN])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        await hybrid.run(TASK, tools=[count])
        await hybrid.run(TASK)
        with pytest.raises(ConfigError, match="look"):
            await hybrid.run(TASK, tools=[look])
        with pytest.raises(ConfigError, match="@tool"):
            await hybrid.run(TASK, tools=[print])  # type: ignore[list-item]  # the mistake under test
    offered = [[spec.name for spec in request.tools] for _, request in pair.requests]
    assert offered == [["look", "count"]] * 4 + [["look"]] * 2


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_a_checkpointer_keeps_a_supervised_task(strategy: str) -> None:
    saver = InMemorySaver()
    pair = Pair([looks_at(1), ANSWER, ANSWER], words(strategy, ADVICE, *words(strategy)))
    near, far = pair.agent(Side.NEAR), pair.agent(Side.FAR)
    async with Hybrid(
        near=near, far=far, tools=[look], policy=supervised(strategy, interval=1), records=Records(checkpointer=saver)
    ) as hybrid:
        await hybrid.run(TASK, thread_id="errand")
        state = (await hybrid.graph_of(strategy).aget_state({"configurable": {"thread_id": "errand"}})).values
        assert state["guidance"] in ADVICE
        assert [call["verdict"] for call in state["calls"] if call["role"] == "verify"] == ["intervene"]
        again = await hybrid.run(TASK, thread_id="errand")
    assert again.interventions == 0, "a thread used again begins anew"


async def test_strategies_take_turns_on_one_thread() -> None:
    near = ScriptedAgent(lambda request: ANSWER, name="near")
    far = ScriptedAgent(lambda request: PLAN, name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, policy=supervised("pevr"), records=Records(checkpointer=InMemorySaver())) as hybrid:
        for strategy in ("device", "pevr", "eva", "pevr", "cascade"):
            assert (await hybrid.run(TASK, strategy=strategy, thread_id="one")).text == ANSWER


def test_strategies_of_one_shape_share_a_graph() -> None:
    hybrid = Hybrid(near=ScriptedAgent([], name="near"))
    assert hybrid.graph is hybrid.graph_of("cascade") is hybrid.graph_of(Strategy.DEVICE)
    assert hybrid.graph_of("pevr") is not hybrid.graph_of("eva")
    with pytest.raises(ConfigError, match="auto"):
        hybrid.graph_of("auto")
    with pytest.raises(InvalidRequest, match="pevr"):
        hybrid.graph_of("pever")


async def test_a_policy_of_its_own_stands_in_for_the_hybrids() -> None:
    pair = Pair([looks_at(1), ANSWER], [PLAN, "CONTINUE"])
    async with working(pair, supervised("eva", interval=5)) as hybrid:
        result = await hybrid.run(TASK, policy=supervised("eva", interval=3), strategy="pevr")
        assert [call.role for call in result.calls] == ["plan", "execute", "execute"]
