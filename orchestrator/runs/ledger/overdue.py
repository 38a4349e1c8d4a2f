"""Calls whose tool ran past its time limit: those that still run, and what came of those that have ended since."""

import asyncio
from typing import Final

from ....protocols import ToolCall, ToolResult
from ...task.tool_outcomes import LOOKED_UP, UNKNOWN

_STILL_RUNNING: Final = f"{UNKNOWN}an equal call ran past its time limit and still runs. It is not made again. Find out by other means"


class Overdue:
    """The overdue calls of one run in this process.

    A plain function runs in a thread, which nothing can stop. Equal calls wait for it, so that none of them acts beside it.
    """

    def __init__(self) -> None:
        self._running: dict[str, dict[str, asyncio.Task[ToolResult]]] = {}
        """By action, then by the effect's key."""
        self._ended: dict[str, ToolResult] = {}
        """By the effect's key: what is known of calls that the model was told nothing certain about."""

    def note(self, action: str, key: str, result: ToolResult, task: asyncio.Task[ToolResult] | None) -> None:
        """Take note of a call of unknown outcome. `task`: ends with its result; None: its tool was stopped in the middle."""
        self._ended[key] = result
        if task is not None:
            self._running.setdefault(action, {})[key] = task
            task.add_done_callback(lambda done: self._end(action, key, done))

    async def wait(self, action: str, seconds: float) -> bool:
        """Wait for equal calls that still run. Returns False where one of them runs on after so many seconds."""
        running = self._running.get(action)
        if not running:
            return True
        _, late = await asyncio.wait(running.values(), timeout=seconds)
        await asyncio.sleep(0)  # callbacks of tasks run one turn of the loop after them
        return not late

    def result(self, key: str) -> ToolResult | None:
        """Return what is known of an effect whose outcome the model was not told; None where there is none such."""
        return self._ended.get(key)

    def _end(self, action: str, key: str, task: asyncio.Task[ToolResult]) -> None:
        running = self._running[action]
        del running[key]
        if not running:
            del self._running[action]
        if not task.cancelled() and task.exception() is None:
            self._ended[key] = task.result()


def still_running(call: ToolCall) -> ToolResult:
    """Return what the model is told of a call that waited in vain for an equal one."""
    return ToolResult(call_id=call.id, name=call.name, content=_STILL_RUNNING, is_error=True)


def looked_up(call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of an equal call that was made before, and say that it is one."""
    return result.model_copy(update={"call_id": call.id, "content": f"{result.content}\n{LOOKED_UP}"})
