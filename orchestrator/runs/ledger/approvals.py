"""Approvals: tool calls that a run waits for, and the decisions about them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ....protocols import ApprovalNeeded, ApprovalRequest, NotFound
from ...storage.tables import TableDatabase
from ...task.tools import Tool
from ..run import damaged
from .occurrences import Occurrence
from .records import EffectState


def waiting(database: TableDatabase, run: str) -> tuple[ApprovalRequest, ...]:
    """Return the requests that a run waits for, in the order in which they were made. Raises the database's errors."""
    with database.reading() as session:
        query = "SELECT request FROM effects WHERE run = ? AND state = 'asked' ORDER BY number"
        found = session.execute(query, (run,)).fetchall()
    try:
        return tuple(ApprovalRequest.model_validate_json(request) for (request,) in found)
    except ValueError as error:
        raise damaged(run) from error


def decide(database: TableDatabase, run: str, approvals: Mapping[str, bool]) -> None:
    """Record decisions, by the requests' ids.

    Raises `NotFound`, and records nothing, if the run waits for no such request.
    """
    listed = ", ".join(request.id for request in waiting(database, run)) or "nothing"
    statement = "UPDATE effects SET state = ? WHERE run = ? AND state = 'asked' AND substr(key, 1, 12) = ?"
    with database.writing() as session:
        for identifier, is_approved in approvals.items():
            state = EffectState.APPROVED if is_approved else EffectState.DENIED
            if session.execute(statement, (state, run, identifier)).rowcount != 1:
                raise NotFound(f"run {run} does not wait for {identifier}", hint=f"it waits for: {listed}")


def needed(run: str, state: Mapping[str, Any]) -> ApprovalNeeded | None:
    """Return the error for a run whose graph has stopped for approvals; None if it has not."""
    interrupts: Sequence[Any] = state.get("__interrupt__", ())
    requests = [ApprovalRequest.model_validate(request) for interrupt in interrupts for request in interrupt.value]
    if not requests:
        return None
    asked = ", ".join(f"{request.call.name} ({request.id})" for request in requests)
    hint = f"resume with approvals={{...}}, or: nearfar runs resume {run} --approve {requests[0].id}, or --deny {requests[0].id}"
    return ApprovalNeeded(f"run {run} needs approval of {asked}", hint=hint, run=run, requests=requests)


class Asked(NamedTuple):
    """A request, and the tool call that it is about."""

    request: ApprovalRequest
    tool: Tool
    occurrence: Occurrence
