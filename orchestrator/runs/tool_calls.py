"""Tool calls: equal ones are numbered, overdue ones waited for, and each runs with functions for its tool."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ...protocols import InvalidRequest, ToolCall, ToolResult
from ..task.tools import LOOKED_UP, UNKNOWN, Effect, Repetition, Tool, outcome_of, track_repetition
from ..util.runtime import in_thread
from ..util.text import canonical, digest
from .effects import AlreadyDone, EffectConnection, TransactionEnded, begin_in_file

REPEATABLE: Final = frozenset({Effect.READ, Effect.IDEMPOTENT})
"""Effects that a resumed run may run again although there is a result."""


class ActionCount(TypedDict):
    """Counts the calls of one action since the conversation began."""

    count: int
    unsettled: list[int]
    """Ordinals of calls that an equal call would retry."""


_NONE_MADE: Final[ActionCount] = {"count": 0, "unsettled": []}


class Occurrence(NamedTuple):
    """One call, named by its action and not by its place in the graph."""

    action: str
    """A hash of the tool and its arguments, and of the turn where the tool only reads: equal calls are one action."""
    ordinal: int
    """Number of the call among those of its action, from 1."""
    turn: int
    """Calls of agents that the task had made by then. It tells a repeated call from a looked up one."""

    def key(self, task: str) -> str:
        """Return the effect's key in a task without a ledger. `task`: names the task."""
        return digest(task, self.action, self.ordinal)


class Occurrences:
    """Numbers the calls of one message, after those made since the conversation began.

    An agent that takes over begins a conversation and a count of its own: a call that an agent before it has made is the first one again,
    and so the same effect. A second equal call in one conversation is another effect, unless it retries the first one: that one's outcome
    is unknown, or it failed and its tool is idempotent.
    """

    def __init__(self, made: Mapping[str, ActionCount], *, turn: int) -> None:
        self.made = dict(made)
        """By action: the calls since the conversation began; those of tools that only read are not kept."""
        self.turn = turn
        """Calls of agents that the task had made before this message."""
        self._looked: dict[str, ActionCount] = {}

    def next(self, call: ToolCall, tool: Tool) -> Occurrence:
        """Return the occurrence of the message's next call to run."""
        only_reads = tool.declared.effect is Effect.READ
        action = digest(tool.name, canonical_arguments(call, tool), self.turn if only_reads else None)
        calls = self._looked if only_reads else self.made
        known = calls.get(action, _NONE_MADE)
        if known["unsettled"]:
            first, *rest = known["unsettled"]
            calls[action] = {**known, "unsettled": rest}
            return Occurrence(action, first, self.turn)
        calls[action] = {**known, "count": known["count"] + 1}
        return Occurrence(action, known["count"] + 1, self.turn)

    def settle(self, occurrence: Occurrence, tool: Tool, result: ToolResult) -> None:
        """Record the outcome of a call."""
        outcome, effect = outcome_of(result), tool.declared.effect
        if (outcome == "unknown" and effect is not Effect.READ) or (outcome == "failed" and effect is Effect.IDEMPOTENT):
            known = self.made[occurrence.action]
            self.made[occurrence.action] = {**known, "unsettled": sorted([*known["unsettled"], occurrence.ordinal])}


def canonical_arguments(call: ToolCall, tool: Tool) -> str:
    """Return the arguments as the function gets them, with defaults filled in: two agents may write the same call in two ways."""
    try:
        return canonical(tool.arguments(call))
    except (
        ValidationError,
        PydanticSerializationError,
    ):  # a placeholder stands in them, they are wrong, or the app's own
        return canonical(call.arguments)


_STILL_RUNNING: Final = f"{UNKNOWN}an equal call ran past its time limit and still runs. It is not made again. Find out by other means"


class Overdue:
    """The overdue calls of one run in this process.

    A plain function runs in a thread, which cannot be stopped. Equal calls wait for it, so that none of them runs in parallel.
    """

    def __init__(self) -> None:
        self._running: dict[str, dict[str, asyncio.Task[ToolResult]]] = {}
        """Running tasks by action, then by the effect's key."""
        self._ended: dict[str, ToolResult] = {}
        """Results of ended calls whose outcome the model was not told, by the effect's key."""

    def note(self, action: str, key: str, result: ToolResult, task: asyncio.Task[ToolResult] | None) -> None:
        """Record a call of unknown outcome. `task`: ends with its result; None: its tool was stopped in the middle."""
        self._ended[key] = result
        if task is not None:
            self._running.setdefault(action, {})[key] = task
            task.add_done_callback(lambda done: self._end(action, key, done))

    async def wait(self, action: str, seconds: float) -> bool:
        """Wait for equal calls that still run. Return False if one of them still runs after `seconds`."""
        running = self._running.get(action)
        if not running:
            return True
        _, late = await asyncio.wait(running.values(), timeout=seconds)
        await asyncio.sleep(0)  # callbacks of tasks run one turn of the loop after them
        return not late

    def result(self, key: str) -> ToolResult | None:
        """Return the result of an effect whose outcome the model was not told; None if there is no such effect."""
        return self._ended.get(key)

    def _end(self, action: str, key: str, task: asyncio.Task[ToolResult]) -> None:
        running = self._running[action]
        del running[key]
        if not running:
            del self._running[action]
        if not task.cancelled() and task.exception() is None:
            self._ended[key] = task.result()


def still_running_result(call: ToolCall) -> ToolResult:
    """Return the error result for a call that waited in vain for an equal one."""
    return ToolResult(call_id=call.id, name=call.name, content=_STILL_RUNNING, is_error=True)


