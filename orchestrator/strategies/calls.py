"""One call of an agent, recorded with its price whatever comes of it; and the graph that it is made in, as LangGraph runs it.

Loading LangGraph takes longer than all the rest, so that nothing above the graphs imports this module before a task is served.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, closing, nullcontext
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import anyio
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from ...protocols import (
    Agent,
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
    PrivacyViolation,
    Side,
    Stalled,
    StepEvent,
    StepLost,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    Usage,
    stream,
)
from ..agents import AgentHandle
from ..budgets import Spent
from ..budgets.account import Allowance
from ..safety.outbound_filter import Listener, OutboundRequest, PlaceholderStream
from ..safety.privacy import RunPrivacy
from ..task import Task, with_instructions
from ..task.events import AgentText, CallEnded, TaskEvent, ToolStarted
from ..task.labels import Label
from ..task.policy import Cause, Verdict
from ..task.results import STEP, AskedReasoning, Call, price
from ..task.routing_policy import FallbackConfig, IdleTimeouts
from ..tracing.observing import AskedStep, EndedStep
from ..tracing.recorder import RunTrace, TracedStep
from ..util.runtime import is_untraced, untrace_nodes, untraced, without_callbacks
from .prompts import require_own_tools
from .state import Json, TaskContext, TaskState, as_json, label_of, value_of

TaskRuntime = Runtime[TaskContext]
TaskGraphBuilder = StateGraph[TaskState, TaskContext, TaskState, TaskState]


class TaskGraph(CompiledStateGraph[TaskState, TaskContext, TaskState, TaskState]):
    """The compiled graph of a task. It is never traced, whatever app invokes it, and in whatever graph it is a node."""

    @classmethod
    def compiled(cls, builder: TaskGraphBuilder, **options: Any) -> Self:  # noqa: ANN401 - those of LangGraph's `compile`
        """Compile the graph of `builder` with the `options` of LangGraph's `compile`."""
        graph = cls(**vars(builder.compile(**options)))  # as LangGraph's own `copy` makes one
        untrace_nodes(graph.nodes)
        return graph

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - as LangGraph has it
        """Run the graph on `input` as LangGraph does, with its `options`, without the callbacks of `config`."""
        parts = super().astream(input, without_callbacks(config), **options)
        return parts if is_untraced() else self._untraced(parts)

    async def _untraced(self, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async with aclosing(parts):  # type: ignore[type-var]  # as LangGraph has it, it is a generator
            ended = object()
            while True:
                with untraced():  # around each part, as between two of them the caller's own code runs in the same context
                    part = await anext(parts, ended)
                if part is ended:
                    return
                yield part

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - as LangGraph has it
        """Run the graph as `astream` does, with the same `input`, `config` and `options`. LangGraph refuses it, as the nodes are
        asynchronous, but would show the input to tracers first."""
        with closing(super().stream(input, without_callbacks(config), **options)) as parts:  # type: ignore[type-var]
            ended = object()
            while True:
                with untraced():
                    part = next(parts, ended)
                if part is ended:
                    return
                yield part


def emit(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Record and show what happens."""
    given: TaskContext | None = runtime.context  # none where a graph runs by itself in another app
    if given is not None and given.trace is not None:
        given.trace.record_event(event)
    show(runtime, event)


def show(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Pass an event on to the listener, or else to LangGraph's custom stream."""
    given: TaskContext | None = runtime.context
    listener = given.listener if given is not None else None
    if given is not None and listener is None:
        return  # a `Hybrid` serves the task, and its caller wants the result alone
    is_piece = isinstance(event, AgentText)  # placeholders in it were filled in already, as in a part of the whole text
    if given is not None and given.privacy is not None and not is_piece:
        event = given.privacy.fill_event(event)
    (listener or runtime.stream_writer)(event)


def running_tool(runtime: TaskRuntime, call: ToolCall) -> AbstractContextManager[None]:
    """Tell that a tool call begins; it runs within the context manager that is returned."""
    emit(runtime, ToolStarted(call=call))
    given: TaskContext | None = runtime.context
    return nullcontext() if given is None or given.trace is None else given.trace.running_tool(call)


def is_heard(runtime: TaskRuntime) -> bool:
    """Return whether all text of agents is shown as it streams. True if the graph runs by itself in another app, which may show it."""
    given: TaskContext | None = runtime.context
    return given is None or (given.listener is not None and not given.holds_drafts)


Node = Callable[[TaskState, TaskRuntime], Awaitable[TaskState]]
Edge = Callable[[TaskState], str]


def add_node(graph: TaskGraphBuilder, name: str, node: Node, edge: Edge, following: Sequence[str]) -> None:
    """Add a node; `edge` chooses among `following` by the state that the node leaves behind.

    A conditional edge of LangGraph would do the same in a runnable of its own, in a thread where it is a plain function, and on a state
    that is read once more: about a tenth of what a node of the graph costs.
    """

    async def node_and_edge(state: TaskState, runtime: TaskRuntime) -> Command[str]:
        update = await node(state, runtime)
        left: TaskState = {**state, **update}
        return Command(update=update, goto=edge(left))

    graph.add_node(name, node_and_edge, destinations=tuple(following))


async def with_idle_timeout(events: AsyncIterator[StepEvent], timeouts: IdleTimeouts) -> AsyncGenerator[StepEvent, None]:
    """Yield events, and raise `Stalled` if the next one is late."""
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


def _timed(events: AsyncIterator[StepEvent], timeouts: IdleTimeouts | None) -> AbstractAsyncContextManager[AsyncIterator[StepEvent]]:
    """Return the events with their idle timeouts. With None, each is waited for, as long as it may take."""
    return nullcontext(events) if timeouts is None else aclosing(with_idle_timeout(events, timeouts))


WORK_LOST = (Cancelled, ContentFiltered, DeadlineExceeded, InternalError, InvalidOutput, Stalled, StepLost)
"""Failures that may come after the model has worked, also where nothing was heard of it."""

_TOLD = ("model", "usage", "confidence", "performance", "saved", "logprobs", "stop")
_TELLING = 1.0
"""Seconds; that an agent did not answer in less says nothing of it."""
_GRACE = 0.5
"""Seconds beyond a step's timeout after which an agent that does not keep it is left."""


Reading = Callable[[StepReply], Verdict]
"""Reads a supervisor's verdict."""


class CallLog:
    """The calls that one node makes, recorded and streamed as they end. Calls may run side by side.

    A node puts `log.as_json` under `"calls"` into the state that it returns, also where a call failed and the node goes on.
    """

    def __init__(self, state: TaskState, runtime: TaskRuntime) -> None:
        self._before = state["calls"]
        self._task = state["task"]
        self._label = label_of(state)
        self.runtime = runtime
        self.made: list[Call] = []
        """The calls of this node, in the order in which they ended."""

    async def _reserved(self, request: StepRequest, card: AgentCard, *, is_extra: bool) -> tuple[StepRequest, Allowance | None]:
        """Reserve the budget for a call, and return the request within it. There is none if the task has no account."""
        account = None if self.runtime.context is None else self.runtime.context.account
        allowance = None if account is None else await account.reserve(request, card, is_extra=is_extra)
        return request if allowance is None else allowance.request, allowance

    async def _end(
        self, call: Call, traced: TracedStep | None, listening: "_Listening", label: Label, allowance: Allowance | None, *, is_lost: bool
    ) -> None:
        """Record a call that has ended, and charge it. `is_lost`: its usage is unknown, so that what was reserved counts."""
        if traced is not None:
            ended = EndedStep(asked=traced.asked, call=call, reply=listening.said, label=label, gaps=listening.gaps)
            traced.trace.step(traced, ended, reserved=None if allowance is None else allowance.most)
        self.made.append(call)
        if allowance is not None:
            await allowance.settle(spent_by(call, allowance.most if is_lost else None))
        emit(self.runtime, CallEnded(call=call))

    @property
    def as_json(self) -> list[Json]:
        """The calls of the task so far."""
        return [*self._before, *(as_json(call) for call in self.made)]

    async def ask(
        self,
        handle: AgentHandle,
        request: StepRequest,
        *,
        role: str,
        turn: int = 0,
        cause: Cause | None = None,
        shadow: bool = False,
        reading: Reading | None = None,
        listener: Listener | None = None,
        label: Label | None = None,
        is_extra: bool = False,
    ) -> StepReply:
        """Run one step of an agent to its end. Raises what opening the agent, `require_own_tools` or the step raises.

        Args:
            handle: the agent; opened where it is not yet.
            role: what it is asked for: `execute`, `plan`, `verify` ...
            turn: turns of the executor that had acted by then.
            cause, reading: what asked for it, and reads the verdict, where it is a check.
            shadow: its verdict is recorded and changes nothing.
            listener: hears its text as it streams.
            label: of what the request holds; None: it may be anything that the run has seen.
            is_extra: it is made besides the calls that the task needs, so that a refusal says nothing against the agent.
        """
        agent, idle = await handle.open(), self._idle_timeouts(handle, request)
        outbound = await self._filtered(handle, agent.card, request, label or self._label, role=role)
        request, reasoning = self._with_effort(outbound.request, agent.card, handle, STEP if is_extra and handle.side is Side.FAR else role)
        request, allowance = await self._reserved(request, agent.card, is_extra=is_extra)
        traced = self._traced(handle, agent.card, request, role)
        listening = _Listening(None if listener is None else outbound.listener(listener), reasoning)
        verdict: Verdict | None = None
        error: BaseException | None = None
        try:
            with outbound.inspect_bytes(), nullcontext() if traced is None else traced.current():
                await self._hear(handle, agent, request, listening, idle, counts=not is_extra)
            reply = await outbound.check_reply(listening.reply(agent.card))
            verdict = None if reading is None else reading(reply)
            return reply
        except (Exception, anyio.get_cancelled_exc_class()) as caught:  # recorded, and raised again
            error = caught
            verdict = Verdict.UNREADABLE if reading is not None and isinstance(caught, InvalidOutput) else None
            if allowance is not None and isinstance(caught, DeadlineExceeded) and (refusal := allowance.out_of_time) is not None:
                raise refusal from caught  # the time-out is due to a limit
            raise
        finally:
            call = Call(
                role=role,
                agent=handle.name,
                side=handle.side,
                turn=turn,
                trigger=cause,
                verdict=verdict,
                shadow=shadow,
                error=None if error is None else type(error).__name__,
                is_cut_short=allowance is not None and listening.reached_its_bound and allowance.is_cut,
                **listening.figures(agent.card, error),
            )
            await self._end(call, traced, listening, label or self._label, allowance, is_lost=listening.is_lost(error))

    async def _filtered(self, handle: AgentHandle, card: AgentCard, request: StepRequest, label: Label, *, role: str) -> OutboundRequest:
        """Return the request in the form in which it may go to the agent. Raises `PrivacyViolation` if there is none."""
        if card.world is not None:
            require_own_tools(card, request.tools)
        try:
            return await self._privacy.filter_request(handle, for_agent(request, handle, card), label, role=role)
        except PrivacyViolation:
            if self._trace is not None:
                self._trace.egress_blocked(handle.name, role)
            raise

    def _with_effort(
        self, request: StepRequest, card: AgentCard, handle: AgentHandle, role: str
    ) -> tuple[StepRequest, AskedReasoning | None]:
        """Return the request as a policy has it whose effort is a share of what is usual, and what that asks of the step."""
        given: TaskContext | None = self.runtime.context
        share = self._task["policy"]["effort"]
        if given is None or given.efforts is None or not isinstance(share, float) or share == 1:
            return request, None
        return given.efforts.bounded(request, card, (handle.name, role, self._task["task_class"]), share)

    def _traced(self, handle: AgentHandle, card: AgentCard, request: StepRequest, role: str) -> TracedStep | None:
        """Tell the trace that an agent is about to be asked; None: the run has none."""
        if self._trace is None:
            return None
        return self._trace.begin_step(AskedStep(agent=handle.name, card=card, role=role, request=request, server=handle.server))

    @property
    def _trace(self) -> RunTrace | None:
        given: TaskContext | None = self.runtime.context
        return None if given is None else given.trace

    async def _hear(
        self, handle: AgentHandle, agent: Agent, request: StepRequest, listening: "_Listening", idle: IdleTimeouts | None, *, counts: bool
    ) -> None:
        """Listen to a step until its end; what comes of it says whether the agent may be asked again. `counts`: so does a failure."""
        with handle.health.trying() as trial:
            trial.counts = counts
            limit = asyncio.timeout(None if request.timeout is None else request.timeout + _GRACE)
            try:
                async with limit, stream(agent, request) as events, _timed(events, idle) as timed:
                    async for event in timed:
                        if listening.hear(event):
                            handle.health.end_probe(trial)
            except TimeoutError:
                if not limit.expired():
                    raise
                trial.counts = counts and listening.is_telling
                raise DeadlineExceeded(f"{handle.name} was not done within its {request.timeout:g} s, and did not end") from None
            except DeadlineExceeded:
                trial.counts = counts and listening.is_telling
                raise
            except InvalidOutput as error:
                error.text = error.text or listening.said.text
                raise
            trial.counts = not listening.was_saved

    def _idle_timeouts(self, handle: AgentHandle, request: StepRequest) -> IdleTimeouts | None:
        """Return the idle timeouts of a call; None: it is waited for. A near agent may read for long, and the last candidate may, too."""
        if handle.side is Side.NEAR or request.timeout is None:
            return None
        return self._fallback.idle_timeouts

    @cached_property
    def _fallback(self) -> FallbackConfig:
        return value_of(FallbackConfig, self._task["policy"]["fallback"])

    @cached_property
    def _privacy(self) -> RunPrivacy:
        given: TaskContext | None = self.runtime.context
        known = None if given is None else given.privacy
        return known if known is not None else RunPrivacy.of(value_of(Task, self._task))


def for_agent(request: StepRequest, handle: AgentHandle, card: AgentCard) -> StepRequest:
    """Return the request with the agent's own instructions, and without the encrypted thoughts of other models: they are of no use to it,
    and not its business."""
    messages = with_instructions(request.messages, handle.instructions)
    if any(message.state for message in messages):
        own = card.model if card.side is Side.FAR else None
        messages = tuple(each if each.state is None or each.state.model == own else each.without_state for each in messages)
    return request if messages == request.messages else request.model_copy(update={"messages": messages})


class _Listening:
    """The events received from one step."""

    def __init__(self, listener: PlaceholderStream | None, reasoning: AskedReasoning | None) -> None:
        self._listener = listener
        self._reasoning = reasoning
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
    def gaps(self) -> list[float]:
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
            "reasoning": self._reasoning,
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
        if self._finished is not None and not self._is_unreported:
            return False
        may_have_worked = isinstance(error, (*WORK_LOST, anyio.get_cancelled_exc_class())) and getattr(error, "was_sent", True)
        return bool(self._text or self._calls) or may_have_worked

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


def spent_by(call: Call, most: Spent | None) -> Spent:
    """Return the amounts that a call is charged with.

    A near agent costs energy, and dollars only if it has a price. A far agent uses no energy of this device.

    Args:
        most: the upper bound of the call, used when its usage was not reported.
    """
    joules = call.energy.joules if call.side is Side.NEAR else 0.0
    if most is None:
        dollars = 0.0 if call.dollars is None and call.side is Side.NEAR else None if call.dollars is None else float(call.dollars)
        return Spent(dollars, call.usage.total_tokens, call.seconds, joules)
    return Spent(most.dollars, most.tokens, call.seconds, joules)
