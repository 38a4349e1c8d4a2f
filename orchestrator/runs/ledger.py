"""The idempotency ledger of a run: each tool call is recorded before it starts, and its approval and result after it."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from ...protocols import ApprovalNeeded, ApprovalRequest, NearfarError, NotFound, ToolCall, ToolResult
from ..storage import DatabaseSession, TableDatabase
from ..task.context import ask_approver
from ..task.tools import NOT_RUN, UNKNOWN, Approver, Effect, Tool, outcome_of
from ..util.runtime import in_thread, shielded
from ..util.text import digest
from . import nested_scope, parse_record
from .effects import EffectEntry, EffectIntent, EffectRecords, EffectState
from .tool_calls import GUARDED, REPEATABLE, Occurrence, Overdue, RunningCall, mark_looked_up, still_running_result

if TYPE_CHECKING:
    from . import Lease
    from .store import RunStore


logger = logging.getLogger(__name__)

_UNKNOWN: Final = (
    f"{UNKNOWN}it is not known whether this call took effect: it ran past its limit, or was under way when the run was interrupted. "
    "It is not made again. Find out by other means whether it did, or tell the user"
)
T = TypeVar("T")


class AskedCall(NamedTuple):
    """A request, and the tool call that it is about."""

    request: ApprovalRequest
    tool: Tool
    occurrence: Occurrence


class LedgerWriter(Protocol):
    """Runs a change in a transaction, and returns its value once that is committed."""

    async def write(self, change: Callable[[DatabaseSession], T]) -> T: ...


class EffectLedger:
    """Runs the tool calls of one run. A call that the run has made before gets the recorded result.

    Args:
        writer: commits changes of the records.
        approver: decides about calls; None: the run stops until they are decided.
        overdue: its calls that ran past their limits.
        user: the run's user. Two users may give tasks the same idempotency key, and have effects of their own.
    """

    def __init__(
        self,
        records: EffectRecords,
        writer: LedgerWriter,
        *,
        approver: Approver | None = None,
        overdue: Overdue | None = None,
        user: str = "",
    ) -> None:
        self._records = records
        self._writer = writer
        self._scope = ""
        """Groups calls that are counted together: empty for the task, else the name of a part that runs in parallel with others."""
        self._approver = approver
        self._at_work: set[str] = set()
        """Keys of the run's effects whose tools run in this process now; shared with the ledgers of its parts."""
        self._overdue = overdue or Overdue()
        self._user = user

    def within(self, scope: str) -> "EffectLedger":
        """Return the ledger of a part of the run."""
        part = copy(self)
        part._scope = nested_scope(self._scope, scope)
        return part

    @property
    def is_at_work(self) -> bool:
        """Return whether a tool of the run is running."""
        return bool(self._at_work)

    async def known(self, asked: Sequence[AskedCall]) -> dict[str, bool]:
        """Return the decisions about calls, by the calls' ids. A call that was begun had been approved."""
        entries = await self._writer.write(partial(self._records.entries, intents=[self._intent(*one[1:]) for one in asked]))
        pairs = zip(asked, entries, strict=True)
        decided = {one.request.call.id: entry.state for one, entry in pairs if entry is not None}
        return {call: state is not EffectState.DENIED for call, state in decided.items() if state is not EffectState.ASKED}

    def named(self, asked: Sequence[AskedCall]) -> list[AskedCall]:
        """Return the calls, each request with the id of its effect."""
        return [one._replace(request=one.request.model_copy(update={"id": _request_id(self._intent(*one[1:]))})) for one in asked]

    async def ask(self, asked: Sequence[AskedCall]) -> Mapping[str, bool]:
        """Get decisions about calls that are `named`, and record them before any of the calls runs."""
        intents = [self._intent(*one[1:]) for one in asked]
        requests = [one.request for one in asked]
        if self._approver is None:
            await self._writer.write(partial(self._records.ask, asked=list(zip(intents, requests, strict=True))))
            return await self._wait_for_decisions(asked, requests)
        answers = await ask_approver(self._approver, requests)
        decisions = {intent: answers[request.id] for intent, request in zip(intents, requests, strict=True)}
        said = await self._writer.write(partial(self._records.answer, answers=decisions))
        return {request.call.id: is_approved for request, is_approved in zip(requests, said, strict=True)}

    async def run(self, call: ToolCall, tool: Tool, occurrence: Occurrence) -> ToolResult:
        """Return the recorded result of the call, or run it now.

        Raises `LedgerConflict` if the record is another tool's or another owner's, and the database's errors: the effect is then either not
        begun, or begun and without a result.
        """
        intent = self._intent(tool, occurrence)
        if not await self._overdue.wait(intent.action, tool.time_limit):
            return still_running_result(call)
        self._at_work.add(intent.key)
        try:
            return await self._run_once(call, tool, intent)
        finally:
            self._at_work.discard(intent.key)

    async def _run_once(self, call: ToolCall, tool: Tool, intent: EffectIntent) -> ToolResult:
        entry = await self._writer.write(partial(self._records.begin, intent=intent, at_work=self._at_work))
        if entry.result is not None and _is_failed_try(entry, entry.result, tool, intent):
            await self._writer.write(partial(self._records.begin_again, intent=intent))
            return await self._run(call, tool, intent)
        if entry.result is not None:
            return _replay(entry, entry.result, call, intent)
        if entry.state is EffectState.DENIED:
            return _error(call, f"{NOT_RUN}the user said no")
        if entry.state is not None and not await self._may_run_again(call, tool, intent):
            return _error(call, _UNKNOWN)
        return await self._run(call, tool, intent)

    async def _run(self, call: ToolCall, tool: Tool, intent: EffectIntent) -> ToolResult:
        if tool.declared.effect is Effect.AT_MOST_ONCE:  # also where the power fails
            await in_thread(self._records.sync)
        running = RunningCall(tool, intent.key, lambda: self._records.transaction(intent.key))
        try:
            result = (await running.run(call)).model_copy(update={"call_id": call.id})
        except asyncio.CancelledError:
            if running.overdue is not None and tool.declared.effect in GUARDED:  # the run may be resumed while the tool still runs
                self._note_overdue(running, intent, still_running_result(call))
            raise
        if outcome_of(result) == "unknown":  # the record stays that of a call of unknown outcome
            self._note_overdue(running, intent, result)
            return result
        is_made_again = running.repetition.is_wanted and tool.declared.effect in REPEATABLE
        if not running.is_recorded and not is_made_again:
            # What the tool has done is known now, and would not be known again.
            await shielded(asyncio.create_task(self._writer.write(partial(self._records.finish, key=intent.key, result=result))))
        return result

    def _note_overdue(self, running: RunningCall, intent: EffectIntent, result: ToolResult) -> None:
        late = None if running.overdue is None else asyncio.create_task(self._record_late(running.overdue, intent))
        self._overdue.note(intent.action, intent.key, result, late)

    async def _record_late(self, running: "asyncio.Task[ToolResult]", intent: EffectIntent) -> ToolResult:
        """Wait for a call that ran past its limit and record its true result, if this process still owns the run."""
        result = await running
        try:
            await self._writer.write(partial(self._records.finish, key=intent.key, result=result))
        except NearfarError as error:
            logger.warning("the late result of %s is not recorded: %s", intent.tool, error)
        return result

    async def _may_run_again(self, call: ToolCall, tool: Tool, intent: EffectIntent) -> bool:
        """Decide whether to repeat a call that was begun and whose outcome is unknown."""
        may = tool.declared.effect is not Effect.AT_MOST_ONCE
        if not may and self._approver is not None:
            reason = f"it is not known whether this call of {tool.name} took effect: approving it runs it again"
            request = ApprovalRequest(id=_request_id(intent), call=call, reason=reason)
            may = (await ask_approver(self._approver, [request]))[request.id]
        if may:
            await self._writer.write(partial(self._records.begin_again, intent=intent))
        return may

    async def _wait_for_decisions(self, asked: Sequence[AskedCall], requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        """Raise LangGraph's interrupt until all requests are decided; then return the decisions."""
        from langgraph.types import interrupt

        answers: Mapping[str, bool] = {}
        while any(request.call.id not in answers for request in requests):
            interrupt([request.model_dump(mode="json") for request in requests])
            answers = await self.known(asked)
        return answers

    def _intent(self, tool: Tool, occurrence: Occurrence) -> EffectIntent:
        action = digest(self._scope, occurrence.action)
        return EffectIntent(
            key=digest((self._user, self._records.run), action, occurrence.ordinal),
            action=action,
            ordinal=occurrence.ordinal,
            turn=occurrence.turn,
            tool=tool.name,
            version=digest(tool.spec.parameters, tool.declared.effect)[:16],
        )


def _request_id(intent: EffectIntent) -> str:
    """Return the id by which a request about the effect is answered."""
    return intent.key[:12]


def open_ledger(
    store: "RunStore", lease: "Lease", approver: Approver | None, *, user: str = "", overdue: Overdue | None = None
) -> EffectLedger:
    """Return the ledger of a user's run that is worked on under a lease."""
    from .leases import check_lease

    def fence(session: DatabaseSession) -> None:
        check_lease(session, lease)

    records = EffectRecords(store.database, lease.run, epoch=lease.epoch, fence=fence)
    return EffectLedger(records, store.writer, approver=approver, user=user, overdue=overdue)


def _replay(entry: EffectEntry, result: ToolResult, call: ToolCall, intent: EffectIntent) -> ToolResult:
    """Return the recorded result. It says so if another agent made the call in an earlier turn."""
    return result.model_copy(update={"call_id": call.id}) if entry.turn == intent.turn else mark_looked_up(call, result)


def _is_failed_try(entry: EffectEntry, result: ToolResult, tool: Tool, intent: EffectIntent) -> bool:
    """Return whether the call retries one that failed in an earlier turn, and may be repeated."""
    return tool.declared.effect is Effect.IDEMPOTENT and result.is_error and entry.turn != intent.turn


def _error(call: ToolCall, problem: str) -> ToolResult:
    return ToolResult(call_id=call.id, name=call.name, content=problem, is_error=True)


def pending_requests(database: TableDatabase, run: str) -> tuple[ApprovalRequest, ...]:
    """Return the requests that a run waits for, in the order in which they were made. Raises the database's errors."""
    with database.reading() as session:
        query = "SELECT request FROM effects WHERE run = ? AND state = 'asked' ORDER BY number"
        found = session.execute(query, (run,)).fetchall()
    return tuple(parse_record(ApprovalRequest, run, request) for (request,) in found)


def record_decisions(database: TableDatabase, run: str, approvals: Mapping[str, bool]) -> None:
    """Record decisions, by the requests' ids. One that was made before may be given again: the run may have failed behind it, or its
    process may have died during the call.

    Raises `NotFound`, and records nothing, if the run waits for no such request.
    """
    listed = ", ".join(request.id for request in pending_requests(database, run)) or "nothing"
    statement = "UPDATE effects SET state = ? WHERE run = ? AND state = 'asked' AND substr(key, 1, 12) = ?"
    known = "SELECT 1 FROM effects WHERE run = ? AND substr(key, 1, 12) = ? AND state IN (?, ?, ?)"
    with database.writing() as session:
        for identifier, is_approved in approvals.items():
            state = EffectState.APPROVED if is_approved else EffectState.DENIED
            later = (EffectState.BEGUN, EffectState.DONE) if is_approved else (state, state)
            if session.execute(statement, (state, run, identifier)).rowcount == 1:
                continue
            if session.execute(known, (run, identifier, state, *later)).fetchone() is None:
                raise NotFound(f"run {run} does not wait for {identifier}", hint=f"it waits for: {listed}")


def approval_error(run: str, state: Mapping[str, Any]) -> ApprovalNeeded | None:
    """Return the error for a run whose graph has stopped for approvals; None if it has not."""
    interrupts: Sequence[Any] = state.get("__interrupt__", ())
    requests = [ApprovalRequest.model_validate(request) for interrupt in interrupts for request in interrupt.value]
    if not requests:
        return None
    asked = ", ".join(f"{request.call.name} ({request.id})" for request in requests)
    hint = f"resume with approvals={{...}}, or: nearfar runs resume {run} --approve {requests[0].id}, or --deny {requests[0].id}"
    return ApprovalNeeded(f"run {run} needs approval of {asked}", hint=hint, run=run, requests=requests)
