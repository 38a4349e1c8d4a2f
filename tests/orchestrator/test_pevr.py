"""`pevr` against the pseudocode of its paper (arXiv 2605.30102), call by call."""

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked import LINKS
from supervised_pair import TASK, Pair, look, looks_at, supervised, turn_of, working

from nearfar import tool
from nearfar.orchestrator.strategies.prompts import plan_request, verify_plan_request, with_plan
from nearfar.orchestrator.task.results import Result
from nearfar.protocols import (
    Finished,
    FinishReason,
    InvalidOutput,
    Message,
    Side,
    ToolCall,
    ToolChoice,
    ToolResult,
    Unavailable,
    Usage,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PLAN = "1. look(page=1)\n2. <the word>"
ANSWER = "The emblem is a bridge."
Journal = list[tuple[str, tuple[Message, ...]]]


def new_plan(number: int) -> str:
    return f"1. look(page={number})\n2. answer"


def pseudocode(*, acting: int, verdicts: Sequence[bool], turns: int, interval: int) -> Journal:
    """Who is shown what, as the paper's algorithm has it; the executor answers after so many turns that act.

    The paper leaves two things open: the answer ends the loop, and a check after the last turn, which could change nothing, is not made.
    """
    journal: Journal = [("supervisor", plan_request(TASK))]
    plan = PLAN
    context: list[Message] = []
    left = iter(enumerate(verdicts))
    for turn in range(1, turns + 1):
        journal.append(("executor", (Message.user(with_plan(TASK, plan)), *context)))
        if turn > acting:
            break
        context = [*context, *turn_of(turn)]
        if turn % interval == 0 and turn < turns:
            journal.append(("supervisor", verify_plan_request(TASK, plan, context)))
            number, intervenes = next(left)
            if intervenes:
                plan, context = new_plan(number), []
    return journal


def scripted(*, acting: int, verdicts: Sequence[bool]) -> Pair:
    executor: list[Reply] = [*(looks_at(turn) for turn in range(1, acting + 1)), ANSWER]
    replies = [f"INTERVENE\n{new_plan(number)}" if intervenes else "CONTINUE" for number, intervenes in enumerate(verdicts)]
    return Pair(executor, [PLAN, *replies])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("interval", "acting", "turns", "verdicts"),
    [
        (1, 3, 10, [False, True, False]),
        (2, 5, 10, [True, True]),
        (2, 4, 10, [False, False]),
        (3, 7, 8, [True, False]),
        (8, 7, 40, []),
        (5, 0, 10, []),
    ],
)
async def test_every_call_is_the_one_of_the_pseudocode(link: str, interval: int, acting: int, turns: int, verdicts: Sequence[bool]) -> None:
    pair = scripted(acting=acting, verdicts=verdicts)
    with anyio.fail_after(120):
        async with working(pair, supervised("pevr", turns=turns, interval=interval), link=link) as hybrid:
            result = await hybrid.run(TASK)
    assert pair.journal == pseudocode(acting=acting, verdicts=verdicts, turns=turns, interval=interval)
    assert (result.text, result.side, result.was_fallback) == (ANSWER, Side.NEAR, False)
    assert result.interventions == sum(verdicts)
    assert result.far.steps == 1 + acting // interval


