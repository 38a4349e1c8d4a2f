"""The strategy `speculate`: the near agent runs ahead of far, which is asked about the steps to come before it has confirmed the last.

Nothing that near says reaches the conversation, and every step of it is far's own answer to the very request that `cloud` would have sent:
a request that was sent early is kept by its content, and its reply is taken only when the conversation has come to that request. The
results of near's look-ups are kept by call in the same way. All of it lives in this process, and a resumed run only begins without it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import anyio
from langgraph.errors import GraphBubbleUp

from ...protocols import Message, NearfarError, Side, StepReply, StepRequest, ToolCall
from ...protocols.items import Tier
from ..agents.pool import AgentHandle
from ..safety.outbound_filter import Listener
from ..task.modes import Strategy
from ..task.policy import SpeculateConfig
from ..task.results import Call, Speculation, ToolOutcome
from ..task.tools import Effect, Tool
from ..util.json_text import canonical
from ..util.runtime import cancel_task
from .agreement import AgreementRates, Group
from .calls import CallLog, TaskRuntime
from .state import Json, TaskContext, TaskState, as_agent_sees, as_json, label_of, value_of
from .turn import AgentTurn

if TYPE_CHECKING:
    from .graphs import TaskNodes

_NOT_CONTENT: Final = {"idempotency_key", "timeout", "messages"}
"""Fields of a request that do not change its reply."""


@dataclass(frozen=True)
class _EarlyCall:
    """A far call that was begun before the conversation has come to it."""

    reply: "asyncio.Task[StepReply]"
    log: CallLog
    began: float


@dataclass(frozen=True)
class _Proposal:
    """One step that near has proposed."""

    step: str
    """Its content, to compare with far's."""
    group: Group


class KeptLookups:
    """Results of look-ups that near has made ahead, by call. They hold until a tool changes something, and each counts once."""

    def __init__(self) -> None:
        self._results: dict[str, asyncio.Future[str]] = {}

    def begin(self, calls: Sequence[ToolCall]) -> list["asyncio.Future[str]"]:
        """Return the results to be, which the caller sets or cancels."""
        futures = [asyncio.get_running_loop().create_future() for _ in calls]
        self._results.update(zip(map(_call_key, calls), futures, strict=True))
        return futures

    async def take(self, call: ToolCall, tool: Tool) -> str | None:
        """Return the result of an equal look-up, once it is there; None: there is none. A call that may change something voids all."""
        if tool.declared.effect is not Effect.READ:
            self._results.clear()
            return None
        found = self._results.pop(_call_key(call), None)
        if found is None:
            return None
        await asyncio.wait((found,))
        return None if found.cancelled() else found.result()


