"""`subtasks`: a task cut into parts that run side by side, with scripted agents."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from linked import LINKS, linked

from nearfar import Hybrid, Records, tool
from nearfar.orchestrator.strategies import graphs, turn
from nearfar.orchestrator.strategies.prompts import SubtaskResult, aggregate_request, plan_subtasks_request, with_results
from nearfar.orchestrator.task.events import AgentText, AttemptEnded, CallEnded, SubtaskEnded, SubtasksPlanned, TaskEvent, TaskFinished
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.orchestrator.task.policy import Policy, SubtasksConfig
from nearfar.protocols import (
    Capabilities,
    ConfigError,
    DeadlineExceeded,
    Message,
    ModelError,
    PrivacyViolation,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    ToolChoice,
    Unauthenticated,
    Unavailable,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

Plan = Mapping[str, tuple[str, list[str]]]
Script = Callable[[StepRequest], Reply]

TASK = "Who is older, the ceo of Orbix Labs or the ceo of Lumen Works?"
A, B = "When was the ceo of Orbix Labs born?", "When was the ceo of Lumen Works born?"
DIAMOND: Plan = {"a": (A, []), "b": (B, []), "c": (TASK, ["a", "b"])}
FORK: Plan = {"a": (A, []), "b": (B, [])}
ANSWERS: Mapping[str, str] = {A: "1961", B: "1974", TASK: "Mira Falk"}


def planned(plan: Plan) -> str:
    return json.dumps({"subtasks": [{"id": name, "task": task, "needs": needs} for name, (task, needs) in plan.items()]})


def asked(request: StepRequest) -> str:
    """What a part is asked, without the results that it is shown."""
    return next(message.text for message in request.messages if message.role == "user").partition("\n\n")[0]


def knows(request: StepRequest) -> str:
    """A near agent that knows the answers."""
    return ANSWERS[asked(request)]


def near(script: Script = knows) -> ScriptedAgent:
    return ScriptedAgent(script, name="near", confidence=0.9)


def far(plan: Plan | str, script: Script | None = None, *, capabilities: Capabilities | None = None) -> ScriptedAgent:
    """Plans, and says what the script says to anything else."""
    text = plan if isinstance(plan, str) else planned(plan)

    def reply(request: StepRequest) -> Reply:
        if request.messages[0].text.startswith("Cut the task"):
            return text
        assert script is not None, f"the far agent was asked {request.messages[-1].text!r}"
        return script(request)

    return ScriptedAgent(reply, name="far", side=Side.FAR, capabilities=capabilities)


def policy(**knobs: object) -> Policy:
    return Policy(strategy=Strategy.SUBTASKS, sensitivity=Sensitivity.PUBLIC, subtasks=SubtasksConfig.model_validate(knobs))


@tool
async def look(name: str) -> str:
    """Look something up."""
    return f"{name}: found"


@pytest.mark.parametrize("link", LINKS)
async def test_the_far_side_plans_and_each_part_is_routed_on_its_own(link: str) -> None:
    near_agent, far_agent = near(), far(DIAMOND)
    async with linked(near_agent, far_agent, policy(), link=link) as hybrid:
        result = await hybrid.run(TASK)
    assert (result.text, result.side) == ("Mira Falk", Side.NEAR)
    assert far_agent.requests[0].messages == plan_subtasks_request(TASK, maximum_subtasks=8)
    born = [SubtaskResult(task=A, answer="1961"), SubtaskResult(task=B, answer="1974")]
    assert [request.messages for request in near_agent.requests] == [
        (Message.user(A),),
        (Message.user(B),),
        (Message.user(with_results(TASK, born)),),
    ]
    assert [(call.role, call.side) for call in result.calls] == [("plan", Side.FAR), *[("execute", Side.NEAR)] * 3]
    assert "cut into 3 subtasks: a, b, c after a and b" in result.reasons


async def test_a_part_that_the_near_side_is_unsure_of_goes_to_the_far_side() -> None:
    def unsure(request: StepRequest) -> Reply:
        return () if asked(request) == B else knows(request)

    far_agent = far(DIAMOND, knows)
    async with linked(near(unsure), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK)
    assert result.text == "Mira Falk"
    assert [asked(request) for request in far_agent.requests[1:]] == [B]
    assert "subtask b: near rejected: the draft is empty" in result.reasons


async def test_independent_parts_run_at_the_same_time() -> None:
    both = {A: anyio.Event(), B: anyio.Event()}

    def meets(request: StepRequest) -> Reply:
        """Each of the two waits until the other one has begun."""
        task = asked(request)
        if task in both:
            both[task].set()
            return [both[B if task == A else A], knows(request)]
        return knows(request)

    async with linked(near(meets), far(DIAMOND), policy(parallel=2)) as hybrid:
        with anyio.fail_after(60):
            result = await hybrid.run(TASK)
    assert result.text == "Mira Falk"


async def test_no_more_parts_run_at_a_time_than_allowed() -> None:
    seen: list[int] = []
    agent: ScriptedAgent

    def watches(request: StepRequest) -> Reply:
        seen.append(agent.live_steps)
        return knows(request)

    agent = near(watches)
    async with linked(agent, far(DIAMOND), policy(parallel=1)) as hybrid:
        await hybrid.run(TASK)
    assert seen == [1, 1, 1]


async def test_several_last_parts_are_put_together_by_a_further_call() -> None:
    far_agent = far(FORK, lambda _: "1961 and 1974")
    async with linked(near(), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK)
    assert (result.text, result.side) == ("1961 and 1974", Side.FAR)
    results = [SubtaskResult(task=A, answer="1961"), SubtaskResult(task=B, answer="1974")]
    assert far_agent.requests[-1].messages == aggregate_request(TASK, results)
    assert result.calls[-1].role == "aggregate"


async def test_the_results_are_put_together_in_any_case_where_the_policy_says_so() -> None:
    far_agent = far(DIAMOND, lambda _: "Mira Falk, born 1961")
    async with linked(near(), far_agent, policy(aggregate="always")) as hybrid:
        result = await hybrid.run(TASK)
    assert result.text == "Mira Falk, born 1961"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("I would look it up.", "not JSON"),
        (planned({"a": (A, ["b"]), "b": (B, ["a"])}), "wait for each other in a circle"),
        (planned({"a": (A, ["z"])}), "not among the subtasks"),
        (planned({str(number): (A, []) for number in range(9)}), "at most 8"),
    ],
)
async def test_an_invalid_plan_is_corrected_once_and_then_the_task_is_served_whole(reply: str, problem: str) -> None:
    near_agent = near(lambda request: reply if request.messages[0].role == "system" else knows(request))
    far_agent = far(reply, capabilities=Capabilities(tools=True))
    async with linked(near_agent, far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK)
    assert result.text == "Mira Falk"
    assert len(far_agent.requests) == 2
    said, objection = far_agent.requests[1].messages[-2:]
    assert said.text == reply
    assert problem in objection.text
    assert any(problem in reason and "served whole" in reason for reason in result.reasons)
    assert near_agent.requests[-1].messages == (Message.user(TASK),)


async def test_a_plan_that_is_mended_is_carried_out() -> None:
    replies = iter(["no plan", planned(DIAMOND)])
    far_agent = ScriptedAgent(lambda _: next(replies), name="far", side=Side.FAR)
    async with linked(near(), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK)
    assert len(result.calls) == 5
    assert result.calls[0].error == "InvalidOutput"


async def test_a_task_that_was_not_cut_is_served_as_it_stands() -> None:
    near_agent = near()
    async with linked(near_agent, far({"a": ("something else", [])}), policy()) as hybrid:
        events: list[TaskEvent] = [event async for event in hybrid.stream(TASK)]
    assert not any(isinstance(event, SubtasksPlanned) for event in events), "no part would be heard of again"
    assert isinstance(events[-1], TaskFinished)
    result = events[-1].result
    assert result.text == "Mira Falk"
    assert near_agent.requests[-1].messages == (Message.user(TASK),)
    assert "the task was not cut" in result.reasons


async def test_a_failed_part_has_those_skipped_that_need_it_and_the_rest_is_answered() -> None:
    def fails(request: StepRequest) -> Reply:
        return ModelError("out of memory") if asked(request) == B else knows(request)

    told: list[StepRequest] = []

    def tells(request: StepRequest) -> Reply:
        if asked(request) == B:
            return Unavailable("no network")
        told.append(request)
        return "Only the first: 1961."

    async with linked(near(fails), far(DIAMOND, tells), policy()) as hybrid:
        result = await hybrid.run(TASK)
    assert result.text == "Only the first: 1961."
    assert told[-1].messages[-1].text.partition("Results:\n")[2].splitlines() == [
        A,
        "= 1961",
        B,
        "= failed: Unavailable: no network",
        TASK,
        "= failed: it needs b, which came to nothing",
    ]
    assert "subtask b failed: Unavailable: no network" in result.reasons
    assert "subtask c skipped: it needs b, which came to nothing" in result.reasons


async def test_where_every_part_fails_the_task_fails() -> None:
    async with linked(near(lambda _: ModelError("out of memory")), far(FORK, lambda _: Unavailable("no network")), policy()) as hybrid:
        with pytest.raises(Unavailable) as caught:
            await hybrid.run(TASK)
    assert "and another subtask failed: Unavailable: no network" in caught.value.__notes__


async def test_an_error_that_the_user_has_to_mend_ends_the_task_at_once() -> None:
    never = anyio.Event()

    def refuses(request: StepRequest) -> Reply:
        return Unauthenticated("the token is wrong") if asked(request) == B else [never, ""]

    near_agent = near(refuses)
    async with linked(near_agent, far(FORK), policy()) as hybrid:
        with anyio.fail_after(60), pytest.raises(Unauthenticated):
            await hybrid.run(TASK)
    assert (near_agent.live_steps, near_agent.cancelled_steps) == (0, 1)


async def test_a_cancelled_task_closes_every_part() -> None:
    never = anyio.Event()
    near_agent = near(lambda _: [never, ""])
    async with linked(near_agent, far(FORK), policy()) as hybrid:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as running:
                running.start_soon(hybrid.run, TASK)
                while near_agent.live_steps < 2:
                    await anyio.lowlevel.checkpoint()
                running.cancel_scope.cancel()
    assert (near_agent.live_steps, near_agent.cancelled_steps) == (0, 2)


async def test_a_part_gets_its_share_of_the_time() -> None:
    """a waits for ever; its share ends before the task's time does, so that there is an answer."""
    far_agent = far(DIAMOND, lambda _: "1974 at least")
    slow = near(lambda request: [anyio.Event(), ""] if asked(request) == A else knows(request))
    async with linked(slow, far_agent, policy(strategy="device")) as hybrid:
        result = await hybrid.run(TASK, timeout=6)
    assert result.text == "1974 at least"
    assert any("subtask a failed: DeadlineExceeded" in reason for reason in result.reasons)
    assert slow.live_steps == 0
    cut_off = [call for call in result.calls if call.error is not None]
    assert [(call.role, call.error, call.dollars) for call in cut_off] == [("execute", "CancelledError", None)], "its price is not known"


