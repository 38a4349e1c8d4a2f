"""One call of an agent, recorded with its price whatever comes of it; and the graph that it is made in, as LangGraph runs it.

Loading LangGraph takes longer than all the rest, so that nothing above the graphs imports this module before a task is served.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, closing, nullcontext
from functools import cached_property
from typing import Any, Final, Self

import anyio
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from ...protocols import (
    Agent,
    AgentCard,
    DeadlineExceeded,
    InvalidOutput,
    NearfarError,
    NoSuchModel,
    PrivacyViolation,
    ProviderAuthError,
    QuotaExceeded,
    RequestRefused,
    Side,
    StepReply,
    StepRequest,
    ToolCall,
    ToolSpec,
    Unsupported,
    stream,
)
from ..agents.pool import AgentHandle
from ..budgets.account import Allowance
from ..budgets.book import Spent
from ..safety.outbound_filter import Listener, OutboundRequest
from ..safety.privacy import RunPrivacy
from ..task.events import AgentText, CallEnded, TaskEvent, ToolStarted
from ..task.labels import Label
from ..task.policy import Cause, Verdict
from ..task.results import Call
from ..task.routing_policy import FallbackConfig, IdleTimeouts
from ..task.task import Task, with_instructions
from ..tracing.observing import AskedStep, EndedStep
from ..tracing.recorder import RunTrace, TracedStep
from ..util.runtime import is_untraced, untrace_nodes, untraced, without_callbacks
from .listening import Listening, with_idle_timeout
from .state import Json, TaskContext, TaskState, as_json, label_of, value_of

logger = logging.getLogger(__name__)

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
        self._runtime = runtime
        self.made: list[Call] = []
        """The calls of this node, in the order in which they ended."""

    async def _reserved(self, request: StepRequest, card: AgentCard) -> Allowance | None:
        """Reserve the budget for a call. Return None if the task has no account."""
        account = None if self._runtime.context is None else self._runtime.context.account
        return None if account is None else await account.reserve(request, card)

    async def _end(
        self, call: Call, traced: TracedStep, listening: Listening, label: Label, allowance: Allowance | None, *, is_lost: bool
    ) -> None:
        """Record a call that has ended, and charge it. `is_lost`: its usage is unknown, so that what was reserved counts."""
        if (trace := self._trace) is not None:
            ended = EndedStep(
                asked=traced.asked,
                call=call,
                reply=listening.said,
                label=label,
                finish=listening.finish if call.error is None else None,
                chunk_seconds=listening.chunk_seconds,
            )
            trace.step(traced, ended, reserved=None if allowance is None else allowance.most)
        self.made.append(call)
        if allowance is not None:
            await allowance.settle(spent_by(call, allowance.most if is_lost else None))
        emit(self._runtime, CallEnded(call=call))

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
    ) -> StepReply:
        """Run one step of an agent to its end. Raises what opening the agent, `require_own_tools` or the step raises.

        Args:
            handle: the agent; opened where it is not yet.
            role: what it is asked for: `execute`, `plan`, `verify` ...
            turn: turns of the executor that had acted by then.
            cause: what asked for it, where it is a check.
            shadow: its verdict is recorded and changes nothing.
            reading: reads the verdict, where it is a check.
            listener: hears its text as it streams.
            label: of what the request holds; None: it may be anything that the run has seen.
        """
        agent = await handle.open()
        require_own_tools(agent.card, request.tools)
        idle = self._idle_timeouts(handle, request)
        outbound = await self._filtered(handle, _for_agent(request, handle, agent.card), label or self._label, role=role)
        allowance = await self._reserved(outbound.request, agent.card)
        request = outbound.request if allowance is None else allowance.request
        traced = self._traced(AskedStep(agent=handle.name, card=agent.card, role=role, request=request, server=handle.server))
        listening = Listening(None if listener is None else outbound.listener(listener))
        verdict: Verdict | None = None
        error: BaseException | None = None
        try:
            with outbound.inspect_bytes(), traced.current():
                await self._hear(handle, agent, request, listening, idle)
            reply = await outbound.check_reply(listening.reply(agent.card))
            verdict = reading(reply) if reading is not None else None
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

    async def _filtered(self, handle: AgentHandle, request: StepRequest, label: Label, *, role: str) -> OutboundRequest:
        """Return the request in the form in which it may go to the agent. Raises `PrivacyViolation` if there is none."""
        try:
            return await self._privacy.filter_request(handle, request, label, role=role)
        except PrivacyViolation:
            if self._trace is not None:
                self._trace.egress_blocked(handle.name, role)
            raise

    def _traced(self, asked: AskedStep) -> TracedStep:
        return TracedStep(asked) if self._trace is None else self._trace.begin_step(asked)

    @property
    def _trace(self) -> RunTrace | None:
        given: TaskContext | None = self._runtime.context
        return None if given is None else given.trace

    async def _hear(self, handle: AgentHandle, agent: Agent, request: StepRequest, listening: Listening, idle: IdleTimeouts | None) -> None:
        """Listen to a step until its end; what comes of it says whether the agent may be asked again."""
        with handle.health.trying() as trial:
            try:
                async with stream(agent, request) as events, aclosing(with_idle_timeout(events, idle)) as timed:
                    async for event in timed:
                        if listening.hear(event):
                            handle.health.end_probe(trial)
            except DeadlineExceeded:
                trial.counts = listening.is_telling
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
        given: TaskContext | None = self._runtime.context
        known = None if given is None else given.privacy
        return known if known is not None else RunPrivacy.of(value_of(Task, self._task))


def _for_agent(request: StepRequest, handle: AgentHandle, card: AgentCard) -> StepRequest:
    """Return the request with the agent's own instructions, and without the encrypted thoughts of other models: they are of no use to it,
    and not its business."""
    messages = with_instructions(request.messages, handle.instructions)
    if any(message.state for message in messages):
        own = card.model if card.side is Side.FAR else None
        messages = tuple(each if each.state is None or each.state.model == own else each.without_state for each in messages)
    return request if messages == request.messages else request.model_copy(update={"messages": messages})


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


_STANDING = (NoSuchModel, ProviderAuthError, QuotaExceeded, RequestRefused)


def warn_of_refusal(agent: str, error: NearfarError, *, role: str = "execute") -> tuple[str, ...]:
    """Log a warning where `error` is a refusal that waiting does not mend; returns the line for `Result.reasons`, or nothing."""
    if not isinstance(error, _STANDING):
        return ()
    line = f"{agent} was refused in the role {role!r}: {type(error).__name__}: {error}"
    logger.warning("%s", line)
    return (line,)


WORLD_TOOLS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "search": {"search": frozenset({"query"}), "open": frozenset({"title", "section"})},
    "apps": {
        "find_contact": frozenset({"name"}),
        "add_contact": frozenset({"name", "phone"}),
        "delete_contact": frozenset({"name"}),
        "find_event": frozenset({"title"}),
        "add_event": frozenset({"title", "day", "hour"}),
        "move_event": frozenset({"event", "day", "hour"}),
        "cancel_event": frozenset({"event"}),
        "find_mails": frozenset({"sender"}),
        "read_mail": frozenset({"mail"}),
        "send_mail": frozenset({"to", "text"}),
        "delete_mail": frozenset({"mail"}),
        "find_note": frozenset({"title"}),
        "add_note": frozenset({"title", "text"}),
        "delete_note": frozenset({"title"}),
        "pay": frozenset({"person", "amount"}),
        "request_payment": frozenset({"person", "amount"}),
    },
}
"""The parameters of each tool of the worlds that a shipped model's card may name."""
_HINT: Final = 'name a real model, such as near="/models/qwen.gguf"; nearfar models pull gets one'


def require_own_tools(card: AgentCard, tools: Sequence[ToolSpec]) -> None:
    """Raise `Unsupported` where a model that knows generated worlds only is given a tool that is none of theirs.

    A tool is one of theirs by its name and its parameters.
    """
    worlds = [] if card.world is None else card.world.split(", ")
    if not worlds or not set(worlds) <= set(WORLD_TOOLS):
        return
    known = {name: parameters for world in worlds for name, parameters in WORLD_TOOLS[world].items()}
    foreign = [tool.name for tool in tools if known.get(tool.name) != frozenset(_parameters(tool))]
    if foreign:
        knows = f"a demonstration model that knows nothing but the tools of its generated worlds ({card.world})"
        raise Unsupported(f"{card.name} is {knows}: it cannot use {', '.join(foreign)}", hint=_HINT)


def _parameters(tool: ToolSpec) -> Sequence[str]:
    properties = tool.parameters.get("properties")
    return list(properties) if isinstance(properties, dict) else []