@given(data=st.data(), interval=st.integers(1, 6), turns=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_far_agent_is_called_once_and_once_per_interval(data: st.DataObject, interval: int, turns: int) -> None:
    acting = data.draw(st.integers(0, turns))
    checks = min(acting, turns - 1) // interval
    verdicts = data.draw(st.lists(st.booleans(), min_size=checks, max_size=checks))
    pair = scripted(acting=acting, verdicts=verdicts)
    anyio.run(run_whatever_comes, pair, interval, turns)
    assert pair.journal == pseudocode(acting=acting, verdicts=verdicts, turns=turns, interval=interval)
    assert pair.roles.count("supervisor") == 1 + checks
    assert pair.roles.count("executor") == min(acting + 1, turns)


async def run_whatever_comes(pair: Pair, interval: int, turns: int) -> Result | None:
    """The result; none where the turns run out before the answer."""
    async with working(pair, supervised("pevr", turns=turns, interval=interval)) as hybrid:
        try:
            return await hybrid.run(TASK)
        except InvalidOutput:
            assert pair.roles.count("executor") == turns
            return None


async def test_turns_are_counted_over_all_resets_and_running_out_ends_the_task() -> None:
    pair = scripted(acting=20, verdicts=[True] * 20)
    async with working(pair, supervised("pevr", turns=6, interval=2)) as hybrid:
        with pytest.raises(InvalidOutput, match="6 turns"):
            await hybrid.run(TASK)
    assert pair.roles.count("executor") == 6
    assert pair.roles.count("supervisor") == 3, "a plan, and a check after turns 2 and 4"


async def test_the_environment_keeps_its_state_over_a_reset() -> None:
    notes: list[str] = []

    @tool(sinks=[])
    async def note(text: str) -> str:
        """Write a note."""
        notes.append(text)
        return f"{len(notes)} notes"

    calls = [ToolCall(id=text, name="note", arguments={"text": text}) for text in ("one", "two")]
    pair = Pair([calls[0], calls[1], "done"], [PLAN, "INTERVENE\n1. note(text='two')", "CONTINUE"])
    async with working(pair, supervised("pevr", interval=1), note) as hybrid:
        await hybrid.run(TASK)
    assert notes == ["one", "two"]
    assert pair.journal[-1][1][-1].tool_result == ToolResult(call_id="two", name="note", content="2 notes")


@pytest.mark.parametrize(
    "text",
    [
        "INTERVENE\n1. go",
        "**INTERVENE**\n1. go",
        "**INTERVENE:**\n1. go",
        "__INTERVENE__\n1. go",
        "INTERVENE: \n- go",
        "intervene.\nStep 1: go",
    ],
)
async def test_a_verdict_is_read_through_its_decoration(text: str) -> None:
    pair = Pair([looks_at(1), ANSWER], [PLAN, text])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert result.interventions == 1
    assert pair.journal[-1][1] == (Message.user(with_plan(TASK, text.partition("\n")[2])),)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("I would rather not.", "no line that is a step"),
        ("  ", "nothing in it"),
        ("1. " + "look " * 2000, "at most 4,000"),
        (looks_at(1), "tool"),
    ],
)
async def test_a_plan_that_is_none_is_asked_for_once_more_and_then_done_without(bad: str | ToolCall, why: str) -> None:
    pair = Pair([ANSWER], [bad, bad])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.roles == ["supervisor", "supervisor", "executor"]
    assert why in pair.journal[1][1][-1].text
    assert pair.journal[2][1] == (Message.user(TASK),)
    assert any(why in reason and "works without one" in reason for reason in result.reasons)


async def test_a_second_try_at_a_plan_counts() -> None:
    pair = Pair([ANSWER], ["Let me think.", PLAN])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.journal[2][1] == (Message.user(with_plan(TASK, PLAN)),)
    assert pair.journal[1][1][-2:] == (
        Message.assistant("Let me think."),
        Message.user("Your last reply could not be used: it has no line that is a step, such as `1. open(...)`. Reply again."),
    )
    assert [call.role for call in result.calls] == ["plan", "plan", "execute"]


@pytest.mark.parametrize(
    "verdict", ["Well, let me see.", "CONTINUED", "INTERVENE", "INTERVENE\njust try harder", "CONTINUE or INTERVENE", " ", looks_at(3)]
)
async def test_a_verdict_that_is_neither_lets_the_work_go_on(verdict: str | ToolCall) -> None:
    pair = Pair([looks_at(1), ANSWER], [PLAN, verdict])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.journal[-1] == ("executor", (Message.user(with_plan(TASK, PLAN)), *turn_of(1)))
    assert [call.verdict for call in result.calls if call.role == "verify"] == ["unreadable"]
    assert result.interventions == 0
    assert any("unreadable" in reason for reason in result.reasons)


async def test_the_supervisor_is_shown_the_tools_and_may_call_none() -> None:
    pair = Pair([looks_at(1), ANSWER], [PLAN, "CONTINUE"])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        await hybrid.run(TASK)
    asked = [request for role, request in pair.requests if role == "supervisor"]
    assert [(request.tools, request.tool_choice) for request in asked] == [((look.spec,), ToolChoice.NONE)] * 2
    assert len({request.idempotency_key for _, request in pair.requests}) == 4