class LookAhead:
    """The steps that near has proposed in one run, and far's replies to the requests that follow from them."""

    def __init__(self, rates: AgreementRates) -> None:
        self.kept = KeptLookups()
        self.told: Speculation | None = None
        """The run's figures; None: nothing has run ahead yet in this process."""
        self._rates = rates
        self._proposals: list[_Proposal] = []
        self._early: dict[str, _EarlyCall] = {}
        self._near: list[CallLog] = []
        self._running: asyncio.Task[None] | None = None
        self._asked_now = ""
        """Content of the request that far was sent last by the conversation itself."""
        self._stands_at = ""
        """Content of the request at which near began last, or knew no further."""
        self._moved = asyncio.Event()

    async def ask(self, path: "NearPath", ask: "Asking", log: CallLog, request: StepRequest, listener: Listener | None) -> StepReply:
        """Return far's reply to a request, from an early call where there is one, and let near go on. Raises what `ask` raises."""
        key = content_of(request)
        self._asked_now = key
        self.told = self.told or path.told_before
        self._begin(path, key)
        try:
            reply = await self._early_reply(key, log, listener)
            if reply is None:
                reply = await self._timed(ask, request)
        except BaseException:  # the run ends, or goes on with another agent: raised again
            await self._abandon(log)
            raise
        if not self._confirm(path, reply.message):
            await self._abandon(log)
        self._note(log)
        return reply

    async def aclose(self) -> None:
        """End all that is under way."""
        if self._running is not None:
            await cancel_task(self._running)
            self._running = None
        for early in self._early.values():
            with suppress(NearfarError):
                await cancel_task(early.reply)

    @property
    def figures(self) -> Speculation:
        """Return the run's figures so far."""
        return self.told or Speculation()

    def _tell(self, **more: float) -> None:
        """Add to the figures."""
        told = self.figures
        self.told = told.model_copy(update={name: getattr(told, name) + value for name, value in more.items()})

    def _begin(self, path: "NearPath", key: str) -> None:
        is_idle = self._running is None or self._running.done()
        if is_idle and not self._proposals and key != self._stands_at:
            self._stands_at = key
            self._tell(cycles=1)
            self._running = asyncio.create_task(self._go_ahead(path))

    async def _timed(self, ask: "Asking", request: StepRequest) -> StepReply:
        began = anyio.current_time()
        reply = await ask(request)
        self._rates.time(Side.FAR, anyio.current_time() - began)
        return reply

    async def _early_reply(self, key: str, log: CallLog, listener: Listener | None) -> StepReply | None:
        """Return the reply of an early call; None where there is none, or it failed: then far is asked as if it had never been."""
        early = self._early.pop(key, None)
        if early is None:
            return None
        waiting = anyio.current_time()
        try:
            await asyncio.wait((early.reply,))
            reply = early.reply.result()
        except asyncio.CancelledError:
            await cancel_task(early.reply)
            self._early[key] = early  # `_abandon` records it
            raise
        except NearfarError:
            log.made[:0] = _wasted(early.log.made)
            return None
        log.made.extend(early.log.made)
        self._tell(saved_seconds=waiting - early.began)
        if listener is not None and reply.text:
            listener(reply.text)
        return reply

    def _confirm(self, path: "NearPath", said: Message) -> bool:
        """Compare far's step with near's next proposal. Returns whether near is still on far's path."""
        if not self._proposals or not said.tool_calls:
            return False
        proposal = self._proposals.pop(0)
        is_same = proposal.step == step_of(said)
        if path.config.learn:
            self._rates.learn(proposal.group, was_confirmed=is_same)
        self._tell(confirmed=int(is_same))
        self._moved.set()
        return is_same

    async def _abandon(self, log: CallLog) -> None:
        """Cancel what far will not confirm, and record what it has cost."""
        await self.aclose()
        lost = [call for early in self._early.values() for call in _wasted(early.log.made)]
        log.made[:0] = lost
        self._early.clear()
        self._proposals.clear()
        self.told = self.figures.plus_waste(lost)

    def _note(self, log: CallLog) -> None:
        """Put near's calls before far's, which stays the last."""
        log.made[:0] = [call for each in self._near for call in each.made]
        self._near = [each for each in self._near if not each.made]

    async def _go_ahead(self, path: "NearPath") -> None:
        """Propose steps, look up what they ask for, and ask far about what follows."""
        state = path.start
        with suppress(NearfarError, GraphBubbleUp):  # near's failure is not the task's
            while (pays := await self._pays(path, path.group(state))) is not None:
                said = await self._proposed(path, state)
                if said is None:
                    self._stands_at = content_of(await path.far_request(state))
                    return
                self._proposals.append(_Proposal(step_of(said), path.group(state)))
                self._tell(proposed=1)
                following = await path.looked_up(state, said, self.kept) if pays else None
                if following is None:
                    return
                state = following
                await self._ask_early(path, state)

    async def _pays(self, path: "NearPath", group: Group) -> bool | None:
        """Return whether far should be asked about the step after the next; False: near proposes only to learn; None: not even that."""
        if self._rates.least_odds(path.config.thrift) >= 1:
            return None
        while True:
            groups = (*(proposal.group for proposal in self._proposals), group)
            if len(groups) <= path.config.maximum_ahead and self._rates.is_worth_it(groups, path.config.thrift):
                return True
            if not self._proposals:
                return False if path.config.learn else None
            self._moved.clear()
            await self._moved.wait()

    async def _proposed(self, path: "NearPath", state: TaskState) -> Message | None:
        log = CallLog(state, path.runtime)
        self._near.append(log)
        began = anyio.current_time()
        said = await path.propose(state, log)
        self._rates.time(Side.NEAR, anyio.current_time() - began)
        return said

    async def _ask_early(self, path: "NearPath", state: TaskState) -> None:
        request = await path.far_request(state)
        key = content_of(request)
        if key == self._asked_now or key in self._early:
            return
        log = CallLog(state, path.runtime)
        digest = sha256(key.encode()).hexdigest()[:12]
        request = request.model_copy(update={"idempotency_key": f"{request.idempotency_key[:100]}/ahead-{digest}"})
        ask = partial(log.ask, path.far, role="verify", turn=state["acted"])
        self._early[key] = _EarlyCall(asyncio.create_task(self._timed(ask, request)), log, anyio.current_time())


Asking = Callable[[StepRequest], Awaitable[StepReply]]