def mark_looked_up(call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of an equal earlier call, marked as such."""
    return result.model_copy(update={"call_id": call.id, "content": f"{result.content}\n{LOOKED_UP}"})


GUARDED: Final = frozenset({Effect.AT_MOST_ONCE, Effect.IDEMPOTENT})
"""Effects that must not happen while an equal one still runs."""
_running: Final[ContextVar["RunningCall"]] = ContextVar("nearfar_running_call")


class RunningCall:
    """One running call.

    Args:
        key: of its effect.
        runs: begins a transaction in the database of runs; None: the task is not a durable run.
    """

    def __init__(self, tool: Tool, key: str, runs: Callable[[], EffectConnection] | None = None) -> None:
        self.key = key
        self.is_recorded = False
        """Its result was committed together with what it wrote into the database of runs."""
        self.repetition = Repetition()
        """Says whether a resumed run makes the call again, since it does more than its result says."""
        self.overdue: asyncio.Task[ToolResult] | None = None
        """Ends with the true result of a tool that ran past its limit and could not be stopped."""
        self._tool = tool
        self._runs = runs
        self._place: Path | None = None
        self._transaction: EffectConnection | None = None
        self._has_ended = False

    async def run(self, call: ToolCall) -> ToolResult:
        """Run the tool and return its result; commit its writes unless it is an error. Raises what committing does but `sqlite3.Error`."""
        token = _running.set(self)
        try:
            with track_repetition(self.repetition):
                result = await self._tool.run(call, effect_key=self.key, overdue=self._take)
            if self._transaction is not None and not result.is_error:
                await in_thread(self._transaction.commit, result)
                self.is_recorded = self._place is None
        except AlreadyDone as done:
            return done.result
        except TransactionEnded as error:
            return ToolResult(call_id=call.id, name=call.name, content=str(error), is_error=True)
        except sqlite3.Error as error:
            problem = f"the tool's writes were dropped: {error}"
            return ToolResult(call_id=call.id, name=call.name, content=problem, is_error=True)
        finally:
            _running.reset(token)
            self._has_ended = True
            if self._transaction is not None:
                self._transaction.abandon()
        return result

    def _take(self, task: "asyncio.Task[ToolResult]") -> None:
        self.overdue = task

    def transaction(self, file: str | os.PathLike[str] | None) -> EffectConnection:
        """Return the call's only transaction; begin it with the first use."""
        if self._tool.declared.effect is not Effect.TRANSACTIONAL:
            hint = '@tool(effect="transactional")'
            raise InvalidRequest(f"tool {self._tool.name!r} writes in a transaction, and is not declared to do so", hint=hint)
        place = None if file is None else Path(file).absolute()
        if self._transaction is None:
            self._place, self._transaction = place, self._begin(place)
            if self._has_ended:  # a thread that ran past the limit begins late, and would keep others waiting
                self._transaction.abandon()
        elif place != self._place:
            raise InvalidRequest("a call writes into one database: two could not be kept together", hint="make two tools of it")
        return self._transaction

    def _begin(self, file: Path | None) -> EffectConnection:
        if _is_in_event_loop():
            message = "effect_transaction() waits until others have written, and would have all tasks wait with it"
            raise InvalidRequest(message, hint="make the tool a plain function, which runs in a thread; or await asyncio.to_thread(...)")
        if file is not None:
            return begin_in_file(file, self.key)
        if self._runs is None:
            raise InvalidRequest("the task is no durable run, which would have a database", hint="name a file: effect_transaction(path)")
        return self._runs()


async def run_unrecorded(call: ToolCall, tool: Tool, *, action: str, key: str, overdue: Overdue) -> ToolResult:
    """Run a tool without a ledger. Equal calls whose outcome is unknown block it, as in a ledger."""
    effect = tool.declared.effect
    if effect in GUARDED and not await overdue.wait(action, tool.time_limit):
        return still_running_result(call)
    known = overdue.result(key)
    if known is not None and not (effect is Effect.IDEMPOTENT and known.is_error):
        return mark_looked_up(call, known)
    running = RunningCall(tool, key)
    result = await running.run(call)
    if effect in GUARDED and outcome_of(result) == "unknown":
        overdue.note(action, key, result, running.overdue)
    return result


def effect_key() -> str:
    """Return an idempotency key for what the running tool is about to do. It is the same when a run that died, an agent that takes over, or
    a retry after an error makes the call again, and no other call has it.

    Hand it to services as their idempotency key, or look it up before acting. Raises `InvalidRequest` outside of a tool.
    """
    return _current_call("effect_key").key


def effect_transaction(file: str | os.PathLike[str] | None = None) -> EffectConnection:
    """Return a connection whose writes are committed when the running tool returns, together with its result, and dropped when it fails.

    So a call of a `transactional` tool has its effect exactly once, wherever the process dies. While it is open, no other writer gets into
    the database: begin late, and wait for nothing. It is dropped after ten seconds. Raises `InvalidRequest` outside of such a tool and in
    an event loop, which would block while it waits for other writers, and `sqlite3.Error`.

    Args:
        file: a database of the app's own; None: that of the runs, in a table of the tool's own.
    """
    return _current_call("effect_transaction").transaction(file)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _current_call(asking: str) -> RunningCall:
    running = _running.get(None)
    if running is None:
        raise InvalidRequest(f"{asking}() was called outside of a tool", hint="call it in the function of a tool while that runs")
    return running
