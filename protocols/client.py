"""`RemoteAgent`: an agent on the other side of a gRPC connection."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import grpc

from .address import parse_address
from .agent import AgentCard, LoopBound, Side
from .channel import open_channel
from .errors import ConfigError, NotFound, StepLost, Unavailable
from .remote_step import Connection, RemoteStep
from .security import bearer_metadata
from .steps import StepEvent, StepRequest
from .tls import ClientTls
from .v1 import agent_pb2 as pb
from .v1.agent_pb2_grpc import AgentServiceStub
from .validation import check_privacy
from .wire import card_from_proto

logger = logging.getLogger(__name__)

__all__ = ["ClientTls", "RemoteAgent"]

_DESCRIBE_LIMIT = 10.0
IDLE_TIMEOUT = 330.0
"""Seconds. A reasoning model may be silent for minutes; keepalive notices a dead peer much earlier. The value is a little above a
provider's own limit, so that the provider's more exact error arrives first."""


class RemoteAgent:
    """The agent that a server offers at `address` under the name `agent` (empty: its first one).

    A step fails at once if the server is down. If the connection breaks later, the step is resumed behind the last event
    received for up to `resume_timeout` seconds, so that the text stays exact. `Stalled` says that the server was silent for
    `idle_timeout` seconds. On this machine the connection is plaintext unless `tls` is given; to another one it is always TLS,
    and the agent counts as far whatever its card says, so private text never leaves this machine. When files in `tls` change,
    further steps get a new connection.
    """

    is_elsewhere = True
    """Text that must never leave this device is not sent here: a hub may sit behind an address on this machine, too."""

    def __init__(
        self,
        address: str,
        *,
        agent: str = "",
        token: str | None = None,
        tls: ClientTls | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        resume_timeout: float = 2.0,
    ) -> None:
        """Set up the connection; nothing is sent before the first call. `token` is the bearer token that the server knows this device by.
        Raise `ConfigError` for a malformed address or token."""
        self._address = parse_address(address)
        self._agent = agent
        self._tls = tls
        self._metadata = bearer_metadata(token)
        self._idle_timeout = idle_timeout
        self._resume_timeout = resume_timeout
        self._channels: list[grpc.aio.Channel] = []
        """The current channel, and older ones that steps from before a change of the files in `tls` may still use."""
        self._files: object = None
        self._connection: Connection | None = None
        self._card: AgentCard | None = None
        self._steps: set[RemoteStep] = set()
        self._is_closed = False
        self._home = LoopBound()

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        agent: str = "",
        token: str | None = None,
        tls: ClientTls | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        resume_timeout: float = 2.0,
    ) -> "RemoteAgent":
        """Return a `RemoteAgent` whose card is loaded; the arguments are those of `RemoteAgent`. Raise the errors of `describe`."""
        remote = cls(address, agent=agent, token=token, tls=tls, idle_timeout=idle_timeout, resume_timeout=resume_timeout)
        try:
            await remote.describe()
        except BaseException:
            await remote.aclose()
            raise
        return remote

    @property
    def server(self) -> tuple[str, int] | None:
        """Return the host and port of the server, for telemetry; None for a Unix socket."""
        return None if self._address.path else (self._address.host, self._address.port)

    @property
    def card(self) -> AgentCard:
        """Return the card that `describe` last fetched. Raise `ConfigError` before the first `describe`."""
        if self._card is None:
            raise ConfigError(
                f"the agent at {self._address} has not been asked for its card", hint="await RemoteAgent.connect(...) or describe()"
            )
        return self._card

    async def describe(self) -> AgentCard:
        """Fetch the card. Raises `Unavailable`, `Unauthenticated` or, if the server has no such agent, `NotFound`."""
        connection = self._connected()
        try:
            reply: pb.DescribeResponse = await connection.stub.Describe(
                pb.DescribeRequest(), timeout=_DESCRIBE_LIMIT, metadata=connection.metadata
            )
        except grpc.aio.AioRpcError as error:
            raise await connection.failure(error) from error
        cards = [card_from_proto(card) for card in reply.agents]
        chosen = next((card for card in cards if self._agent in ("", card.name)), None)
        if chosen is None:
            names = ", ".join(card.name for card in cards) or "none"
            raise NotFound(f"the server at {self._address} has no agent {self._agent!r}", hint=f"it has: {names}")
        self._card = chosen if self._address.is_local else chosen.model_copy(update={"side": Side.FAR})
        return self._card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run one step on the server with this `request`. Leaving the stream early stops the compute there."""
        connection = self._connected()
        check_privacy(self._card or await self.describe(), request)
        step = RemoteStep(connection, self._agent, request)
        self._steps.add(step)
        try:
            while event := await step.next():
                yield event
        finally:
            self._steps.discard(step)
            await step.close()

    async def aclose(self) -> None:
        """Close the connection. Steps under way are stopped on the server and raise `StepLost`."""
        if self._channels:
            self._home.require(f"the connection to {self._address}")
        self._is_closed = True
        await asyncio.gather(*(step.abort(self._closed(StepLost)) for step in tuple(self._steps)))
        if self._connection is not None and self._connection.leaving:
            await asyncio.wait(self._connection.leaving)
        await asyncio.gather(*(channel.close() for channel in self._channels))

    def _connected(self) -> Connection:
        if self._is_closed:
            raise self._closed()
        self._home.require(f"the connection to {self._address}")
        files = None if self._tls is None else self._tls.look()
        if self._connection is None:
            self._connection = self._open()
        elif files != self._files:
            try:
                self._connection = self._open()
            except ConfigError as error:  # files that are replaced one after the other do not fit for a moment
                logger.warning("the connection to %s stays as it was: %s", self._address, error)
                return self._connection
        self._files = files
        return self._connection

    def _open(self) -> Connection:
        channel = open_channel(self._address, self._tls)
        self._channels.append(channel)
        return Connection(
            stub=AgentServiceStub(channel),
            address=self._address,
            tls=self._tls,
            metadata=self._metadata,
            idle_timeout=self._idle_timeout,
            resume_timeout=self._resume_timeout,
        )

    def _closed(self, error: type[Unavailable] = Unavailable) -> Unavailable:
        return error(f"the connection to {self._address} is closed")
