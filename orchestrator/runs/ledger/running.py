"""A running tool call, and the functions that a tool can use while it runs."""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from ....protocols import InvalidRequest, ToolCall, ToolResult
from ...task.tools import Effect, Repetition, Tool, outcome_of, track_repetition
from ...util.runtime import in_thread
from .overdue import Overdue, looked_up, still_running
from .transactions import AlreadyDone, EffectConnection, TransactionEnded, begin_in_file

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
        """Run the tool and return its result; commit its writes unless it is an error. Raises the errors of the commit except
        `sqlite3.Error`."""
        token = _running.set(self)
        try:
            with track_repetition(self.repetition):
                result = await self._tool.run(call, overdue=self._take)
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
            self._place, self._transaction = place, self._begun(place)
            if self._has_ended:  # a thread that ran past the limit begins late, and would keep others waiting
                self._transaction.abandon()
        elif place != self._place:
            raise InvalidRequest("a call writes into one database: two could not be kept together", hint="make two tools of it")
        return self._transaction

    def _begun(self, file: Path | None) -> EffectConnection:
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
        return still_running(call)
    known = overdue.result(key)
    if known is not None and not (effect is Effect.IDEMPOTENT and known.is_error):
        return looked_up(call, known)
    running = RunningCall(tool, key)
    result = await running.run(call)
    if effect in GUARDED and outcome_of(result) == "unknown":
        overdue.note(action, key, result, running.overdue)
    return result


def effect_key() -> str:
    """Return an idempotency key for what the running tool is about to do. It is the same when a run that died, an agent that takes over,
    or a retry after an error makes the call again, and no other call has it.

    Hand it to services as their idempotency key, or look it up before acting. Raises `InvalidRequest` outside of a tool.
    """
    return _current("effect_key").key


def effect_transaction(file: str | os.PathLike[str] | None = None) -> EffectConnection:
    """Return a connection whose writes are committed when the running tool returns, together with its result, and dropped when it fails.

    So a call of a `transactional` tool has its effect exactly once, wherever the process dies. While it is open, no other writer gets
    into
    the database: begin late, and wait for nothing. It is dropped after ten seconds. Raises `InvalidRequest` outside of such a tool and
    in an
    event loop, which would block while it waits for other writers, and `sqlite3.Error`.

    Args:
        file: a database of the app's own; None: that of the runs, in a table of the tool's own.
    """
    return _current("effect_transaction").transaction(file)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _current(asking: str) -> RunningCall:
    running = _running.get(None)
    if running is None:
        raise InvalidRequest(f"{asking}() was called outside of a tool", hint="call it in the function of a tool while that runs")
    return running
