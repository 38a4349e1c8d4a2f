"""`Hub`: lends out the agents of workers that connect to it, such as phones, which cannot accept connections."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import anyio
import grpc

from .access import Access, Clock, Context
from .agent import Agent, AgentCard, DeviceState, PowerSource, Side
from .errors import ConfigError, InvalidRequest, NearfarError, NotFound, StepLost, Unauthenticated, Unavailable
from .hub_session import AttachedStep, Registration, WorkerSession, device_state_to_proto, registration_from_proto
from .limits import REGISTRATION_SECONDS, Heartbeat
from .security import IDENTITY, Scope, TokenRecord, Tokens, token_records
from .server import listening
from .steps import StepEvent, StepRequest
from .tls import ServerTls
from .v1 import hub_pb2 as pb
from .validation import check_request
from .wire import card_to_proto

logger = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["HubService"].full_name
_LAST_WRITE_LIMIT = 1.0


class HubService:
    """Serves `hub` to its workers, and lists the workers to its own machine."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def handlers(self) -> grpc.GenericRpcHandler:
        attach = grpc.stream_stream_rpc_method_handler(self.attach, pb.WorkerMessage.FromString, pb.HubMessage.SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, {"Attach": attach})

    def local_handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for callers on the hub's own machine."""
        listing = grpc.unary_unary_rpc_method_handler(self.list, pb.ListRequest.FromString, pb.ListResponse.SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, {"List": listing})

    async def list(self, _: pb.ListRequest, context: Context) -> pb.ListResponse:
        """Return the hub's records of its workers."""
        return pb.ListResponse(workers=map(self._hub.known, self._hub.workers))

    async def attach(self, _: object, context: Context) -> None:
        """Serve one worker's stream, from registration to end."""
        registration = await _read_registration(context)
        session = self._hub.register(IDENTITY.get().caller, registration)
        logger.info("worker %r is attached with %s", session.worker, ", ".join(session.cards))
        await self._converse(session, context)

    async def _converse(self, session: WorkerSession, context: Context) -> None:
        """Send and receive until the session ends. Raise the error that it ended with."""
        registered = pb.Registered(
            worker=session.worker, heartbeat_interval=self._hub.heartbeat.interval, silence_limit=self._hub.heartbeat.silence_limit
        )
        session.outbox.put(pb.HubMessage(registered=registered))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_receive, session, context)
                tasks.start_soon(_watch, session)
                sent = asyncio.Event()
                tasks.start_soon(_send, session, context, sent)
                error = await session.closed()
                with anyio.move_on_after(_LAST_WRITE_LIMIT):
                    await sent.wait()  # gRPC cannot end a call in the middle of a write
                tasks.cancel_scope.cancel()
        finally:
            session.close(Unavailable("the connection was lost"))  # where gRPC cancelled this call
            logger.info("worker %r is detached", session.worker)
        if error is not None:
            raise error


async def _read_registration(context: Context) -> Registration:
    try:
        async with asyncio.timeout(REGISTRATION_SECONDS):
            message = await context.read()
    except TimeoutError:
        raise InvalidRequest(f"the worker did not register within {REGISTRATION_SECONDS:g} s") from None
    if not isinstance(message, pb.WorkerMessage) or message.WhichOneof("message") != "register":
        raise InvalidRequest("a worker's first message is its registration")
    return registration_from_proto(message.register)


async def _receive(session: WorkerSession, context: Context) -> None:
    """Receive the worker's messages until it closes its half of the stream."""
    try:
        while isinstance(message := await context.read(), pb.WorkerMessage):
            session.receive(message)
        session.close()
    except NearfarError as error:
        session.close(error)
    except grpc.aio.BaseError:
        session.close(Unavailable("the connection was lost"))


async def _send(session: WorkerSession, context: Context, sent: asyncio.Event) -> None:
    try:
        while message := await session.outbox.get():
            await context.write(message)
    except grpc.aio.BaseError:
        session.close(Unavailable("the connection was lost"))
    finally:
        sent.set()


