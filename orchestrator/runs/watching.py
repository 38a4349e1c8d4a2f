"""Watch runs: their details, and requests of any process to cancel one."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ...protocols import ApprovalRequest, Cancelled, StoreError
from ...protocols.steps import Value
from ..task.results import Attempt, Result
from ..util.runtime import in_thread
from .ledger import pending_requests
from .run import Run, RunFailure, parse_record
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


def read_details(store: RunStore, run: str, *, user: str | None = None) -> RunDetails:
    """Return the details of a run.

    Raises `NotFound` if the user has no such run, `StoreCorrupt` if its record is damaged.
    """
    run_line = store.show(run, user=user)
    kept = store.task(run)
    prompts = [message.text for message in kept.task.messages if message.role == "user"]
    outcome = store.outcome(run)
    shown = RunDetails(
        run=run_line, prompt=prompts[-1], tools=kept.tools, agents=kept.agents, waits_for=pending_requests(store.database, run)
    )
    if isinstance(outcome, str):
        result = parse_record(Result, run, outcome)
        return shown.model_copy(update={"attempts": result.attempts, "calls": len(result.calls), "answer": result.text})
    found = store.checkpointer.get_tuple({"configurable": {"thread_id": run}})
    state = {} if found is None else found.checkpoint["channel_values"]
    return shown.model_copy(update={**_fields_of_state(state), "failure": outcome})


def _fields_of_state(state: Mapping[str, Any]) -> Mapping[str, object]:
    attempts: Iterable[Any] = [*state.get("attempts", ()), *([state["draft"]] if state.get("draft") else [])]
    return {
        "attempts": tuple(Attempt.model_validate(attempt) for attempt in attempts),
        "calls": len(state.get("calls", ())),
        "next": tuple(sorted(channel.removeprefix(_NEXT) for channel in state if channel.startswith(_NEXT))),
    }


logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the store, for all runs of the process at once."""


class CancellationWatch:
    """Cancels what agents are saying as soon as it notices a request, but never a running tool, whose outcome would be unknown."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._under_way: dict[str, tuple[asyncio.Task[object], Callable[[], bool]]] = {}
        self._cut_off: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def cancel_on_request(self, run: str, is_in_tool: Callable[[], bool]) -> Iterator[None]:
        """Raise `Cancelled` within the block once the run's cancellation is requested, unless one of its tools is at work."""
        task = asyncio.current_task()
        assert task is not None, "it is awaited"
        self._under_way[run] = task, is_in_tool
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        except asyncio.CancelledError:
            if run not in self._cut_off:
                raise
            task.uncancel()
            raise Cancelled(f"run {run} was cancelled") from None
        finally:
            del self._under_way[run]
            self._cut_off.discard(run)
            if not self._under_way:
                self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                asked = await in_thread(self._store.to_be_cancelled)
            except StoreError as error:  # a run hears of it behind its step in any case
                logger.warning("requests to cancel runs could not be read: %s", error)
                continue
            for run in self._under_way.keys() & asked - self._cut_off:
                task, is_in_tool = self._under_way[run]
                if not is_in_tool():
                    self._cut_off.add(run)
                    task.cancel()