async def test_the_tasks_own_time_limit_stands_above_its_parts() -> None:
    slow = near(lambda _: [anyio.Event(), ""])
    async with linked(slow, far(DIAMOND, lambda _: [anyio.Event(), ""]), policy()) as hybrid:
        with pytest.raises(DeadlineExceeded):
            await hybrid.run(TASK, timeout=0.5)
    assert slow.live_steps == 0


async def test_the_parts_share_the_turns() -> None:
    def loops(request: StepRequest) -> Reply:
        return ToolCall(id=f"{len(request.messages)}", name="look", arguments={"name": "x"}) if asked(request) == A else knows(request)

    near_agent = near(loops)
    given = policy(strategy="device").model_copy(update={"maximum_turns": 6})
    async with linked(near_agent, far(DIAMOND, lambda _: "half of it"), given, look) as hybrid:
        result = await hybrid.run(TASK)
    assert sum(asked(request) == A for request in near_agent.requests) == 2
    assert any("no answer within 2 turns" in reason for reason in result.reasons)


@pytest.mark.parametrize(("exclusive", "at_a_time"), [(True, 1), (False, 2)])
async def test_tools_of_two_parts_take_turns_unless_they_only_read(exclusive: bool, at_a_time: int) -> None:
    inside, most, entered = 0, 0, anyio.Event()

    @tool
    async def pay(name: str) -> str:
        """Change the world."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 2:
            entered.set()
        with anyio.move_on_after(None if not exclusive else 0.05):
            await entered.wait()
        inside -= 1
        return "paid"

    def pays(request: StepRequest) -> Reply:
        return knows(request) if request.messages[-1].role == "tool" else ToolCall(id=asked(request), name="pay", arguments={"name": "x"})

    async with linked(near(pays), far(FORK, lambda _: "done"), policy(strategy="device", exclusive_tools=exclusive), pay) as hybrid:
        with anyio.fail_after(60):
            await hybrid.run(TASK)
    assert most == at_a_time


async def test_the_wait_for_the_tools_of_another_part_is_not_the_agents_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes a minute. Whoever waits for the other's call would have no time left for its answer."""
    minutes = 0.0
    clock = SimpleNamespace(monotonic=lambda: minutes * 60)
    for module in (graphs, turn):
        monkeypatch.setattr(module, "time", clock)

    @tool
    async def pay(name: str) -> str:
        """Change the world."""
        nonlocal minutes
        while len(near_agent.requests) < 2:
            await anyio.lowlevel.checkpoint()
        for _ in range(3000):  # by then the other part waits, too
            await anyio.lowlevel.checkpoint()
        minutes += 1
        return "paid"

    def pays(request: StepRequest) -> Reply:
        return knows(request) if request.messages[-1].role == "tool" else ToolCall(id=asked(request), name="pay", arguments={"name": "x"})

    near_agent = near(pays)
    given = policy(strategy="cascade").model_copy(update={"attempt_timeout": 90, "minimum_confidence": 0.0})
    async with linked(near_agent, far(FORK, lambda _: "done"), given, pay) as hybrid:
        with anyio.fail_after(60):
            await hybrid.run(TASK)
    assert [request.timeout for request in near_agent.requests[2:]] == [30, 30]


