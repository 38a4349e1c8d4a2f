"""Tasks as A2A clients see them: those that run now, those on record, and the messages that clients have sent about them."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias

from a2a.types import (
    Artifact,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
from google.protobuf.json_format import MessageToJson, Parse, ParseDict
from google.protobuf.struct_pb2 import Struct

from ...protocols import ApprovalRequest, NearfarError, NotFound
from ..runs import Run, RunFailure, RunState, parse_record
from ..runs.ledger import pending_requests
from ..runs.store import RunStore
from ..storage import DatabaseSession, Tables
from ..task.context import question_text
from ..task.events import AttemptEnded, AttemptStarted, CallEnded, TaskEvent, TaskFinished, ToolFinished, ToolStarted
from ..task.results import Result

TABLES: Final = Tables(
    part="a2a",
    version=1,
    sql="""
CREATE TABLE a2a_messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, user_name TEXT NOT NULL, context TEXT NOT NULL, message TEXT NOT NULL,
    content TEXT NOT NULL, UNIQUE (run, message)
);
CREATE INDEX a2a_messages_of_context ON a2a_messages (user_name, context);
""",
)
"""`message` is the id that the caller chose, and `context` that of the conversation."""


class A2aMessages:
    """The messages in a store of runs. Calls that are not awaited wait for the database; they may come from any thread.

    Raises `StoreUnavailable` if the database cannot be used now.
    """

    def __init__(self, runs: RunStore) -> None:
        runs.database.require(TABLES)
        self._runs = runs

    def open(self) -> None:
        """Forget the messages of runs that are forgotten from now on."""
        self._runs.forgetting.append(self._forget)

    def close(self) -> None:
        """Stop listening to the store."""
        self._runs.forgetting.remove(self._forget)

    async def add(self, run: str, user: str, message: Message) -> Message:
        """Keep a message about a run, and return the one that is kept under its id: an earlier one, if it was sent before."""
        kept: str = await self._runs.writer.write(partial(self._add, run=run, user=user, message=message))
        return Parse(kept, Message(), ignore_unknown_fields=True)

    def of(self, run: str) -> Sequence[Message]:
        """Return the messages about a run, in the order in which they came."""
        query = "SELECT content FROM a2a_messages WHERE run = ? ORDER BY number"
        with self._runs.database.reading() as session:
            found = session.execute(query, (run,)).fetchall()
        return [Parse(content, Message(), ignore_unknown_fields=True) for (content,) in found]

    def of_context(self, context: str, user: str) -> set[str]:
        """Return the runs of a user's conversation."""
        query = "SELECT DISTINCT run FROM a2a_messages WHERE user_name = ? AND context = ?"
        with self._runs.database.reading() as session:
            return {run for (run,) in session.execute(query, (user, context)).fetchall()}

    def _add(self, session: DatabaseSession, *, run: str, user: str, message: Message) -> str:
        values = (run, user, message.context_id, message.message_id, MessageToJson(message, indent=None))
        insert = "INSERT INTO a2a_messages (run, user_name, context, message, content) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        session.execute(insert, values)
        query = "SELECT content FROM a2a_messages WHERE run = ? AND message = ?"
        return str(session.execute(query, (run, message.message_id)).fetchone()[0])

    def _forget(self, runs: Iterable[str]) -> None:
        self._runs.writer.submit(partial(self._drop, runs=tuple(runs))).result()

    def _drop(self, session: DatabaseSession, *, runs: Sequence[str]) -> None:
        for run in runs:
            session.execute("DELETE FROM a2a_messages WHERE run = ?", (run,))


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
    return said(run, context, "\n".join([*map(question_text, requests), "Answer yes to run it, or no."]), about="question")


Update: TypeAlias = TaskStatusUpdateEvent | TaskArtifactUpdateEvent
_PIECE: Final = 2_000
"""Characters of one piece of an answer."""


