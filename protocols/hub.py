"""`Hub`: agents of workers that dialled out to it, as a phone does that cannot be dialled."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import grpc

from .access import Access, Clock
from .agent import Agent
from .cards import AgentCard, Side
from .channel import ServerTls
from .device_state import DeviceState, PowerSource
from .errors import ConfigError, NearfarError, NotFound, StepLost, Unauthenticated, Unavailable
from .heartbeat import Heartbeat
from .hub_service import SERVICE, HubService
from .hub_session import AttachedStep, Session
from .hub_wire import Registration, device_state_to_proto
from .server import listening
from .steps import StepEvent, StepRequest
from .tokens import Scope, TokenRecord, Tokens, token_records
from .v1 import hub_pb2 as pb
from .validation import check_request
from .wire import card_to_proto

__all__ = ["AttachedAgent", "Heartbeat", "Hub", "WorkerTerms", "serve_hub"]

_IDLE_TIMEOUT = 330.0
"""Seconds; as for other remote agents, a model may reason unseen for minutes. That its worker is alive, heartbeats tell."""


@dataclass(frozen=True, kw_only=True)
class WorkerTerms:
    """What the hub's owner says about one worker."""

    side: Side = Side.FAR
    """NEAR: the device is the user's own, and private text may be sent to the near agents on it."""
    minimum_battery: float | None = None
    """Share of a full charge below which the worker gets no steps while it runs on its battery."""


@dataclass
class _Worker:
    """What the hub knows of one identity."""

    policy: WorkerTerms
    session: Session | None = None
    cards: Mapping[str, AgentCard] = field(default_factory=dict)
    """By name, as last registered."""

    @property
    def live_session(self) -> Session | None:
        return self.session if self.session is not None and not self.session.is_closed else None