async def _watch(session: WorkerSession) -> None:
    await session.pulse.run(session.beat)
    session.close(Unavailable("the worker was silent for too long"))


__all__ = ["AttachedAgent", "Heartbeat", "Hub", "WorkerTerms", "serve_hub"]

_IDLE_TIMEOUT = 330.0
"""Seconds. A reasoning model may be silent for minutes; heartbeats tell that its worker is alive."""


@dataclass(frozen=True, kw_only=True)
class WorkerTerms:
    """The owner's terms for one worker."""

    side: Side = Side.FAR
    """NEAR: the device is the user's own, and private text may be sent to the near agents on it."""
    minimum_battery: float | None = None
    """Share of a full charge below which the worker gets no steps while it runs on its battery."""


@dataclass
class _Worker:
    """The hub's record of one worker."""

    policy: WorkerTerms
    session: WorkerSession | None = None
    cards: Mapping[str, AgentCard] = field(default_factory=dict)
    """The agent cards by name, as last registered."""

    @property
    def live_session(self) -> WorkerSession | None:
        return self.session if self.session is not None and not self.session.is_closed else None


class Hub:
    """Accepts workers, each identified by its token, and offers their agents.

    An agent's name is its worker's name, or `worker/agent` if the worker offers several. The agent counts as far, whatever its card
    says, unless the worker's policy says that the device is the user's own.

    Arguments of several functions:
        name: an agent, as `worker` or `worker/agent`
        worker: a worker's name, which is its token's
        request: the conversation so far, the tools and the limits
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        policies: Mapping[str, WorkerTerms] | None = None,
        heartbeat: Heartbeat | None = None,
        idle_timeout: float = _IDLE_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """Set up the hub. `tokens` maps each worker's name to its bearer token, or holds the records of a token file. `policies` are the
        owner's terms by worker, `heartbeat` says how soon a silent worker counts as gone, `idle_timeout` how many seconds a step may be
        silent. Tokens expire by `clock`.

        Raise `ConfigError` if there is no token, or a name has a slash.
        """
        records = token_records(tokens)
        if not records:
            raise ConfigError(
                "a hub needs a token for each worker: the token says who a worker is", hint="make one with `nearfar worker pair`"
            )
        self._policies = dict(policies or {})
        self._heartbeat = heartbeat or Heartbeat()
        self._idle_timeout = idle_timeout
        self._numbers = count(1)
        self._workers: dict[str, _Worker] = {}
        self._records: tuple[TokenRecord, ...] = ()
        self._closing: NearfarError | None = None
        self._arrival = asyncio.Event()
        """Set when the next worker attaches, and replaced by a new event then."""
        self.access = Access(records, clock=clock)
        """The callers that may use the hub, as `replace_tokens` last set them."""
        self.agents: dict[str, Agent] = {}
        """Every agent by name; kept up to date as workers are allowed, attach and are revoked."""
        self.replace_tokens(records)

    def replace_tokens(self, tokens: Tokens) -> None:
        """Allow only the workers with these tokens; a worker that is attached with a removed token is disconnected at once.

        Raise `ConfigError`, and change nothing, if a name has a slash, which separates worker and agent.
        """
        records = token_records(tokens)
        names = [record.caller for record in records if Scope.ATTACH in record.scopes]
        if unusable := [name for name in names if not name or "/" in name]:
            raise ConfigError(f"{unusable[0]!r} cannot be a worker's name", hint="use letters, digits, - and _")
        self.access.replace_tokens(records)
        self._records = records
        for name in self._workers.keys() - names:
            self._shut_out(name)
        for name in names:
            self._workers.setdefault(name, _Worker(self._policies.get(name, WorkerTerms())))
            self.agents.setdefault(name, AttachedAgent(self, name))

    def revoke(self, worker: str) -> None:
        """Revoke a worker's tokens: its steps fail and its stream ends."""
        self.replace_tokens([record for record in self._records if record.caller != worker])

    def agent(self, name: str) -> "AttachedAgent":
        """Return the agent `worker` or `worker/agent`, attached or not. Raise `NotFound` for a worker that has no token."""
        if name.partition("/")[0] not in self._workers:
            raise NotFound(f"the hub knows no worker {name!r}", hint=f"it knows: {', '.join(sorted(self._workers)) or 'none'}")
        return AttachedAgent(self, name)

    async def wait_for(self, name: str) -> "AttachedAgent":
        """Wait, without a time limit, until the agent is attached, and return it. Raise the errors of `agent`."""
        agent = self.agent(name)
        while self._session_of(name) is None:
            await self._arrival.wait()
        return agent

    @property
    def attached(self) -> dict[str, WorkerSession]:
        """Return the sessions of the attached workers, by worker."""
        sessions = {name: worker.live_session for name, worker in self._workers.items()}
        return {name: session for name, session in sessions.items() if session is not None}

    def device_state(self, worker: str) -> DeviceState:
        """Return the last known state of the worker's device; every field is unknown while the worker is not attached."""
        session = self._session_of(worker)
        return DeviceState() if session is None else session.state

    def card(self, name: str) -> AgentCard:
        """Return the card of `worker` or `worker/agent` as last registered. Raise `Unavailable` if it never was."""
        worker, card = self._registered(name)
        side = card.side if worker.policy.side is Side.NEAR else Side.FAR
        return card.model_copy(update={"name": name, "side": side})

    def start(self, name: str, request: StepRequest) -> tuple[WorkerSession, AttachedStep]:
        """Give a step to the worker of `name`. Raise `Unavailable` if the worker is not attached or its battery is too low."""
        worker, card = self._registered(name)
        session = worker.live_session
        if session is None:
            raise Unavailable(f"worker {name!r} is not attached", hint="start `nearfar worker attach` on it, or ask another agent")
        _check_battery(name, worker.policy, session.state)
        return session, session.start(card.name, request, idle_timeout=self._idle_timeout)

    def register(self, name: str, registration: Registration) -> WorkerSession:
        """Attach a worker that has shown its token.

        A new stream of the same process replaces the broken one at once. Another process is refused while the first is alive: raise
        `ConfigError`, whose `retry_after` says when that is known. Raise `Unavailable` if the hub is closing.
        """
        if self._closing is not None:
            raise self._closing
        worker = self._workers[name]
        old = worker.live_session
        if old is not None and old.instance != registration.instance:
            raise ConfigError(
                f"another worker is attached as {name!r}",
                hint="give each worker a token of its own, or stop the other one",
                retry_after=self._heartbeat.silence_limit,
            )
        if old is not None:
            old.close(Unavailable("the worker attached again"))
        session = WorkerSession(name, registration, heartbeat=self._heartbeat, numbers=self._numbers)
        worker.session, worker.cards = session, session.cards
        self._offer(name, further=tuple(session.cards)[1:])
        self._arrival.set()
        self._arrival = asyncio.Event()
        return session

    def known(self, name: str) -> pb.KnownWorker:
        """Return the hub's record of a worker, for a list of all workers."""
        worker, session = self._workers[name], self._session_of(name)
        names = [name, *(f"{name}/{agent}" for agent in tuple(worker.cards)[1:])] if worker.cards else []
        return pb.KnownWorker(
            name=name,
            is_attached=session is not None,
            is_draining=session is not None and session.is_draining,
            agents=(card_to_proto(self.card(agent)) for agent in names),
            state=device_state_to_proto(self.device_state(name)),
            live_steps=session.live_steps if session is not None else 0,
        )

    @property
    def workers(self) -> tuple[str, ...]:
        """Return the names of all workers that have a token."""
        return tuple(self._workers)

    @property
    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat that workers have to send."""
        return self._heartbeat

    async def close(self) -> None:
        """End all sessions and accept no further ones. Workers attach again by themselves when a hub is back."""
        self._closing = Unavailable("the hub is shutting down", hint="it may be back shortly")
        for session in self.attached.values():
            session.close(self._closing)

    def _offer(self, name: str, *, further: Collection[str]) -> None:
        """Offer the worker's agent under its own name and the `further` ones; forget those that it no longer lends."""
        offered = [f"{name}/{agent}" for agent in further]
        for gone in [agent for agent in self.agents if agent.startswith(f"{name}/") and agent not in offered]:
            del self.agents[gone]
        for agent in offered:
            self.agents.setdefault(agent, AttachedAgent(self, agent))

    def _shut_out(self, name: str) -> None:
        worker = self._workers.pop(name)
        self._offer(name, further=())
        del self.agents[name]
        if worker.session is not None:
            worker.session.close(Unauthenticated(f"the token of worker {name!r} was revoked", hint="pair the worker again"))

    def _session_of(self, name: str) -> WorkerSession | None:
        worker = self._workers.get(name.partition("/")[0])
        return worker.live_session if worker is not None else None

    def _registered(self, name: str) -> tuple[_Worker, AgentCard]:
        """Return the worker and the card behind `worker` or `worker/agent`."""
        worker_name, _, agent = name.partition("/")
        worker = self._workers.get(worker_name)
        if worker is None or not worker.cards:
            raise Unavailable(f"worker {worker_name!r} is not attached", hint="start `nearfar worker attach` on it, or ask another agent")
        if agent and agent not in worker.cards:
            raise Unavailable(f"worker {worker_name!r} offers no agent {agent!r}", hint=f"it offers: {', '.join(worker.cards)}")
        return worker, worker.cards[agent] if agent else next(iter(worker.cards.values()))


