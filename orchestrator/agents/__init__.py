"""The agents of one `Hybrid`: opened on first use, watched by circuit breakers, closed together; and what they were sent lately."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from threading import Lock
from typing import Final, Protocol

import anyio

from ...protocols import (
    Agent,
    AgentCard,
    AgentError,
    Capabilities,
    ConfigError,
    Message,
    NearfarError,
    Prices,
    Side,
    StepRequest,
    Unavailable,
)
from ...protocols.agent import CountsTokens
from ...protocols.secrets import log_defect
from ..task.results import Result
from ..util.runtime import HomeLoop, cancel_task, shielded
from .breaker import Health, Trial

logger = logging.getLogger(__name__)


class Pace(Protocol):
    """The measured speed of an agent's model on this device, for prompts of all sizes."""

    @property
    def watts(self) -> float | None:
        """Power of the device while it computes; None if unknown."""

    def first_token_seconds(self, prompt_tokens: int) -> float:
        """Return the seconds until the first token of the output."""

    def seconds(self, prompt_tokens: int, output_tokens: float) -> float:
        """Return the seconds of a whole step."""


PaceSource = Callable[[str], Pace | None]
"""Finds the pace of an agent by its name; None: there is none."""


def no_pace(_agent: str) -> Pace | None:
    """Return None: no agent was measured."""
    return None


