"""Asking an agent once, for a role, such that the call and its price are on record whatever comes of it."""

import time
from collections.abc import Callable
from decimal import Decimal

import anyio

from ...protocols import (
    AgentCard,
    Cancelled,
    ContentFiltered,
    DeadlineExceeded,
    Finished,
    InternalError,
    InvalidOutput,
    ResumeLost,
    Stalled,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    Usage,
    stream,
)
from ..events import CallEnded
from ..results import Call, price
from ..team import Member
from .state import Json, TaskRuntime, TaskState, as_json, emit
from .supervision import Cause, Verdict

WORK_LOST = (Cancelled, ContentFiltered, DeadlineExceeded, InternalError, InvalidOutput, ResumeLost, Stalled)
"""Failures that may come after the model has worked, also where nothing was heard of it."""

Listener = Callable[[str], None]
"""Takes each piece of an agent's text as it streams."""
Reading = Callable[[StepReply], Verdict]
"""Reads a supervisor's verdict."""


class CallLog:
    """The calls that one node makes, recorded and streamed as they end. Calls may run side by side.

    A node puts `log.as_json` under `"calls"` into the state that it returns, also where a call failed and the node goes on.
    """

    def __init__(self, state: TaskState, runtime: TaskRuntime) -> None:
        self._before = state["calls"]
        self._runtime = runtime
        self.made: list[Call] = []
        """The calls of this node, in the order in which they ended."""

    @property
    def as_json(self) -> list[Json]:
        """The calls of the task so far."""
        return [*self._before, *(as_json(call) for call in self.made)]

    async def ask(
        self,
        member: Member,
        request: StepRequest,
        *,
        role: str,
        turn: int = 0,
        cause: Cause | None = None,
        shadow: bool = False,
        reading: Reading | None = None,
        listener: Listener | None = None,
    ) -> StepReply:
        """Run one step of an agent to its end. Raises what opening the agent or the step raises.

        Args:
            member: the agent; opened where it is not yet.
            role: what it is asked for: `execute`, `plan`, `verify` ...
            turn: turns of the executor that had acted by then.
            cause: what asked for it, where it is a check.
            shadow: its verdict is recorded and changes nothing.
            reading: reads the verdict, where it is a check.
            listener: hears its text as it streams.
        """
        agent = await member.open()
        listening = _Listening(listener)
        started = time.monotonic()
        verdict: Verdict | None = None
        error: BaseException | None = None
        try:
            async with stream(agent, request) as events:
                async for event in events:
                    listening.hear(event)
            reply = listening.reply(agent.card)
            verdict = reading(reply) if reading is not None else None
            return reply
        except (Exception, anyio.get_cancelled_exc_class()) as caught:  # recorded, and raised again
            error = caught
            verdict = Verdict.UNREADABLE if reading is not None and isinstance(caught, InvalidOutput) else None
            raise
        finally:
            call = Call(
                role=role,
                agent=member.name,
                side=member.side,
                model=listening.model or agent.card.model,
                turn=turn,
                usage=listening.usage,
                dollars=listening.dollars(agent.card, error),
                seconds=time.monotonic() - started,
                confidence=listening.confidence,
                trigger=cause,
                verdict=verdict,
                shadow=shadow,
                error=None if error is None else type(error).__name__,
            )
            self.made.append(call)
            emit(self._runtime, CallEnded(call=call))


class _Listening:
    """What was heard of a step."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._finished: Finished | None = None

    def hear(self, event: object) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                if self._listener is not None:
                    self._listener(event.text)
            case ToolCalled():
                self._calls.append(event.call)
            case Finished():
                self._finished = event

    def reply(self, card: AgentCard) -> StepReply:
        if self._finished is None:
            raise InvalidOutput(f"agent {card.name!r} ended its stream without saying why")
        return StepReply(text="".join(self._text), tool_calls=tuple(self._calls), finished=self._finished)

    @property
    def model(self) -> str | None:
        return self._finished.model if self._finished is not None else None

    @property
    def usage(self) -> Usage:
        return self._finished.usage if self._finished is not None else Usage()

    @property
    def confidence(self) -> float | None:
        return self._finished.confidence if self._finished is not None else None

    def dollars(self, card: AgentCard, error: BaseException | None) -> Decimal | None:
        """The price. A step that broke after its work had begun has spent tokens that nobody reported: where they cost, it is unknown."""
        if self._finished is not None:
            return price(card, self._finished.usage)
        is_free = price(card, Usage(input_tokens=1, output_tokens=1)) == 0
        was_at_work = bool(self._text or self._calls) or isinstance(error, (*WORK_LOST, anyio.get_cancelled_exc_class()))
        return None if was_at_work and not is_free else Decimal(0)
