"""`Session`: a conversation of one user that a `Hybrid` keeps under a name."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Set
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from itertools import takewhile
from typing import Any, Final, Unpack, cast
from uuid import uuid4

import anyio

from ...protocols import DeadlineExceeded, InvalidRequest, Message, NotFound, Side, StoreError
from ...protocols.items import ItemAddress
from ..runs.sessions import SessionStore, SessionTurn
from ..task import Prompt, as_messages
from ..task.events import TaskEvent, TaskFinished
from ..task.results import Result, SideUsage
from ..util.runtime import calling_task, in_own_task, in_thread
from .arguments import TaskOptions
from .blocking import BlockingCalls
from .pipeline import Pipeline

_logger = logging.getLogger(__name__)

_MOST: Final = 10_000
"""Number of sessions that one process knows; of more, those are forgotten that were used the longest time ago."""
_OF_SESSION: Final = ("session", "user")
_OF_TURN: Final = ("idempotency_key", "session", "thread_id")
_FOR_RESUMING: Final = ("approver", "dependencies", "tools")
"""Options that no record of a run can hold, and that the next turn most likely shares with the one before."""
_SERVED: Final[ContextVar[frozenset[object]]] = ContextVar("nearfar_turns_served", default=frozenset())
"""The turns that have led to the running code. Some may have ended: a tool may leave a task behind that runs on."""


FindErased = Callable[[Set[ItemAddress]], Set[ItemAddress]]
"""Returns those of some items that were erased from the memory."""


class SessionState:
    """The conversation of a session as this process knows it, shared by all `Session` objects of its name and user."""

    def __init__(self, name: str, user: str, store: SessionStore | None, erased: FindErased) -> None:
        self.name = name
        self.user = user
        self.turns: tuple[SessionTurn, ...] = ()
        self.last: Result | None = None
        self._store = store
        self._erased = erased
        self._is_cut = False
        """Turns that the turn under way was told have been dropped."""
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holder: asyncio.Task[Any] | None = None
        """The task that waits for the turn under way."""
        self._turn: object = None
        """The turn under way."""

    def refresh(self) -> None:
        """Read the turns that any process has added, and drop those that were forgotten. Waits for the database."""
        if self._store is not None:
            known = {turn.run: turn for turn in self.turns}
            found = (known.get(run) or self._store.turn(run) for run in self._store.ended(self.name, self.user))
            self.turns = tuple(turn for turn in found if turn is not None)

    def add(self, turn: SessionTurn) -> None:
        """Add a turn that has ended. One that is known is replaced."""
        if self._is_cut:
            self.last = None
            return
        self.turns = (*(known for known in self.turns if known.run != turn.run), turn)
        try:
            self.drop_erased()  # it may have been told an item that was erased meanwhile
        except StoreError as error:  # the answer is paid for, and stands
            _logger.warning("session %r may still hold items erased from the memory: %s", self.name, error)

    def drop_erased(self) -> None:
        """Drop the turns that were told an item which the memory has erased, and all later ones, whose agents were told them."""
        gone = self._erased(frozenset().union(*(turn.recalled for turn in self.turns)))
        kept = tuple(takewhile(lambda turn: not turn.recalled & gone, self.turns))
        if len(kept) < len(self.turns):
            self.turns, self.last, self._is_cut = kept, None, True

    def messages(self, *, before: str = "") -> tuple[Message, ...]:
        """Return the conversation up to the turn of a run; the whole conversation without such a turn."""
        runs = [turn.run for turn in self.turns]
        turns = self.turns[: runs.index(before)] if before in runs else self.turns
        return tuple(message for turn in turns for message in turn.messages)

    @asynccontextmanager
    async def alone(self, seconds: object = None) -> AsyncIterator[None]:
        """Wait until no other turn of the session is served here. Raises `DeadlineExceeded` after `seconds`, if they are a number."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._lock, self._loop = asyncio.Lock(), loop
        lock, mine = self._lock, calling_task()
        if self._turn in _SERVED.get() or (lock.locked() and self._holder is mine):
            hint = "wait for its answer, or close its stream, first; a tool may use a session of another name"
            raise InvalidRequest(f"session {self.name!r} is asked again from within its own turn, and would wait for itself", hint=hint)
        limit = float(seconds) if isinstance(seconds, (int, float)) else None
        with anyio.move_on_after(limit) as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            raise DeadlineExceeded(f"an earlier turn of session {self.name!r} takes longer than {limit:g} s", hint="raise the timeout")
        self._holder, self._turn, self._is_cut = mine, object(), False
        try:
            yield
        finally:
            self._holder = self._turn = None
            lock.release()

    @contextmanager
    def served(self) -> Iterator[None]:
        """Mark what runs within the block as caused by the turn under way."""
        token = _SERVED.set(_SERVED.get() | {self._turn})
        try:
            yield
        finally:
            _SERVED.reset(token)


