"""The tool calls of one message: check them, ask for approval, run them side by side, and label their results."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from uuid import uuid4

import anyio

from ...protocols import ApprovalRequest, DeadlineExceeded, NearfarError, PrivacyViolation, ToolCall, ToolResult
from ...protocols.items import Tier
from ..runs.ledger import AskedCall
from ..runs.tool_calls import ActionCount, Occurrence, Occurrences, Overdue, canonical_arguments, mark_looked_up, run_unrecorded
from ..safety.guard import CallContext, Decision, Guard
from ..safety.placeholders import Placeholders
from ..safety.plan_matching import quote_data
from ..task.context import ask_approver
from ..task.labels import OPEN, Integrity, Label, join_labels, may_go
from ..task.results import ToolOutcome
from ..task.roles import HandOff
from ..task.tools import NOT_RUN, UNKNOWN, Approver, Effect, Tool, outcome_of, run_tool_call
from ..util.text import canonical, in_one_form

_UNTOLD: Final = "this call with placeholders was not allowed; why not stays on the user's device"
_CUT_OFF: Final = f"{UNKNOWN}the work ended while the tool ran"
_NOT_BEGUN: Final = f"{NOT_RUN}the work ended before it"


class Kept(Protocol):
    """Results of look-ups that were made ahead."""

    async def take(self, call: ToolCall, tool: Tool) -> str | None:
        """Return the result of an equal look-up; None: there is none."""
        ...


class OwnResults:
    """Results of a run's own look-ups, of tools that read nothing which changes while the run lasts: an equal call is not made again.

    Texts in the arguments are equal but for case, spaces and the mark at their end. The results live in this process: a resumed run begins
    without them.
    """

    def __init__(self, tools: Sequence[str]) -> None:
        self._tools = frozenset(tools)
        self._found: dict[str, ToolResult] = {}

    def aside(self) -> "OwnResults":
        """Return the results so far for calls apart from the run, whose results it never gets."""
        aside = OwnResults(())
        aside._tools, aside._found = self._tools, dict(self._found)
        return aside

    def find(self, call: ToolCall, tool: Tool) -> ToolResult | None:
        """Return the marked result of an equal earlier call; None: there is none."""
        found = self._found.get(self._key(call, tool)) if self._covers(tool) else None
        return None if found is None else mark_looked_up(call, found)

    def keep(self, call: ToolCall, tool: Tool, result: ToolResult) -> None:
        """Keep a result, unless it is an error: a look-up that failed may be tried again."""
        if self._covers(tool) and not result.is_error:
            self._found[self._key(call, tool)] = result

    def _covers(self, tool: Tool) -> bool:
        return tool.name in self._tools and tool.declared.effect is Effect.READ

    def _key(self, call: ToolCall, tool: Tool) -> str:
        return canonical((tool.name, in_one_form(json.loads(canonical_arguments(call, tool)))))


class Effects(Protocol):
    """Runs calls so that none has its effect twice in a run, even if the process dies in between."""

    def within(self, scope: str) -> "Effects":
        """Return the effects of a part that runs in parallel with others."""
        ...

    async def known(self, asked: Sequence[AskedCall]) -> Mapping[str, bool]:
        """Return the decisions on record, by the calls' ids."""
        ...

    def named(self, asked: Sequence[AskedCall]) -> list[AskedCall]:
        """Return the calls, each request with the id by which it is answered."""
        ...

    async def ask(self, asked: Sequence[AskedCall]) -> Mapping[str, bool]:
        """Ask for decisions about calls that are `named`, and return them by the calls' ids."""
        ...

    async def run(self, call: ToolCall, tool: Tool, occurrence: Occurrence) -> ToolResult:
        """Run the call and return its result, or return the result that an earlier process has recorded."""
        ...