class LiveTask:
    """A task that this process works on, or that callers listen to.

    Args:
        task: the task as it is now. It changes with what is published.
        user: its owner.
    """

    def __init__(self, task: Task, user: str) -> None:
        self.task = task
        self.user = user
        self.work: asyncio.Task[None] | None = None
        """Works on it; None: nothing does."""
        self.error: NearfarError | None = None
        """Ended the work before there was a run to resume."""
        self._listeners: set[asyncio.Queue[Update]] = set()

    def snapshot(self) -> Task:
        """Return a copy of the task as it is now."""
        copy = Task()
        copy.CopyFrom(self.task)
        return copy

    def publish(self, update: Update) -> None:
        """Change the task, and tell its listeners."""
        if isinstance(update, TaskStatusUpdateEvent):
            self.task.status.CopyFrom(update.status)
        else:
            self._add(update)
        for listener in self._listeners:
            listener.put_nowait(update)

    def tell(self, state: TaskState, about: dict[str, Any] | None = None) -> None:
        """Publish a state, with metadata `about` what has happened."""
        status = TaskStatus(state=state, timestamp=datetime.now(UTC))
        metadata = None if about is None else facts(about)
        self.publish(TaskStatusUpdateEvent(task_id=self.task.id, context_id=self.task.context_id, status=status, metadata=metadata))

    def settle(self, task: Task) -> None:
        """Publish the state that is on record."""
        self.publish(TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status))

    def hear(self, event: TaskEvent) -> None:
        """Publish what an event of the run tells."""
        if isinstance(event, TaskFinished):
            self.give(answer_of(event.result))
        elif about := _about(event):
            self.tell(TaskState.TASK_STATE_WORKING, about)

    def give(self, artifact: Artifact) -> None:
        """Publish an artifact; a long text in pieces."""
        pieces = list(_pieces(artifact))
        for place, piece in enumerate(pieces):
            is_last = place == len(pieces) - 1
            update = TaskArtifactUpdateEvent(
                task_id=self.task.id, context_id=self.task.context_id, artifact=piece, append=place > 0, last_chunk=is_last
            )
            self.publish(update)

    async def follow(self, ends: Collection[int]) -> AsyncGenerator[Task | Update, None]:
        """Yield the task as it is, and then its updates, up to the first state among `ends`."""
        updates: asyncio.Queue[Update] = asyncio.Queue()
        self._listeners.add(updates)
        try:
            now = self.snapshot()
            state = now.status.state
            yield now
            while state not in ends:
                update = await updates.get()
                if isinstance(update, TaskStatusUpdateEvent):
                    state = update.status.state
                yield update
        finally:
            self._listeners.discard(updates)

    def _add(self, update: TaskArtifactUpdateEvent) -> None:
        known = next((each for each in self.task.artifacts if each.artifact_id == update.artifact.artifact_id), None)
        if known is None:
            self.task.artifacts.append(update.artifact)
        elif update.append:
            known.parts.extend(update.artifact.parts)
        else:
            known.CopyFrom(update.artifact)


def _about(event: TaskEvent) -> dict[str, Any] | None:
    """Return what a caller is told of an event. Texts of drafts are not: another agent may still replace them."""
    match event:
        case AttemptStarted():
            return {"event": event.type, "agent": event.agent, "side": str(event.side), "model": event.model}
        case AttemptEnded(attempt=attempt):
            return {
                "event": event.type,
                **_chosen(attempt, "agent", "side", "model", "outcome", "reason", "confidence", "seconds", "dollars"),
            }
        case CallEnded(call=call):
            tokens = {"input_tokens": call.usage.input_tokens, "output_tokens": call.usage.output_tokens}
            return {"event": event.type, **_chosen(call, "role", "agent", "side", "model", "seconds", "dollars"), **tokens}
        case ToolStarted():
            return {"event": event.type, "tool": event.call.name, "call": event.call.id}
        case ToolFinished():
            return {"event": event.type, "call": event.result.call_id}
    return None


def _chosen(value: object, *names: str) -> dict[str, Any]:
    """Return fields as JSON has them."""
    found = {name: getattr(value, name) for name in names}
    return {name: each if each is None or isinstance(each, (str, float)) else float(each) for name, each in found.items()}


def _pieces(artifact: Artifact) -> Iterator[Artifact]:
    """Yield the artifact whole or, if it is one long text, in pieces of its text."""
    text = artifact.parts[0].text
    if len(artifact.parts) != 1 or len(text) <= _PIECE:
        yield artifact
        return
    for begin in range(0, len(text), _PIECE):
        piece = Artifact()
        piece.CopyFrom(artifact)
        piece.parts[0].CopyFrom(Part(text=text[begin : begin + _PIECE], media_type=artifact.parts[0].media_type))
        yield piece
