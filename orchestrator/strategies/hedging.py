"""Attempts that go wrong or take unusually long: a second agent asked at the same time, a second try, and who takes over."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from ...protocols import (
    BudgetExceeded,
    InvalidOutput,
    Message,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RequestRefused,
    StepReply,
    ToolSpec,
)
from ..agents import AgentPool
from ..routing.costs import RunningEstimates
from ..safety.outbound_filter import Listener
from ..task import read_output, tokens_by_length
from ..task.results import Call
from ..util.runtime import cancel_task
from .calls import CallLog, TaskRuntime
from .state import Json, TaskState, as_json, fresh_start, label_of, outcomes_of
from .tool_calls import done_note
from .turn import AgentTurn, call_of

T = TypeVar("T")

Asking = Callable[[AgentTurn, Listener | None], Coroutine[Any, Any, tuple[StepReply, TaskState]]]
"""Runs one step of a turn, whose text the listener hears."""
logger = logging.getLogger(__name__)


class Race(Generic[T]):
    """A first attempt and, after a delay, a second one at the same time: the first useful result is used, and the other attempt is
    cancelled.

    Args:
        delay: seconds that the first attempt has for itself.
        is_useful: accepts or rejects a result. If neither result is useful, or both fail, only the first attempt counts.
    """

    def __init__(self, delay: float, is_useful: Callable[[T], bool]) -> None:
        self.was_started = False
        """The second try has begun."""
        self.second_won = False
        self._delay = delay
        self._is_useful = is_useful
        self._settled = asyncio.Event()

    def settle(self) -> None:
        """Decide the race for the first attempt, however long it takes: the second is cancelled, or does not even begin."""
        self._settled.set()

    async def run(self, first: Coroutine[Any, Any, T], second: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result that counts. Raises what the first attempt raises, unless the second is useful. Both have ended when this
        returns."""
        trying = asyncio.create_task(first)
        settled = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait((trying, settled), timeout=self._delay, return_when=asyncio.FIRST_COMPLETED)
            if not trying.done() and not settled.done():
                return await self._against(trying, second(), settled)
            return await trying
        finally:
            await cancel_task(settled)
            await cancel_task(trying)

    async def _against(self, first: asyncio.Task[T], second: Coroutine[Any, Any, T], settled: asyncio.Task[Any]) -> T:
        self.was_started = True
        trying = asyncio.create_task(second)
        try:
            running: set[asyncio.Task[Any]] = {first, trying}
            while running and not settled.done() and not self._won(first) and not self._won(trying):
                await asyncio.wait((*running, settled), return_when=asyncio.FIRST_COMPLETED)
                running = {task for task in running if not task.done()}
            self.second_won = not settled.done() and not self._won(first) and self._won(trying)
            return await (trying if self.second_won else first)
        finally:
            await cancel_task(trying)

    def _won(self, task: asyncio.Task[T]) -> bool:
        return task.done() and not task.cancelled() and task.exception() is None and self._is_useful(task.result())


class Hedge:
    """The first step of a task, at which no tool has run yet, and the turn of the agent that may take it over.

    What the two say is nothing that others can see before one of them has won: tools run afterwards, and of the second agent's text
    nothing is shown until then.
    """

    def __init__(self, turn: AgentTurn, other: AgentTurn, *, delay: float, tokens: int) -> None:
        self.other = other
        self.tokens = tokens
        """Estimated tokens of the prompt."""
        self.delay = delay
        self.race: Race[tuple[StepReply, TaskState]] = Race(delay, lambda answered: self._is_useful(answered[0]))
        self.problem: NearfarError | None = None
        """Why the first agent lost, where it has failed."""
        self._turn = turn

    def _is_useful(self, reply: StepReply) -> bool:
        if not reply.text.strip() and not reply.tool_calls:
            return False
        try:
            self._turn.check(reply)
        except InvalidOutput:
            return False
        return True

    async def run(self, ask: Asking, tools: Sequence[ToolSpec], runtime: TaskRuntime) -> tuple[StepReply, TaskState]:
        """Return what `ask` returns for the turn that wins. Once text of the first is shown that must stay, it has won."""
        may_restart = self._turn.task.policy.fallback.hands_over(was_shown=True)

        def listen(text: str) -> None:
            self._turn.show(text, runtime)
            if self._turn.has_shown and not may_restart:
                self.race.settle()

        async def first() -> tuple[StepReply, TaskState]:
            try:
                return await ask(self._turn, listen)
            except NearfarError as error:
                self.problem = error
                raise

        async def second() -> tuple[StepReply, TaskState]:
            self.other.prepare(await self.other.open(), tools)
            return await ask(self.other, None)

        return await self.race.run(first(), second)

    def taken_over(self, log: CallLog, reply: StepReply, runtime: TaskRuntime) -> TaskState:
        """Return the state after the second agent has won: the first attempt has ended, and the winner's text is shown."""
        lost = call_of(log, self._turn)
        if lost is not None:
            self._turn.count(lost)
        why = f"{self.other.handle.name}, which was asked too after {self.delay:.2f} s, was useful first"
        problem = why if self.problem is None else f"{type(self.problem).__name__}: {self.problem}; {why}"
        ended = self._turn.end(self._turn.elapsed(), "failed", problem, runtime)
        self.other.state = {**self.other.state, "attempts": ended["attempts"]}
        self.other.announce(runtime)
        if reply.text:
            self.other.show(reply.text, runtime)
        return ended

    def reason(self, log: CallLog) -> str:
        """Return a line for `Result.reasons`: which agents were asked, and what the loser has cost."""
        winner, loser = (self.other, self._turn) if self.race.second_won else (self._turn, self.other)
        asked = f"hedged: {self.other.handle.name} was asked in addition to {self._turn.handle.name} after {self.delay:.2f} s"
        return f"{asked}; {winner.handle.name} goes on, and what {loser.handle.name} was asked for cost {_cost(call_of(log, loser))}"