class Hub:
    """Accepts workers, each known by its token, and offers what they lend as agents.

    An agent is known by its worker's name, or by `worker/agent` where a worker offers several. It is far, whatever its card says, unless
    its worker's policy says that the device is the user's own.
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
        """`tokens` maps each worker's name to its bearer token, or is what a token file holds. Tokens expire by `clock`.

        Raises `ConfigError` if there is none, or a name has a slash.
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
        """Set when the next worker attaches, which then has another one put in its place."""
        self.access = Access(records, clock=clock)
        """Who may call the hub, as `replace_tokens` last said."""
        self.agents: dict[str, Agent] = {}
        """Every agent by name; kept up to date as workers are allowed, attach and are revoked."""
        self.replace_tokens(records)

    def replace_tokens(self, tokens: Tokens) -> None:
        """Allow the workers with these tokens and no others: one that is attached with a token that is gone is shut out at once.

        Raises `ConfigError`, and changes nothing, if a name has a slash, which is what separates worker and agent.
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
        """Shut a worker out: its steps fail, its stream ends and its tokens are worth nothing."""
        self.replace_tokens([record for record in self._records if record.caller != worker])

    def agent(self, name: str) -> "AttachedAgent":
        """The agent `worker` or `worker/agent`, whether it is attached now or not. Raises `NotFound` for a worker that has no token."""
        if name.partition("/")[0] not in self._workers:
            raise NotFound(f"the hub knows no worker {name!r}", hint=f"it knows: {', '.join(sorted(self._workers)) or 'none'}")
        return AttachedAgent(self, name)

    async def wait_for(self, name: str) -> "AttachedAgent":
        """The agent as soon as it is attached. It has no time limit of its own. Raises what `agent` raises."""
        agent = self.agent(name)
        while self._session_of(name) is None:
            await self._arrival.wait()
        return agent

    @property
    def attached(self) -> dict[str, Session]:
        """The sessions of the workers that are attached now, by worker."""
        sessions = {name: worker.live_session for name, worker in self._workers.items()}
        return {name: session for name, session in sessions.items() if session is not None}

    def device_state(self, worker: str) -> DeviceState:
        """What the worker's device last said of itself; all unknown while it is not attached."""
        session = self._session_of(worker)
        return DeviceState() if session is None else session.state

    def card(self, name: str) -> AgentCard:
        """The card of `worker` or `worker/agent` as last registered. Raises `Unavailable` if it never was."""
        worker, card = self._registered(name)
        side = card.side if worker.policy.side is Side.NEAR else Side.FAR
        return card.model_copy(update={"name": name, "side": side})

    def start(self, name: str, request: StepRequest) -> tuple[Session, AttachedStep]:
        """Give a step to the worker of `name`. Raises `Unavailable` if it is not attached or spares its battery."""
        worker, card = self._registered(name)
        session = worker.live_session
        if session is None:
            raise Unavailable(f"worker {name!r} is not attached", hint="start `nearfar worker attach` on it, or ask another agent")
        _check_battery(name, worker.policy, session.state)
        return session, session.start(card.name, request, idle_timeout=self._idle_timeout)

    def register(self, name: str, registration: Registration) -> Session:
        """Attach a worker that has shown its token.

        The same process anew replaces its own broken stream at once. Another one is refused as long as the first is alive: raises
        `ConfigError` that says when that would be known. Raises `Unavailable` if the hub is closing.
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
            old.close(Unavailable("the worker attached anew"))
        session = Session(name, registration, heartbeat=self._heartbeat, numbers=self._numbers)
        worker.session, worker.cards = session, session.cards
        self._offer(name, further=tuple(session.cards)[1:])
        self._arrival.set()
        self._arrival = asyncio.Event()
        return session

    def known(self, name: str) -> pb.KnownWorker:
        """What the hub knows of a worker, for who lists them."""
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
        """The names of all workers that have a token."""
        return tuple(self._workers)

    @property
    def heartbeat(self) -> Heartbeat:
        """What workers are asked for, and do not survive without."""
        return self._heartbeat

    async def close(self) -> None:
        """End all sessions and take no further ones. Workers come back by themselves when there is a hub again."""
        self._closing = Unavailable("the hub is shutting down", hint="it may be back shortly")
        for session in self.attached.values():
            session.close(self._closing)

    def _offer(self, name: str, *, further: Collection[str]) -> None:
        """The worker's agents are now the one under its own name and `further` ones; those that it no longer lends are forgotten."""
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
            worker.session.close(Unauthenticated(f"the token of worker {name!r} was revoked", hint="pair the worker anew"))

    def _session_of(self, name: str) -> Session | None:
        worker = self._workers.get(name.partition("/")[0])
        return worker.live_session if worker is not None else None

    def _registered(self, name: str) -> tuple[_Worker, AgentCard]:
        """The worker and the card behind `worker` or `worker/agent`."""
        worker_name, _, agent = name.partition("/")
        worker = self._workers.get(worker_name)
        if worker is None or not worker.cards:
            raise Unavailable(f"worker {worker_name!r} is not attached", hint="start `nearfar worker attach` on it, or ask another agent")
        if agent and agent not in worker.cards:
            raise Unavailable(f"worker {worker_name!r} offers no agent {agent!r}", hint=f"it offers: {', '.join(worker.cards)}")
        return worker, worker.cards[agent] if agent else next(iter(worker.cards.values()))


class AttachedAgent:
    """An agent on a worker, for as long as the worker comes back to its hub. While it is away, steps are `Unavailable` at once.

    A step that was given to a worker is never given to another or given again: if the worker is lost, the step fails.
    """

    is_elsewhere = True
    """What must never leave this device is not for it."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self._name = name
        self._steps: dict[AttachedStep, Session] = {}
        self._is_closed = False

    @property
    def card(self) -> AgentCard:
        """As last registered. Raises `Unavailable` if the worker was never attached."""
        return self._hub.card(self._name)

    @property
    def device_state(self) -> DeviceState:
        """What the worker's device last said of itself."""
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
        """Steps under way are stopped on the worker and raise `StepLost`. The worker stays attached."""
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
    """Let workers attach at `address` until the context ends; yields where it really listens. TLS is required beyond this machine.

    `further` are services beside the hub's, by their names, for the same callers.

    Raises `ConfigError` if the address is malformed, taken or too exposed.
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
            f"the battery of worker {name!r} is at {state.battery:.0%}, and {policy.minimum_battery:.0%} are to be left",
            hint="ask another agent, or lower minimum_battery",
        )
