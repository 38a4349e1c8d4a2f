"""A run whose budget is used up ends with what it has, and says so."""

import contextlib
import json
from decimal import Decimal
from typing import Any

import anyio
import pytest

from nearfar import Hybrid, Policy, tool
from nearfar.protocols import BudgetExceeded, Finished, FinishReason, Prices, ScriptedAgent, Side, ToolCall, Usage
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PRICES = Prices.model_validate({"input": 10, "output": 10, "source": "a test", "as_of": "2026-11-18"})
CALL = ToolCall(id="1", name="look", arguments={"at": "Peru"})


@tool
def look(at: str) -> str:
    """Look something up."""
    return f"{at} is in South America."


def taking(tokens: int, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(reason=reason, model="m", usage=Usage(input_tokens=tokens, output_tokens=0))


def far_alone(*replies: Reply, limits: dict[str, Any], **changes: object) -> Hybrid:
    policy = Policy.model_validate({"strategy": "cloud", "mode": "only_in_cloud", "sensitivity": "public", "limits": limits, **changes})
    return Hybrid(far=ScriptedAgent(replies, name="far", side=Side.FAR, prices=PRICES), policy=policy)


async def test_what_was_said_before_the_budget_was_used_up_is_the_answer() -> None:
    looking = ("Most likely it is Lima; let me look.", CALL, taking(5000, FinishReason.TOOL_CALLS))
    async with far_alone(looking, limits={"task": {"dollars": 0.05}}) as hybrid:
        result = await hybrid.run("What is the capital of Peru?", tools=[look])
    assert result.text == "Most likely it is Lima; let me look."
    assert result.budget_exceeded is not None
    assert "the limit for the task: 0.05 of 0.05 dollars are spent" in result.budget_exceeded
    assert [attempt.outcome for attempt in result.attempts] == ["accepted"]


async def test_words_that_are_not_valid_against_the_schema_are_no_answer() -> None:
    looking = ("Most likely it is Lima; let me look.", CALL, taking(5000, FinishReason.TOOL_CALLS))
    async with far_alone(looking, limits={"task": {"dollars": 0.05}}) as hybrid:
        with pytest.raises(BudgetExceeded):
            await hybrid.run("What is the capital of Peru?", tools=[look], output={"type": "object"})


async def test_where_nothing_was_said_the_error_tells_what_was_spent() -> None:
    async with far_alone((CALL, taking(5000, FinishReason.TOOL_CALLS)), limits={"task": {"dollars": 0.05}}) as hybrid:
        with pytest.raises(BudgetExceeded, match=r"the task has spent 0\.05 dollars, 5000 tokens"):
            await hybrid.run("What is the capital of Peru?", tools=[look])


async def test_a_draft_that_was_doubted_stands_where_nobody_can_be_paid_to_do_better() -> None:
    near = ScriptedAgent(["Lima."], name="near", confidence=0.1)
    far = ScriptedAgent(["Never asked."], name="far", side=Side.FAR, prices=PRICES)
    # By the router's estimate the far agent can read the prompt for this; by the bound that its call has to keep to, it cannot.
    limits = {"call": {"dollars": 0.012}}
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "limits": limits})
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        result = await hybrid.run("Which? " + "x" * 4000)
    assert (result.text, far.requests) == ("Lima.", [])
    assert result.budget_exceeded is not None
    assert "far was not asked: the limit for the call" in result.budget_exceeded


async def test_tasks_side_by_side_spend_no_more_than_the_day_may_have() -> None:
    paid: list[Decimal] = []

    async def run(hybrid: Hybrid) -> None:
        with contextlib.suppress(BudgetExceeded):
            result = await hybrid.run("Go on for ever.")
            assert result.dollars is not None
            paid.append(result.dollars)

    with anyio.fail_after(60):
        async with far_alone(*["word " * 400] * 30, limits={"day": {"dollars": 0.05}}) as hybrid, anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(run, hybrid)
    assert len(paid) >= 5
    assert 0.04 < sum(paid) <= 0.05


async def test_a_call_that_needs_more_time_than_its_limit_leaves_says_so() -> None:
    async with far_alone([anyio.Event(), "Never."], limits={"task": {"seconds": 0.05}}) as hybrid:
        with pytest.raises(BudgetExceeded, match=r"far was not done within the 0\.05 seconds that the limits leave"):
            await hybrid.run("What is the capital of Peru?")


async def test_a_near_agent_that_takes_over_is_not_cut_short() -> None:
    near = ScriptedAgent(["Lima."], name="near")
    far = ScriptedAgent([], name="far", side=Side.FAR, prices=PRICES)
    policy = Policy.model_validate(
        {"strategy": "route", "mode": "prefer_in_cloud", "sensitivity": "public", "limits": {"day": {"dollars": 0}}}
    )
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        result = await hybrid.run("Which?")
    assert (result.agent, result.budget_exceeded) == ("near", None)
    assert any("it may spend no dollars" in (each.objection or "") for each in result.decision.considered)


async def test_an_answer_that_ends_where_its_budget_does_says_so() -> None:
    async with far_alone("word " * 500, limits={"call": {"dollars": 0.002}}) as hybrid:
        result = await hybrid.run("Go on for ever.")
    assert result.calls[-1].is_cut_short
    assert result.budget_exceeded == "far wrote as much as its limit paid for, and was not done"


async def test_the_results_of_subtasks_stand_side_by_side_where_nobody_can_be_paid_to_put_them_together() -> None:
    plan = json.dumps({"subtasks": [{"id": name, "task": f"Look up fact {name}.", "needs": []} for name in "ab"]})
    replies = [(plan, taking(10)), ("It is in South America.", taking(10)), ("It is by the sea.", taking(20_000))]
    subtasks = {"strategy": "route", "parallel": 1}
    async with far_alone(*replies, limits={"task": {"tokens": 20_000}}, strategy="subtasks", subtasks=subtasks) as hybrid:
        result = await hybrid.run("Where is Lima?")
    assert result.text == "It is in South America.\n\nIt is by the sea."
    assert result.budget_exceeded is not None
    assert "of 20000 tokens are spent" in result.budget_exceeded
