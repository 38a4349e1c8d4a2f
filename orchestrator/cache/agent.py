"""`CachedAgent`: a cache in front of any agent. Identical requests at the same time are computed once."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
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
    Message,
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
    Usage,
    complete,
    stream,
)
from ..agents import AgentHandle, AgentPool
from ..task import TaskScope, current_scope
from ..task.results import price
from ..util.runtime import cancel_task
from . import AnswerCache, Lookup
from .admission import exact_key, objection_to_request
from .database import StoredAnswer, end_of_replay

logger = logging.getLogger(__name__)

T = TypeVar("T")

Verifier = Callable[[str, str, str], Awaitable[bool]]
"""Tells whether the answer to the stored question answers the asked one, given the asked question, the stored one and its answer."""

_CACHE_SECONDS: Final = 5.0
"""Seconds that the cache may take; then the agent is asked without it."""
_VERIFY_SECONDS: Final = 10.0
"""Seconds that a verifier may take; then the answer counts as not verified."""
_PIECE: Final = re.compile(r".{1,64}(?:\s+|$)|.{1,64}", re.DOTALL)
_LOADED_SHARE: Final = 0.8
"""Share of an agent's concurrency from which it counts as overloaded."""
_AFTER_REFUSAL: Final = 10.0
"""Seconds for which it does so after a provider asked to slow down, unless that said how many."""
_ASKED: Final = "Do both questions ask for exactly the same, so that one answer fits both? Reply with yes or no."
_LONGEST: Final = 4
"""Tokens of the reply."""
_TIMEOUT: Final = 10.0