class AttachedAgent:
    """An agent on a worker, across reconnections of the worker. While the worker is away, steps raise `Unavailable` at once.

    A step is given to one worker once: if the worker is lost, the step fails.
    """

    is_elsewhere = True
    """Text that must never leave this device is not sent here."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self._name = name
        self._steps: dict[AttachedStep, WorkerSession] = {}
        self._is_closed = False

    @property
    def card(self) -> AgentCard:
        """Return the card as last registered. Raise `Unavailable` if the worker was never attached."""
        return self._hub.card(self._name)

    @property
    def device_state(self) -> DeviceState:
        """Return the last known state of the worker's device."""
        return self._hub.device_state(self._name)

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run one step on the worker. Leaving the stream early stops the compute there."""
        if self._is_closed:
            raise self._closed()
        check_request(self.card, request)
        session, step = self._hub.start(self._name, request)
        self._steps[step] = session
        try:
            while event := await step.next():
                yield event
        finally:
            del self._steps[step]
            session.give_up(step)

    async def aclose(self) -> None:
        """Stop the steps of this agent on the worker; they raise `StepLost`. The worker stays attached."""
        self._is_closed = True
        for step, session in self._steps.items():
            session.give_up(step, self._closed(StepLost))

    def _closed(self, error: type[Unavailable] = Unavailable) -> Unavailable:
        return error(f"the attached agent {self._name!r} is closed")


@asynccontextmanager
async def serve_hub(
    hub: Hub,
    address: str = "localhost:0",
    *,
    tls: ServerTls | None = None,
    insecure: bool = False,
    further: Mapping[str, grpc.GenericRpcHandler] | None = None,
) -> AsyncIterator[str]:
    """Let workers attach to `hub` at `address` until the context ends; yield the address that is bound. Beyond this machine `tls` is
    required; `insecure` confirms plain text on it.

    `further` holds more services, by name, for the same callers. Raise `ConfigError` if the address is malformed, taken or too exposed.
    """
    serving = listening(
        {SERVICE: HubService(hub).handlers(), **(further or {})},
        address,
        access=hub.access,
        tls=tls,
        insecure=insecure,
        closing=hub.close,
        time_limit=5.0,
    )
    async with serving as bound:
        yield str(bound)


def _check_battery(name: str, policy: WorkerTerms, state: DeviceState) -> None:
    if policy.minimum_battery is None or state.battery is None or state.power_source is PowerSource.MAINS:
        return
    if state.battery < policy.minimum_battery:
        raise Unavailable(
            f"the battery of worker {name!r} is at {state.battery:.0%}, below its minimum of {policy.minimum_battery:.0%}",
            hint="ask another agent, or lower minimum_battery",
        )