async def test_a_supervisor_that_cannot_plan_leaves_the_executor_alone() -> None:
    pair = Pair([looks_at(1), looks_at(2), ANSWER], [Unavailable("gateway down")])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.roles == ["supervisor", "executor", "executor", "executor"]
    assert any("could not plan" in reason and "gateway down" in reason and "near goes on alone" in reason for reason in result.reasons)
    assert [call.error for call in result.calls] == ["Unavailable", None, None, None]
    assert result.far.dollars == 0


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("confidence", "is_planned"), [(0.7, False), (0.4, True), (None, True)])
async def test_a_plan_can_wait_for_a_first_step_in_doubt(confidence: float | None, is_planned: bool, link: str) -> None:
    executor: Sequence[Reply] = [looks_at(9), looks_at(1), ANSWER] if is_planned else [looks_at(1), ANSWER]
    pair = Pair(executor, [PLAN], confidence=confidence)
    async with working(pair, supervised("pevr", plan_below=0.7), link=link) as hybrid:
        result = await hybrid.run(TASK)
    alone = [("executor", (Message.user(TASK),))]
    planned = [*alone, ("supervisor", plan_request(TASK)), ("executor", (Message.user(with_plan(TASK, PLAN)),))]
    assert pair.journal[:-1] == (planned if is_planned else alone)
    assert pair.journal[-1][1][1:] == turn_of(1), "the first step in doubt did not act"
    assert result.text == ANSWER
    assert any("first step is" in reason for reason in result.reasons) == is_planned


async def test_an_answer_in_doubt_is_planned_too() -> None:
    pair = Pair(["Perhaps a heron.", looks_at(1), ANSWER], [PLAN], confidence=0.2)
    async with working(pair, supervised("pevr", plan_below=0.5)) as hybrid:
        assert (await hybrid.run(TASK)).text == ANSWER
    assert pair.roles == ["executor", "supervisor", "executor", "executor"]


async def test_later_doubts_and_a_last_turn_bring_no_plan() -> None:
    pair = Pair([looks_at(1), looks_at(2), ANSWER], [PLAN], confidence=0.2)
    async with working(pair, supervised("pevr", plan_below=0.5, turns=1)) as hybrid:
        with pytest.raises(InvalidOutput, match="1 turns"):
            await hybrid.run(TASK)
    assert pair.roles == ["executor"]


