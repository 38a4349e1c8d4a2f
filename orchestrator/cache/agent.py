"""`CachedAgent`: a cache in front of any agent."""

import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from ...protocols import (
    Agent,
    AgentCard,
    ConfigError,
    DeadlineExceeded,
    Finished,
    NearfarError,
    RateLimited,
    Side,
    StepEvent,
    StepReply,
    StepRequest,
    StoreError,
    TextDelta,
    ToolCall,
    ToolCalled,
    stream,
)
from ..agents.pool import Member, Team
from ..task.results import price
from ..task.scope import Scope, current_scope
from .admission import objection_to_request
from .answers import AnswerCache, Lookup
from .flights import Flights
from .keys import exact_key
from .stored import Stored, replayed
from .verifier import AgentVerifier

logger = logging.getLogger(__name__)

T = TypeVar("T")

Verifier = Callable[[str, str, str], Awaitable[bool]]
"""Tells whether the answer to the stored question answers the asked one, given the asked question, the stored one and its answer."""

_PATIENCE: Final = 5.0
"""Seconds that the cache may take; then the agent is asked without it."""
_VERIFYING: Final = 10.0
"""Seconds that a verifier may take; then the answer counts as not verified."""
_PIECE: Final = re.compile(r".{1,64}(?:\s+|$)|.{1,64}", re.DOTALL)
_LOADED: Final = 0.8
"""Share of an agent's concurrency from which it counts as overloaded."""
_AFTER_REFUSAL: Final = 10.0
"""Seconds for which it does so after a provider asked to slow down, unless that said how many."""


