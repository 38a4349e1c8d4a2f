"""Which step failed a run."""

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from nearfar import Hybrid, Records, tool
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.lab.blame import Blame, Reference, StrongerAgent, blame, same
from nearfar.orchestrator.lab.blame_replay import RecordedRun
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy, SubtasksConfig, SupervisionConfig
from nearfar.orchestrator.tracing import EntriesLost, TraceStore
from nearfar.protocols import InvalidRequest, PrivacyViolation, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall

pytestmark = pytest.mark.anyio

LEADERS = {"Orbix": "Mira Falk", "Halcyon": "Tomas Berg"}
BIRTHPLACES = {"Mira Falk": "Lake Lorne", "Tomas Berg": "Port Alder"}
LEADER = ToolCall(id="1", name="leader", arguments={"company": "Orbix"})
PLACE = ToolCall(id="2", name="birthplace", arguments={"person": "Mira Falk"})
ran: list[str] = []


@tool(effect="read")
async def leader(company: str) -> str:
    """Who leads a company."""
    ran.append(company)
    return LEADERS[company]


@tool(effect="read")
async def birthplace(person: str) -> str:
    """Where somebody was born."""
    ran.append(person)
    return BIRTHPLACES[person]


@tool(effect="at_most_once")
async def rename(company: str) -> str:
    """Give a company another name."""
    ran.append(company)
    return "done"


def careless(request: StepRequest, *, company: str = "Orbix") -> Any:  # noqa: ANN401 - what a script may say
    """Follows what the tools tell, and asks about the company it was told to."""
    results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
    if not results:
        return LEADER.model_copy(update={"arguments": {"company": company}})
    if len(results) == 1:
        return PLACE.model_copy(update={"arguments": {"person": results[0]}})
    return results[1]


async def recorded(traces: TraceStore, script: Any, name: str) -> RecordedRun:  # noqa: ANN401 - as agents take it
    async with Hybrid(
        near=ScriptedAgent(script, name="near"), tools=(leader, birthplace, rename), records=Records(traces=traces)
    ) as agents:
        await agents.run("Where was the leader of Orbix born?", strategy="device", idempotency_key=name)
    return RecordedRun(name, traces.entries(name))


def right(answer: str, calls: Sequence[ToolCall]) -> bool:
    return same(answer, "Lake Lorne")


async def blamed(run: RecordedRun, *also: RecordedRun, live: Any = careless) -> Blame:  # noqa: ANN401 - as agents take it
    reference = Reference("the solution", (LEADER, PLACE), "Lake Lorne")
    ran.clear()
    found = await blame(run, reference, right, live={"near": AgentHandle("near", Side.NEAR, ScriptedAgent(live, name="near"))}, also=also)
    assert ran == [], "a replay runs no tool"
    return found


async def test_the_step_is_named_whose_correction_makes_the_run_succeed(traces: TraceStore) -> None:
    good = await recorded(traces, careless, "good")
    bad = await recorded(traces, lambda request: careless(request, company="Halcyon"), "bad")
    found = await blamed(bad, good)
    assert found.decisive is not None
    assert (found.decisive.step, found.decisive.agent, found.decisive.answer) == (1, "near", "Lake Lorne")
    assert (found.replays, found.is_certain) == (1, True)


async def test_an_early_step_that_was_wrong_and_did_no_harm_is_not_blamed(traces: TraceStore) -> None:
    """Correcting it leaves the run failing, as the agent then makes its real mistake all the same."""
    idle = ToolCall(id="0", name="leader", arguments={"company": "Halcyon"})

    def misreads(request: StepRequest) -> Any:  # noqa: ANN401 - what a script may say
        said = careless(request)
        return "Port Alder" if isinstance(said, str) else said

    good = await recorded(traces, careless, "good")
    script = iter([idle, LEADER, PLACE.model_copy(update={"id": "3"}), "Port Alder"])
    bad = await recorded(traces, lambda _: next(script), "bad")
    found = await blamed(bad, good, live=misreads)
    assert [(trial.step, trial.outcome) for trial in found.trials] == [(1, "failure"), (4, "success")]
    assert found.unchallenged == (2, 3)


async def test_where_no_result_is_on_record_the_branch_is_unknown(traces: TraceStore) -> None:
    bad = await recorded(traces, lambda request: careless(request, company="Halcyon"), "bad")
    found = await blamed(bad)
    assert [trial.outcome for trial in found.trials] == ["unknown"] * 3
    assert "Orbix" in found.trials[0].because
    assert (found.decisive, found.is_certain) == (None, False)


async def test_a_result_behind_another_change_of_the_world_does_not_count(traces: TraceStore) -> None:
    change = ToolCall(id="0", name="rename", arguments={"company": "Orbix"})
    script = iter([change, LEADER, PLACE.model_copy(update={"id": "3"}), "Port Alder"])
    bad = await recorded(traces, lambda _: next(script), "bad")
    found = await blamed(bad)
    assert (found.trials[0].step, found.trials[0].outcome) == (1, "unknown")