class AgentHandle:
    """One agent of a pool, by name.

    The `source` is either an agent that the caller opened and closes, or a function that opens one on first use: until then a model is
    not loaded, a gateway not started, a key not read.
    """

    def __init__(
        self,
        name: str,
        side: Side,
        source: Agent | Callable[[], Awaitable[Agent]],
        *,
        pace: Callable[[], Pace | None] | None = None,
        is_elsewhere: bool = False,
        place: str = "an agent of the user's that is not part of this process",
        prices: Callable[[], Prices | None] | None = None,
        model: str = "",
        instructions: str = "",
        is_foreign: bool = False,
    ) -> None:
        """`pace`: looks for what was measured of its model on this device; `prices`, `model`: those that its card will tell."""
        self.name = name
        self.side = side
        self.instructions = instructions
        """The app's instructions for this agent, in front of each step that it takes for a task."""
        self.is_foreign = is_foreign
        """Other people run it, so that its words are untrusted content."""
        self.is_elsewhere = is_elsewhere
        """It runs on another machine, so that what must never leave this device is not for it, on whichever side it is."""
        self.place = place
        """The other machine that it may run on, for the audit."""
        self.health = Health(name)
        """The agent's circuit breakers."""
        self._pace = pace
        self._expected_prices = prices
        self._expected_model = model
        self._source = source
        self._agent: Agent | None = source if isinstance(source, Agent) else None
        self._unwrapped = self._agent
        self._probing: asyncio.Task[None] | None = None
        self._opening_on: asyncio.Task[Agent] | None = None
        """Opens the agent, whoever waits for that."""
        self._opening = anyio.Lock()
        self._failed_to_open: list[AgentError] = []
        """The last failure, for those who waited for it; a new list each time."""
        self._is_closed = False
        self._wrapper: Callable[[Agent], Agent] = _as_it_is
        self.entering: Callable[[], Awaitable[None]] | None = None
        """Makes the running event loop the one that agents are opened in; None: the handle has no pool."""

    def wrap(self, wrapper: Callable[[Agent], Agent]) -> None:
        """Put a wrapper in front of the agent, which closes the agent with itself. To be called before the first task."""
        self._wrapper = wrapper
        if self._agent is not None:
            self._agent = wrapper(self._agent)

    def open_by(self, opener: Callable[[], Awaitable[Agent]]) -> None:
        """Open the agent by another function. To be called before the first task."""
        self._source = opener

    @property
    def capabilities(self) -> Capabilities | None:
        """None until the agent was opened."""
        return self.card.capabilities if self.card is not None else None

    @property
    def prices(self) -> Prices | None:
        """None where they are unknown, and until the agent was opened where no configuration tells.

        Raises `ConfigError` where an imported table of prices cannot be read.
        """
        if self.card is not None:
            return self.card.prices
        return None if self._expected_prices is None else self._expected_prices()

    @property
    def is_unpriced(self) -> bool:
        """Return whether it is a far agent of unknown price; False while that is not known. Raises what `prices` raises."""
        can_be_told = self.card is not None or self._expected_prices is not None
        return self.side is Side.FAR and can_be_told and self.prices is None

    @property
    def model(self) -> str:
        """Its model's name; "" where it was not opened yet and no configuration tells."""
        return self._expected_model if self.card is None else self.card.model

    @property
    def server(self) -> tuple[str, int] | None:
        """Return host and port of the server that it is asked at; None where it runs in this process, and until it was opened."""
        return getattr(self._unwrapped, "server", None)

    @property
    def card(self) -> AgentCard | None:
        """None until the agent was opened."""
        return self._agent.card if self._agent is not None else None

    @property
    def pace(self) -> Pace | None:
        """The measured speed of its model on this device, from before this process began; None where nothing was measured, or for a far
        agent."""
        return None if self._pace is None else self._pace()

    async def open(self) -> Agent:
        """Open the agent on first use, and return it.

        Raises what loading or connecting raises, and `Unavailable` while a circuit breaker is open, and once the pool is closed.
        """
        if self._agent is not None and not self._is_closed:
            return self._agent
        if self.entering is not None:
            await self.entering()
        before = self._failed_to_open
        async with self._opening:
            if self._is_closed:
                raise Unavailable(f"agent {self.name!r} is closed with its Hybrid", hint="run tasks inside `async with Hybrid(...)`")
            if self._agent is None:
                if self._failed_to_open is not before:
                    raise _again(self._failed_to_open[0])
                self._keep(await self._open_source())
            assert self._agent is not None, "it was kept"
            return self._agent

    async def open_uncancelled(self) -> Agent:
        """Open the agent as `open` does, and to the end where the caller is cancelled: the next one would have to load it from the start.

        Raises what `open` raises.
        """
        if self._opening_on is None or self._opening_on.done():
            self._opening_on = asyncio.create_task(self.open())
        return await shielded(self._opening_on)

    async def count_tokens(self, request: StepRequest) -> int | None:
        """Return the tokens of a step's prompt by the agent's own tokenizer; None: the agent cannot count. Raises what `open` raises."""
        await self.open()
        return await self._unwrapped.count_tokens(request) if isinstance(self._unwrapped, CountsTokens) else None

    def _keep(self, agent: Agent) -> None:
        self._unwrapped, self._agent = agent, self._wrapper(agent)

    async def _open_source(self) -> Agent:
        assert not isinstance(self._source, Agent), "a borrowed agent is open from the start"
        try:
            with self.health.trying():
                return await self._source()
        except AgentError as error:
            self._failed_to_open = [error]
            raise

    @property
    def ahead(self) -> int:
        """Calls of this process that have to end before another one is worked on.

        A near model shares one device, so that calls side by side take as long as one after the other. A far agent works on as many as its
        card says.
        """
        slots = 1 if self.side is Side.NEAR else self.card.limits.concurrency if self.card is not None else None
        return 0 if slots is None else max(self.health.in_flight - slots + 1, 0)

    @property
    def needs_probe(self) -> bool:
        """Return whether it was unreachable, may be back by now, and can be probed without giving it a task."""
        return (self._agent is None or self._description is not None) and self.health.needs_probe

    def probe(self) -> None:
        """Probe in the background whether it is back, so that no task has to wait for that."""
        with suppress(Unavailable):  # another call has just begun to
            self._probing = asyncio.create_task(self._probe(self.health.admit()))

    async def _probe(self, trial: Trial) -> None:
        with suppress(NearfarError), self.health.trying(trial):
            if (describe := self._description) is not None:
                await describe()
                return
            async with self._opening:
                if self._agent is None and not self._is_closed and not isinstance(self._source, Agent):
                    self._keep(await self._source())

    @property
    def _description(self) -> Callable[[], Awaitable[object]] | None:
        """Return the call that asks a connected agent for its card; None: it is not open, or not connected."""
        return getattr(self._unwrapped, "describe", None)

    async def aclose(self) -> None:
        """Close the agent if this handle opened it. A failure is logged and not raised, so that the other agents are closed too."""
        self._is_closed = True
        await self.release()

    def forget(self) -> None:
        """Drop objects of an event loop that is closed. An agent that this handle opened is ended; the next task opens it again."""
        self._probing, self._opening_on, self._opening, self._failed_to_open = None, None, anyio.Lock(), []
        if isinstance(self._source, Agent):
            self._keep(self._source)
        elif self._unwrapped is not None:
            abandon: Callable[[], None] | None = getattr(self._unwrapped, "abandon", None)
            self._unwrapped = self._agent = None
            if abandon is not None:
                abandon()

    async def release(self) -> None:
        """Close the agent as `aclose` does, but let the next task open it again."""
        for task in filter(None, (self._probing, self._opening_on)):
            await cancel_task(task)
        async with self._opening:
            if self._agent is None or isinstance(self._source, Agent):
                return
            agent, self._agent, self._unwrapped = self._agent, None, None
            try:
                await agent.aclose()
            except Exception as defect:  # a task boundary: the other agents are still to be closed
                log_defect(logger, f"agent {self.name!r} could not be closed in order", defect)