@dataclass(frozen=True)
class ToolChecks:
    """The checks applied to tool calls: guard, approval, ledger, placeholders. A `None` check is skipped."""

    guard: Guard | None = None
    approver: Approver | None = None
    effects: Effects | None = None
    placeholders: Placeholders | None = None
    kept: Kept | None = None
    """Results of look-ups that were made ahead of the calls."""
    own_results: OwnResults | None = None
    """Results of look-ups that the run has made before."""
    overdue: Overdue = field(default_factory=Overdue)
    """Calls that ran past their limits, if no ledger is kept."""
    expires: float = float("inf")
    """Time of `time.monotonic` at which the task's timeout is over."""
    denied: set[str] = field(default_factory=set)
    """Actions that the user denied, if no ledger is kept."""

    @property
    def has_approver(self) -> bool:
        """A durable run can always wait for a decision."""
        return self.effects is not None or self.approver is not None

    def within(self, scope: str) -> "ToolChecks":
        """Return the checks of a part that runs in parallel with others: equal calls of two parts are two effects."""
        return self if self.effects is None else replace(self, effects=self.effects.within(scope))


@dataclass(frozen=True)
class Provenance:
    """The origin of a call and its arguments. All False until the guard has looked."""

    is_grounded: bool = False
    """No untrusted content influenced the arguments."""
    is_chosen: bool = False
    """The call was chosen before the run read untrusted content, or the user approved it."""
    is_as_planned: bool = False
    """A plan had named everything that decides what the call does."""


@dataclass
class PlannedCall:
    """One tool call of a message, from the agent's request to the result."""

    made: ToolCall
    """The call as the agent made it, with placeholders."""
    call: ToolCall
    """The call as it runs, with the values behind its placeholders."""
    tool: Tool | None
    """None: there is no tool of that name."""
    label: Label
    """The label of the values behind its placeholders."""
    decision: Decision = Decision()
    """The guard's decision; once the user was asked, `allowed` or `refused`."""
    occurrence: Occurrence | None = None
    """Tells the call from equal ones; None for a refused call."""
    provenance: Provenance = Provenance()
    result: ToolResult | None = None
    has_begun: bool = False

    @property
    def is_filled(self) -> bool:
        """A placeholder went into it."""
        return self.label != OPEN

    @property
    def is_refused(self) -> bool:
        return self.decision.outcome == "refused"

    @property
    def reaches_tool(self) -> bool:
        """Its tool is called, rather than the agent told why not."""
        return self.tool is not None and not self.is_refused

    @property
    def changes_something(self) -> bool:
        """It reaches a tool that does more than read."""
        return self.tool is not None and not self.is_refused and self.tool.declared.effect is not Effect.READ

    @property
    def result_label(self) -> Label:
        """The label of the result: that of its tool, and of the values in the arguments. A call that is not run says nothing.

        Before the call has run, a tool without a source that takes no address of the network counts as the user's own.
        """
        if self.tool is None or self.is_refused:
            return OPEN
        label = self.tool.declared.label(self.tool.name) if self.result is None else self.tool.label_of(self.result)
        return label.joined(self.label)

    @property
    def request(self) -> ApprovalRequest:
        return ApprovalRequest(id=self.call.id, call=self.call, reason=self.decision.reason)

    @property
    def subject(self) -> AskedCall:
        assert self.tool is not None, "only calls of known tools need approval"
        assert self.occurrence is not None, "and they are counted before"
        return AskedCall(self.request, self.tool, self.occurrence)

    def refuse(self, reason: str) -> None:
        self.decision = Decision(outcome="refused", reason=reason)

    def refuse_untold(self, reason: str) -> None:
        """Refuse the call for `reason`, without telling which of several values behind placeholders caused it."""
        self.refuse(_UNTOLD if self.is_filled else reason)

    def outcome(self, agent: str) -> ToolOutcome:
        """Return the outcome for the record: a call without a result by now was cut off."""
        effect = None if self.tool is None else self.tool.declared.effect
        cut_off = _CUT_OFF if self.has_begun else _NOT_BEGUN
        result = self.result or ToolResult(call_id=self.made.id, name=self.made.name, content=cut_off, is_error=True)
        outcome = outcome_of(result) if self.reaches_tool else "not_run"
        return ToolOutcome(agent=agent, call=self.made, effect=effect, outcome=outcome, result=result.content)


