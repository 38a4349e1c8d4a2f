"""Asking the candidates of a task, one after another, until one gives a reply that can be used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Generic, Literal, TypeVar

from ...protocols import Agent, BudgetExceeded, InvalidOutput, JsonSchema, Message, NearfarError, StepRequest, ToolChoice, ToolSpec, Usage
from ..agents import AgentHandle, AgentPool
from ..task import Task
from ..task.decisions import RouteDecision
from ..task.events import AgentText, AttemptEnded, AttemptStarted
from ..task.results import Attempt, Call, Energy
from ..task.routing_policy import FALLBACK_ERRORS, SHOWN
from .calls import CallLog, TaskRuntime, emit, is_heard
from .hedging import warn_of_refusal
from .state import TaskState, step_request, value_of
from .turn import sampled

Read = TypeVar("Read")


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