class SessionStates:
    """The conversations of one `Hybrid`. It holds nothing of it, since the memory holds this."""

    def __init__(self, store: SessionStore | None, erased: FindErased) -> None:
        self._store = store
        self._erased = erased
        self._states: OrderedDict[tuple[str, str], SessionState] = OrderedDict()

    def open(self, name: str, user: str) -> SessionState:
        """Return the conversation of a name and a user."""
        state = self._states.setdefault((user, name), SessionState(name, user, self._store, self._erased))
        self._states.move_to_end((user, name))
        if len(self._states) > _MOST:
            self._states.popitem(last=False)
        return state

    def drop_erased(self) -> None:
        """Drop what sessions without records hold of items that were erased from the memory. Calls may come from any thread."""
        for state in list(self._states.values()):
            state.drop_erased()


class SessionBook:
    """The sessions of one `Hybrid`."""

    def __init__(self, pipeline: Pipeline, blocking: BlockingCalls, erased: FindErased) -> None:
        self._pipeline = pipeline
        self._blocking = blocking
        self.states = SessionStates(pipeline.sessions, erased)

    def open(self, name: object, options: TaskOptions) -> "Session":
        """Return a session. Raises `InvalidRequest` for a name or an option that it cannot have."""
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest("a session needs a name", hint='hybrid.session("ana"), or --session ana')
        user = options.get("user", "")
        if not isinstance(user, str):
            raise InvalidRequest(f"user must be a text, not {type(user).__name__}", hint="on whose behalf the session is served")
        _refuse(options, _OF_TURN, "belongs to one turn, and not to a session")
        given = cast(TaskOptions, {**options, "session": name})
        self._pipeline.preparation.task("?", given)  # a mistake in the options is reported here rather than in the first turn
        return Session(self._pipeline, self.states.open(name, user), options, self._blocking)


class _Turns:
    """The turns of one session, as a `Session` asks for them."""

    def __init__(self, pipeline: Pipeline, state: SessionState, options: TaskOptions, blocking: BlockingCalls) -> None:
        self._pipeline = pipeline
        self._state = state
        self._options = options
        self._blocking = blocking
        self.is_resumable = False
        """A turn whose stream is cancelled is left as one whose process has died: `Hybrid.follow` resumes it. Set by servers."""

    def _asked(self, prompt: Prompt, options: TaskOptions) -> tuple[tuple[Message, ...], TaskOptions]:
        """Return the turn's own messages, and its options with those of the session."""
        _refuse(options, _OF_SESSION, "is an option of the session, and not of a turn")
        given: dict[str, Any] = {
            "idempotency_key": uuid4().hex,
            **self._options,
            **options,
            "session": self._state.name,
            "user": self._state.user,
        }
        turn = cast(TaskOptions, given)
        self._pipeline.preparation.task("?", turn)  # a mistake in the options is reported before the turn waits for others
        return as_messages(prompt), turn

    @asynccontextmanager
    async def _turn(self, given: TaskOptions) -> AsyncIterator[tuple[Message, ...]]:
        """Yield the conversation before the turn, when it is its time. Keep what is left of a turn that ends without an answer."""
        run = given["idempotency_key"]
        async with self._state.alone(given.get("timeout")):
            for interrupted in await self._interrupted():
                await self._resume_if_possible(interrupted, given)
            await in_thread(self._state.refresh)
            try:
                yield self._state.messages(before=run)
            except BaseException as error:  # raised again
                is_stopped = isinstance(error, (asyncio.CancelledError, GeneratorExit)) and not self.is_resumable
                with anyio.CancelScope(shield=True):
                    await self._give_up(run, is_cancelled=is_stopped)
                raise

    async def _interrupted(self) -> list[str]:
        store = self._pipeline.sessions
        return [] if store is None else await in_thread(store.interrupted, self._state.name, self._state.user)

    async def _resume_if_possible(self, run: str, given: TaskOptions) -> None:
        """Finish an interrupted turn. One that cannot be finished waits as a run does, and must not hold the next turn up."""
        try:
            await self._resume(run, given)
        except Exception as error:  # a task boundary: an approver or a model of the app's own may fail each time
            _logger.warning("an interrupted turn of session %r is not finished: %s; nearfar runs resume %s", self._state.name, error, run)

    async def _resume(self, run: str, given: TaskOptions) -> Result:
        options = cast(TaskOptions, {name: value for name, value in given.items() if name in _FOR_RESUMING})
        if "output" in given and await self._pipeline.asks_for(run, given["output"]):
            options["output"] = given["output"]
        with self._state.served():
            return await self._pipeline.resume(run, options, user=self._state.user, approvals={})

    def _keep(self, result: Result) -> None:
        self._state.last = result
        recalled = frozenset(ItemAddress(item.namespace, item.key) for item in result.recalled)
        self._state.add(SessionTurn(run=result.id, messages=result.messages, near=result.near, far=result.far, recalled=recalled))

    async def _give_up(self, run: str, *, is_cancelled: bool) -> None:
        """End a turn without an answer. One that was cancelled is not resumed: it was stopped on purpose."""
        stopped = self._pipeline.stopped.pop(run, None)
        if stopped is not None and self._pipeline.sessions is None:
            self._state.add(SessionTurn(run=run, messages=stopped))
        if is_cancelled and self._pipeline.runs is not None:
            with suppress(NotFound, StoreError):  # it has not begun, or is left as an interrupted run is
                await in_thread(self._pipeline.runs.store.cancel, run, user=self._state.user)


