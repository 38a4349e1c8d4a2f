"""`A2aTasks`: the tasks of callers as durable runs of a `Hybrid`, each begun once, however often its message comes."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, Self, cast
from weakref import WeakValueDictionary

import anyio
from a2a.types import ListTasksRequest, ListTasksResponse, Message, Task, TaskState
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict

from ...protocols import ApprovalNeeded, InternalError, NearfarError, NotFound
from ...protocols.secrets import log_defect
from ..compose.hub import ServeConfig
from ..hybrid import Hybrid
from ..hybrid.arguments import TaskOptions
from ..runs.ledger import pending_requests
from ..serve.callers import BY_POLICY, read_options, turn_options
from ..task.events import TaskEvent
from ..util.runtime import cancel_task, in_thread
from .records import ENDED, PREFIX, SETTLED, A2aMessages, A2aRecords, LiveTask, Update

logger = logging.getLogger(__name__)

_YES: Final = frozenset({"yes", "y", "approve", "approved"})
_NO: Final = frozenset({"no", "n", "deny", "denied"})
_CANCEL_SECONDS: Final = 30.0
"""Seconds for a run to end that is cancelled: a tool at work is waited for."""


class A2aTasks:
    """The tasks that callers of one agent have sent. Used as a context manager: tasks that a dead process left behind are resumed, and what
    is under way in the end is left for the next process to resume.

    Args:
        hybrid: serves them; it keeps runs.
        config: says what each caller may do.
    """

    def __init__(self, hybrid: Hybrid, config: ServeConfig) -> None:
        self.hybrid = hybrid
        """Serves them."""
        self._config = config
        self._messages = A2aMessages(hybrid.runs)
        self._records = A2aRecords(hybrid.runs, self._messages)
        self._live: WeakValueDictionary[str, LiveTask] = WeakValueDictionary()
        """By run: the tasks that are worked on, or that somebody listens to."""
        self._works: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._messages.open()
        for run in await in_thread(self.hybrid.runs.orphans):
            if run.id.startswith(PREFIX):
                live = await self._open(run.id, run.user)
                self._start(live, self.hybrid.follow(run.id, user=run.user))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            for work in tuple(self._works):
                await cancel_task(work)
        self._messages.close()

    async def send(self, message: Message, caller: str) -> LiveTask:
        """Return the task that a message begins or continues. A message that came before begins nothing again.

        Raises `NotFound` for a task of another user, `InvalidRequest` for a message that cannot be used, and `PermissionDenied` for one
        that asks for more than its caller may.
        """
        if message.task_id:
            return await self._continue(message, caller)
        run, user = self.run_of(message, caller), self.user_of(caller)
        options = self._options(message, caller)
        message.task_id = run
        message.context_id = message.context_id or run
        prompt = self.prompt_of(message)
        kept = await self._messages.add(run, user, message)
        if kept != message:
            raise InvalidParamsError(f"messageId {message.message_id!r} was used for another message")
        if (live := self._live.get(run)) is not None:
            return live
        try:
            return await self._open(run, user)
        except NotFound:
            live = self._live.setdefault(run, LiveTask(_submitted(message), user))
        if live.work is None:
            self._start(live, self._begun(live, prompt, options))
        return live

    async def read(self, run: str, caller: str) -> Task:
        """Return a task of a caller."""
        user = self.user_of(caller)
        live = self._live.get(run)
        if live is not None and live.user == user:
            return live.snapshot()
        return await in_thread(self._records.read, run, user)

    async def list(self, asked: ListTasksRequest, caller: str) -> ListTasksResponse:
        """Return a page of a caller's tasks."""
        return await in_thread(self._records.list, asked, self.user_of(caller))

    async def cancel(self, run: str, caller: str) -> Task:
        """Cancel a task and return it when it has ended: as it is after half a minute, if a tool is still at work."""
        live = await self._mine(run, caller)
        if live.task.status.state in ENDED:
            raise TaskNotCancelableError(f"task {run} has ended")
        try:
            await self.hybrid.cancel(run, user=live.user)
        except NotFound:  # it waits for an earlier task of its conversation
            assert live.work is not None, "there is a run otherwise"
            await cancel_task(live.work)
            live.tell(TaskState.TASK_STATE_CANCELED)
        if live.task.status.state not in ENDED and (live.work is None or live.work.done()):
            live.settle(await in_thread(self._records.read, run, live.user))
        with anyio.move_on_after(_CANCEL_SECONDS):
            return await self.settled(live)
        return live.snapshot()

    async def follow(self, run: str, caller: str) -> AsyncGenerator[Task | Update, None]:
        """Yield a task that has not ended, and then its updates until it ends."""
        live = await self._mine(run, caller)
        if live.task.status.state in ENDED:
            raise UnsupportedOperationError(f"task {run} has ended; GetTask returns it")
        async with aclosing(self.updates(live, ENDED)) as updates:
            async for update in updates:
                yield update

    async def updates(self, live: LiveTask, ends: frozenset[int] = SETTLED) -> AsyncGenerator[Task | Update, None]:
        """Yield a task, and then its updates up to a state among `ends`. Raises the error of work that never became a run."""
        async with aclosing(live.follow(ends)) as updates:
            async for update in updates:
                if live.error is not None:
                    raise live.error
                yield update

    async def settled(self, live: LiveTask) -> Task:
        """Return a task when it has ended or waits for its caller."""
        async with aclosing(self.updates(live)) as updates:
            async for _ in updates:
                pass
        return live.snapshot()

    def user_of(self, caller: str) -> str:
        """Return the user on whose behalf a caller's tasks are served."""
        return self._config.caller(caller).user or caller

    def run_of(self, message: Message, caller: str) -> str:
        """Return the run that a message begins: the same one for the same message of the same user."""
        named = json.dumps([self.user_of(caller), message.message_id])
        return f"{PREFIX}{sha256(named.encode()).hexdigest()[:32]}"

    def prompt_of(self, message: Message) -> str:
        """Return the prompt that a message stands for. Raises `ContentTypeNotSupportedError` for parts that are neither text nor JSON."""
        return "\n\n".join(map(_text_of, message.parts))

    def decision_of(self, message: Message) -> bool | None:
        """Return what a message says to the question about tool calls; None: neither yes nor no."""
        word = self.prompt_of(message).strip().rstrip(".!").casefold()
        return True if word in _YES else False if word in _NO else None

    def _options(self, message: Message, caller: str) -> TaskOptions:
        """Return the options of a task: those of its caller, narrowed by the object `nearfar` of the message's metadata."""
        asked = MessageToDict(message.metadata).get("nearfar", {})
        options, _ = read_options({}, {"nearfar": asked})
        model = asked.get("model", BY_POLICY) if isinstance(asked, Mapping) else BY_POLICY
        return cast(TaskOptions, turn_options(self.hybrid, caller, self._config.caller(caller), model, options))

    async def _begun(self, live: LiveTask, prompt: str, options: TaskOptions) -> AsyncGenerator[TaskEvent, None]:
        given: dict[str, Any] = {**options, "idempotency_key": live.task.id}
        del given["user"]
        session = self.hybrid.session(live.task.context_id, user=live.user)
        session.is_resumable = True
        async with aclosing(session.stream(prompt, **cast(TaskOptions, given))) as events:
            async for event in events:
                yield event

    async def _continue(self, message: Message, caller: str) -> LiveTask:
        live = await self._mine(message.task_id, caller)
        if message.context_id not in ("", live.task.context_id):
            raise InvalidParamsError(f"task {message.task_id} belongs to another context than {message.context_id!r}")
        message.context_id = live.task.context_id
        if any(each.message_id == message.message_id for each in live.task.history):
            return live
        if live.task.status.state in ENDED:
            raise UnsupportedOperationError(f"task {message.task_id} has ended; begin another one in its context")
        decision = self.decision_of(message)
        if live.task.status.state != TaskState.TASK_STATE_INPUT_REQUIRED:
            raise UnsupportedOperationError(f"task {message.task_id} is being worked on, and asks nothing")
        live.task.history.append(message)  # before the first wait: the same message may come twice at the same time
        if decision is None:
            await self._messages.add(live.task.id, live.user, message)
        else:  # nor does this wait: a second answer finds that nothing is asked any more
            live.tell(TaskState.TASK_STATE_WORKING)
            self._start(live, self._decided(live, message, approve=decision))
        return live

    async def _decided(self, live: LiveTask, message: Message, *, approve: bool) -> AsyncGenerator[TaskEvent, None]:
        await self._messages.add(live.task.id, live.user, message)
        requests = await in_thread(pending_requests, self.hybrid.runs.database, live.task.id)
        approvals = {request.id: approve for request in requests}
        async with aclosing(self.hybrid.follow(live.task.id, user=live.user, approvals=approvals)) as events:
            async for event in events:
                yield event

    async def _mine(self, run: str, caller: str) -> LiveTask:
        """Return a task of a caller. Raises `NotFound` for one of another user."""
        user = self.user_of(caller)
        live = self._live.get(run)
        return live if live is not None and live.user == user else await self._open(run, user)

    async def _open(self, run: str, user: str) -> LiveTask:
        """Return a task from the record. All that hold it at the same time share it."""
        task = await in_thread(self._records.read, run, user)
        return self._live.setdefault(run, LiveTask(task, user))

    def _start(self, live: LiveTask, events: AsyncGenerator[TaskEvent, None]) -> None:
        live.work = asyncio.create_task(self._serve(live, events))
        self._works.add(live.work)
        live.work.add_done_callback(self._works.discard)

    async def _serve(self, live: LiveTask, events: AsyncGenerator[TaskEvent, None]) -> None:
        """Work on a task, and publish what happens, up to the state that is then on record."""
        try:
            async with aclosing(events):
                async for event in events:
                    live.hear(event)
        except ApprovalNeeded:
            pass
        except NearfarError as error:
            live.error = error
        except Exception as defect:  # the boundary of a task: its callers learn that it failed, and the log where
            log_defect(logger, f"task {live.task.id} failed", defect)
            live.error = InternalError("the task failed unexpectedly", hint="the server's log has the details")
        await self._conclude(live)

    async def _conclude(self, live: LiveTask) -> None:
        try:
            task = await in_thread(self._records.read, live.task.id, live.user)
        except NotFound:
            live.tell(TaskState.TASK_STATE_FAILED)
        else:
            live.error = None
            del live.task.history[:]  # an answer that could not be kept may be sent again
            live.task.history.extend(task.history)
            live.settle(task)


def _submitted(message: Message) -> Task:
    task = Task(id=message.task_id, context_id=message.context_id, history=[message])
    task.status.state = TaskState.TASK_STATE_SUBMITTED
    task.status.timestamp.GetCurrentTime()
    return task


def _text_of(part: Any) -> str:  # noqa: ANN401 - a part of any message
    kind = part.WhichOneof("content")
    if kind == "text":
        return str(part.text)
    if kind == "data":
        return json.dumps(MessageToDict(part.data), ensure_ascii=False)
    raise ContentTypeNotSupportedError(f"parts must be text or JSON, not {part.media_type or kind}")