class CachedAgent:
    """Answers from the cache what was answered before, and asks the agent for the rest.

    Identical requests at the same time are computed once. A cache that fails is passed over with a warning, and costs no step.
    Closing it closes the agent and leaves the cache open, which several agents may share.

    Args:
        agent: computes what is not stored.
        cache: of answers.
        verifier: asked before an answer in other words is served; where it says no, fails or takes too long, there is no hit.
    """

    def __init__(self, agent: Agent, cache: AnswerCache, *, verifier: Verifier | None = None) -> None:
        self._agent = agent
        self._cache = cache
        self._verifier = verifier
        self._flights = Flights()
        self._computing = 0
        self._loaded_until = float("-inf")
        self._is_closed = False

    @property
    def card(self) -> AgentCard:
        return self._agent.card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Stream the stored answer, or the agent's."""
        scope = current_scope()
        if self._is_closed or objection_to_request(request, scope, side=self.card.side) is not None:
            events: AsyncGenerator[StepEvent, None] = self._asked(request)
        else:
            events = self._shared(request, scope)
        async with aclosing(events):
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close the agent; steps under way end as it ends them."""
        self._is_closed = True
        await self._agent.aclose()

    async def _asked(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        async with stream(self._agent, request) as events:
            async for event in events:
                yield event

    async def _shared(self, request: StepRequest, scope: Scope) -> AsyncGenerator[StepEvent, None]:
        """Stream the cached or computed answer to all concurrent callers of the same request: the first one computes it."""
        key = (exact_key(request, self.card, scope), request.timeout)
        flight, was_under_way = self._flights.join(key, lambda: self._found(request, scope))
        async with aclosing(flight.read()) as events:
            async for event in events:
                # The lookup that found a stored answer is counted already, and so is the miss that somebody else has paid for.
                if isinstance(event, Finished) and event.saved is not None and (was_under_way or flight.is_paid):
                    await self._guarded(lambda: self._cache.count(self._cache.category(request, scope), "shared"))
                yield event

    async def _found(self, request: StepRequest, scope: Scope) -> AsyncGenerator[StepEvent, None]:
        """Yield the stored answer, or else the agent's, which is stored before its end is yielded."""
        started = time.monotonic()
        lookup = await self._guarded(lambda: self._cache.look(request, self.card, scope, is_loaded=self._is_loaded))
        answer = None if lookup is None else await self._verified(lookup)
        if lookup is not None and answer is not None:
            await self._guarded(lambda: self._cache.use(lookup, answer))
            for event in _events_of(answer):
                yield event
            return
        async with aclosing(self._computed(_with_time_left(request, started), lookup)) as computed:
            async for event in computed:
                yield event

    async def _computed(self, request: StepRequest, lookup: Lookup | None) -> AsyncGenerator[StepEvent, None]:
        started = time.monotonic()
        text: list[str] = []
        calls: list[ToolCall] = []
        self._computing += 1
        try:
            async with stream(self._agent, request) as events:
                async for event in events:
                    match event:
                        case TextDelta():
                            text.append(event.text)
                        case ToolCalled():
                            calls.append(event.call)
                        case Finished():
                            reply = StepReply(text="".join(text), tool_calls=tuple(calls), finished=event)
                            await self._learn(lookup, reply, time.monotonic() - started)
                    yield event
        except RateLimited as error:
            self._loaded_until = time.monotonic() + (_AFTER_REFUSAL if error.retry_after is None else error.retry_after)
            raise
        finally:
            self._computing -= 1

    async def _learn(self, lookup: Lookup | None, reply: StepReply, seconds: float) -> None:
        """Store a fresh answer; and where a stored one might have been served in its place, see whether it says the same."""
        if lookup is None:
            return
        dollars = price(self.card, reply.finished.usage)

        def learn() -> None:
            if lookup.is_shadow and lookup.candidate is not None and reply.text and not reply.tool_calls:
                self._cache.judged(lookup, is_same=self._cache.says_same(reply.text, lookup.candidate.text))
            self._cache.count(lookup.category, "miss")
            self._cache.keep(lookup, reply, seconds=seconds, dollars=dollars)

        await self._guarded(learn)

    async def _verified(self, lookup: Lookup) -> Stored | None:
        """Return the answer that was found, unless the verifier rejects it. Answers to the same request are not verified."""
        answer, asked = lookup.answer, lookup.question
        if self._verifier is None or lookup.outcome == "exact" or answer is None or answer.question is None or asked is None:
            return answer
        with anyio.move_on_after(_VERIFYING):
            try:
                return answer if await self._verifier(asked, answer.question, answer.text) else None
            except NearfarError as error:
                logger.warning("a stored answer could not be verified, so the agent is asked: %s", error)
        return None

    async def _guarded(self, work: Callable[[], T]) -> T | None:
        """Run what blocks for the file in a thread; None where the cache fails or takes too long."""
        with anyio.move_on_after(_PATIENCE):
            try:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except StoreError as error:
                logger.warning("the agent %r is asked without its cache: %s", self.card.name, error)
                return None
        logger.warning("the cache of agent %r takes more than %g s, so the agent is asked without it", self.card.name, _PATIENCE)
        return None

    @property
    def _is_loaded(self) -> bool:
        return self._computing >= _LOADED * self.card.limits.concurrency or time.monotonic() < self._loaded_until


def put_in_front(team: Team, cache: AnswerCache) -> None:
    """Let a cache stand in front of those agents of a team whose side its settings name.

    Raises `ConfigError` for a verifier that is not among those on this device.
    """
    name = cache.settings.verifier
    verifier = None if name is None else AgentVerifier(_near(team, name).open)
    for member in team:
        if member.side in cache.settings.sides and member.name != name:
            member.wrap(partial(CachedAgent, cache=cache, verifier=verifier))


def _near(team: Team, name: str) -> Member:
    found = next((member for member in team if member.name == name and member.side is Side.NEAR), None)
    if found is None:
        raise ConfigError(f"there is no agent {name!r} on this device to verify answers of the cache", hint="[cache] verifier names one")
    return found


def _events_of(answer: Stored) -> Iterator[StepEvent]:
    """Yield a stored answer as a stream: its text in pieces, then its end."""
    for piece in _PIECE.findall(answer.text):
        yield TextDelta(text=piece)
    yield replayed(answer)


def _with_time_left(request: StepRequest, started: float) -> StepRequest:
    """Return the request with what the cache has left of its time. Raises `DeadlineExceeded` where that is nothing."""
    if request.timeout is None:
        return request
    left = request.timeout - (time.monotonic() - started)
    if left <= 0:
        raise DeadlineExceeded("the step took longer than its timeout")
    return request.model_copy(update={"timeout": left})