async def test_a_stronger_agent_corrects(traces: TraceStore) -> None:
    bad = await recorded(traces, [LEADER, PLACE, "Port Alder"], "bad")
    corrector = StrongerAgent(AgentHandle("far", Side.NEAR, ScriptedAgent(careless, name="far")), bad)
    found = await blame(bad, corrector, right, live={})
    assert found.decisive is not None
    assert (found.decisive.step, found.corrector, found.unchallenged) == (3, "agent far", (1, 2))


@pytest.mark.parametrize(
    ("returns", "side", "is_elsewhere", "is_asked"),
    [
        ("shared", Side.FAR, True, True),
        ("user", Side.FAR, True, False),
        ("user", Side.NEAR, True, True),
        ("device", Side.NEAR, True, False),
        ("device", Side.NEAR, False, True),
    ],
)
async def test_agent_that_may_not_be_told_what_a_run_was_told_is_not_asked_to_correct(
    traces: TraceStore, returns: str, side: Side, *, is_elsewhere: bool, is_asked: bool
) -> None:
    @tool(effect="read", returns=returns)
    def diary(day: str) -> str:
        """What was written on a day."""
        return "nothing much"

    call = ToolCall(id="1", name="diary", arguments={"day": "monday"})
    async with Hybrid(near=ScriptedAgent([call, "Port Alder"], name="near"), tools=[diary], records=Records(traces=traces)) as agents:
        await agents.run("Where was I?", strategy="device", sensitivity="public", idempotency_key="bad")
    bad = RecordedRun("bad", traces.entries("bad"))
    asked = ScriptedAgent(["At home."], name="asked", side=side)
    corrector = StrongerAgent(AgentHandle("asked", side, asked, is_elsewhere=is_elsewhere), bad)
    with nullcontext() if is_asked else pytest.raises(PrivacyViolation):
        assert await corrector.correct(bad.steps[-1]) is not None
    assert len(asked.requests) == is_asked


async def test_what_looks_private_does_not_leave_for_a_correction_either(traces: TraceStore) -> None:
    """It went to an agent on this device, which nobody looked at."""
    async with Hybrid(near=ScriptedAgent(["Port Alder"], name="near"), records=Records(traces=traces)) as agents:
        await agents.run("Where is tomas@example.org?", strategy="device", sensitivity="public", idempotency_key="bad")
    bad = RecordedRun("bad", traces.entries("bad"))
    asked = ScriptedAgent(["At home."], name="asked", side=Side.FAR)
    with pytest.raises(PrivacyViolation, match="1 email"):
        await StrongerAgent(AgentHandle("asked", Side.FAR, asked), bad).correct(bad.steps[-1])
    assert asked.requests == []


async def test_a_run_that_went_well_has_nobody_to_blame(traces: TraceStore) -> None:
    good = await recorded(traces, careless, "good")
    with pytest.raises(InvalidRequest, match="did not fail"):
        await blamed(good)


@tool(effect="read", returns="device", source="external_tool")
async def mail(about: str) -> str:
    """The last mail about something, which stays on this device."""
    return f"canary: {LEADERS.get(about, 'nobody')} < {about}"


def reads_mail(request: StepRequest, *, company: str = "Orbix") -> Any:  # noqa: ANN401 - what a script may say
    """Reads a mail twice, and says what the first one says."""
    results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
    if len(results) < 2:
        return ToolCall(id=str(len(results)), name="mail", arguments={"about": company if not results else "Halcyon"})
    return "Mira Falk" if LEADERS["Orbix"] in results[0] else "Tomas Berg"


async def supervised(traces: TraceStore, company: str, name: str) -> RecordedRun:
    near, far = (
        ScriptedAgent(lambda request: reads_mail(request, company=company), name="near"),
        ScriptedAgent(["CONTINUE"] * 9, name="far", side=Side.FAR),
    )
    policy = Policy(strategy=Strategy.EVA, sensitivity=Sensitivity.PUBLIC, supervision=SupervisionConfig(interval=1))
    async with Hybrid(near=near, far=far, tools=[mail], records=Records(traces=traces), policy=policy) as agents:
        await agents.run("Who leads Orbix, says the mail?", idempotency_key=name)
    assert far.requests == [], "it may not be told what the mail says"
    return RecordedRun(name, traces.entries(name))


async def test_a_replay_quotes_and_keeps_private_what_the_run_did(traces: TraceStore) -> None:
    """It comes to the step behind what strangers wrote, and asks no far agent what the run would not have asked it."""
    good, bad = await supervised(traces, "Orbix", "good"), await supervised(traces, "Vertex", "bad")
    near, far = ScriptedAgent(reads_mail, name="near"), ScriptedAgent(["CONTINUE"] * 9, name="far", side=Side.FAR)
    found = await blame(
        bad,
        Reference.of(good),
        lambda answer, _: same(answer, "Mira Falk"),
        live={"near": AgentHandle("near", Side.NEAR, near), "far": AgentHandle("far", Side.FAR, far)},
        also=[good],
    )
    assert found.decisive is not None
    assert (found.decisive.step, found.is_certain, far.requests) == (1, True, [])


