"""The tool calls of one message: whether they may run, whether somebody says yes, and what comes of them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import anyio

from ...protocols import ApprovalRequest, NearfarError, PrivacyViolation, ToolCall, ToolResult
from ...protocols.tiers import Tier
from ..runs.ledger.approvals import Asked
from ..runs.ledger.occurrences import Made, Occurrence, Occurrences
from ..runs.ledger.overdue import Overdue
from ..runs.ledger.running import run_unrecorded
from ..safety.guard.decision import CallContext, Decision, Guard
from ..task.approvals import Approver
from ..task.labels import OPEN, Integrity, Label, joined, may_go
from ..task.tool_outcomes import NOT_RUN, Effect
from ..task.tools import Tool, run_tool_call

_UNTOLD: Final = "this call with placeholders was not allowed; why not stays on the user's device"


class Effects(Protocol):
    """Runs calls such that none has its effect twice in a run, also where the process dies in between."""

    def within(self, scope: str) -> "Effects":
        """Those of a part of the run that runs beside others."""
        ...

    async def known(self, asked: Sequence[Asked]) -> Mapping[str, bool]:
        """What somebody has decided, by the calls' ids."""
        ...

    async def ask(self, asked: Sequence[Asked]) -> Mapping[str, bool]:
        """Have somebody decide, by the calls' ids."""
        ...

    async def run(self, call: ToolCall, tool: Tool, occurrence: Occurrence) -> ToolResult:
        """The result of the call: what an earlier process has recorded of it, or that of running it now."""
        ...


class Vault(Protocol):
    """Puts what was taken out of texts back into arguments, where it may go."""

    def opened(self, call: ToolCall, tool: Tool, *, turn: int) -> ToolCall:
        """The call with its placeholders filled in. Raises `PrivacyViolation` where the tool must not see what one stands for, and where
        placeholders went into enough other calls.

        Args:
            turn: calls of agents that the task has made; it tells a call from the same one asked for again.
        """
        ...

    def label_of(self, call: ToolCall) -> Label:
        """Of what the placeholders in a call stand for."""
        ...


@dataclass(frozen=True)
class Boundary:
    """What stands between the agents of a run and its tools. None: that part is not there."""

    guard: Guard | None = None
    approver: Approver | None = None
    effects: Effects | None = None
    vault: Vault | None = None
    overdue: Overdue = field(default_factory=Overdue)
    """Calls that ran past their limits, where no ledger is kept."""
    denied: set[str] = field(default_factory=set)
    """Actions that somebody said no to, where no ledger is kept."""

    def within(self, scope: str) -> "Boundary":
        """That of a part of the run that runs beside others: equal calls of two parts are two effects."""
        return self if self.effects is None else replace(self, effects=self.effects.within(scope))


