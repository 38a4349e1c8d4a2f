"""The record of the tool calls of one message: what came of each, also of those that were cut off in the middle."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ...protocols import ToolCall, ToolResult
from ..task.results import ToolOutcome
from ..task.tool_outcomes import NOT_RUN, UNKNOWN, outcome_of
from .context import TaskContext
from .tool_calls import ToolCalls

_CUT_OFF: Final = f"{UNKNOWN}the work ended while the tool ran"
_NOT_BEGUN: Final = f"{NOT_RUN}the work ended before it"


class ActsRecord:
    """Takes the results of one message's calls as they come."""

    def __init__(self, agent: str, calls: Sequence[ToolCall], made: ToolCalls, context: TaskContext) -> None:
        self._agent = agent
        self._calls = calls
        self._made = made
        self._tools = context.tools
        self._begun: set[str] = set()
        self._results: dict[str, ToolResult] = {}
        """By the calls' ids, as are those that have begun. Where two calls share one, neither runs."""
        self.outcomes: list[ToolOutcome] = []
        """The outcome of each call, in their order; known at the end of the record."""

    def begin(self, call: ToolCall) -> ToolCall:
        """Take note of a call that starts, and return it."""
        self._begun.add(call.id)
        return call

    def end(self, result: ToolResult) -> ToolResult:
        """Take note of a result, and return it."""
        self._results[result.call_id] = result
        return result

    def close(self) -> None:
        """Settle the outcomes: a call without a result by now was cut off."""
        self.outcomes = [self._outcome(call, has_run=has_run) for call, has_run in zip(self._calls, self._made.ran, strict=True)]

    def _outcome(self, call: ToolCall, *, has_run: bool) -> ToolOutcome:
        tool, result = self._tools.get(call.name), self._results.get(call.id) or self._cut_off(call)
        effect = None if tool is None else tool.declared.effect
        outcome = outcome_of(result) if has_run else "not_run"
        return ToolOutcome(agent=self._agent, call=call, effect=effect, outcome=outcome, result=result.content)

    def _cut_off(self, call: ToolCall) -> ToolResult:
        told = _CUT_OFF if call.id in self._begun else _NOT_BEGUN
        return ToolResult(call_id=call.id, name=call.name, content=told, is_error=True)


@contextmanager
def recorded(agent: str, calls: Sequence[ToolCall], made: ToolCalls, context: TaskContext) -> Iterator[ActsRecord]:
    """Record what comes of calls, and tell it to the context also where they are cut off. `calls`: as the agent made them."""
    record = ActsRecord(agent, calls, made, context)
    try:
        yield record
    finally:
        record.close()
        if context.outcomes is not None:
            context.outcomes.extend(record.outcomes)
