"""`LiveTask`: a task while something happens to it, or somebody listens."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from a2a.types import Artifact, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent

from ...protocols import NearfarError
from ..task.events import AttemptEnded, AttemptStarted, CallEnded, TaskEvent, TaskFinished, ToolFinished, ToolStarted
from .records import answer_of, facts

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