@pytest.mark.parametrize("replies", [[Unavailable("no network")], ["no steps", "none again"]], ids=["no supervisor", "no plan"])
async def test_where_no_plan_comes_the_step_in_doubt_stands(replies: Sequence[Reply]) -> None:
    pair = Pair([looks_at(1), ANSWER], replies, confidence=0.2)
    async with working(pair, supervised("pevr", plan_below=0.5, turns=2)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.roles.count("executor") == 2
    assert pair.journal[-1][1][1:] == turn_of(1)
    assert (result.text, result.confidence) == (ANSWER, 0.2)


async def test_an_answer_in_doubt_stands_where_no_plan_comes() -> None:
    pair = Pair([ANSWER], [Unavailable("no network")], confidence=0.2)
    async with working(pair, supervised("pevr", plan_below=0.5)) as hybrid:
        assert (await hybrid.run(TASK)).text == ANSWER


async def test_the_confidence_of_a_dropped_step_is_not_that_of_the_answer() -> None:
    def ended(reason: FinishReason, confidence: float) -> Finished:
        return Finished(reason=reason, confidence=confidence, usage=Usage(), model="near")

    replies: Sequence[Reply] = [
        [looks_at(9), ended(FinishReason.TOOL_CALLS, 0.2)],
        [looks_at(1), ended(FinishReason.TOOL_CALLS, 0.999)],
        [ANSWER, ended(FinishReason.STOP, 0.99)],
    ]
    async with working(Pair(replies, [PLAN]), supervised("pevr", plan_below=0.5)) as hybrid:
        result = await hybrid.run(TASK)
    assert result.confidence == 0.99


DRAFT = "1. look(page=1)\n2. look up East Calder\n3. answer"


@pytest.mark.parametrize("link", LINKS)
async def test_a_draft_that_names_all_that_the_task_names_needs_no_plan_from_far(link: str) -> None:
    pair = Pair([DRAFT, looks_at(1), ANSWER], [], confidence=0.8)
    async with working(pair, supervised("pevr", draft_plan_above=0.7), link=link) as hybrid:
        result = await hybrid.run(TASK)
    asked, told, _ = pair.journal
    assert (asked, told) == (("executor", plan_request(TASK)), ("executor", (Message.user(with_plan(TASK, DRAFT)),)))
    assert [(call.role, call.side) for call in result.calls] == [("plan", Side.NEAR), *[("execute", Side.NEAR)] * 2]
    assert result.far.dollars == 0
    assert any("own draft" in reason for reason in result.reasons)


@pytest.mark.parametrize(
    ("draft", "confidence", "why"),
    [
        (PLAN, 0.8, "does not name East Calder"),
        (f"{DRAFT}\n3. answer", 0.8, "repeats itself"),
        (DRAFT.replace("East Calder", "East Calderwood"), 0.8, "does not name East Calder"),
        (DRAFT, 0.6, "confidence 0.6 is below 0.7"),
        (DRAFT, None, "confidence 0 is below 0.7"),
        ("East Calder, surely.", 0.8, "no line that is a step"),
        (looks_at(1), 0.8, "could not draft a plan"),
    ],
)
async def test_a_draft_in_doubt_is_dropped_and_far_plans(draft: Reply, confidence: float | None, why: str) -> None:
    pair = Pair([draft, looks_at(1), ANSWER], [PLAN], confidence=confidence)
    async with working(pair, supervised("pevr", draft_plan_above=0.7)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.roles == ["executor", "supervisor", "executor", "executor"]
    assert pair.journal[2][1] == (Message.user(with_plan(TASK, PLAN)),)
    assert any(why in reason for reason in result.reasons)


async def test_where_no_draft_comes_far_plans() -> None:
    pair = Pair([Unavailable("out of memory"), looks_at(1), ANSWER], [PLAN])
    async with working(pair, supervised("pevr", draft_plan_above=0)) as hybrid:
        assert (await hybrid.run(TASK)).text == ANSWER
    assert pair.journal[2][1] == (Message.user(with_plan(TASK, PLAN)),)


async def test_a_task_that_names_nothing_is_planned_by_far() -> None:
    pair = Pair([DRAFT, ANSWER], [PLAN])
    async with working(pair, supervised("pevr", draft_plan_above=0)) as hybrid:
        await hybrid.run("Find the emblem.")
    assert pair.roles == ["executor", "supervisor", "executor"]


async def test_a_far_executor_drafts_nothing() -> None:
    pair = Pair([ANSWER], [PLAN], executor_side=Side.FAR)
    async with working(pair, supervised("pevr", draft_plan_above=0, executor="far")) as hybrid:
        await hybrid.run(TASK)
    assert pair.roles == ["supervisor", "executor"]


async def test_the_rest_of_a_conversation_stays_in_front_of_the_plan() -> None:
    history = [Message.system("Be brief."), Message.user("Hello"), Message.assistant("Hi"), Message.user(TASK)]
    pair = Pair([ANSWER], [PLAN])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        await hybrid.run(history)
    assert pair.journal[1][1] == (*history[:3], Message.user(with_plan(TASK, PLAN)))
    assert pair.journal[0][1][1].text == f"system: Be brief.\nuser: Hello\nassistant: Hi\nuser: {TASK}"


async def test_the_supervisor_sees_what_the_tools_returned_earlier_in_a_conversation() -> None:
    history = [Message.user("What is on page 1?"), *turn_of(1), Message.assistant("word1"), Message.user(TASK)]
    pair = Pair([ANSWER], [PLAN])
    async with working(pair, supervised("pevr", interval=1)) as hybrid:
        await hybrid.run(history)
    assert pair.journal[0][1][1].text.splitlines() == [
        "user: What is on page 1?",
        "assistant: look(page=1)",
        "tool: = Page 1 says word1.",
        "assistant: word1",
        f"user: {TASK}",
    ]
