"""`Agent`, the interface of everything that can take one turn of a conversation."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol, cast, runtime_checkable

from .cards import AgentCard
from .errors import InvalidOutput
from .messages import ToolCall
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
