"""Conversations of the console: a turn runs on while its page is closed, and is shown to every page that has it open."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

from ...protocols import ApprovalNeeded, Cancelled, InternalError, InvalidRequest, NearfarError
from ...protocols.secrets import log_defect
from ..hybrid.arguments import TaskOptions
from ..hybrid.hybrid import Hybrid
from ..task.events import (
    AgentText,
    AttemptEnded,
    AttemptStarted,
    Routed,
    SupervisorSpoke,
    TaskEvent,
    TaskFinished,
    ToolFinished,
    ToolStarted,
)
from ..task.results import Result
from ..util.runtime import cancel_task

USER: Final = "console"
"""On whose behalf the console's conversations are held."""
_MOST_STEPS: Final = 200
_AT_ONCE: Final = 0.5
"""Seconds for which a page waits to hear that a run cannot go on."""
_MOST_KEPT: Final = 50
"""Conversations whose last turn is shown."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ShownTurn:
    """One turn, as far as it has come."""

    prompt: str
    text: str = ""
    """Text of the attempt that is under way, or the answer."""
    steps: list[str] = field(default_factory=list)
    """Events so far, in plain words."""
    result: Result | None = None
    error: NearfarError | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def hear(self, event: TaskEvent) -> None:
        """Take in the next event."""
        match event:
            case Routed(decision=decision):
                self._step(f"asks {', then '.join(decision.candidates)}: {'; '.join(decision.reasons[:3])}")
            case AttemptStarted():
                self.text = ""
                self._step(f"{event.agent} ({event.side}, {event.model}) begins")
            case AgentText():
                self.text += event.text
            case ToolStarted(call=call):
                self._step(f"calls {call.name}({', '.join(map(str, call.arguments.values()))})")
            case ToolFinished(result=result):
                self._step(f"{result.name} -> {result.content[:500]}")
            case SupervisorSpoke():
                self._step(f"{event.agent} {'plans' if event.verdict is None else f'says {event.verdict}'}: {event.text[:500]}")
            case AttemptEnded(attempt=attempt):
                self._step(f"{attempt.agent} {attempt.outcome}" + (f": {attempt.reason}" if attempt.reason else ""))
            case TaskFinished(result=result):
                self.result, self.text = result, result.text

    def _step(self, said: str) -> None:
        if len(self.steps) < _MOST_STEPS:
            self.steps.append(said)


class Chats:
    """The conversations that pages have begun."""

    def __init__(self, hybrid: Hybrid) -> None:
        self._hybrid = hybrid
        self._turns: dict[str, ShownTurn] = {}
        self._resumed: set[asyncio.Task[None]] = set()

    def last(self, name: str) -> ShownTurn | None:
        """Return the last turn of a conversation that this process has served."""
        return self._turns.get(name)

    def begin(self, name: str, prompt: str, options: TaskOptions) -> None:
        """Begin a turn. Raises `InvalidRequest` while the turn before it runs."""
        if (earlier := self._turns.pop(name, None)) is not None and earlier.is_running:
            self._turns[name] = earlier
            raise InvalidRequest("this conversation is being answered", hint="wait for the answer, or stop it")
        turn = self._turns[name] = ShownTurn(prompt)
        turn.task = asyncio.create_task(self._serve(turn, name, options))
        for old in [key for key, each in self._turns.items() if not each.is_running][:-_MOST_KEPT]:
            del self._turns[old]

    async def resume(self, run: str, *, user: str, approvals: Mapping[str, bool]) -> None:
        """Let a run go on, with answers to the calls that it waits for. Raises what stops it at once; it may wait for further calls."""

        async def work() -> None:
            with suppress(ApprovalNeeded):
                await self._hybrid.resume(run, user=user, approvals=approvals)

        task = asyncio.create_task(work())
        self._resumed.add(task)
        task.add_done_callback(self._resumed.discard)
        await asyncio.wait({task}, timeout=_AT_ONCE)
        if task.done():
            task.result()
        else:
            task.add_done_callback(_log_failure)

    async def stop(self, name: str) -> None:
        """Stop the turn that runs, if there is one."""
        if (turn := self._turns.get(name)) is not None and turn.task is not None:
            await cancel_task(turn.task)
            turn.error = turn.error or (Cancelled("this turn was stopped") if turn.result is None else None)

    async def aclose(self) -> None:
        """Stop all turns."""
        for name in tuple(self._turns):
            await self.stop(name)
        for task in tuple(self._resumed):
            await cancel_task(task)

    async def _serve(self, turn: ShownTurn, name: str, options: TaskOptions) -> None:
        try:
            session = self._hybrid.session(name, user=USER)
            async with aclosing(session.stream(turn.prompt, **options)) as events:
                async for event in events:
                    turn.hear(event)
        except NearfarError as error:  # the boundary of a task: its page tells of it
            turn.error = error
            logger.info("a turn of the console failed: %s", error)
        except Exception as defect:  # the boundary of a task
            log_defect(logger, "a turn of the console failed", defect)
            turn.error = InternalError("this turn failed", hint="the server's log has the details")


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a run that the console resumed failed: %s", error)
