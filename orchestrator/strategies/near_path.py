"""Near's way ahead of far in `speculate`: what it proposes, which calls may run before far has made them, and what far is asked then."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ...protocols import InvalidOutput, Message, Side, StepReply, StepRequest, ToolCall, ToolChoice
from ...protocols.items import Tier
from ..agents import AgentHandle
from ..task.labels import Integrity
from ..task.modes import Strategy
from ..task.policy import SpeculateConfig
from ..task.results import JudgedProposal, Speculation, ToolOutcome
from ..task.tools import LOOKED_UP, Effect, Tool
from ..util.text import canonical
from .calls import CallLog, TaskRuntime
from .state import Json, TaskContext, TaskState, as_agent_sees, as_json, label_of, outcomes_of, value_of
from .turn import AgentTurn

if TYPE_CHECKING:
    from .graphs import TaskNodes

_NOT_CONTENT: Final = {"idempotency_key", "timeout", "messages"}
"""Fields of a request that do not change its reply."""


@dataclass(frozen=True)
class NearStep:
    """A step that near has proposed."""

    said: Message
    proposal: JudgedProposal
    """The proposal as its odds depend on it; it is not judged yet."""


class KeptLookups:
    """Results of look-ups that near has made ahead, by call. They hold until a tool changes something, and each counts once."""

    def __init__(self) -> None:
        self._results: dict[str, asyncio.Future[str]] = {}

    @contextmanager
    def pending(self, calls: Sequence[ToolCall]) -> Iterator[Callable[[Sequence[ToolOutcome]], None]]:
        """Let equal calls wait for these, which run in the block. It is given a function that takes their outcomes; without one, they are
        made again."""
        futures = [asyncio.get_running_loop().create_future() for _ in calls]
        self._results.update(zip(map(_call_key, calls), futures, strict=True))

        def settle(outcomes: Sequence[ToolOutcome]) -> None:
            for future, outcome in zip(futures, outcomes, strict=False):
                if outcome.outcome == "done" and not outcome.result.endswith(LOOKED_UP):  # it may have been looked up aside alone
                    future.set_result(outcome.result)

        try:
            yield settle
        finally:
            for future in futures:
                future.cancel()

    async def take(self, call: ToolCall, tool: Tool) -> str | None:
        """Return the result of an equal look-up, once it is there; None: there is none. A call that may change something voids all."""
        if tool.declared.effect is not Effect.READ:
            self._results.clear()
            return None
        found = self._results.pop(_call_key(call), None)
        if found is None:
            return None
        if not found.done():  # a wait in vain would let the other calls of the message go first
            await asyncio.wait((found,))
        return None if found.cancelled() else found.result()


@dataclass(frozen=True)
class Acknowledgements:
    """Results of calls that change something, which are told in place of running them."""

    texts: Mapping[str, str]
    """By tool."""

    async def take(self, call: ToolCall, tool: Tool) -> str | None:
        """Return the result that is told; None where the tool reads, and runs."""
        return None if tool.declared.effect is Effect.READ else self.texts[call.name]


class NearPath:
    """The way ahead from one step of far: who proposes, who confirms, and what may run.

    Tools run as they do in the conversation itself: guard, labels and limits decide first. But nothing of it is shown or kept. A call that
    changes something never runs here. Where its tool said the same of its last calls, that is taken for its result, so that far can be
    asked what follows: far's reply counts only if the call, once far has made it, says just that.
    """

    def __init__(self, turn: AgentTurn, near: AgentHandle, nodes: "TaskNodes", runtime: TaskRuntime, whole: StepRequest) -> None:
        assert turn.draft is not None, "far's attempt has begun"
        given = nodes.context(runtime)
        self.start: TaskState = {**turn.state, "draft": as_json(turn.draft)}
        self.far = turn.handle
        self.rates = nodes.router.outcomes.agreement
        self.config: SpeculateConfig = turn.task.policy.speculate
        privacy = None if given.privacy is None else given.privacy.aside()
        self._context = replace(given, listener=None, outcomes=None, privacy=privacy, keeping=None)
        self.runtime = runtime.override(context=self._context)
        self._near, self._nodes, self._turn = near, nodes, turn
        self._has_guessed = False
        self._whole = whole
        own_results = given.tool_checks.own_results
        self._own_results = None if own_results is None else own_results.aside()

    def is_whole(self, request: StepRequest) -> bool:
        """Return whether far is sent the conversation as it is. Of a shortened one, near could not tell how the next will be shortened."""
        return request.messages == self._whole.messages

    @property
    def told_before(self) -> Speculation:
        """Return the figures of the run so far."""
        state = self._turn.state
        return value_of(Speculation, state["speculation"]) if "speculation" in state else Speculation()

    @property
    def least_odds(self) -> float:
        """Return the odds at which a further far call pays."""
        return self.rates.least_odds(self.config.thrift)

    def note_results(self, since: int) -> int:
        """Remember what the run's tool calls from number `since` on have said. Returns the number of calls."""
        made = outcomes_of(self.start)
        self.rates.note_results(self._turn.task.user, [each for each in made[since:] if each.may_have_acted])
        return len(made)

    async def open_near(self) -> None:
        """Open near. Its model may take longer to load than far's step, at whose end this is cancelled. Raises what opening it raises."""
        await self._near.open_uncancelled()

    async def propose(self, state: TaskState, log: CallLog) -> NearStep | None:
        """Return the call that near proposes; where it would answer, the one that it makes if it has to. None: there is none.

        Near ends too early more often than it goes on too long, and far's own answer is what stands in any case. Raises what the calls
        raise.
        """
        turn = AgentTurn(state, self._nodes.pool, self._context.output_model)
        request = turn.request(self._context.specs)
        if _steps(state) + 1 >= self._turn.task.policy.maximum_turns:
            return None
        reply = answer = await self._asked(request, log, state, "near")
        if not reply.tool_calls and request.tools and request.tool_choice is ToolChoice.AUTO:
            forced = request.model_copy(update={"tool_choice": ToolChoice.REQUIRED})
            with suppress(InvalidOutput):  # it has no call to make
                reply = await self._asked(forced, log, state, "near-call")
        if not reply.tool_calls:
            return None
        is_instead = reply is not answer
        proposal = JudgedProposal(
            task_class=self._turn.task.task_class,
            confidence=reply.finished.confidence,
            is_instead=is_instead,
            answer_confidence=answer.finished.confidence if is_instead else None,
        )
        return NearStep(reply.message, proposal)

    async def _asked(self, request: StepRequest, log: CallLog, state: TaskState, key: str) -> StepReply:
        request = ahead_of(request, key, content_of(request))
        return await log.ask(self._near, request, role="speculate", turn=state["acted"], is_extra=True)

    async def followed(self, state: TaskState, said: Message, kept: KeptLookups) -> TaskState | None:
        """Return the state after near's calls; None where one may not run, or what it told may not leave. Raises what the tools raise.

        Behind a call that changes something, look-ups run as well, but are not kept: far's are made after it.
        """
        changing = [call for call in said.tool_calls if not self._may_run(call)]
        texts = {call.name: text for call in changing if (text := self._usual_result(call, state)) is not None}
        if not all(call.name in texts for call in changing):
            return None
        self._has_guessed = self._has_guessed or bool(changing)
        told = Acknowledgements(texts)
        checks = replace(self._context.tool_checks, effects=None, approver=None, kept=told, own_results=self._own_results)
        dry = self.runtime.override(context=replace(self._context, tool_checks=checks, trace=None, recollection=None))
        draft: Json = {**(state["draft"] or {}), "steps": _steps(state) + 1}
        begun: TaskState = {**state, "messages": [*state["messages"], as_json(said)], "draft": draft}
        with kept.pending(() if self._has_guessed else said.tool_calls) as settle:
            update = await self._nodes.run_tools(begun, dry)
            outcomes = outcomes_of(update)[-len(said.tool_calls) :]
            has_recalled = update.get("recalled", []) != state.get("recalled", [])
            if not has_recalled:  # what the memory tells comes with labels, which a text alone would lose
                settle(outcomes)
        after: TaskState = {**begun, **update}
        is_done = all(outcome.outcome == "done" for outcome in outcomes)
        return after if is_done and label_of(after).tier is Tier.SHARED and not has_recalled else None

    def _may_run(self, call: ToolCall) -> bool:
        """Return whether a call may run before far has made it."""
        tool = self._plain_tool(call)
        is_read = tool is not None and tool.declared.effect is Effect.READ
        return tool is not None and is_read and (not tool.is_external or call.name in self.config.tools)

    def _usual_result(self, call: ToolCall, state: TaskState) -> str | None:
        """Return what a call that changes something will say; None where that is not known, or the call may be refused or asked about."""
        tool = self._plain_tool(call)
        if tool is None or tool.is_external or tool.declared.effect is Effect.READ or label_of(state).integrity is not Integrity.TRUSTED:
            return None
        return self.rates.usual_result(self._turn.task.user, call.name)

    def _plain_tool(self, call: ToolCall) -> Tool | None:
        """Return the tool of a call that nearfar runs, which needs no approval and whose results may leave the device."""
        tool, caller = self._context.tools.get(call.name), self._turn.task.caller
        if tool is None or (caller is not None and caller.has(call.name)) or call.name in self._context.hand_offs:
            return None
        return tool if not tool.declared.approval and tool.declared.returns is Tier.SHARED else None

    async def far_request(self, state: TaskState) -> StepRequest:
        """Return the request that far would be sent in that state."""
        turn = AgentTurn(state, self._nodes.pool, self._context.output_model)
        request, _ = await as_agent_sees(state, turn.handle, turn.request(self._context.specs), self._context)
        return request


