"""Hedging: if an agent takes unusually long, the next one is asked at the same time, and the first useful answer is used."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from ...protocols import InvalidOutput, NearfarError, StepReply, ToolSpec
from ..agents import AgentPool
from ..routing.costs import RunningEstimates
from ..safety.outbound_filter import Listener
from ..task import tokens_by_length
from ..task.results import Call
from ..util.runtime import cancel_task
from .calls import CallLog, TaskRuntime
from .state import TaskState, fresh_start
from .turn import AgentTurn, call_of

T = TypeVar("T")

Asking = Callable[[AgentTurn, Listener | None], Coroutine[Any, Any, tuple[StepReply, TaskState]]]
"""Runs one step of a turn, whose text the listener hears."""


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