def hedge_of(turn: AgentTurn, pool: AgentPool, running: RunningEstimates) -> Hedge | None:
    """Return the hedge for the step under way; None if it is not hedged.

    Only the first step of a task is hedged: later steps follow tool calls, and another agent would have to start over after those.
    """
    policy, state = turn.task.policy.hedge, turn.state
    assert turn.draft is not None, "an attempt is under way"
    is_first = not (state["attempts"] or state["acted"] or turn.draft.steps or turn.is_supervised)
    if not (policy.enabled and is_first and turn.has_successor):
        return None
    tokens = sum(tokens_by_length(message.text) for message in turn.task.messages)
    seen = running.latency(turn.handle.name, tokens)
    other = AgentTurn({**state, **fresh_start(turn.task, position=turn.position + 1)}, pool, turn.output_model)
    is_possible = other.handle.side is not turn.handle.side and other.handle.health.objection() is None
    if seen is None or seen.count < policy.observations or not is_possible:
        return None
    return Hedge(turn, other, delay=max(seen.p95, policy.least_seconds), tokens=tokens)


def _cost(call: Call | None) -> str:
    if call is None:
        return "nothing"  # it was stopped, or refused, before it was asked
    return "an unknown amount" if call.dollars is None else f"{call.dollars:f} dollars"


def give_up(turn: AgentTurn, error: NearfarError, runtime: TaskRuntime, *, is_final: bool = False) -> TaskState:
    """End the attempt as failed; the next agent takes over, else a draft rejected earlier, else what was said when a budget ended.

    Raises the error where there is none of them. `is_final`: no other agent is to try.
    """
    turn.draft = (turn.draft or turn.attempt(None)).model_copy(update={"error": type(error).__name__})
    problem = f"{type(error).__name__}: {error}"
    standby = None if turn.is_committed(runtime) else turn.state["standby"]
    is_last = is_final or not turn.has_successor
    if is_last and standby is None and isinstance(error, BudgetExceeded) and (said := _said(turn)):
        return {**turn.end(turn.elapsed(), "accepted", f"{problem}; what was said until then stands", runtime), "messages": said}
    ended = turn.end(turn.elapsed(), "failed", problem, runtime)
    if not is_last:
        return ended
    if standby is not None:
        place = turn.state["standby_attempt"]
        attempts = [*ended["attempts"][:place], _reinstated(ended["attempts"][place], turn.handle.name), *ended["attempts"][place + 1 :]]
        return {**ended, "messages": standby, "attempts": attempts}
    for attempt in turn.state["attempts"]:
        error.add_note(f"before that, {attempt['agent']} {attempt['outcome']}: {attempt['reason']}")
    if done := done_note(outcomes_of(turn.state), label_of(turn.state), may_read=True):
        error.add_note(done)
    raise error


def correct(turn: AgentTurn, error: InvalidOutput) -> TaskState:
    """Show the agent its reply and what was wrong with it; it may try once more."""
    draft = turn.elapsed()
    if not turn.is_counted:
        draft = draft.model_copy(update={"steps": draft.steps + 1})
    message = Message.user(f"Your last reply could not be used: {error.message}. Reply again.")
    said = [as_json(Message.assistant(error.text))] if error.text.strip() else []
    return {"messages": [*turn.state["messages"], *said, as_json(message)], "draft": as_json(draft), "corrected": True}


def _said(turn: AgentTurn) -> list[Json]:
    """Return the conversation up to the agent's last words if they can be an answer; else an empty list."""
    messages = turn.state["messages"]
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant" and message["text"].strip()]
    if not spoken or spoken[-1] < len(turn.task.messages):
        return []
    text = messages[spoken[-1]]["text"]
    try:
        if turn.task.output_schema is not None:
            read_output(text, turn.task.output_schema, turn.output_model)
    except InvalidOutput:
        return []
    return [*messages[: spoken[-1]], as_json(Message.assistant(text))]


def _reinstated(attempt: Json, failed: str) -> Json:
    """Return a rejected attempt as the accepted one."""
    return {**attempt, "outcome": "accepted", "reason": f"{attempt['reason']}, but {failed} failed, so the draft stands"}


_STANDING = (NoSuchModel, ProviderAuthError, QuotaExceeded, RequestRefused)


def warn_of_refusal(agent: str, error: NearfarError, *, role: str = "execute") -> tuple[str, ...]:
    """Log a warning where `error` is a refusal that waiting does not mend; returns the line for `Result.reasons`, or nothing."""
    if not isinstance(error, _STANDING):
        return ()
    line = f"{agent} was refused in the role {role!r}: {type(error).__name__}: {error}"
    logger.warning("%s", line)
    return (line,)
