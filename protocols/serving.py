"""Run a step on behalf of another machine; shared by the server and the attached worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .agent import Agent, stream
from .defects import log_defect
from .errors import DeadlineExceeded, InternalError, InvalidOutput, NearfarError
from .steps import Finished, StepEvent, StepRequest

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
