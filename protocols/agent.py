"""`Agent`, the interface of everything that can take one turn of a conversation."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, cast, runtime_checkable

from .cards import AgentCard
from .errors import DeadlineExceeded, InternalError, InvalidOutput, NearfarError
from .messages import ToolCall
from .redact import log_defect
from .steps import Finished, StepEvent, StepReply, StepRequest, TextDelta, ToolCalled


class StepStream(Protocol):
    """A step under way: an async iterator that must be closed. Closing it early cancels the step."""

    def __aiter__(self) -> AsyncIterator[StepEvent]: ...
    async def __anext__(self) -> StepEvent: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class Agent(Protocol):
    """Anything that can take one turn of a conversation.

    `step` is written as an async generator. It raises a `NearfarError` and nothing else; `protocols.testing.agent_conformance`
    checks an implementation.
    """

    @property
    def card(self) -> AgentCard: ...

    def step(self, request: StepRequest) -> AsyncIterator[StepEvent]: ...

    async def aclose(self) -> None: ...


def stream(agent: Agent, request: StepRequest) -> aclosing[StepStream]:
    """Return `agent.step(request)` as a context manager that closes the stream on exit, which cancels an unfinished step."""
    return aclosing(cast(StepStream, agent.step(request)))


async def complete(agent: Agent, request: StepRequest) -> StepReply:
    """Run one step to its end and collect it.

    Raises `InvalidOutput` if the stream ends without `Finished`, and whatever the agent raises.
    """
    text: list[str] = []
    calls: list[ToolCall] = []
    async with stream(agent, request) as events:
        async for event in events:
            match event:
                case TextDelta():
                    text.append(event.text)
                case ToolCalled():
                    calls.append(event.call)
                case Finished():
                    return StepReply(text="".join(text), tool_calls=tuple(calls), finished=event)
    raise InvalidOutput(f"agent {agent.card.name!r} ended its stream without a result")


logger = logging.getLogger(__name__)

_EVENTS_PER_TURN = 64
"""Number of events after which an agent that never waits has to let other tasks run."""


async def run_step(agent: Agent, request: StepRequest, emit: Callable[[StepEvent], Awaitable[None]]) -> NearfarError | None:
    """Let `agent` run the step within its timeout and pass each event to `emit`. Return the error that ended it, or None after
    `Finished`.

    Any exception but a `NearfarError` is a defect of the agent: it is logged, and the other side only gets an `InternalError`.
    """
    limit = asyncio.timeout(request.timeout)
    try:
        async with limit:
            await _pass_on(agent, request, emit)
    except NearfarError as error:
        return error
    except Exception as defect:  # the boundary of a task: without this, the error of the agent would be lost
        if limit.expired():
            return DeadlineExceeded("the step took longer than its timeout")
        log_defect(logger, f"agent {agent.card.name!r} failed in a step", defect)
        return InternalError("the agent failed unexpectedly", hint="the server's log has the details")
    return None


async def _pass_on(agent: Agent, request: StepRequest, emit: Callable[[StepEvent], Awaitable[None]]) -> None:
    count = 0
    async with stream(agent, request) as events:
        async for event in events:
            await emit(event)
            if isinstance(event, Finished):
                return
            count += 1
            if not count % _EVENTS_PER_TURN:
                await asyncio.sleep(0)
    raise InvalidOutput(f"agent {agent.card.name!r} ended its stream without a result")
