"""Attempts at a task: its candidates asked one after another, and for an attempt that goes wrong or takes unusually long a second agent
asked at the same time, a second try, and who takes over.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

from ...protocols import (
    Agent,
    BudgetExceeded,
    InvalidOutput,
    JsonSchema,
    Message,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RequestRefused,
    StepReply,
    StepRequest,
    ToolChoice,
    ToolSpec,
    Usage,
)
from ..agents import AgentHandle, AgentPool
from ..routing.costs import RunningEstimates
from ..safety.outbound_filter import Listener
from ..task import Task, read_output, tokens_by_length
from ..task.decisions import RouteDecision
from ..task.events import AgentText, AttemptEnded, AttemptStarted
from ..task.results import Attempt, Call, Energy
from ..task.routing_policy import FALLBACK_ERRORS, SHOWN
from ..util.runtime import cancel_task
from .calls import CallLog, TaskRuntime, emit, is_heard
from .state import Json, TaskState, as_json, fresh_start, label_of, outcomes_of, step_request, value_of
from .tool_calls import done_note
from .turn import AgentTurn, call_of, sampled

Read = TypeVar("Read")
T = TypeVar("T")

Asking = Callable[[AgentTurn, Listener | None], Coroutine[Any, Any, tuple[StepReply, TaskState]]]
"""Runs one step of a turn, whose text the listener hears."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question(Generic[Read]):
    """A question for a candidate, and the function that reads its reply."""

    role: str
    """The role of the call in `Result.calls`."""
    messages: tuple[Message, ...]
    read: Callable[[str], Read]
    """Raises `InvalidOutput` where the reply cannot be used; the agent is told why and may try once more."""
    key: str
    """Names the question within its task."""
    schema: JsonSchema | None = None
    """The schema of the reply; agents that can enforce it do."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the agent is told of and must not call: those of the agent that carries the reply out."""
    turn: int = 0
    """The turn of the call in `Result.calls`."""
    is_heard: bool = False
    """The reply is the answer to the task, so its words and the attempts at it are streamed as they come."""


@dataclass(frozen=True)
class Answered(Generic[Read]):
    """A reply that could be used."""

    value: Read
    attempts: tuple[Attempt, ...]
    """The failed attempts, followed by the accepted one."""


class Panel:
    """The candidates of a task, in their order.

    `reasons` says which of them failed, and why; it belongs into the state that a node returns, as do the calls in `log`.
    """

    def __init__(self, state: TaskState, runtime: TaskRuntime, pool: AgentPool, log: CallLog) -> None:
        self.task = value_of(Task, state["task"])
        self.reasons: list[str] = []
        self._handles = [pool[name] for name in value_of(RouteDecision, state["decision"]).candidates]
        self._runtime = runtime
        self._has_shown = False
        """Something of a question that the user hears was shown as it was said."""
        self._log = log

    async def ask(self, question: Question[Read]) -> Answered[Read]:
        """Ask until a reply can be used. Raises the error of the last candidate, with notes on those before it."""
        attempts: list[Attempt] = []
        for handle in self._handles:
            first = len(self._log.made)
            try:
                value = await self._ask_twice(handle, question)
            except FALLBACK_ERRORS as error:
                problem = f"{type(error).__name__}: {error}"
                attempts.append(self._ended(question, attempt_of(handle, self._log.made[first:], problem=problem)))
                may_restart = self.task.policy.fallback.hands_over(was_shown=question.is_heard and self._has_shown)
                if not may_restart and handle is not self._handles[-1]:
                    error.add_note(SHOWN)
                if handle is self._handles[-1] or not may_restart:
                    self._tell_of_the_others(error)
                    raise
                warn_of_refusal(handle.name, error, role=question.role)
                self.reasons.append(f"{handle.name} failed in the role {question.role!r}: {problem}")
            else:
                attempts.append(self._ended(question, attempt_of(handle, self._log.made[first:])))
                return Answered(value, tuple(attempts))
        raise AssertionError("the last candidate has answered or failed")

    def _tell_of_the_others(self, error: NearfarError) -> None:
        for reason in self.reasons:
            error.add_note(f"before that, {reason}")

    def _ended(self, question: Question[Read], attempt: Attempt) -> Attempt:
        if question.is_heard:
            emit(self._runtime, AttemptEnded(attempt=attempt))
        return attempt

    async def _ask_twice(self, handle: AgentHandle, question: Question[Read]) -> Read:
        """Ask, and once more with what was wrong where the reply cannot be used."""
        agent = await handle.open()
        if question.is_heard:
            emit(self._runtime, AttemptStarted(agent=handle.name, side=handle.side, model=agent.card.model))
        request = self._request(agent, question, is_last=handle is self._handles[-1])
        said: list[Message] = []
        try:
            return await self._ask(handle, request, question, said)
        except InvalidOutput as error:
            said.append(Message.user(f"Your last reply could not be used: {error.message}. Reply again."))
        again = {"messages": (*request.messages, *said), "idempotency_key": f"{request.idempotency_key}/again"}
        return await self._ask(handle, request.model_copy(update=again), question, said)

    async def _ask(self, handle: AgentHandle, request: StepRequest, question: Question[Read], said: list[Message]) -> Read:
        reply = await self._log.ask(
            handle,
            request,
            role=question.role,
            turn=question.turn,
            listener=self._show if question.is_heard else None,
        )
        said.append(Message.assistant(reply.text))
        return question.read(reply.text)

    def _show(self, text: str) -> None:
        if is_heard(self._runtime):
            self._has_shown = True
            emit(self._runtime, AgentText(text=text))

    def _request(self, agent: Agent, question: Question[Read], *, is_last: bool) -> StepRequest:
        can = agent.card.capabilities
        return step_request(
            self.task,
            question.messages,
            f"{question.key}/{agent.card.name}",
            tools=question.tools if can.tools else (),
            tool_choice=ToolChoice.NONE,
            output_schema=question.schema if can.json_schema else None,
            timeout=None if is_last else self.task.policy.attempt_timeout,
            **(sampled(self.task) if question.is_heard else {}),
        )


def attempt_with(handle: AgentHandle, calls: Sequence[Call], error: BudgetExceeded, what: str) -> Attempt:
    """Return an agent's calls as the accepted attempt if the budget ended before an answer was made of their result, `what`."""
    stands = f"{type(error).__name__}: {error}; {what} as they are"
    return attempt_of(handle, calls).model_copy(update={"reason": stands, "error": type(error).__name__})


def attempt_of(handle: AgentHandle, calls: Sequence[Call], *, problem: str | None = None) -> Attempt:
    """Return an agent's calls for one role as an attempt, which was accepted unless there is a problem."""
    outcome: Literal["accepted", "failed"] = "accepted" if problem is None else "failed"
    prices = [call.dollars for call in calls if call.dollars is not None]
    return Attempt(
        agent=handle.name,
        side=handle.side,
        model=calls[-1].model if calls else None,
        outcome=outcome,
        reason=problem or "the answer stands",
        steps=len(calls),
        usage=sum((call.usage for call in calls), Usage()),
        dollars=sum(prices, Decimal(0)) if len(prices) == len(calls) else None,
        energy=sum((call.energy for call in calls), Energy()),
        seconds=sum(call.seconds for call in calls),
        confidence=min((call.confidence for call in calls if call.confidence is not None), default=None),
    )


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