async def test_the_planner_is_told_of_the_tools_and_calls_none() -> None:
    far_agent = far(FORK, lambda _: "done")
    async with linked(near(), far_agent, policy(strategy="device"), look) as hybrid:
        await hybrid.run(TASK)
    assert [(spec.name, far_agent.requests[0].tool_choice) for spec in far_agent.requests[0].tools] == [("look", ToolChoice.NONE)]


async def test_a_private_task_is_planned_and_served_on_the_device() -> None:
    near_agent = near(lambda request: planned(DIAMOND) if request.messages[0].role == "system" else knows(request))
    far_agent = far(DIAMOND)
    async with linked(near_agent, far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, sensitivity=Sensitivity.PRIVATE)
    assert (result.text, result.far.steps) == ("Mira Falk", 0)
    assert far_agent.requests == []
    assert {request.sensitivity for request in near_agent.requests} == {Sensitivity.PRIVATE}


async def test_a_part_never_goes_where_the_task_may_not() -> None:
    near_agent = near(lambda request: planned(DIAMOND) if request.messages[0].role == "system" else knows(request))
    far_agent = far(DIAMOND)
    async with linked(near_agent, far_agent, policy(strategy="cloud")) as hybrid:
        with pytest.raises(PrivacyViolation):
            await hybrid.run(TASK, sensitivity=Sensitivity.PRIVATE)
        with pytest.raises(ConfigError):
            await hybrid.run(TASK, mode=Mode.ONLY_ON_DEVICE)
    assert far_agent.requests == []