class ToolCalls:
    """The tool calls of one message. Make it, `clear` the calls, then `run` them.

    Args:
        occurrences: counts the calls before them.
        task: names the task, and with it effects if no ledger is kept.
    """

    def __init__(
        self, calls: Sequence[ToolCall], tools: Mapping[str, Tool], checks: ToolChecks, occurrences: Occurrences, *, task: str
    ) -> None:
        self._tools = tools
        self._checks = checks
        self._occurrences = occurrences
        self._task = task
        counts = Counter(call.id for call in calls)
        self.planned = [self._plan(call, is_repeated=counts[call.id] > 1) for call in calls]

    def _plan(self, call: ToolCall, *, is_repeated: bool) -> PlannedCall:
        """Fill in a call's placeholders. Refuse it if its tool must not see them, or if its id is not unique."""
        tool, placeholders = self._tools.get(call.name), self._checks.placeholders
        planned = PlannedCall(call, call, tool, OPEN if placeholders is None else placeholders.label_of(call))
        if is_repeated:  # one approval must not let two calls run
            planned.refuse("another call of the same message has this id")
        try:
            if tool is not None and placeholders is not None:
                planned.call = placeholders.fill_call(call, tool, turn=self._occurrences.turn)
        except PrivacyViolation as error:
            planned.refuse(str(error))
        return planned

    def refuse_further(self, hand_offs: Mapping[str, str]) -> None:
        """Refuse all hand-offs but the first, as a task goes to one role at a time. `hand_offs`: the tools that hand it over."""
        for planned in [planned for planned in self.planned if planned.call.name in hand_offs][1:]:
            planned.refuse("the task goes to one role at a time, and another hand-off comes first")

    async def clear(self, standing: CallContext, asking: Callable[[Sequence[ApprovalRequest]], None] = lambda _: None) -> None:
        """Decide which calls may run, before any of them does: nothing has happened yet while the user is asked.

        Raises LangGraph's interrupt if the run has to stop until it has a decision, and `DeadlineExceeded` if that came too late.

        Args:
            standing: what the run has seen.
            asking: called with the requests before the user is asked.
        """
        for planned in self.planned:
            # A call without values behind placeholders is judged by what its caller was told: its fate would confirm a guess of the rest.
            stands = standing if planned.is_filled else standing.told or standing
            planned.provenance = self._provenance(planned, standing, stands)
            if planned.tool is None or planned.is_refused:
                continue  # the agent is told which tools there are, or why not
            planned.decision = self._decision(planned.call, planned.tool, stands)
            if planned.is_refused:
                planned.refuse_untold(planned.decision.reason)
            else:
                planned.occurrence = self._occurrences.next(planned.call, planned.tool)
        asked = [planned for planned in self.planned if planned.decision.outcome == "ask"]
        answers = await self._answers(asked, asking) if asked else {}
        if asked and time.monotonic() >= self._checks.expires:  # an approver that blocks the event loop keeps the timeout from ending it
            raise DeadlineExceeded("the task's timeout was over before the approver answered", hint="raise its timeout")
        denial = ": the user said no" if self._checks.has_approver else ", and there is no approver"
        for planned in asked:
            if answers.get(planned.call.id) is True:
                planned.decision = Decision()
                planned.provenance = replace(planned.provenance, is_chosen=True)
            else:
                planned.refuse_untold(f"{planned.decision.reason}{denial}")

    async def run(
        self, running: Callable[[ToolCall], AbstractContextManager[None]], finished: Callable[[ToolResult], None]
    ) -> list[ToolResult]:
        """Run the calls that may run, side by side, each within `running`; return all results, in the order of the calls. Raises what the
        ledger raises."""
        errors: list[NearfarError] = []

        async def run_one(planned: PlannedCall) -> None:
            planned.has_begun = True
            try:
                with running(planned.call):
                    planned.result = await self._result(planned)
            except NearfarError as error:  # raised below: the other calls are not to be cut off in the middle
                errors.append(error)
            else:
                finished(planned.result)

        if len(self.planned) == 1:
            await run_one(self.planned[0])
        else:
            async with anyio.create_task_group() as tasks:
                for planned in self.planned:
                    tasks.start_soon(run_one, planned)
        if errors:
            raise errors[0]
        results: list[ToolResult] = []
        for planned in self.planned:
            assert planned.result is not None, "it has run, or was refused"
            results.append(planned.result)
            if planned.tool is not None and planned.occurrence is not None:
                self._occurrences.settle(planned.occurrence, planned.tool, planned.result)
        return results

    @property
    def made(self) -> dict[str, ActionCount]:
        """The calls that were made, these included, by action."""
        return self._occurrences.made

    @property
    def label(self) -> Label:
        """The label of all results."""
        return join_labels(planned.result_label for planned in self.planned)

    def spilled(self, seen: Label) -> Label:
        """Return the label of the private data that go into tools with side effects. `seen`: that of what the caller was told."""
        changing = [seen.joined(planned.label) for planned in self.planned if planned.changes_something]
        private = [label for label in changing if label.tier is not Tier.SHARED]
        return join_labels(
            label if label.integrity is Integrity.TRUSTED else label.model_copy(update={"integrity": Integrity.TRUSTED})
            for label in private
        )

    def tainted(self, seen: Label) -> Label:
        """Return the label of the untrusted content that goes into tools with side effects. `seen`: that of what the caller was told."""
        origins = [planned.provenance for planned in self.planned if planned.changes_something and not planned.provenance.is_grounded]
        if not origins:
            return OPEN
        is_disturbed = not all(origin.is_as_planned or origin.is_chosen for origin in origins)
        return Label(integrity=seen.integrity, origins=seen.origins, is_disturbed=is_disturbed)

    def _provenance(self, planned: PlannedCall, standing: CallContext, stands: CallContext) -> Provenance:
        """Ask the guard about a call's origin. A run that has read no untrusted content needs no guard for that."""
        guard, tool = self._checks.guard, planned.tool
        if guard is None or standing.label.integrity is Integrity.TRUSTED:
            return Provenance(is_grounded=True, is_chosen=True, is_as_planned=True)
        if tool is None:
            return Provenance()
        questions = (guard.has_trusted_arguments, guard.is_chosen, guard.is_as_planned)
        return Provenance(*(question(planned.call, tool, stands) for question in questions))

    def _decision(self, call: ToolCall, tool: Tool, stands: CallContext) -> Decision:
        guard = self._checks.guard
        if guard is not None:
            decision = guard.check_call(call, tool, stands)
        elif not may_go(stands.label.tier, tool.declared.sends):
            reason = f"{tool.name} sends its arguments further than what the run has seen may go ({', '.join(stands.label.told_origins)})"
            decision = Decision(outcome="ask", reason=reason)
        else:
            decision = Decision()
        if decision.outcome == "allowed" and tool.declared.approval:
            return Decision(outcome="ask", reason=f"{tool.name} needs approval")
        return decision

    async def _answers(self, asked: Sequence[PlannedCall], asking: Callable[[Sequence[ApprovalRequest]], None]) -> Mapping[str, bool]:
        """Return the user's decisions, old and new, by the calls' ids."""
        effects, approver, denied = self._checks.effects, self._checks.approver, self._checks.denied
        if effects is not None:
            subjects = [planned.subject for planned in asked]
            known = await effects.known(subjects)
            open_ = effects.named([subject for subject in subjects if subject.request.call.id not in known])
            if not open_:
                return known
            asking([subject.request for subject in open_])
            return {**known, **await effects.ask(open_)}
        if approver is None:
            return {}
        subjects = [subject for subject in (planned.subject for planned in asked) if self._action(subject.occurrence) not in denied]
        if not subjects:
            return {}
        # Ids of calls are not unique: parts of a task ask at the same time, and an app's approver serves many tasks.
        requests = {subject.request.call.id: subject.request.model_copy(update={"id": uuid4().hex[:12]}) for subject in subjects}
        asking(list(requests.values()))
        answers = await ask_approver(approver, list(requests.values()))
        said = {call: answers[request.id] for call, request in requests.items()}
        denied.update(self._action(subject.occurrence) for subject in subjects if not said[subject.request.call.id])
        return said

    def _action(self, occurrence: Occurrence) -> str:
        """Return the name of a call's action in this process."""
        return f"{self._task}/{occurrence.action}"

    async def _result(self, planned: PlannedCall) -> ToolResult:
        call, tool, checks = planned.call, planned.tool, self._checks
        if planned.is_refused:
            return ToolResult(call_id=call.id, name=call.name, content=f"{NOT_RUN}{planned.decision.reason}", is_error=True)
        if tool is None:
            return await run_tool_call(call, self._tools)
        occurrence = planned.occurrence
        assert occurrence is not None, "the call was cleared"
        if checks.own_results is not None and (found := checks.own_results.find(call, tool)) is not None:
            return found
        result = await self._made(call, tool, occurrence)
        if checks.own_results is not None:
            checks.own_results.keep(call, tool, result)
        return result

    async def _made(self, call: ToolCall, tool: Tool, occurrence: Occurrence) -> ToolResult:
        """Make the call, or take the result of an equal one that was made ahead or by an earlier process."""
        checks = self._checks
        if checks.kept is not None and (known := await checks.kept.take(call, tool)) is not None:
            return ToolResult(call_id=call.id, name=call.name, content=known)
        if checks.effects is None:
            key = occurrence.key(self._task)
            return await run_unrecorded(call, tool, action=self._action(occurrence), key=key, overdue=checks.overdue)
        return await checks.effects.run(call, tool, occurrence)