async def test_a_draft_that_was_rejected_for_want_of_confidence_is_rejected_again(traces: TraceStore) -> None:
    """To correct it saves nothing: the run goes on to the agent that failed it."""

    async def run(far: str, name: str) -> RecordedRun:
        doubtful, sure = ScriptedAgent(["Port Alder"], name="near", confidence=0.1), ScriptedAgent([far], name="far", side=Side.FAR)
        async with Hybrid(near=doubtful, far=sure, records=Records(traces=traces)) as agents:
            await agents.run("Where?", strategy="cascade", sensitivity="public", idempotency_key=name)
        return RecordedRun(name, traces.entries(name))

    good, bad = await run("Lake Lorne", "good"), await run("New Istria", "bad")
    found = await blame(bad, Reference.of(good), right, live={}, also=[good])
    assert [(trial.step, trial.agent, trial.outcome) for trial in found.trials] == [(1, "near", "failure"), (2, "far", "success")]


async def test_the_part_of_a_cut_task_is_named_that_went_wrong(traces: TraceStore) -> None:
    plan = json.dumps({"subtasks": [{"id": name, "task": f"Lead {name}", "needs": []} for name in LEADERS]})

    def script(wrong: str) -> Any:  # noqa: ANN401 - what agents may say
        def said(request: StepRequest) -> Any:  # noqa: ANN401 - what a script may say
            asked, last = request.messages[0], request.messages[-1]
            if asked.role == "system":
                return plan if "Cut the task" in asked.text else ", ".join(re.findall(r"^= (.*)", last.text, re.MULTILINE))
            if last.tool_result is not None:
                return last.tool_result.content
            name = asked.text.removeprefix("Lead ")
            return LEADER.model_copy(update={"arguments": {"company": "Halcyon" if name == wrong else name}})

        return said

    async def run(name: str, wrong: str = "") -> RecordedRun:
        policy = Policy(strategy=Strategy.SUBTASKS, subtasks=SubtasksConfig(strategy=Strategy.DEVICE))
        async with Hybrid(
            near=ScriptedAgent(script(wrong), name="near"), tools=(leader,), records=Records(traces=traces), policy=policy
        ) as agents:
            await agents.run("Who leads them?", idempotency_key=name)
        return RecordedRun(name, traces.entries(name))

    good, bad = await run("good"), await run("bad", "Orbix")
    live = {"near": AgentHandle("near", Side.NEAR, ScriptedAgent(script("Orbix"), name="near"))}
    found = await blame(bad, Reference.of(good), lambda answer, _: same(answer, good.answer or ""), live=live, also=[good])
    assert found.decisive is not None
    blamed_step = bad.steps[found.decisive.step - 1]
    assert (blamed_step.scope, blamed_step.reply.tool_calls[0].arguments) == ("subtask Orbix", {"company": "Halcyon"})


async def test_calls_of_one_message_have_no_order_among_them(traces: TraceStore) -> None:
    """Which of them ends first is chance, and a replay has another chance."""
    both = [LEADER.model_copy(update={"name": "rename", "id": company, "arguments": {"company": company}}) for company in LEADERS]
    good = await recorded(traces, [both, "Lake Lorne"], "good")
    bad = await recorded(traces, [list(reversed(both)), "Port Alder"], "bad")
    found = await blame(bad, Reference.of(good), right, live={}, also=[good])
    assert found.decisive is not None
    assert (found.decisive.step, found.is_certain) == (2, True)


async def test_a_trace_that_lacks_entries_is_not_replayed(traces: TraceStore) -> None:
    bad = await recorded(traces, [LEADER, "Port Alder"], "bad")
    with pytest.raises(InvalidRequest, match="is missing"):
        await blamed(RecordedRun("bad", [*bad.entries[:2], EntriesLost(at=0.0, count=1), *bad.entries[2:]]))


async def test_a_context_that_stays_here_does_not_leave_for_a_correction(traces: TraceStore) -> None:
    replies = ['{"jobs": [{"instruction": "Find it", "advice": ""}]}', '{"answer": "Port Alder", "scratchpad": "", "jobs": []}']
    near = ScriptedAgent(['{"explanation": "", "citation": null, "answer": null}'], name="near")
    async with Hybrid(near=near, far=ScriptedAgent(replies, name="far", side=Side.FAR), records=Records(traces=traces)) as agents:
        await agents.run("Where?", context="At the lake.", strategy="minions", sensitivity="public", idempotency_key="bad")
    traces.flush()
    asked = ScriptedAgent(["Lake Lorne"] * 3, name="asked", side=Side.FAR)
    bad = RecordedRun("bad", traces.entries("bad"))
    await blame(bad, StrongerAgent(AgentHandle("asked", Side.FAR, asked), bad), right, live={})
    assert len(asked.requests) == 2
    assert not any("lake" in message.text for request in asked.requests for message in request.messages)