def _as_it_is(agent: Agent) -> Agent:
    return agent


def _again(error: AgentError) -> AgentError:
    """Return a copy of an error for another caller, which may add its own notes."""
    return type(error)(error.message, hint=error.hint, retry_after=error.retry_after)


class AgentPool:
    """The agents that tasks may be given to, by name. Raises `ConfigError` where two share one."""

    def __init__(self, handles: tuple[AgentHandle, ...]) -> None:
        self._handles = {handle.name: handle for handle in handles}
        if len(self._handles) < len(handles):
            names = [handle.name for handle in handles]
            taken = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two agents are called {taken!r}", hint="give them different names")
        self.home = HomeLoop(self._release, self._forget)
        self._is_closed = False
        for handle in handles:
            handle.entering = self.home.enter

    def __iter__(self) -> Iterator[AgentHandle]:
        return iter(self._handles.values())

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, name: str) -> AgentHandle:
        return self._handles[name]

    async def enter(self) -> None:
        """Make the running event loop the one that agents are opened in. Raises `Unavailable` once the pool is closed."""
        if self._is_closed:
            raise Unavailable("this Hybrid is closed", hint="make another one, and run tasks inside `async with Hybrid(...)`")
        await self.home.enter()

    def pace(self, name: str) -> Pace | None:
        """Return the measured speed of an agent's model; None where there is no such agent either."""
        handle = self._handles.get(name)
        return None if handle is None else handle.pace

    def health(self, name: str) -> Health | None:
        """Return an agent's circuit breakers; None where there is no such agent."""
        handle = self._handles.get(name)
        return None if handle is None else handle.health

    def ahead(self, name: str) -> int:
        """Return the calls that have to end before another one of an agent is worked on; 0 where there is no such agent."""
        handle = self._handles.get(name)
        return 0 if handle is None else handle.ahead

    def saved_against_far(self, result: Result) -> Decimal | None:
        """Estimate what far alone would have taken more: the price of the tokens of the attempt that stands, if far had read and written
        them.

        None where it could not have been asked, and where a price is unknown.
        """
        far = next((each.agent for each in result.decision.considered if each.side is Side.FAR and each.estimate is not None), None)
        prices = None if far is None else self[far].prices
        usage = next(attempt.usage for attempt in result.attempts if attempt.outcome == "accepted")
        return None if prices is None or result.dollars is None else prices.dollars(usage) - result.dollars

    async def _release(self) -> None:
        async with anyio.create_task_group() as closing:
            for handle in self:
                closing.start_soon(handle.release)

    def _forget(self) -> None:
        for handle in self:
            handle.forget()

    async def aclose(self) -> None:
        """Close every agent that was opened."""
        self._is_closed = True
        async with anyio.create_task_group() as closing:
            for handle in self:
                closing.start_soon(handle.aclose)
        await self.home.leave()


_KEPT: Final = 10_000
"""Conversations; of more, those are forgotten that were silent for the longest time."""
_CACHED_SECONDS: Final = 300.0
"""Seconds for which providers keep a prompt in their cache, as most of them say."""


class Prefixes:
    """The conversations that agents were sent lately, by their hashes. Calls may come from any thread.

    Args:
        clock: seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._sent: OrderedDict[int, dict[str, float]] = OrderedDict()

    def note(self, messages: Sequence[Message], agents: Iterable[str]) -> None:
        """Remember which agents were sent a conversation just now."""
        *_, whole = _hashes(messages)
        with self._lock:
            self._sent.setdefault(whole, {}).update(dict.fromkeys(agents, self._clock()))
            self._sent.move_to_end(whole)
            if len(self._sent) > _KEPT:
                self._sent.popitem(last=False)

    def holders(self, messages: Sequence[Message]) -> frozenset[str]:
        """Return the agents that were sent the beginning of a conversation, or all of it, in the last five minutes."""
        if not self._sent:
            return frozenset()
        with self._lock:
            since = self._clock() - _CACHED_SECONDS
            sent = [self._sent[begin] for begin in _hashes(messages) if begin in self._sent]
        return frozenset(agent for agents in sent for agent, when in agents.items() if when >= since)


def _hashes(messages: Sequence[Message]) -> Iterator[int]:
    """Yield a hash of each beginning of a conversation, the shortest first."""
    known = 0
    for message in messages:
        known = hash((known, message.role, message.text, message.attachments))
        yield known
