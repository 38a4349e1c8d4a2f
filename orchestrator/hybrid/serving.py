"""The time limit, the events and the result of a task that is being served."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from ...protocols import DeadlineExceeded, NearfarError, Side
from ...protocols.validation import parse_output
from ..routing.router import Router
from ..strategies.state import TaskContext, told_of, value_of
from ..task.events import TaskEvent
from ..task.labels import OPEN, Label
from ..task.modes import Strategy
from ..task.policy import Policy, Verdict
from ..task.results import Attempt, Call, Result, RouteDecision, ToolOutcome, budget_exceeded, usage_of_side
from ..task.task import Task


@contextmanager
def deadline(task: Task, started: float, context: TaskContext | None = None) -> Iterator[None]:
    """Enforce the task's time limit as a `DeadlineExceeded`, with a note about the tool calls in the context."""
    if task.timeout is None:
        yield
        return
    with anyio.move_on_after(task.timeout - (time.monotonic() - started)) as scope:
        yield
    if scope.cancelled_caught:
        error = DeadlineExceeded(f"the task took longer than its {task.timeout:g} s", hint="raise its timeout")
        if context is not None:
            note_tool_calls(error, context)
        raise error


@contextmanager
def billed(task: Task, context: TaskContext, router: Router) -> Iterator[None]:
    """Tell the router in the end what the task has cost, also if it failed or was abandoned."""
    account = context.account
    assert account is not None, "every task is prepared with one"
    before = account.spent.dollars
    try:
        yield
    finally:
        after = account.spent.dollars
        bill = None if before is None or after is None else max(after - before, 0.0)
        router.settle(task, account.commitments, bill)
        account.commitments.clear()


def note_tool_calls(error: NearfarError, context: TaskContext) -> None:
    """Let the error tell which tool calls stay done."""
    if done := told_of(context.outcomes or (), OPEN):
        error.add_note(f"its tool calls stay done:\n{done}")


async def next_event(events: "asyncio.Queue[TaskEvent | None]", task: Task, started: float) -> TaskEvent | None:
    """Return the next event; None at the end. The limit is around each wait, since a cancel scope must not be left open by a yield."""
    with deadline(task, started):
        event = await events.get()
    return event  # noqa: RET504 - inside of the block, mypy would miss a return behind it


def queued_events(events: "asyncio.Queue[TaskEvent | None]") -> Iterator[TaskEvent]:
    """Yield the events that are queued already."""
    while not events.empty():
        event = events.get_nowait()
        if event is not None:
            yield event


def result_of(task: Task, state: dict[str, Any], seconds: float) -> Result:
    """Return the result that the final state of a task's graph stands for."""
    attempts = tuple(value_of(Attempt, attempt) for attempt in state["attempts"])
    calls = tuple(value_of(Call, call) for call in state["calls"])
    text = state["messages"][-1]["text"]
    accepted = next(attempt for attempt in attempts if attempt.outcome == "accepted")
    given_up = [f"{attempt.agent} {attempt.outcome}: {attempt.reason}" for attempt in attempts]
    doubt = _doubt(task.policy, accepted)
    return Result(
        id=task.idempotency_key,
        text=text,
        output=parse_output(text, task.output_schema) if task.output_schema is not None else None,
        agent=accepted.agent,
        side=accepted.side,
        model=accepted.model or accepted.agent,
        served_on_device=accepted.side is Side.NEAR,
        was_fallback=accepted != attempts[0],
        attempts=attempts,
        calls=calls,
        tool_calls=tuple(value_of(ToolOutcome, outcome) for outcome in state["tool_calls"]),
        budget_exceeded=budget_exceeded(attempts, calls),
        interventions=sum(call.verdict is Verdict.INTERVENE and not call.shadow for call in calls),
        decision=value_of(RouteDecision, state["decision"]),
        selection=task.selection,
        reasons=(*state["decision"]["reasons"], *state["reasons"], *given_up, *([] if doubt is None else [doubt])),
        label=value_of(Label, state["label"]),
        confidence=accepted.confidence,
        low_confidence=doubt is not None,
        near=usage_of_side(calls, Side.NEAR),
        far=usage_of_side(calls, Side.FAR),
        seconds=seconds,
    )


def _doubt(policy: Policy, accepted: Attempt) -> str | None:
    """Return why an answer is less sure than its cascade wants; None where it is sure enough, or no confidence is known."""
    found, wanted = accepted.confidence, policy.minimum_confidence
    if policy.strategy is not Strategy.CASCADE or found is None or found >= wanted:
        return None
    return f"{accepted.agent}: confidence {found:.2f} is below {wanted:.2f}, and stands because no other agent may be asked, or did better"