async def test_parts_may_be_supervised() -> None:
    far_agent = far(FORK, lambda request: "1. answer" if request.messages[0].text.startswith("Plan") else "both")
    async with linked(near(), far_agent, policy(strategy="pevr")) as hybrid:
        result = await hybrid.run(TASK)
    assert result.text == "both"
    assert Counter(call.role for call in result.calls) == {"plan": 3, "execute": 2, "aggregate": 1}


async def test_the_last_part_answers_in_the_form_that_the_task_asks_for() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    near_agent = near(lambda request: '{"name": "Mira Falk"}' if asked(request) == TASK else knows(request))
    async with linked(near_agent, far(DIAMOND), policy()) as hybrid:
        result = await hybrid.run(TASK, output=schema)
    assert result.output == {"name": "Mira Falk"}
    assert [request.output_schema for request in near_agent.requests] == [None, None, schema]


async def test_an_agent_that_keeps_to_no_schema_by_itself_is_told_the_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    far_agent = far(FORK, lambda _: '{"name": "Mira Falk"}', capabilities=Capabilities(tools=True))
    async with linked(near(), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, output=schema)
    assert result.output == {"name": "Mira Falk"}
    assert json.dumps(schema) in far_agent.requests[-1].messages[-1].text


async def test_rules_and_context_reach_every_part() -> None:
    near_agent = near(lambda request: ANSWERS[asked(request)])
    far_agent = far(DIAMOND)
    async with linked(near_agent, far_agent, policy()) as hybrid:
        await hybrid.run([Message.system("Be brief."), Message.user(TASK)], context="Mira Falk leads Orbix Labs.")
    assert "Mira Falk leads Orbix Labs." in far_agent.requests[0].messages[-1].text
    for request in near_agent.requests:
        assert request.messages[0] == Message.system("Be brief.")
        assert request.messages[1].text.endswith("\n\nMira Falk leads Orbix Labs.")


