"""The tool calls of one message: whether they may run, whether somebody says yes, and what comes of them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

from ..protocols import Message, ToolCall, ToolResult
from ..protocols.messages import Value
from .labels import Label, joined
from .tools import Tool, run_tool_call


class Clearance(Value):
    """Whether a call may run."""

    outcome: Literal["allowed", "ask", "refused"] = "allowed"
    """`ask`: only where somebody says yes to it."""
    reason: str = ""
    """Why not at once, as a sentence for the user and the model."""


class Guard(Protocol):
    """Decides about calls by where their arguments come from."""

    def clearance(self, call: ToolCall, tool: Tool, conversation: Sequence[Message], label: Label) -> Clearance:
        """Whether the call may run, behind this conversation. `label`: of all that the run has seen."""
        ...


class ApprovalRequest(Value):
    """A call that somebody is asked about."""

    call: ToolCall
    reason: str
    """Why they are asked."""


Approver = Callable[[Sequence[ApprovalRequest]], Awaitable[Mapping[str, bool]]]
"""Asks somebody about calls; returns, by the call's id, whether it may run. What is left out may not."""


class Effects(Protocol):
    """Runs calls such that none has its effect twice in a run, also where the process dies in between."""

    async def run(self, call: ToolCall, tool: Tool) -> ToolResult:
        """The result of the call: what an earlier process has recorded of it, or that of running it now."""
        ...


class Vault(Protocol):
    """Puts what was taken out of texts back into arguments, where it may go."""

    def opened(self, call: ToolCall, tool: Tool) -> ToolCall:
        """The call with its placeholders filled in. Raises `PrivacyViolation` where the tool must not see what one stands for."""
        ...


@dataclass(frozen=True)
class Boundary:
    """What stands between the agents of a run and its tools. None: that part is not there."""

    guard: Guard | None = None
    approver: Approver | None = None
    effects: Effects | None = None
    vault: Vault | None = None


class ToolCalls:
    """Those of one message."""

    def __init__(self, calls: Sequence[ToolCall], tools: Mapping[str, Tool], boundary: Boundary) -> None:
        self._calls = calls
        self._tools = tools
        self._boundary = boundary
        self._refused: dict[str, str] = {}
        """Why calls may not run, by their ids."""

    async def clear(self, conversation: Sequence[Message], label: Label) -> None:
        """Settle which calls may run, before any of them does: while somebody is asked, nothing has happened yet."""
        asked = []
        for call in self._calls:
            clearance = self._clearance(call, conversation, label)
            if clearance.outcome == "refused":
                self._refused[call.id] = clearance.reason
            elif clearance.outcome == "ask":
                asked.append(ApprovalRequest(call=call, reason=clearance.reason))
        if asked:
            answers = {} if self._boundary.approver is None else await self._boundary.approver(asked)
            nobody = "" if self._boundary.approver is not None else ", and there is nobody to ask"
            denied = [request for request in asked if not answers.get(request.call.id, False)]
            self._refused |= {request.call.id: f"{request.reason}{nobody or ': the user said no'}" for request in denied}

    async def run(self, started: Callable[[ToolCall], None], finished: Callable[[ToolResult], None]) -> list[ToolResult]:
        """Run those that may, side by side; all results, in the order of the calls."""
        results: dict[int, ToolResult] = {}

        async def run(index: int, call: ToolCall) -> None:
            started(call)
            results[index] = await self._result(call)
            finished(results[index])

        async with anyio.create_task_group() as running:
            for index, call in enumerate(self._calls):
                running.start_soon(run, index, call)
        return [results[index] for index in range(len(self._calls))]

    @property
    def label(self) -> Label:
        """Of the results."""
        return joined(self._tools[call.name].declared.label(call.name) for call in self._calls if call.name in self._tools)

    def _clearance(self, call: ToolCall, conversation: Sequence[Message], label: Label) -> Clearance:
        tool = self._tools.get(call.name)
        if tool is None:
            return Clearance()  # it is told which tools there are
        guard = self._boundary.guard
        clearance = Clearance() if guard is None else guard.clearance(call, tool, conversation, label)
        if clearance.outcome == "allowed" and tool.declared.approval:
            return Clearance(outcome="ask", reason=f"{tool.name} is not run before somebody says yes")
        return clearance

    async def _result(self, call: ToolCall) -> ToolResult:
        tool, boundary = self._tools.get(call.name), self._boundary
        if call.id in self._refused:
            return ToolResult(call_id=call.id, name=call.name, content=f"not run: {self._refused[call.id]}", is_error=True)
        if tool is None:
            return await run_tool_call(call, self._tools)
        call = call if boundary.vault is None else boundary.vault.opened(call, tool)
        return await (tool.run(call) if boundary.effects is None else boundary.effects.run(call, tool))
