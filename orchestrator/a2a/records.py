"""Tasks of the protocol as the run store tells them: state, answer, and what was said about them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from a2a.types import (
    Artifact,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from ...protocols import ApprovalRequest, NotFound
from ..runs.ledger import pending_requests
from ..runs.run import Run, RunFailure, RunState, parse_record
from ..runs.store import RunStore
from ..task.results import Result
from ..util.escaping import spell_out
from .messages import A2aMessages

PREFIX: Final = "a2a-"
"""Beginning of the ids of runs that were begun here. Callers see no others."""
ANSWER: Final = "answer"
"""Id of the artifact that holds the answer."""
ENDED: Final = frozenset(
    {TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED, TaskState.TASK_STATE_REJECTED}
)
SETTLED: Final = ENDED | {TaskState.TASK_STATE_INPUT_REQUIRED}
"""States in which a task waits for its caller, or for nothing."""
_STATES: Final[Mapping[RunState, TaskState]] = {
    RunState.RUNNING: TaskState.TASK_STATE_WORKING,
    RunState.WAITING: TaskState.TASK_STATE_INPUT_REQUIRED,
    RunState.DONE: TaskState.TASK_STATE_COMPLETED,
    RunState.FAILED: TaskState.TASK_STATE_FAILED,
    RunState.CANCELLED: TaskState.TASK_STATE_CANCELED,
}
_REFUSALS: Final = frozenset({"PermissionDenied", "PrivacyViolation"})
"""Errors by which a policy refuses a task."""
_MOST_LISTED: Final = 10_000


class A2aRecords:
    """The tasks of callers on record. Calls wait for the database; they may come from any thread.

    Raises `NotFound` for a task of another user, and what a `RunStore` raises.
    """

    def __init__(self, runs: RunStore, messages: A2aMessages) -> None:
        self._runs = runs
        self._messages = messages

    def read(self, run: str, user: str) -> Task:
        """Return a task of a user."""
        if not run.startswith(PREFIX):
            raise NotFound(f"there is no task {run!r}", hint="ListTasks lists those of this caller")
        return self._task(self._runs.show(run, user=user))

    def list(self, asked: ListTasksRequest, user: str) -> ListTasksResponse:
        """Return a page of the tasks of a user, the one that has changed last first."""
        runs = [run for run in self._runs.list(user=user, limit=_MOST_LISTED) if run.id.startswith(PREFIX)]
        if asked.context_id:
            known = self._messages.of_context(asked.context_id, user)
            runs = [run for run in runs if run.id in known]
        since = asked.status_timestamp_after.ToNanoseconds() if asked.HasField("status_timestamp_after") else 0
        runs = [run for run in runs if _changed(run) >= since and (not asked.status or self._state(run) == asked.status)]
        runs.sort(key=_place, reverse=True)
        size, begin = asked.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE, _first(runs, asked.page_token)
        page = runs[begin : begin + size]
        more = encode_list_tasks_cursor(ListTasksCursor(_changed(page[-1]), page[-1].id)) if begin + size < len(runs) else ""
        return ListTasksResponse(tasks=map(self._task, page), total_size=len(runs), page_size=size, next_page_token=more)

    def _task(self, run: Run) -> Task:
        outcome, history = self._runs.outcome(run.id), self._messages.of(run.id)
        result = parse_record(Result, run.id, outcome) if isinstance(outcome, str) else None
        task = Task(id=run.id, context_id=history[0].context_id if history else run.id, history=history)
        task.status.CopyFrom(self._status(run, task.context_id, outcome if isinstance(outcome, RunFailure) else None))
        if result is not None:
            task.artifacts.append(answer_of(result))
        return task

    def _state(self, run: Run) -> TaskState:
        if run.state is RunState.FAILED:
            return _state_of_failure(self._runs.outcome(run.id))
        return _STATES[run.state]

    def _status(self, run: Run, context: str, failure: RunFailure | None) -> TaskStatus:
        state = _state_of_failure(failure) if run.state is RunState.FAILED else _STATES[run.state]
        status = TaskStatus(state=state, timestamp=datetime.fromtimestamp(run.ended or run.began, UTC))
        if run.state is RunState.WAITING:
            status.message.CopyFrom(question(run.id, context, pending_requests(self._runs.database, run.id)))
        elif failure is not None and run.state is RunState.FAILED:
            status.message.CopyFrom(said(run.id, context, f"{failure.error}: {failure.message}"))
        return status


def _state_of_failure(failure: object) -> TaskState:
    is_refusal = isinstance(failure, RunFailure) and failure.error in _REFUSALS
    return TaskState.TASK_STATE_REJECTED if is_refusal else TaskState.TASK_STATE_FAILED


def _changed(run: Run) -> int:
    """Return when the state of a run is known to have changed last, in nanoseconds."""
    return int((run.ended or run.began) * 1e6) * 1000


def _place(run: Run) -> tuple[bool, int, str]:
    return True, _changed(run), run.id


def _first(runs: Sequence[Run], token: str) -> int:
    """Return the place of the first run behind the page that `token` ends."""
    if not token:
        return 0
    cursor = decode_list_tasks_cursor(token)
    if cursor is None:
        raise InvalidParamsError("the page token is none of this agent's")
    return next((place for place, run in enumerate(runs) if _place(run) < cursor.sort_key()), len(runs))


def answer_of(result: Result) -> Artifact:
    """Return the artifact that holds an answer."""
    parts = [Part(text=result.text, media_type="text/plain")]
    return Artifact(artifact_id=ANSWER, name=ANSWER, parts=parts, metadata=facts(_figures(result)))


def _figures(result: Result) -> dict[str, Any]:
    dollars = None if result.dollars is None else float(result.dollars)
    told = {"agent": result.agent, "side": str(result.side), "model": result.model, "attempts": len(result.attempts)}
    return {**told, "dollars": dollars, "confidence": result.confidence, "seconds": result.seconds}


def facts(values: Mapping[str, Any]) -> Struct:
    """Return metadata under the key `nearfar`."""
    return ParseDict({"nearfar": dict(values)}, Struct())


def said(run: str, context: str, text: str, *, about: str = "status") -> Message:
    """Return a message of the agent."""
    parts = [Part(text=text, media_type="text/plain")]
    return Message(message_id=f"{run}-{about}", task_id=run, context_id=context, role=Role.ROLE_AGENT, parts=parts)


def question(run: str, context: str, requests: Iterable[ApprovalRequest]) -> Message:
    """Return the message that asks about tool calls, each with its whole arguments: a call that is cut off cannot be judged."""
    calls = [f"{request.reason}: {request.call.name} {json.dumps(request.call.arguments, ensure_ascii=False)}" for request in requests]
    return said(run, context, "\n".join([*map(spell_out, calls), "Answer yes to run it, or no."]), about="question")
