"""One step of an agent as it is heard: its events within their time limits, and what they say of its cost."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import anyio

from ...protocols import (
    AgentCard,
    Cancelled,
    ContentFiltered,
    DeadlineExceeded,
    Finished,
    FinishReason,
    InternalError,
    InvalidOutput,
    Message,
    Performance,
    Stalled,
    StepEvent,
    StepLost,
    StepReply,
    TextDelta,
    ToolCall,
    ToolCalled,
    Usage,
)
from ..safety.outbound_filter import PlaceholderStream
from ..task.results import price
from ..task.routing_policy import IdleTimeouts


async def with_idle_timeout(events: AsyncIterator[StepEvent], timeouts: IdleTimeouts | None) -> AsyncGenerator[StepEvent, None]:
    """Yield events, and raise `Stalled` if the next one is late. With None, wait for any length of time."""
    if timeouts is None:
        async for event in events:
            yield event
        return
    limit = timeouts.first_token
    while True:
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                following = await anext(events, None)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise Stalled(f"the agent sent nothing for {limit:g} s", hint="[policy.fallback] sets the idle timeouts") from None
        if following is None:
            return
        yield following
        limit = timeouts.idle


WORK_LOST = (Cancelled, ContentFiltered, DeadlineExceeded, InternalError, InvalidOutput, Stalled, StepLost)
"""Failures that may come after the model has worked, also where nothing was heard of it."""

_TOLD: Final = ("model", "usage", "confidence", "performance", "saved")
_TELLING = 1.0
"""Seconds; that an agent did not answer in less says nothing of it."""


class Listening:
    """The events received from one step."""

    def __init__(self, listener: PlaceholderStream | None) -> None:
        self._listener = listener
        self._started = time.monotonic()
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._finished: Finished | None = None
        self._heard: list[float] = []
        """When each piece of it was heard."""

    @property
    def is_telling(self) -> bool:
        """Return whether a time-out counts against the agent: it had its time, and sent nothing."""
        return not self._heard and time.monotonic() - self._started >= _TELLING

    @property
    def was_saved(self) -> bool:
        """The answer comes from a cache, and not from the agent."""
        return self._finished is not None and self._finished.saved is not None

    def hear(self, event: object) -> bool:
        """Take in what came. Returns whether it was the first."""
        self._heard.append(time.monotonic())
        match event:
            case TextDelta():
                self._text.append(event.text)
                if self._listener is not None:
                    self._listener(event.text)
            case ToolCalled():
                self._calls.append(event.call)
            case Finished():
                self._finished = _checked(event)
        return len(self._heard) == 1

    @property
    def said(self) -> Message:
        """The text and tool calls received so far."""
        return Message.assistant("".join(self._text), tuple(self._calls))

    @property
    def finish(self) -> FinishReason | None:
        """The reason why the step ended; None: it has not."""
        return None if self._finished is None else self._finished.reason

    @property
    def chunk_seconds(self) -> list[float]:
        """Seconds between each two pieces."""
        return [later - earlier for earlier, later in pairwise(self._heard)]

    def reply(self, card: AgentCard) -> StepReply:
        if self._finished is None:
            raise InvalidOutput(f"agent {card.name!r} ended its stream without saying why")
        if self._listener is not None:
            self._listener.close()
        return StepReply(text="".join(self._text), tool_calls=tuple(self._calls), finished=self._finished)

    def figures(self, card: AgentCard, error: BaseException | None) -> dict[str, Any]:
        """Return what the step has used, as far as it is known."""
        finished = self._finished
        told: dict[str, Any] = {"model": card.model, "usage": Usage()}
        if finished is not None:
            told = {"finish_reason": finished.reason, **{name: getattr(finished, name) for name in _TOLD}}
        return {
            **told,
            "dollars": self._dollars(card, error),
            "seconds": time.monotonic() - self._started,
            "first_token_seconds": self._heard[0] - self._started if self._heard else None,
            "saved_dollars": price(card, finished.saved) if finished is not None and finished.saved is not None else Decimal(0),
        }

    def _dollars(self, card: AgentCard, error: BaseException | None) -> Decimal | None:
        """Return the price. It is None (unknown) if a step that costs something broke off after the model began to work: its tokens were
        never reported."""
        if self._finished is not None and not self._is_unreported:
            return price(card, self._finished.usage)
        is_free = price(card, Usage(input_tokens=1, output_tokens=1)) == 0
        return None if self.is_lost(error) and not is_free else Decimal(0)

    @property
    def reached_its_bound(self) -> bool:
        """The model would have written more."""
        return self._finished is not None and self._finished.reason is FinishReason.LENGTH

    def is_lost(self, error: BaseException | None) -> bool:
        """Return whether the model worked, or may have, without reporting its usage."""
        was_at_work = bool(self._text or self._calls) or isinstance(error, (*WORK_LOST, anyio.get_cancelled_exc_class()))
        return was_at_work and (self._finished is None or self._is_unreported)

    @property
    def _is_unreported(self) -> bool:
        """The step ended well, and said nothing of the tokens that it took: no answer takes none, unless a cache had it."""
        return self._finished is not None and self._finished.usage.total_tokens == 0 and not self.was_saved


def _checked(event: Finished) -> Finished:
    """Return the end of a step, checked as one that comes over the wire is: an agent in this process may be the app's own code.

    Raises `InvalidOutput` for figures that cannot be.
    """
    try:
        parts = {name: type(part).model_validate(vars(part)) for name, part in event if isinstance(part, Usage | Performance)}
        return Finished.model_validate({**vars(event), **parts})
    except ValueError as error:
        raise InvalidOutput("the agent ended a step with figures that cannot be", hint="see protocols.Finished") from error
