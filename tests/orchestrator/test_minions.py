"""`minions`: the far side asks without seeing, the near side reads, with scripted agents."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from linked import LINKS, linked

from nearfar import Hybrid, Records
from nearfar.orchestrator.task.events import AgentText, CallEnded, TaskFinished
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.orchestrator.task.policy import MinionsConfig, Policy
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.protocols import (
    BudgetExceeded,
    Capabilities,
    ConfigError,
    DeadlineExceeded,
    Finished,
    FinishReason,
    InvalidOutput,
    InvalidRequest,
    ModelError,
    NearfarError,
    PrivacyViolation,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    Unavailable,
    Usage,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

TASK = "When was the tower built, and how high is it?"
CHUNKS = ["The tower was built in 1871. " * 4, "Nothing is said here about it. " * 4, "The tower is 40 m high. Secret word: osprey. " * 3]
CONTEXT = "".join(chunk.ljust(140, "\n") for chunk in CHUNKS)
SMALL = MinionsConfig(chunk_characters=140, overlap_characters=0)


def policy(**knobs: object) -> Policy:
    return Policy(strategy=Strategy.MINIONS, sensitivity=Sensitivity.PUBLIC, minions=SMALL.model_copy(update=knobs))


def jobs(*instructions: str) -> str:
    return json.dumps({"jobs": [{"instruction": instruction, "advice": "be brief"} for instruction in instructions]})


def answer(text: str) -> str:
    return json.dumps({"answer": text, "scratchpad": "", "jobs": []})


def more(scratchpad: str, *instructions: str) -> str:
    return json.dumps({"answer": None, "scratchpad": scratchpad, **json.loads(jobs(*instructions))})


def reads(request: StepRequest) -> str:
    """A near model that finds what the job asks for where the chunk says it."""
    text, _, job = request.messages[-1].text.rpartition("Job: ")
    for asked, citation, found in (("built", "built in 1871", "1871"), ("high", "40 m high", "40 m")):
        if asked in job and citation in text:
            return json.dumps({"explanation": "It says so.", "citation": citation, "answer": found})
    return json.dumps({"explanation": "Not here.", "citation": None, "answer": None})


def near(script: Callable[[StepRequest], Reply] = reads) -> ScriptedAgent:
    return ScriptedAgent(script, name="near")


def far(script: Sequence[Reply]) -> ScriptedAgent:
    return ScriptedAgent(script, name="far", side=Side.FAR)


@pytest.mark.parametrize("link", LINKS)
async def test_every_job_is_done_on_every_chunk_and_the_far_side_sees_only_what_was_found(link: str) -> None:
    near_agent, far_agent = near(), far([jobs("When was it built?", "How high is it?"), answer("1871, 40 m")])
    async with linked(near_agent, far_agent, policy(), link=link) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    assert (result.text, result.side, result.was_fallback) == ("1871, 40 m", Side.FAR, False)
    assert [(call.role, call.side) for call in result.calls] == [
        ("jobs", Side.FAR),
        *[("extract", Side.NEAR)] * 6,
        ("aggregate", Side.FAR),
    ]
    assert (result.far.steps, result.near.steps) == (2, 6)
    read = {request.messages[-1].text for request in near_agent.requests}
    assert read == {
        f"Text:\n{chunk}\n\nJob: {job}\nAdvice: be brief" for chunk in cut() for job in ("When was it built?", "How high is it?")
    }
    shown = far_agent.requests[1].messages[-1].text
    assert 'Job 1: When was it built?\n- chunk 1: 1871 ("built in 1871"; It says so.)\n' in shown
    assert 'Job 2: How high is it?\n- chunk 3: 40 m ("40 m high"; It says so.)\n' in shown


def cut() -> list[str]:
    return [CONTEXT[start : start + 140] for start in range(0, len(CONTEXT), 140)]


async def test_the_context_itself_never_leaves_the_device() -> None:
    far_agent = far([jobs("How high is it?"), more("nothing yet", "When was it built?"), answer("1871")])
    near_agent = near()
    async with linked(near_agent, far_agent, policy()) as hybrid:
        await hybrid.run(TASK, context=CONTEXT)
    said = "\n".join(message.text for request in far_agent.requests for message in request.messages)
    assert "osprey" not in said
    assert f"{len(CONTEXT)} characters in 3 chunks" in said
    assert {request.sensitivity for request in near_agent.requests} == {Sensitivity.PRIVATE}


async def test_another_round_starts_from_the_scratchpad_and_the_last_one_has_to_answer() -> None:
    far_agent = far([jobs("When was it built?"), more("built 1871", "How high is it?"), answer("1871, 40 m")])
    async with linked(near(), far_agent, policy(maximum_rounds=2)) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    first, last = (request.messages[-1].text for request in far_agent.requests[1:])
    assert "1 rounds left" in first
    assert "Scratchpad:\nbuilt 1871" in last
    assert "No rounds left" in last
    assert "Job 1: How high is it?" in last
    assert "When was it built" not in last.partition("Findings:")[2]
    assert [call.turn for call in result.calls if call.role == "aggregate"] == [1, 2]
    assert [reason for reason in result.reasons if reason.startswith("round")] == [
        "round 1: 1 jobs on 3 chunks, 1 findings",
        "round 2: 1 jobs on 3 chunks, 1 findings",
    ]


async def test_a_last_round_without_an_answer_is_corrected_once_and_then_an_error() -> None:
    stubborn = more("", "How high is it?")
    far_agent = far([jobs("When was it built?"), stubborn, stubborn])
    dumb = near(lambda request: reads(request) if "Job:" in request.messages[-1].text else stubborn)
    async with linked(dumb, far_agent, policy(maximum_rounds=1)) as hybrid:
        with pytest.raises(InvalidOutput, match="no rounds are left"):
            await hybrid.run(TASK, context=CONTEXT)
    assert far_agent.requests[2].messages[-1].text.startswith("Your last reply could not be used: no rounds are left")


async def test_jobs_that_cannot_be_read_are_corrected_once() -> None:
    far_agent = ScriptedAgent(
        ["I would look it up.", jobs("When was it built?"), answer("1871")], name="far", side=Side.FAR, capabilities=Capabilities()
    )
    async with linked(near(), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    assert result.text == "1871"
    said, objection = far_agent.requests[1].messages[-2:]
    assert said.text == "I would look it up."
    assert objection.text.startswith("Your last reply could not be used: the output is not JSON")


async def test_where_nobody_writes_jobs_the_task_itself_is_the_job() -> None:
    far_agent = ScriptedAgent(["no", "no", answer("1871")], name="far", side=Side.FAR, capabilities=Capabilities())
    near_agent = near(lambda request: reads(request) if "Job:" in request.messages[-1].text else "no")
    async with linked(near_agent, far_agent, policy()) as hybrid:
        result = await hybrid.run("When was it built?", context=CONTEXT)
    assert result.text == "1871"
    assert any("the task itself is the only one" in reason for reason in result.reasons)
    assert sum("Job: When was it built?" in request.messages[-1].text for request in near_agent.requests) == 3


async def test_one_failed_reading_is_an_abstention_with_its_reason() -> None:
    def fails_once(request: StepRequest) -> Reply:
        return ModelError("out of memory") if "Secret" in request.messages[-1].text else reads(request)

    far_agent = far([jobs("When was it built?", "How high is it?"), answer("1871")])
    async with linked(near(fails_once), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    assert result.text == "1871"
    assert "2 of 6 readings failed: ModelError: out of memory" in result.reasons
    assert "Job 2: How high is it?\n- nothing was found" in far_agent.requests[1].messages[-1].text


async def test_readings_that_all_fail_are_an_error() -> None:
    async with linked(near(lambda _: ModelError("out of memory")), far([jobs("When?")]), policy()) as hybrid:
        with pytest.raises(ModelError, match="out of memory") as caught:
            await hybrid.run(TASK, context=CONTEXT)
    assert "all 3 readings of the context failed; this is the first error" in caught.value.__notes__


async def test_abstentions_and_false_citations_are_not_shown() -> None:
    def invents(_: StepRequest) -> str:
        return json.dumps({"explanation": "", "citation": "the moon is made of cheese", "answer": "cheese"})

    far_agent = far([jobs("What is the moon made of?"), answer("It is not said.")])
    async with linked(near(invents), far_agent, policy()) as hybrid:
        await hybrid.run(TASK, context=CONTEXT)
    assert "cheese" not in far_agent.requests[1].messages[-1].text


async def test_readings_run_side_by_side_within_their_bound() -> None:
    reached, go_on = anyio.Event(), anyio.Event()
    near_agent: ScriptedAgent

    def waits(request: StepRequest) -> Reply:
        if near_agent.live_steps == 2:
            reached.set()
        return [go_on, reads(request)]

    near_agent = near(waits)
    peak = 0
    async with linked(near_agent, far([jobs("When was it built?"), answer("1871")]), policy(parallel=2)) as hybrid:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as running:
                running.start_soon(lambda: hybrid.run(TASK, context=CONTEXT))
                await reached.wait()
                await anyio.wait_all_tasks_blocked()
                peak = near_agent.live_steps
                go_on.set()
    assert peak == 2
    assert len(near_agent.requests) == 3


async def test_a_cancelled_task_closes_every_reading() -> None:
    started, never = anyio.Event(), anyio.Event()

    def waits(_: StepRequest) -> Reply:
        started.set()
        return [never, ""]

    near_agent = near(waits)
    async with linked(near_agent, far([jobs("When?")]), policy()) as hybrid:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as running:
                running.start_soon(lambda: hybrid.run(TASK, context=CONTEXT))
                await started.wait()
                await anyio.wait_all_tasks_blocked()
                assert near_agent.live_steps == 3
                running.cancel_scope.cancel()
    assert (near_agent.live_steps, near_agent.cancelled_steps) == (0, 3)


async def test_the_tasks_timeout_ends_the_readings() -> None:
    near_agent = near(lambda _: [anyio.Event(), ""])
    async with linked(near_agent, far([jobs("When?")]), policy()) as hybrid:
        with pytest.raises(DeadlineExceeded):
            await hybrid.run(TASK, context=CONTEXT, timeout=0.5)
    assert near_agent.live_steps == 0


@pytest.mark.parametrize("context", [None, "", " \n"])
async def test_without_a_context_there_is_nothing_to_read(context: str | None) -> None:
    far_agent = far([])
    async with linked(near(), far_agent, policy()) as hybrid:
        with pytest.raises(InvalidRequest, match="context"):
            await (hybrid.run(TASK) if context is None else hybrid.run(TASK, context=context))
    assert far_agent.requests == []


async def test_a_context_of_too_many_chunks_is_refused() -> None:
    async with linked(near(), far([]), policy(maximum_readings=2)) as hybrid:
        with pytest.raises(InvalidRequest, match="3 chunks"):
            await hybrid.run(TASK, context=CONTEXT)


async def test_many_chunks_allow_fewer_jobs() -> None:
    near_agent, far_agent = near(), far([jobs("When was it built?", "How high is it?"), answer("1871")])
    async with linked(near_agent, far_agent, policy(maximum_readings=5)) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    assert "At most 1 jobs." in far_agent.requests[0].messages[0].text
    assert len(near_agent.requests) == 3
    assert "2 jobs were written; the first 1 are done" in result.reasons


@pytest.mark.parametrize(
    ("mode", "sensitivity", "error"),
    [
        (Mode.AUTO, Sensitivity.PRIVATE, PrivacyViolation),
        (Mode.ONLY_IN_CLOUD, Sensitivity.PUBLIC, ConfigError),
    ],
)
async def test_what_the_rules_forbid_is_refused_before_any_call(mode: Mode, sensitivity: Sensitivity, error: type[NearfarError]) -> None:
    near_agent, far_agent = near(), far([])
    async with linked(near_agent, far_agent, policy()) as hybrid:
        with pytest.raises(error):
            await hybrid.run(TASK, context=CONTEXT, mode=mode, sensitivity=sensitivity)
    assert near_agent.requests == far_agent.requests == []


@pytest.mark.parametrize("side", list(Side))
async def test_a_missing_side_is_named(side: Side) -> None:
    alone: dict[str, Any] = {"near": near()} if side is Side.FAR else {"far": far([])}
    with pytest.raises(ConfigError, match=f"no {side} agent"):
        Hybrid(policy=policy(), **alone)
    async with Hybrid(policy=Policy(sensitivity=Sensitivity.PUBLIC, minions=SMALL), **alone) as hybrid:
        with pytest.raises(ConfigError, match=f"no {side} agent"):
            await hybrid.run(TASK, context=CONTEXT, strategy="minions")


async def test_a_private_task_kept_on_the_device_is_served_by_the_near_side_alone() -> None:
    script = iter([jobs("When was it built?"), answer("1871")])
    near_agent = near(lambda request: reads(request) if "Job:" in request.messages[-1].text else next(script))
    far_agent = far([])
    async with linked(near_agent, far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT, mode=Mode.ONLY_ON_DEVICE, sensitivity=Sensitivity.PRIVATE)
    assert (result.text, result.served_on_device) == ("1871", True)
    assert far_agent.requests == []


async def test_the_near_side_takes_over_from_a_far_side_that_fails() -> None:
    script = iter([answer("1871")])
    near_agent = near(lambda request: reads(request) if "Job:" in request.messages[-1].text else next(script))
    far_agent = far([jobs("When was it built?"), Unavailable("no network")])
    async with linked(near_agent, far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    assert (result.text, result.side, result.was_fallback) == ("1871", Side.NEAR, True)
    assert "far failed in the role 'aggregate': Unavailable: no network" in result.reasons
    assert [(call.role, call.error) for call in result.calls][-2:] == [("aggregate", "Unavailable"), ("aggregate", None)]


async def test_what_was_found_is_the_answer_where_no_budget_is_left_to_make_one_of_it() -> None:
    def reads_a_lot(request: StepRequest) -> Reply:
        return reads(request), Finished(reason=FinishReason.STOP, model="m", usage=Usage(input_tokens=7000))

    near, far = ScriptedAgent(reads_a_lot, name="near"), ScriptedAgent([jobs("When was it built?")] * 2, name="far", side=Side.FAR)
    limited = policy().model_copy(update={"limits": LimitsConfig(task=AmountsConfig(tokens=20_000)), "maximum_output_tokens": 100})
    async with Hybrid(near=near, far=far, policy=limited) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
        assert ("1871" in result.text, result.agent) == (True, "near")
        assert "of 20000 tokens are spent" in (result.budget_exceeded or "")
        with pytest.raises(BudgetExceeded):
            await hybrid.run(TASK, context=CONTEXT, output={"type": "object"})


async def test_an_answer_matches_the_tasks_schema() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    far_agent = far([jobs("When was it built?"), answer("1871"), answer('{"year": 1871}')])
    async with linked(near(), far_agent, policy()) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT, output=schema)
    assert result.output == {"year": 1871}
    assert json.dumps(schema) in far_agent.requests[1].messages[-1].text


async def test_whoever_streams_hears_of_every_call_and_of_the_answer() -> None:
    async with linked(near(), far([jobs("When was it built?"), answer("1871")]), policy()) as hybrid:
        events = [event async for event in hybrid.stream(TASK, context=CONTEXT)]
    assert [event.call.role for event in events if isinstance(event, CallEnded)] == ["jobs", *["extract"] * 3, "aggregate"]
    assert [event.text for event in events if isinstance(event, AgentText)] == ["1871"]
    last = events[-1]
    assert isinstance(last, TaskFinished)
    assert last.result.text == "1871"


async def test_under_another_strategy_the_context_stands_behind_the_prompt() -> None:
    near_agent = near(lambda _: "1871")
    async with linked(near_agent, far([]), policy()) as hybrid:
        await hybrid.run(TASK, context="It was built in 1871.", strategy="device")
    assert near_agent.requests[0].messages[-1].text == f"{TASK}\n\nIt was built in 1871."


async def test_rounds_survive_a_checkpointer_and_few_turns() -> None:
    script = [jobs("When was it built?"), *(more(str(number), "How high is it?") for number in range(18)), answer("1871")]
    given = policy(maximum_rounds=20).model_copy(update={"maximum_turns": 1})
    async with Hybrid(near=near(), far=far(script), policy=given, records=Records(checkpointer=InMemorySaver())) as hybrid:
        result = await hybrid.run(TASK, context=CONTEXT)
    assert result.text == "1871"