class ToolCalls:
    """Those of one message.

    Args:
        occurrences: the calls before them.
        task: names the task, and with it effects where no ledger is kept.
    """

    def __init__(
        self, calls: Sequence[ToolCall], tools: Mapping[str, Tool], boundary: Boundary, occurrences: Occurrences, *, task: str
    ) -> None:
        self._tools = tools
        self._boundary = boundary
        self._counted = occurrences
        self._task = task
        self._occurrences: dict[int, Occurrence] = {}
        """Of the calls that may run, by their places."""
        repeated = [name for name, count in Counter(call.id for call in calls).items() if count > 1]
        self._refused = dict.fromkeys(repeated, "another call of the same message has this id")
        """Why calls may not run, by their ids. One yes must not let two of them run."""
        self._results: Mapping[int, ToolResult] = {}
        """By the calls' places; known once they have run."""
        self._grounded: list[bool] = []
        """Of each call: whether strangers had no hand in it; known once they are cleared."""
        self._chosen: list[bool] = []
        """Of each call: whether it was chosen before strangers were heard, or the user said yes to it; known once they are cleared."""
        self._as_planned: list[bool] = []
        """Of each call: whether a plan had named all that decides what it does; known once they are cleared."""
        vault = boundary.vault
        self._filled = [OPEN if vault is None else vault.label_of(call) for call in calls]
        """Labels of what goes into the calls beside the words of whoever made them."""
        self._calls = [self._opened(call) for call in calls]

    async def clear(self, standing: CallContext, asking: Callable[[Sequence[ApprovalRequest]], None] = lambda _: None) -> None:
        """Settle which calls may run, before any of them does: while somebody is asked, nothing has happened yet.

        Raises LangGraph's interrupt where the run has to stop until somebody has decided. `asking` hears what somebody is asked.
        """
        guard = self._boundary.guard
        self._grounded = self._asked_of(None if guard is None else guard.is_grounded, standing)
        self._chosen = self._asked_of(None if guard is None else guard.is_chosen, standing)
        self._as_planned = self._asked_of(None if guard is None else guard.is_as_planned, standing)
        asked: dict[int, ApprovalRequest] = {}
        for index, (call, stands) in enumerate(zip(self._calls, self._standings(standing), strict=True)):
            tool = self._tools.get(call.name)
            if tool is None or call.id in self._refused:
                continue  # it is told which tools there are, or why not
            clearance = self._clearance(call, tool, stands)
            if clearance.outcome == "refused":
                self._refused[call.id] = self._told(index, clearance.reason)
                continue
            self._occurrences[index] = self._counted.next(call, tool)
            if clearance.outcome == "ask":
                asked[index] = ApprovalRequest(id=call.id, call=call, reason=clearance.reason)
        if asked:
            answers = await self._answers(asked, asking)
            nobody = "" if self._can_ask else ", and there is nobody to ask"
            denied = {index: request for index, request in asked.items() if answers.get(request.call.id) is not True}
            self._refused |= {
                request.call.id: self._told(index, f"{request.reason}{nobody or ': the user said no'}") for index, request in denied.items()
            }
            for index in asked.keys() - denied.keys():
                self._chosen[index] = True

    def _told(self, index: int, reason: str) -> str:
        """Return the reason as the caller is told it: not which of several values behind placeholders it was that was objected to."""
        return _UNTOLD if self.filled[index] else reason

    async def run(self, started: Callable[[ToolCall], None], finished: Callable[[ToolResult], None]) -> list[ToolResult]:
        """Run those that may, side by side; all results, in the order of the calls. Raises what the ledger raises."""
        results: dict[int, ToolResult] = {}
        errors: list[NearfarError] = []

        async def run(index: int, call: ToolCall) -> None:
            started(call)
            try:
                results[index] = await self._result(index, call)
            except NearfarError as error:  # raised below: the other calls are not to be cut off in the middle
                errors.append(error)
            else:
                finished(results[index])

        if len(self._calls) == 1:
            await run(0, self._calls[0])
        else:
            async with anyio.create_task_group() as running:
                for index, call in enumerate(self._calls):
                    running.start_soon(run, index, call)
        if errors:
            raise errors[0]
        self._results = results
        for index, occurrence in self._occurrences.items():
            self._counted.settle(occurrence, self._tools[self._calls[index].name], results[index])
        return [results[index] for index in range(len(self._calls))]

    @property
    def made(self) -> dict[str, Made]:
        """By action: the calls that were made, these included."""
        return self._counted.made

    @property
    def label(self) -> Label:
        """Of the results."""
        return joined(self.labels)

    @property
    def labels(self) -> Sequence[Label]:
        """Of each result: that of its tool, and of what went into the call; that a call was not run says nothing.

        Before the calls have run, a tool without a source that takes no address of the network counts as the user's own.
        """
        return [self._label(index, call) for index, call in enumerate(self._calls)]

    @property
    def filled(self) -> Sequence[bool]:
        """Of each call: whether a placeholder went into it."""
        return [label != OPEN for label in self._filled]

    def spilled(self, seen: Label) -> Label:
        """Of the private data that go into tools which change something. `seen`: of what whoever made the calls has been told."""
        made = [(call, filled) for call, filled in zip(self._calls, self._filled, strict=True) if call.id not in self._refused]
        tools = [(self._tools.get(call.name), filled) for call, filled in made]
        changing = [filled for tool, filled in tools if tool is not None and tool.declared.effect is not Effect.READ]
        private = [label for label in (seen.joined(filled) for filled in changing) if label.tier is not Tier.SHARED]
        return joined(
            label if label.integrity is Integrity.TRUSTED else label.model_copy(update={"integrity": Integrity.TRUSTED})
            for label in private
        )

    @property
    def grounded(self) -> Sequence[bool]:
        """Of each call, once they are cleared: whether strangers had no hand in it."""
        return self._grounded

    @property
    def chosen(self) -> Sequence[bool]:
        """Of each call, once they are cleared: whether it was chosen before strangers were heard, or the user said yes to it."""
        return self._chosen

    @property
    def ran(self) -> list[bool]:
        """Of each call: whether a tool was called at all, rather than the model told why not."""
        return [call.name in self._tools and call.id not in self._refused for call in self._calls]

    def _asked_of(self, question: Callable[[ToolCall, Tool, CallContext], bool] | None, standing: CallContext) -> list[bool]:
        """The guard's answers to a question about each call: yes as long as nobody but the user and the app was heard."""
        if question is None or standing.label.integrity is Integrity.TRUSTED:
            return [True] * len(self._calls)
        asked = zip(self._calls, map(self._tools.get, [call.name for call in self._calls]), self._standings(standing), strict=True)
        return [tool is not None and question(call, tool, stands) for call, tool, stands in asked]

    def _standings(self, standing: CallContext) -> list[CallContext]:
        """Return what the guard goes by for each call.

        A call in its caller's own words is looked for in what the caller was told: what becomes of it would tell a right guess of the rest.
        """
        told = standing.told or standing
        return [standing if filled else told for filled in self.filled]

    def tainted(self, seen: Label) -> Label:
        """Of what strangers chose that goes into tools which change something. `seen`: of what whoever made the calls has been told."""
        changing = [
            place
            for place, (call, ran) in enumerate(zip(self._calls, self.ran, strict=True))
            if ran and not self._grounded[place] and self._tools[call.name].declared.effect is not Effect.READ
        ]
        if not changing:
            return OPEN
        is_disturbed = not all(self._as_planned[place] or self._chosen[place] for place in changing)
        return Label(integrity=seen.integrity, origins=seen.origins, is_disturbed=is_disturbed)

    def _label(self, index: int, call: ToolCall) -> Label:
        tool, result = self._tools.get(call.name), self._results.get(index)
        if tool is None or call.id in self._refused:
            return OPEN
        label = tool.declared.label(tool.name) if result is None else tool.label_of(result)
        return label.joined(self._filled[index])

    def _opened(self, call: ToolCall) -> ToolCall:
        """The call as it runs; one that its tool must not see is refused."""
        tool, vault = self._tools.get(call.name), self._boundary.vault
        try:
            return call if tool is None or vault is None else vault.opened(call, tool, turn=self._counted.turn)
        except PrivacyViolation as error:
            self._refused[call.id] = str(error)
            return call

    @property
    def _can_ask(self) -> bool:
        return self._boundary.effects is not None or self._boundary.approver is not None

    async def _answers(
        self, asked: Mapping[int, ApprovalRequest], asking: Callable[[Sequence[ApprovalRequest]], None]
    ) -> Mapping[str, bool]:
        """What somebody says, or has said, by the calls' ids. `asked`: by the calls' places."""
        effects, approver = self._boundary.effects, self._boundary.approver
        if effects is not None:
            subjects = [Asked(request, self._tools[request.call.name], self._occurrences[index]) for index, request in asked.items()]
            known = await effects.known(subjects)
            open_ = [subject for subject in subjects if subject.request.call.id not in known]
            if not open_:
                return known
            asking([subject.request for subject in open_])
            return {**known, **await effects.ask(open_)}
        if approver is None:
            return {}
        denied = self._boundary.denied
        actions = {request.id: self._action(index) for index, request in asked.items()}
        requests = [request for request in asked.values() if actions[request.id] not in denied]
        if not requests:
            return {}
        asking(requests)
        answers = await approver(requests)
        said = {request.id: answers.get(request.id, False) is True for request in requests}  # a text such as "no" is no yes
        denied.update(actions[name] for name, is_approved in said.items() if not is_approved)
        return said

    def _action(self, index: int) -> str:
        """Return what names the action of a call in this process."""
        return f"{self._task}/{self._occurrences[index].action}"

    def _clearance(self, call: ToolCall, tool: Tool, standing: CallContext) -> Decision:
        guard = self._boundary.guard
        if guard is not None:
            clearance = guard.clearance(call, tool, standing)
        elif not may_go(standing.label.tier, tool.declared.sends):
            reason = f"{tool.name} sends its arguments further than what the run has seen may go ({', '.join(standing.label.told_origins)})"
            clearance = Decision(outcome="ask", reason=reason)
        else:
            clearance = Decision()
        if clearance.outcome == "allowed" and tool.declared.approval:
            return Decision(outcome="ask", reason=f"{tool.name} is not run before somebody says yes")
        return clearance

    async def _result(self, index: int, call: ToolCall) -> ToolResult:
        tool, boundary = self._tools.get(call.name), self._boundary
        if call.id in self._refused:
            return ToolResult(call_id=call.id, name=call.name, content=f"{NOT_RUN}{self._refused[call.id]}", is_error=True)
        if tool is None:
            return await run_tool_call(call, self._tools)
        occurrence = self._occurrences[index]
        if boundary.effects is None:
            key = occurrence.key(self._task)
            return await run_unrecorded(call, tool, action=self._action(index), key=key, overdue=boundary.overdue)
        return await boundary.effects.run(call, tool, occurrence)