class NearPath:
    """The way ahead from one step of far: who proposes, who confirms, and what may run.

    Tools run as they do in the conversation itself: guard, labels and limits decide first. But nothing of it is shown or kept.
    """

    def __init__(self, turn: AgentTurn, near: AgentHandle, nodes: "TaskNodes", runtime: TaskRuntime) -> None:
        assert turn.draft is not None, "far's attempt has begun"
        given = nodes.context(runtime)
        self.start: TaskState = {**turn.state, "draft": as_json(turn.draft)}
        self.far = turn.handle
        self.config: SpeculateConfig = turn.task.policy.speculate
        privacy = None if given.privacy is None else copy(given.privacy)  # what is found in a text that far never asks for is not found
        self._context = replace(given, listener=None, outcomes=None, privacy=privacy, keeping=None)
        self.runtime = runtime.override(context=self._context)
        self._near, self._nodes, self._turn = near, nodes, turn

    @property
    def told_before(self) -> Speculation:
        """Return the figures of the run so far."""
        state = self._turn.state
        return value_of(Speculation, state["speculation"]) if "speculation" in state else Speculation()

    def group(self, state: TaskState) -> Group:
        """Return the group whose agreement counts for the next step."""
        last = state["messages"][-1]["tool_result"]
        return self._turn.task.task_class, "" if last is None else last["name"]

    def _request(self, state: TaskState) -> StepRequest:
        turn = AgentTurn(state, self._nodes.pool, self._context.output_model)
        return turn.request(self._context.specs)

    async def propose(self, state: TaskState, log: CallLog) -> Message | None:
        """Return near's next step; None where it is an answer, or nothing that may run ahead. Raises what the call raises."""
        request = self._request(state)
        request = request.model_copy(update={"idempotency_key": f"{request.idempotency_key[:110]}/near"})
        reply = await log.ask(self._near, request, role="speculate", turn=state["acted"])
        calls = reply.tool_calls
        has_turns = _steps(state) + 1 < self._turn.task.policy.maximum_turns
        return reply.message if calls and has_turns and all(map(self._may_run, calls)) else None

    def _may_run(self, call: ToolCall) -> bool:
        """Return whether a call may run before far has made it."""
        tool, caller = self._context.tools.get(call.name), self._turn.task.caller
        if tool is None or (caller is not None and caller.has(call.name)) or call.name in self._context.hand_offs:
            return False
        declared = tool.declared
        is_plain = declared.effect is Effect.READ and not declared.approval and declared.returns is Tier.SHARED
        return is_plain and (not tool.is_external or call.name in self.config.tools)

    async def looked_up(self, state: TaskState, said: Message, kept: KeptLookups) -> TaskState | None:
        """Return the state after near's calls; None where one did not run, or what it told may not leave. Raises what the tools raise."""
        checks = replace(self._context.tool_checks, effects=None, approver=None, kept=None, own_results=None)
        dry = self.runtime.override(context=replace(self._context, tool_checks=checks, trace=None, recollection=None))
        draft: Json = {**(state["draft"] or {}), "steps": _steps(state) + 1}
        begun: TaskState = {**state, "messages": [*state["messages"], as_json(said)], "draft": draft}
        results = kept.begin(said.tool_calls)
        try:
            update = await self._nodes.run_tools(begun, dry)
            outcomes = [value_of(ToolOutcome, each) for each in update["tool_calls"][-len(results) :]]
            for result, outcome in zip(results, outcomes, strict=True):
                if outcome.outcome == "done":
                    result.set_result(outcome.result)
        finally:
            for result in results:
                result.cancel()
        after: TaskState = {**begun, **update}
        is_done = all(outcome.outcome == "done" for outcome in outcomes)
        return after if is_done and label_of(after).tier is Tier.SHARED and after.get("recalled", []) == state.get("recalled", []) else None

    async def far_request(self, state: TaskState) -> StepRequest:
        """Return the request that far would be sent in that state."""
        turn = AgentTurn(state, self._nodes.pool, self._context.output_model)
        request, _ = await as_agent_sees(state, turn.handle, turn.request(self._context.specs), self._context)
        return request


def near_path(turn: AgentTurn, nodes: "TaskNodes", runtime: TaskRuntime) -> NearPath | None:
    """Return the way ahead of the step under way; None where nothing runs ahead of it."""
    context: TaskContext | None = runtime.context
    is_on = turn.decision.strategy is Strategy.SPECULATE and turn.handle.side is Side.FAR
    if context is None or context.ahead is None or not is_on or label_of(turn.state).tier is not Tier.SHARED:
        return None
    near = next((nodes.pool[name] for name in turn.decision.candidates if nodes.pool[name].side is Side.NEAR), None)
    return None if near is None else NearPath(turn, near, nodes, runtime)


def content_of(request: StepRequest) -> str:
    """Return all of a request that can change its reply as text. Calls are numbered, since their ids mean nothing."""
    numbers: dict[str, str] = {}
    messages = [_numbered(message.model_dump(mode="json"), numbers) for message in request.messages]
    return canonical({**request.model_dump(mode="json", exclude=_NOT_CONTENT), "messages": messages})


def step_of(message: Message) -> str:
    """Return the content of one step: what it says, and its calls without their ids."""
    return canonical(_numbered(message.model_dump(mode="json"), {}))


def _numbered(message: dict[str, Any], numbers: dict[str, str]) -> dict[str, Any]:
    calls = [{**call, "id": numbers.setdefault(call["id"], str(len(numbers)))} for call in message.get("tool_calls") or ()]
    result = message.get("tool_result")
    if result is not None:
        result = {**result, "call_id": numbers.get(result["call_id"], result["call_id"])}
    return {**message, "tool_calls": calls, "tool_result": result}


def _call_key(call: ToolCall) -> str:
    return canonical((call.name, call.arguments))


def _wasted(calls: Sequence[Call]) -> list[Call]:
    return [call.model_copy(update={"shadow": True}) for call in calls]


def _steps(state: TaskState) -> int:
    """Return the steps that the draft has taken."""
    draft = state["draft"]
    return 0 if draft is None else int(draft["steps"])