def near_path(turn: AgentTurn, nodes: "TaskNodes", runtime: TaskRuntime, whole: StepRequest) -> NearPath | None:
    """Return the way ahead of the step under way, whose request is `whole` before it is shortened; None where nothing runs ahead of it."""
    context: TaskContext | None = runtime.context
    is_on = turn.decision.strategy is Strategy.SPECULATE and turn.handle.side is Side.FAR
    if context is None or context.ahead is None or not is_on or label_of(turn.state).tier is not Tier.SHARED:
        return None
    near = next((nodes.pool[name] for name in turn.decision.candidates if nodes.pool[name].side is Side.NEAR), None)
    return None if near is None else NearPath(turn, near, nodes, runtime, whole)


def content_of(request: StepRequest) -> str:
    """Return all of a request that can change its reply as text. Calls are numbered, since their ids mean nothing."""
    numbers: dict[str, str] = {}
    messages = [_numbered(message, numbers) for message in request.messages]
    return canonical({**request.model_dump(mode="json", exclude=_NOT_CONTENT), "messages": messages})


def ahead_of(request: StepRequest, name: str, content: str) -> StepRequest:
    """Return the request under a key of its own, which leaves room for more: two conversations may come to a step of one number.

    `content`: that of the request.
    """
    digest = sha256(f"{request.idempotency_key} {content}".encode()).hexdigest()[:12]
    return request.model_copy(update={"idempotency_key": f"{request.idempotency_key[:80]}/{name}-{digest}"})


def step_of(message: Message) -> str:
    """Return the content of one step: what it says, and its calls without their ids."""
    return canonical(_numbered(message, {}))


def _numbered(message: Message, numbers: dict[str, str]) -> dict[str, Any]:
    told = message.model_dump(mode="json", exclude={"attachments"})
    calls = [{**call, "id": numbers.setdefault(call["id"], str(len(numbers)))} for call in told["tool_calls"]]
    result = told["tool_result"]
    if result is not None:
        result = {**result, "call_id": numbers.get(result["call_id"], result["call_id"])}
    attached = [(each.media_type, each.name, sha256(each.data).hexdigest()) for each in message.attachments]
    return {**told, "tool_calls": calls, "tool_result": result, "attachments": attached}


def _call_key(call: ToolCall) -> str:
    return canonical((call.name, call.arguments))


def _steps(state: TaskState) -> int:
    """Return the steps that the draft has taken."""
    draft = state["draft"]
    return 0 if draft is None else int(draft["steps"])
