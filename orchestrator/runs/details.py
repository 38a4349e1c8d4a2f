"""Details of one run for its user: progress, attempts, and pending approvals."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...protocols import ApprovalRequest
from ...protocols.messages import Value
from ..task.results import Attempt, Result
from .ledger.approvals import waiting
from .run import Run, RunFailure, damaged
from .store import RunStore

_NEXT: Final = "branch:to:"
"""LangGraph's prefix for the channel that starts a node."""


class RunDetails(Value):
    """Details of one run."""

    run: Run
    prompt: str
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    next: tuple[str, ...] = ()
    """Nodes that a resumed run starts with; none if it has ended, or has not begun."""
    attempts: tuple[Attempt, ...] = ()
    calls: int = 0
    """Number of calls of agents."""
    waits_for: tuple[ApprovalRequest, ...] = ()
    answer: str | None = None
    failure: RunFailure | None = None


def details(store: RunStore, run: str, *, user: str | None = None) -> RunDetails:
    """Return the details of a run.

    Raises `NotFound` if the user has no such run, `StoreCorrupt` if its record is damaged.
    """
    known = store.show(run, user=user)
    kept = store.task(run)
    prompts = [message.text for message in kept.task.messages if message.role == "user"]
    outcome = store.outcome(run)
    shown = RunDetails(run=known, prompt=prompts[-1], tools=kept.tools, agents=kept.agents, waits_for=waiting(store.database, run))
    if isinstance(outcome, str):
        return shown.model_copy(update=_of_result(run, outcome))
    found = store.checkpointer.get_tuple({"configurable": {"thread_id": run}})
    state = {} if found is None else found.checkpoint["channel_values"]
    return shown.model_copy(update={**_of_state(state), "failure": outcome})


def _of_result(run: str, outcome: str) -> Mapping[str, object]:
    try:
        result = Result.model_validate_json(outcome)
    except ValueError as error:
        raise damaged(run) from error
    return {"attempts": result.attempts, "calls": len(result.calls), "answer": result.text}


def _of_state(state: Mapping[str, Any]) -> Mapping[str, object]:
    attempts: Iterable[Any] = [*state.get("attempts", ()), *([state["draft"]] if state.get("draft") else [])]
    return {
        "attempts": tuple(Attempt.model_validate(attempt) for attempt in attempts),
        "calls": len(state.get("calls", ())),
        "next": tuple(sorted(channel.removeprefix(_NEXT) for channel in state if channel.startswith(_NEXT))),
    }