class CachedAgent:
    """Answers from the cache what was answered before, and asks the agent for the rest.

    Identical requests at the same time are computed once. A cache that fails is passed over with a warning, and costs no step. Closing it
    closes the agent and leaves the cache open, which several agents may share.

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
            events: AsyncGenerator[StepEvent, None] = self._ask_agent(request)
        else:
            events = self._share(request, scope)
        async with aclosing(events):
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close the agent; steps under way end as it ends them."""
        self._is_closed = True
        await self._agent.aclose()

    async def _ask_agent(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        async with stream(self._agent, request) as events:
            async for event in events:
                yield event

    async def _share(self, request: StepRequest, scope: TaskScope) -> AsyncGenerator[StepEvent, None]:
        """Stream the cached or computed answer to all concurrent callers of the same request: the first one computes it."""
        key = (exact_key(request, self.card, scope), request.timeout)
        flight, was_under_way = self._flights.join(key, lambda: self._find_or_compute(request, scope))
        async with aclosing(flight.read()) as events:
            async for event in events:
                # The lookup that found a stored answer is counted already, and so is the miss that another reader has paid for.
                if isinstance(event, Finished) and event.saved is not None and (was_under_way or flight.is_paid):
                    await self._try_cache(lambda: self._cache.count(self._cache.category(request, scope), "shared"))
                yield event

    async def _find_or_compute(self, request: StepRequest, scope: TaskScope) -> AsyncGenerator[StepEvent, None]:
        """Yield the stored answer, or else the agent's, which is stored before its end is yielded."""
        started = time.monotonic()
        lookup = await self._try_cache(lambda: self._cache.look(request, self.card, scope, is_loaded=self._is_loaded))
        answer = None if lookup is None else await self._verify(lookup)
        if lookup is not None and answer is not None:
            await self._try_cache(lambda: self._cache.use(lookup, answer))
            for event in _stream_stored(answer):
                yield event
            return
        async with aclosing(self._compute(_with_time_left(request, started), lookup)) as computed:
            async for event in computed:
                yield event

    async def _compute(self, request: StepRequest, lookup: Lookup | None) -> AsyncGenerator[StepEvent, None]:
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
                self._cache.record_judgement(lookup, is_same=self._cache.says_same(reply.text, lookup.candidate.text))
            self._cache.count(lookup.category, "miss")
            self._cache.keep(lookup, reply, seconds=seconds, dollars=dollars)

        await self._try_cache(learn)

    async def _verify(self, lookup: Lookup) -> StoredAnswer | None:
        """Return the answer that was found, unless the verifier rejects it. Answers to the same request are not verified."""
        answer, asked = lookup.answer, lookup.question
        if self._verifier is None or lookup.outcome == "exact" or answer is None or answer.question is None or asked is None:
            return answer
        with anyio.move_on_after(_VERIFY_SECONDS):
            try:
                return answer if await self._verifier(asked, answer.question, answer.text) else None
            except NearfarError as error:
                logger.warning("a stored answer could not be verified, so the agent is asked: %s", error)
        return None

    async def _try_cache(self, work: Callable[[], T]) -> T | None:
        """Run what blocks for the file in a thread; None where the cache fails or takes too long."""
        with anyio.move_on_after(_CACHE_SECONDS):
            try:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except StoreError as error:
                logger.warning("the agent %r is asked without its cache: %s", self.card.name, error)
                return None
        logger.warning("the cache of agent %r takes more than %g s, so the agent is asked without it", self.card.name, _CACHE_SECONDS)
        return None

    @property
    def _is_loaded(self) -> bool:
        return self._computing >= _LOADED_SHARE * self.card.limits.concurrency or time.monotonic() < self._loaded_until


def put_in_front(pool: AgentPool, cache: AnswerCache) -> None:
    """Let a cache stand in front of those agents of a pool whose side its settings name.

    Raises `ConfigError` for a verifier that is not among those on this device.
    """
    name = cache.settings.verifier
    verifier = None if name is None else AgentVerifier(_near(pool, name).open)
    for handle in pool:
        if handle.side in cache.settings.sides and handle.name != name:
            handle.wrap(partial(CachedAgent, cache=cache, verifier=verifier))


def _near(pool: AgentPool, name: str) -> AgentHandle:
    found = next((handle for handle in pool if handle.name == name and handle.side is Side.NEAR), None)
    if found is None:
        raise ConfigError(f"there is no agent {name!r} on this device to verify answers of the cache", hint="[cache] verifier names one")
    return found


def _stream_stored(answer: StoredAnswer) -> Iterator[StepEvent]:
    """Yield a stored answer as a stream: its text in pieces, then its end."""
    for piece in _PIECE.findall(answer.text):
        yield TextDelta(text=piece)
    yield end_of_replay(answer)


def _with_time_left(request: StepRequest, started: float) -> StepRequest:
    """Return the request with what the cache has left of its time. Raises `DeadlineExceeded` where that is nothing."""
    if request.timeout is None:
        return request
    left = request.timeout - (time.monotonic() - started)
    if left <= 0:
        raise DeadlineExceeded("the step took longer than its timeout")
    return request.model_copy(update={"timeout": left})


class AgentVerifier:
    """Asks an agent whether two questions have one answer. Raises what opening or asking the agent raises."""

    def __init__(self, open_agent: Callable[[], Awaitable[Agent]]) -> None:
        self._open = open_agent

    async def __call__(self, asked: str, stored: str, answer: str) -> bool:
        """Return whether the agent says yes. It is not shown the answer: judging two questions takes less of a small model."""
        messages = (Message.system(_ASKED), Message.user(f"1. {asked}\n2. {stored}"))
        reply = await complete(await self._open(), StepRequest(messages=messages, max_output_tokens=_LONGEST, timeout=_TIMEOUT))
        return reply.text.strip().lower().startswith("yes")


class Flight:
    """One stream, computed in a task of its own for as long as it has readers.

    Readers come and go: each receives all events from the beginning, and when the last one leaves before the end, the task is cancelled.
    The stream advances with its fastest reader, so nothing is computed in vain.
    """

    def __init__(self, source: AsyncGenerator[StepEvent, None], on_end: Callable[[], None]) -> None:
        self._source = source
        self._on_end = on_end
        self._events: list[StepEvent] = []
        self._error: Exception | None = None
        self._is_over = False
        self._readers = 0
        self._furthest = 0
        self._changed = anyio.Event()
        self.is_paid = False
        """A reader has been told what the step used: that is told once. Never set for a stored answer, which uses nothing."""
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> AsyncGenerator[StepEvent, None]:
        """Yield the events from the beginning. Raises what the stream raises; all but one reader are told that they used nothing."""
        self._task = self._task or asyncio.create_task(self._run())
        self._readers += 1
        place = 0
        try:
            while place < len(self._events) or not self._is_over:
                if place == len(self._events):
                    await self._changed.wait()
                    continue
                event = self._events[place]
                place += 1
                if place > self._furthest:
                    self._furthest = place
                    self._change()
                yield self._share(event) if isinstance(event, Finished) else event
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            if self._readers == 0:
                self._on_end()
                await cancel_task(self._task)

    def _share(self, finished: Finished) -> Finished:
        if finished.saved is not None:
            return finished
        if not self.is_paid:
            self.is_paid = True
            return finished
        return finished.model_copy(update={"usage": Usage(), "performance": None, "saved": finished.usage})

    async def _run(self) -> None:
        try:
            async for event in self._source:
                self._events.append(event)
                self._change()
                while self._furthest < len(self._events):
                    await self._changed.wait()
        except Exception as error:  # a task boundary: every reader raises it
            self._error = error
        finally:
            self._is_over = True
            self._on_end()
            self._change()
            await self._source.aclose()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Flights:
    """The flights under way, by what they compute."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Flight] = {}

    def join(self, key: Hashable, start: Callable[[], AsyncGenerator[StepEvent, None]]) -> tuple[Flight, bool]:
        """Return the flight of that key, begun with `start` where there is none; and whether there was one."""
        flight = self._under_way.get(key)
        if flight is not None:
            return flight, True
        begun = Flight(start(), lambda: self._ended(key, begun))
        self._under_way[key] = begun
        return begun, False

    def _ended(self, key: Hashable, flight: Flight) -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]