def hand_off_in(calls: ToolCalls, hand_offs: Mapping[str, str]) -> HandOff | None:
    """Return the hand-off that calls which have run stand for; None if there is none. `hand_offs`: roles by tool.

    Placeholders stay in its text: the next role is told no more than this one.
    """
    done = (each for each in calls.planned if each.call.name in hand_offs and each.result is not None and not each.result.is_error)
    found = next(done, None)
    return None if found is None else HandOff(role=hand_offs[found.call.name], task=str(found.made.arguments["task"]))


@contextmanager
def record_outcomes(agent: str, calls: ToolCalls, told: list[ToolOutcome] | None) -> Iterator[list[ToolOutcome]]:
    """Yield a list that holds the outcome of each call in the end. Add them to `told`, too, also if the calls are cut off."""
    outcomes: list[ToolOutcome] = []
    try:
        yield outcomes
    finally:
        outcomes += [planned.outcome(agent) for planned in calls.planned]
        if told is not None:
            told.extend(outcomes)


_LONGEST: Final = 500
"""Characters of arguments, and of a result, that the next agent is told."""
_DONE: Final = "Agents before you worked on this task. Their tool calls stay done. Do not make them again unless the task needs it twice."
_WITHHELD: Final = "arguments and result stay on the user's device"


def done_note(made: Sequence[ToolOutcome], label: Label, *, may_read: bool) -> str:
    """Return what the next agent is told of the tool calls `made` before it; empty where none may have changed anything.

    Args:
        label: of all that the run has seen.
        may_read: it may be told all of that; else it is told the tools' names alone.
    """
    acts = [outcome for outcome in made if outcome.may_have_acted]
    return "\n".join([_DONE, *(_line(act, label) if may_read else _name(act) for act in acts)]) if acts else ""


def told_of(outcomes: Sequence[ToolOutcome], label: Label) -> str:
    """Return one line for each call that may have changed something."""
    return "\n".join(_line(outcome, label) for outcome in outcomes if outcome.may_have_acted)


def _line(act: ToolOutcome, label: Label) -> str:
    arguments = json.dumps(act.call.arguments, ensure_ascii=False)
    result = ToolResult(call_id=act.call.id, name=act.call.name, content=_cut(f"{act.call.name}({_cut(arguments)}): {act.result}", 2))
    told = result.content if label.integrity is Integrity.TRUSTED else quote_data(result).content
    return f"- {_state(act)}: {told}"


def _name(act: ToolOutcome) -> str:
    return f"- {_state(act)}: {act.call.name}; its {_WITHHELD}"


def _state(act: ToolOutcome) -> str:
    return act.outcome.replace("unknown", "outcome unknown")


def _cut(text: str, times: int = 1) -> str:
    return text if len(text) <= times * _LONGEST else f"{text[: times * _LONGEST]}..."
