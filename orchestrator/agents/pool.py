"""The agents of one `Hybrid`: opened on first use, watched by circuit breakers, closed together; and the gateway that it starts itself."""

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel

from ...protocols import (
    Agent,
    AgentCard,
    AgentError,
    Capabilities,
    ConfigError,
    DeadlineExceeded,
    NearfarError,
    Prices,
    Side,
    StepEvent,
    StepRequest,
    Unavailable,
    stream,
)
from ...protocols.agent import LoopBound
from ...protocols.errors import BY_REASON
from ...protocols.secrets import log_defect
from ..storage.owners import SocketFolder
from ..util.runtime import HomeLoop, cancel_task
from .breaker import Health, Trial

if TYPE_CHECKING:
    from ...protocols.client import RemoteAgent


logger = logging.getLogger(__name__)
_START_SECONDS = 120.0
"""Loading a large model from a slow disk takes this long at most."""
_STOP_SECONDS = 5.0
_MAXIMUM_LINE = 65_536
_HAS_SOCKET_FILES = hasattr(socket, "AF_UNIX")
"""False on Windows, where the gateway process is known by its token alone."""
_RESUME_SECONDS = 2.0
"""A broken private socket means a dead child, so resuming is given up soon."""


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
    ) -> None:
        """`pace`: looks for what was measured of its model on this device; `prices`, `model`: those that its card will tell."""
        self.name = name
        self.side = side
        self.instructions = instructions
        """The app's instructions for this agent, in front of each step that it takes for a task."""
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
        self._probing, self._opening, self._failed_to_open = None, anyio.Lock(), []
        if isinstance(self._source, Agent):
            self._keep(self._source)
        elif self._unwrapped is not None:
            abandon: Callable[[], None] | None = getattr(self._unwrapped, "abandon", None)
            self._unwrapped = self._agent = None
            if abandon is not None:
                abandon()

    async def release(self) -> None:
        """Close the agent as `aclose` does, but let the next task open it again."""
        if self._probing is not None:
            await cancel_task(self._probing)
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


class GatewayProcess:
    """The far agent behind a gateway in a child process: an `Agent` that restarts the child when it has died."""

    def __init__(self, config: BaseModel, *, address: str | None = None) -> None:
        self._config = config
        self._folder = SocketFolder() if address is None and _HAS_SOCKET_FILES else None
        self._address = (address or "127.0.0.1:0") if self._folder is None else f"unix:{self._folder.path}/gateway"
        self._token = secrets.token_urlsafe()
        self._process: anyio.abc.Process | None = None
        self._remote: RemoteAgent | None = None
        self._card: AgentCard | None = None
        """Known from the first connection on, also while a child that died is replaced."""
        self._starting = anyio.Lock()
        self._is_closed = False
        self._home = LoopBound()

    @classmethod
    async def start(cls, config: BaseModel, *, address: str | None = None) -> "GatewayProcess":
        """Start the child and connect.

        Args:
            config: the far agent that the child opens.
            address: `HOST:PORT` on loopback; None: a unix socket in a private folder, or on Windows a free port.

        Raises what opening the far agent raises in the child, `Unavailable` where the child dies or hangs while it starts.
        """
        gateway = cls(config, address=address)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(gateway.aclose)
            await gateway._connected()
            stack.pop_all()
        return gateway

    @property
    def card(self) -> AgentCard:
        assert self._card is not None, "start() has connected"
        return self._card

    @property
    def process_id(self) -> int | None:
        """The id of the running child process; None where it has died or was closed."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def step(self, request: StepRequest) -> AsyncIterator[StepEvent]:
        with anyio.move_on_after(request.timeout) as starting:
            remote = await self._connected()
        if starting.cancelled_caught:
            raise DeadlineExceeded("the step's time was over before the gateway process had started again", hint="give it a longer timeout")
        async with stream(remote, request) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Stop the child: it gets a few seconds to end by itself."""
        self._is_closed = True
        await self._stop()
        self._remove_folder()

    def abandon(self) -> None:
        """End the child where the event loop that it belongs to is closed."""
        self._is_closed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()

    async def _connected(self) -> "RemoteAgent":
        from ...protocols.client import RemoteAgent  # with gRPC, which a Hybrid without a gateway does not need

        self._home.require("the gateway process")
        async with self._starting:
            if self._remote is not None and self.process_id is not None:
                return self._remote
            if self._is_closed:
                raise Unavailable("the gateway process is closed")
            await self._stop()
            # -P: the user's working folder may hold a json.py, and the child holds the provider's key.
            command = [sys.executable, "-P", "-m", "nearfar.orchestrator.compose.gateway_child"]
            self._process = await anyio.open_process(command, stderr=None, start_new_session=True)
            address = await self._handshake(self._process)
            remote = await RemoteAgent.connect(address, token=self._token, resume_timeout=_RESUME_SECONDS)
            self._remote, self._card = remote, remote.card
            return remote

    async def _handshake(self, process: anyio.abc.Process) -> str:
        assert process.stdin is not None, "a pipe by default"
        assert process.stdout is not None, "a pipe by default"
        order = {"far": self._config.model_dump(mode="json"), "address": self._address, "token": self._token}
        try:
            with anyio.fail_after(_START_SECONDS):
                await process.stdin.send(json.dumps(order).encode() + b"\n")
                line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", _MAXIMUM_LINE)
        except TimeoutError:
            raise Unavailable(f"the gateway process did not start within {_START_SECONDS:g} s") from None
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Unavailable("the gateway process died while it started", hint="its error is printed above") from None
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise BY_REASON[answer["error"]](answer["message"], hint=answer["hint"])
        return answer["address"]

    async def _stop(self) -> None:
        remote, self._remote = self._remote, None
        process, self._process = self._process, None
        # Shielded, since nothing else refers to the two any more; it takes a few seconds at most.
        with anyio.CancelScope(shield=True):
            if remote is not None:
                await remote.aclose()
            if process is not None:
                await _end(process)


async def _end(process: anyio.abc.Process) -> None:
    assert process.stdin is not None, "a pipe by default"
    await process.stdin.aclose()
    with anyio.move_on_after(_STOP_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()
