"""Calls whose tool ran past its time limit: those still running, and the results of those that ended later."""

import asyncio
from typing import Final

from ....protocols import ToolCall, ToolResult
from ...task.tools import LOOKED_UP, UNKNOWN

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


def still_running(call: ToolCall) -> ToolResult:
    """Return the error result for a call that waited in vain for an equal one."""
    return ToolResult(call_id=call.id, name=call.name, content=_STILL_RUNNING, is_error=True)


def looked_up(call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of an equal earlier call, marked as such."""
    return result.model_copy(update={"call_id": call.id, "content": f"{result.content}\n{LOOKED_UP}"})