async def test_whoever_streams_hears_of_the_plan_the_parts_every_call_and_one_answer() -> None:
    async with linked(near(), far(DIAMOND), policy()) as hybrid:
        events: list[TaskEvent] = [event async for event in hybrid.stream(TASK)]
    (plan,) = (event for event in events if isinstance(event, SubtasksPlanned))
    assert [subtask.id for subtask in plan.subtasks] == ["a", "b", "c"]
    assert [(event.id, event.answer) for event in events if isinstance(event, SubtaskEnded)] == [
        ("a", "1961"),
        ("b", "1974"),
        ("c", "Mira Falk"),
    ]
    assert [event.text for event in events if isinstance(event, AgentText)] == ["Mira Falk"]
    assert [event.attempt.outcome for event in events if isinstance(event, AttemptEnded)] == ["accepted"]
    last = events[-1]
    assert isinstance(last, TaskFinished)
    assert tuple(event.call for event in events if isinstance(event, CallEnded)) == last.result.calls


async def test_parts_keep_out_of_the_checkpoints_of_their_task() -> None:
    saver = InMemorySaver()
    async with Hybrid(near=near(), far=far(DIAMOND), policy=policy(), records=Records(checkpointer=saver)) as hybrid:
        result = await hybrid.run(TASK, thread_id="one")
    assert result.text == "Mira Falk"
    kept = {config.config["configurable"].get("checkpoint_ns", "") for config in saver.list({"configurable": {"thread_id": "one"}})}
    assert kept == {""}


async def test_the_turns_of_parts_that_are_skipped_go_to_the_others() -> None:
    """a fails at once, so c and d never start, and b has all the turns that a had not reserved."""
    tasks: Plan = {"a": (A, []), "c": ("More of it?", ["a"]), "d": ("And more?", ["c"]), "b": (B, [])}

    def loops(request: StepRequest) -> Reply:
        if asked(request) == A:
            raise ModelError("broken")
        return ToolCall(id=f"{len(request.messages)}", name="look", arguments={"name": "x"})

    near_agent = near(loops)
    given = policy(strategy="device", parallel=1).model_copy(update={"maximum_turns": 6})
    async with linked(near_agent, far(tasks, lambda _: "half of it"), given, look) as hybrid:
        with pytest.raises(ModelError):
            await hybrid.run(TASK)
    assert sum(asked(request) == B for request in near_agent.requests) == 4
