"""`AgentService`: the RPCs of a server, and the tasks in which its agents compute."""

import asyncio
import logging
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Self

import anyio
import grpc

from .agent import Agent, run_step
from .cards import AgentCard
from .errors import DeadlineExceeded, InvalidOutput, InvalidRequest, NearfarError, NotFound, StepLost, Unavailable
from .limits import MAX_MESSAGE_BYTES, NAME_LENGTH, UNREAD_SECONDS
from .security import IDENTITY
from .status import Context, begun
from .step_log import LoggedStep, Retention, StepLog
from .steps import Finished, StepEvent, StepRequest
from .v1 import agent_pb2 as pb
from .validation import check_privacy
from .wire import ACCEPTED, SERVICE, card_to_proto, event_to_proto, request_from_proto

logger = logging.getLogger(__name__)

_BACK_AFTER = 1.0
"""Seconds that clients of a server in shutdown should wait; another server may have its address by then."""


class AgentService:
    """Serves `agents` by name; the first one answers calls that name no agent. The mapping may change meanwhile, as a hub's does."""

    def __init__(self, agents: Mapping[str, Agent], *, retention: Retention) -> None:
        self._agents = agents
        self._log = StepLog(retention)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: NearfarError | None = None
        self._ended = asyncio.Event()
        """Set whenever a step or a call has ended."""
        self.live_calls = 0
        """Handlers of `Step` that are running now."""

    @property
    def live_steps(self) -> int:
        """Return the number of steps whose agent is computing now."""
        return len(self._tasks)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the RPCs. Events are kept in their wire form, so `Step` needs no serializer."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
                ),
                "Step": grpc.unary_stream_rpc_method_handler(self.step, pb.StepCall.FromString),
                "Cancel": grpc.unary_unary_rpc_method_handler(
                    self.cancel, pb.CancelRequest.FromString, pb.CancelResponse.SerializeToString
                ),
            },
        )

    async def describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        return pb.DescribeResponse(agents=map(card_to_proto, _cards(self._agents)))

    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        self._log.leave((IDENTITY.get().caller, request.idempotency_key), reader=request.reader)
        return pb.CancelResponse()

    async def step(self, call: pb.StepCall, context: Context) -> None:
        self.live_calls += 1
        try:
            await self._send(self._join(call, context), call, context)
        finally:
            self.live_calls -= 1
            self._ended.set()

    async def drain(self, time_limit: float) -> bool:
        """Refuse new steps, and give running ones at most `time_limit` seconds to be computed and read to their end.

        Return whether all of them ended.
        """
        self._log.refusal = _shutting_down()
        with anyio.move_on_after(time_limit):
            while self._tasks or self.live_calls:
                self._ended.clear()
                await self._ended.wait()
        return not self._tasks and not self.live_calls

    def shut_out(self, tokens: Collection[str], error: NearfarError) -> None:
        """Stop with `error` the steps of callers that have shown only these tokens, by their ids."""
        self._log.shut_out(tokens, error)

    async def close(self, time_limit: float) -> None:
        """Cancel all steps and wait for their tasks, at most `time_limit` seconds."""
        self._closing = _shutting_down()
        self._log.close(_shutting_down(StepLost))
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=time_limit)
            if stuck:
                logger.error("%d steps did not stop within %g s of their cancellation", len(stuck), time_limit)

    def _join(self, call: pb.StepCall, context: Context) -> LoggedStep:
        if self._closing is not None:
            raise self._closing
        if len(call.reader) > NAME_LENGTH:
            raise InvalidRequest(f"a reader's name has {NAME_LENGTH} characters at most")
        name, agent = self._agent(call.agent)
        request = request_from_proto(call.request, idempotency_key=call.idempotency_key, timeout=_timeout(context))
        check_privacy(agent.card, request)
        fingerprint = sha256(name.encode() + b"\0" + call.request.SerializeToString(deterministic=True)).digest()
        resume_from = call.resume_from if call.HasField("resume_from") else None
        identity = IDENTITY.get()
        step, is_new = self._log.join((identity.caller, call.idempotency_key), fingerprint, resume_from=resume_from)
        step.tokens.add(identity.token)
        if is_new:
            step.task = asyncio.create_task(self._compute(step, agent, request))
            self._tasks.add(step.task)
            step.task.add_done_callback(lambda task: self._settle(step, task))
        return step

    async def _send(self, step: LoggedStep, call: pb.StepCall, context: Context) -> None:
        is_local = context.peer().startswith("unix:")  # such a connection is lost only where the client is gone
        with self._log.reading(step, reader=call.reader, may_return=not is_local):
            await asyncio.sleep(0)  # a fast agent has its first event by now, which spares the separate metadata
            has_begun = False
            if call.resume_from or not step.events:
                await begun(context.send_initial_metadata(ACCEPTED))
                has_begun = True
            async with _Delivery(context, has_begun=has_begun) as delivery:
                await delivery.send(step, position=call.resume_from)
        if step.error is not None:
            raise step.error

    async def _compute(self, step: LoggedStep, agent: Agent, request: StepRequest) -> None:
        async def record(event: StepEvent) -> None:
            self._log.append(step, _encoded(event))
            if isinstance(event, Finished):
                self._log.finish(step)

        if error := await run_step(agent, request, record):
            self._log.finish(step, error)

    def _settle(self, step: LoggedStep, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.set()
        step.task = None
        if not step.done:
            self._log.finish(step, StepLost("the step was stopped on the server"))

    def _agent(self, name: str) -> tuple[str, Agent]:
        if not name and self._agents:
            return next(iter(self._agents.items()))
        if name not in self._agents:
            raise NotFound(f"the server has no agent {name!r}", hint=f"it has: {', '.join(sorted(self._agents))}")
        return name, self._agents[name]


class _Delivery:
    """Sends a step's events to one reader, and ends with `DeadlineExceeded` when the reader takes nothing for `UNREAD_SECONDS`.

    One timer watches the whole call: a timer per event would cost more than the event.
    """

    def __init__(self, context: Context, *, has_begun: bool) -> None:
        self._context = context
        self._has_begun = has_begun
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._writing_since = math.inf
        self._timer = self._loop.call_later(UNREAD_SECONDS, self._check)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, traceback)
        except TimeoutError:
            message = f"the step's reader took nothing for {UNREAD_SECONDS:g} s"
            raise DeadlineExceeded(message, hint="read faster, or resume the step") from None

    async def send(self, step: LoggedStep, *, position: int) -> None:
        """Send the events from `position` on, as they come, until the step is done."""
        while True:
            while position < len(step.events):
                self._writing_since = self._loop.time()
                writing = self._context.write(step.events[position])
                await (writing if self._has_begun else begun(writing))
                self._has_begun = True
                position += 1
            self._writing_since = math.inf
            if step.done:
                return
            await step.change()

    def _check(self) -> None:
        now = self._loop.time()
        due = min(self._writing_since, now) + UNREAD_SECONDS
        if due > now:
            self._timer = self._loop.call_at(due, self._check)
        else:
            self._limit.reschedule(now)


def _cards(agents: Mapping[str, Agent]) -> Iterator[AgentCard]:
    """Yield the cards under the served names, except those of workers that have never been attached."""
    for name, agent in agents.items():
        with suppress(Unavailable):
            yield agent.card.model_copy(update={"name": name})


def _shutting_down(error: type[Unavailable] = Unavailable) -> Unavailable:
    return error("the server is shutting down", hint="try again shortly, or at another server", retry_after=_BACK_AFTER)


def _encoded(event: StepEvent) -> bytes:
    data = event_to_proto(event).SerializeToString()
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidOutput(f"the agent produced an event of more than {MAX_MESSAGE_BYTES} bytes", hint="ask for a shorter answer")
    return data


def _timeout(context: Context) -> float | None:
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineExceeded("the step's deadline had passed when it reached the server")
    return remaining