class Session(_Turns):
    """A conversation that a `Hybrid` keeps; made by `Hybrid.session`.

    Turns are served one after the other, also if several tasks ask for them at once. Each is a task of its own: it is told the whole
    conversation, with all tool calls and results, goes first to the agent that answered last, and is as private, and as little trusted, as
    the turns before it. What is too long for an agent is compressed for it, and kept whole here. A turn that fails or is cancelled is no
    part of the conversation, unless its tool calls changed something: then a message says which.

    With `Hybrid(records=...)` the conversation outlives the process. A turn that a killed process left unfinished is finished before the
    next one begins. Without records, the process keeps the 10,000 sessions used last.
    """

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def user(self) -> str:
        return self._state.user

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far. Where it is kept on record it is read from there. Raises `StoreError`."""
        self._state.refresh()
        return self._state.messages()

    @property
    def near(self) -> SideUsage:
        """Usage of the near agents over all answered turns."""
        return self._usage(Side.NEAR)

    @property
    def far(self) -> SideUsage:
        """Usage of the far agents over all answered turns."""
        return self._usage(Side.FAR)

    @property
    def last_result(self) -> Result | None:
        """The result of the last turn that was answered; None: none was. Raises `StoreError`."""
        self._state.refresh()
        store = self._pipeline.sessions
        if store is None:
            return self._state.last
        if (last := self._state.last) is not None and self._state.turns[-1:] and self._state.turns[-1].run == last.id:
            return last  # with the object that is its output
        results = (store.result(turn.run) for turn in reversed(self._state.turns))
        return next((result for result in results if result is not None), None)

    async def send(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Result:
        """Serve the next turn and return its outcome; `Result.messages` holds the turn's own messages. `prompt` and `options` are those of
        `Hybrid.run`.

        Raises what `Hybrid.run` raises, and `InvalidRequest` from within a turn of the same session. `timeout` counts from the moment at
        which the turns before it have ended, for which it waits as long at most.
        """
        asked, given = self._asked(prompt, options)
        async with self._turn(given) as earlier:
            with self._state.served():
                result = await self._pipeline.run([*earlier, *asked], given, turn=len(asked))
            self._keep(result)
        return result

    @in_own_task
    async def stream(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> AsyncGenerator[TaskEvent, None]:
        """Serve the next turn and yield what happens; the last event is `TaskFinished`. `prompt`, `options` and errors are those of `send`.

        A stream that is closed before its end cancels the turn. Others wait until it has ended or is closed.
        """
        asked, given = self._asked(prompt, options)
        async with (
            self._turn(given) as earlier,
            aclosing(self._pipeline.stream([*earlier, *asked], given, turn=len(asked))) as events,
        ):
            while True:
                with self._state.served():  # around each part: between two of them the caller's own code runs in the same context
                    event = await anext(events, None)
                if event is None:
                    return
                if isinstance(event, TaskFinished):
                    self._keep(event.result)
                yield event

    def send_sync(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Result:
        """Do what `send` does with `prompt` and `options`, for callers that are not async; see `Hybrid.run_sync`."""
        return self._blocking.run(lambda: self.send(prompt, **options))

    def stream_sync(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Generator[TaskEvent, None, None]:
        """Do what `stream` does with `prompt` and `options`, for callers that are not async; see `Hybrid.stream_sync`."""
        return self._blocking.stream(lambda: self.stream(prompt, **options))

    async def resume(self) -> Result | None:
        """Finish the turns that a killed process left unfinished, as `send` does before a new one; return the result of the last.

        None: there is no such turn. Raises what `Hybrid.resume` raises.
        """
        last: Result | None = None
        async with self._state.alone():
            for run in await self._interrupted():
                last = await self._resume(run, self._options)
            await in_thread(self._state.refresh)
        return last

    async def reset(self) -> None:
        """Begin a new conversation under the same name: no turn of the old one, and no label of it, counts from now on.

        What is on record of the old turns stays there, as of any run, until it is forgotten. Raises `StoreError`.
        """
        name, user = self.name, self.user
        async with self._state.alone():
            if self._pipeline.sessions is not None:
                await in_thread(self._pipeline.sessions.begin_again, name, user)
            self._state.turns, self._state.last = (), None
            self._pipeline.forget_session(name, user)

    def _usage(self, side: Side) -> SideUsage:
        self._state.refresh()
        return sum((turn.near if side is Side.NEAR else turn.far for turn in self._state.turns), SideUsage())


def _refuse(options: Mapping[str, Any], names: tuple[str, ...], because: str) -> None:
    for name in names:
        if name in options:
            raise InvalidRequest(f"the option {name!r} {because}", hint="hybrid.session(NAME, user=...) names both; see TaskOptions")
