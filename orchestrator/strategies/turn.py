"""One turn of an agent: the attempt under way, what of it is shown, and how its conversation fits the agent's context window."""

import time
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from langgraph.graph import END
from pydantic import BaseModel

from ...protocols import (
    Agent,
    AgentCard,
    ContextOverflow,
    FinishReason,
    InvalidOutput,
    Message,
    NearfarError,
    Side,
    StepReply,
    StepRequest,
    ToolCall,
    ToolChoice,
    ToolSpec,
    Unsupported,
    Usage,
)
from ...protocols.validation import check_arguments
from ..agents import AgentHandle, AgentPool
from ..compression import Ask, Compressed, Summarizer, compress, compress_and_summarize
from ..compression.conversation import conversation_tokens
from ..routing.looks import EarlyStop
from ..safety.privacy import reach_of
from ..task import Task, read_output
from ..task.decisions import RouteDecision
from ..task.events import AgentText, AttemptEnded, AttemptStarted, CallerTools
from ..task.labels import Label, may_go
from ..task.modes import SUPERVISED
from ..task.policy import CompressionConfig, CompressionUse
from ..task.results import Attempt, Call, Energy
from ..task.routing_policy import FallbackTrigger
from ..task.tools import Effect
from .calls import CallLog, TaskRuntime, emit, is_heard, show
from .state import Json, TaskContext, TaskState, as_json, fresh_start, label_of, outcomes_of, step_request, value_of
from .tool_calls import done_note


class AgentTurn:
    """One look at the state by a node: the task, the decision, and the attempt under way."""

    def __init__(self, state: TaskState, pool: AgentPool, output_model: type[BaseModel] | None) -> None:
        self.state = state
        self.output_model = output_model
        self.task = value_of(Task, state["task"])
        self.decision = value_of(RouteDecision, state["decision"])
        self.position = state["position"]
        self._pool = pool
        self.handle: AgentHandle = pool[self.decision.candidates[self.position]]
        draft = state["draft"]
        self.draft = value_of(Attempt, draft) if draft is not None else None
        self.is_supervised = self.decision.strategy in SUPERVISED
        self._began = time.monotonic()
        self.has_shown = False
        """Something that the agent has said in the step under way was shown as it was said."""
        self.is_counted = False
        """The step under way is one of the draft's steps."""
        self._blank = ""
        """White space that was said first: an answer of nothing else counts as empty, and is not shown."""
        self._is_final: bool | None = None

    async def open(self) -> Agent:
        """Open the agent, and start its clock afterwards: its model may have to be loaded first."""
        agent = await self.handle.open()
        self._began = time.monotonic()
        return agent

    @property
    def seconds(self) -> float:
        """Seconds since the agent was opened, or else since this look began."""
        return time.monotonic() - self._began

    @property
    def has_successor(self) -> bool:
        return self.position + 1 < len(self.decision.candidates)

    def show(self, text: str, runtime: TaskRuntime) -> None:
        """Emit a piece of the agent's text, where it is heard as it is said."""
        if not self._is_heard(runtime):
            return
        text = self._blank + text
        self.has_shown = self.has_shown or bool(text.strip())
        self._blank = "" if self.has_shown else text
        if self.has_shown:
            show(runtime, AgentText(text=text))  # which is recorded with its step

    def _is_heard(self, runtime: TaskRuntime) -> bool:
        return is_heard(runtime) or (runtime.context.listener is not None and self._stands(runtime.context))

    def _stands(self, context: TaskContext) -> bool:
        """Return whether all that the agent says in a turn of the caller's stands: neither evidence nor a supervisor can reject it, and
        once some of it was heard, no other agent takes over."""
        if self._is_final is None:
            is_checked = self.is_judged or self.is_supervised or self.task.output_schema is not None
            others = self.has_successor or self.state["standby"] is not None
            may_restart = others and self.task.policy.fallback.hands_over(was_shown=True)
            self._is_final = not (self.task.caller is None or is_checked or may_restart or self._may_act_in_doubt(context))
        return self._is_final

    def _may_act_in_doubt(self, context: TaskContext) -> bool:
        """Return whether calls that settle something are looked at before they run."""
        is_looked_at = self.task.policy.evidence.before_acts and bool(self.far_successors(context))
        return is_looked_at and any(tool.declared.effect is not Effect.READ for tool in context.tools.values())

    def is_committed(self, runtime: TaskRuntime) -> bool:
        """Return whether the caller of a turn has heard some of the attempt, so that nothing may take its place."""
        holds = runtime.context is not None and runtime.context.holds_drafts
        return holds and self.was_shown(runtime)

    def far_successors(self, context: TaskContext) -> list[AgentHandle]:
        """Return the later candidates, and the supervisor, that are far away and may be told what the run has seen, of a near agent."""
        if self.handle.side is not Side.NEAR or FallbackTrigger.LOW_CONFIDENCE not in self.task.policy.fallback.triggers:
            return []
        later = list(self.decision.candidates[self.position + 1 :])
        if self.decision.supervisor is not None and self.position == 0:
            later.insert(0, self.decision.supervisor)
        others = [self._pool[name] for name in dict.fromkeys(later) if self._pool[name].side is Side.FAR]
        label, opening, privacy = label_of(self.state), value_of(Label, self.state["opening"]), context.privacy
        return [other for other in others if privacy is None or privacy.may_take_over(other, label, opening)]

    def was_shown(self, runtime: TaskRuntime) -> bool:
        """Return whether any text of the agent in this attempt was shown while it streamed."""
        said = self.state["messages"][len(self.task.messages) :]
        is_heard = self._is_heard(runtime)
        return self.has_shown or (is_heard and any(message["role"] == "assistant" and message["text"].strip() for message in said))

    @property
    def is_judged(self) -> bool:
        """The draft has to pass the evidence, or the next agent takes over. After a far agent no near one is likely to do better."""
        later = self.decision.candidates[self.position + 1 :]
        may_improve = self.has_successor if self.handle.side is Side.NEAR else any(self._pool[name].side is Side.FAR for name in later)
        return self.decision.judged and may_improve and FallbackTrigger.LOW_CONFIDENCE in self.task.policy.fallback.triggers

    def leaves_to_others(self, error: NearfarError) -> bool:
        """After `error`, another agent may answer, or has; and no tool was run whose effects its answer would not know of."""
        is_free = not self.is_supervised and not self.state["acted"] and self.task.policy.fallback.follows(error)
        return is_free and (self.has_successor or self.state["standby"] is not None)

    def is_doubtful(self, call: Call) -> bool:
        """Return whether the agent was so unsure in a step that the draft is not worth finishing."""
        return EarlyStop(threshold=self.task.policy.evidence.stop_below).stops(call.confidence)

    @property
    def is_exhausted(self) -> bool:
        """The current agent has used up its turns."""
        return self.draft is not None and self.draft.steps >= self.task.policy.maximum_turns

    def prepare(self, agent: Agent, tools: Sequence[ToolSpec]) -> None:
        """Start an attempt, which `announce` tells of.

        Raises `Unsupported` where the agent, now that it is open, lacks a capability that the task needs.
        """
        missing = self.task.needs(has_tools=bool(tools)).missing_in(agent.card.capabilities)
        if missing:
            raise Unsupported(f"agent {self.handle.name!r} ({agent.card.model}) lacks {' and '.join(missing)}")
        self.draft = self.attempt(agent)

    def announce(self, runtime: TaskRuntime) -> None:
        """Tell that the attempt under way has begun."""
        assert self.draft is not None, "an attempt was prepared"
        emit(runtime, AttemptStarted(agent=self.handle.name, side=self.handle.side, model=self.draft.model or self.handle.name))

    def request(self, tools: Sequence[ToolSpec]) -> StepRequest:
        """Return the next step of the attempt under way."""
        draft = self.draft
        assert draft is not None, "an attempt is begun before it takes a step"
        messages = [value_of(Message, message) for message in self.state["messages"]]
        offered, choice = self.offered(tools)
        return step_request(
            self.task,
            messages,
            f"{self.position}/{draft.steps}",
            tools=offered,
            tool_choice=choice,
            output_schema=self.task.output_schema,
            timeout=self._timeout(draft),
            **sampled(self.task),
        )

    def offered(self, tools: Sequence[ToolSpec]) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
        """Return those of all `tools` that the next step is shown, and whether it has to call one."""
        caller = self.task.caller
        return (tuple(tools), ToolChoice.AUTO) if caller is None else caller.offered(tools, has_acted=bool(self.state["acted"]))

    def count(self, call: Call) -> None:
        """Add a call to the draft."""
        assert self.draft is not None, "an attempt is begun before it takes a step"
        draft = self.draft
        unknown = draft.dollars is None or call.dollars is None
        changes: dict[str, object] = {"dollars": None if unknown else (draft.dollars or Decimal(0)) + (call.dollars or Decimal(0))}
        changes["energy"] = draft.energy + call.energy
        if call.error is None:
            known = [value for value in (draft.confidence, call.confidence) if value is not None]
            changes |= {"model": call.model, "steps": draft.steps + 1, "usage": draft.usage + call.usage}
            changes["confidence"] = min(known, default=None)
            self.is_counted = True
        self.draft = draft.model_copy(update=changes)

    def check(self, reply: StepReply) -> None:
        """Raise `InvalidOutput` where the final text does not fit the task's schema, or the model that stands for it, and where calls of
        the caller's tools do not fit theirs, or the one that was demanded is missing."""
        if self.task.caller is not None:
            self._check_calls(reply, self.task.caller)
        if self.task.output_schema is not None and not reply.tool_calls:
            read_output(reply.text, self.task.output_schema, self.output_model)

    def _check_calls(self, reply: StepReply, caller: CallerTools) -> None:
        offered, choice = self.offered(caller.specs)
        try:
            for call in reply.tool_calls:
                if caller.has(call.name):
                    check_arguments(call, () if choice is ToolChoice.NONE else offered)
            if choice is ToolChoice.REQUIRED and not reply.tool_calls and reply.finished.reason is not FinishReason.LENGTH:
                raise InvalidOutput("the turn demands a tool call, and the agent made none")
        except InvalidOutput as error:
            error.text = reply.text
            raise

    def said(self, reply: StepReply) -> Message:
        """Return the message of a reply as the conversation keeps it: where tools of the caller are called, their calls alone."""
        return reply.message if self.task.caller is None else self.task.caller.returned(reply.message)

    def stop(self, runtime: TaskRuntime) -> TaskState:
        """Give the draft up in the middle of its work; the next agent takes over."""
        draft = self.elapsed()
        assert draft.confidence is not None, "the caller has looked"
        limit = self.task.policy.evidence.stop_below
        return self.end(draft, "rejected", f"stopped at confidence {draft.confidence:.2f}, below {limit:.2f}", runtime)

    def reject(self, reason: str, runtime: TaskRuntime) -> TaskState:
        """Give the draft up before it acts; the next agent takes over."""
        return self.end(self.elapsed(), "rejected", reason, runtime)

    def go_on(self, *, doubt: str | None = None, look: str | None = None) -> TaskState:
        """Let the calls of the last message run; `doubt`: only after the far side was asked, `look`: after that agent's opinion."""
        return {"act_doubt": doubt, "act_look": look, "draft": as_json(self.elapsed())}

    def standing_by(self, conversation: list[Json]) -> TaskState:
        """Return the update of the state that keeps the conversation of the attempt that is rejected now."""
        return {"standby": conversation, "standby_attempt": len(self.state["attempts"])}

    def elapsed(self) -> Attempt:
        """Return the draft, with the time of this look added."""
        assert self.draft is not None, "an attempt is under way"
        return self.draft.model_copy(update={"seconds": self.draft.seconds + self.seconds})

    def end(self, draft: Attempt, outcome: str, reason: str, runtime: TaskRuntime) -> TaskState:
        """Record the attempt; unless it was accepted, the next agent starts from the task, and the supervisor's words if there are any."""
        attempt = draft.model_copy(update={"outcome": outcome, "reason": reason})
        emit(runtime, AttemptEnded(attempt=attempt))
        ended: TaskState = {"attempts": [*self.state["attempts"], as_json(attempt)], "draft": None}
        if outcome == "accepted":
            return ended
        following = self.position + 1
        done = done_note(outcomes_of(self.state), label_of(self.state), may_read=self._may_hear_all(following))
        return {**ended, **fresh_start(self.task, position=following, guidance=self.state["guidance"], done=done)}

    def _may_hear_all(self, position: int) -> bool:
        """Return whether the candidate at `position` may be told all that the run has seen."""
        following = self.decision.candidates[position : position + 1]
        return all(may_go(label_of(self.state).tier, reach_of(self._pool[name])) for name in following)

    def _timeout(self, draft: Attempt) -> float | None:
        """Seconds for the next step. A supervised run is long by design, so there the limit is each step's and not the attempt's."""
        if not self.has_successor:
            return None
        limit = self.task.policy.attempt_timeout
        return limit if self.is_supervised else max(limit - draft.seconds, 0.001)

    def attempt(self, agent: Agent | None) -> Attempt:
        return Attempt(
            agent=self.handle.name,
            side=self.handle.side,
            model=agent.card.model if agent is not None else None,
            outcome="running",
            reason="",
            steps=0,
            usage=Usage(),
            dollars=Decimal(0),
            energy=Energy(),
            seconds=0.0,
        )


def sampled(task: Task) -> dict[str, Any]:
    """Return the fields of a request of the agent that answers, as the task samples it. The policy's limit of tokens holds, too."""
    given, most = task.sampling.model_dump(exclude_defaults=True), task.policy.maximum_output_tokens
    if most is not None and "max_output_tokens" in given:
        given["max_output_tokens"] = min(given["max_output_tokens"], most)
    return given


def after_step(state: TaskState) -> str:
    """Choose the node after `act` by the `state`: `act` after a failed or corrected attempt, `look` for calls that wait for an opinion,
    `tools` for others, `judge` for an answer and for calls of the caller's tools, else the end."""
    if is_accepted(state):
        return END
    last = state["messages"][-1]
    if state["draft"] is None or last["role"] != "assistant":
        return "act"
    if last["tool_calls"]:
        return after_calls(state) if state.get("act_look") is None else "look"
    return "judge"


def after_judge(state: TaskState) -> str:
    """Choose the node after `judge` by the `state`: `act` with the next agent after a rejected draft, else the end."""
    return END if is_accepted(state) else "act"


def left_out(reply: Message, said: Message) -> list[str]:
    """Return a line for `Result.reasons` where calls of a reply are not made, as those of the caller's tools end the turn."""
    left = [call.name for call in reply.tool_calls if call not in said.tool_calls]
    return [f"not called in this turn, which ends with {said.tool_calls[0].name}: {', '.join(left)}"] if left else []


def after_calls(state: TaskState) -> str:
    """Choose the node after calls that may run: `judge` where the caller runs them, which ends the turn."""
    return "judge" if has_callers_calls(state) else "tools"


def has_callers_calls(state: TaskState) -> bool:
    """Return whether the last message calls tools of the caller."""
    caller = value_of(Task, state["task"]).caller
    return caller is not None and any(caller.has(call["name"]) for call in state["messages"][-1]["tool_calls"])


def is_accepted(state: TaskState) -> bool:
    """Return whether an attempt was accepted, be it a draft that was reinstated."""
    return any(attempt["outcome"] == "accepted" for attempt in state["attempts"])


def acts(call: ToolCall, context: TaskContext) -> bool:
    """Return whether a call settles something: its tool may change the world, or hands the task to another role."""
    tool = context.tools.get(call.name)
    return tool is not None and (tool.declared.effect is not Effect.READ or call.name in context.hand_offs)


def call_of(log: CallLog, turn: AgentTurn) -> Call | None:
    """Return the latest call in which the turn's agent took the step. It may have been asked to summarize, too."""
    own = (call for call in reversed(log.made) if call.agent == turn.handle.name and call.role in ("execute", "verify"))
    return next(own, None)


_TRIES = 5
"""Number of times that an agent is asked again with a shorter conversation."""
_TIGHTER = 1.25
"""Windows full that a conversation is taken for which was refused."""
_LEAST_SHARE = 4
"""At most one part in so many of the context window is kept free for the output."""
_SLOPES = (0.25, 4.0)
"""Between which lies what an agent counts for each token that we estimate."""
_DISTANCE = 16
"""Tokens by which two conversations have to differ to tell that from them."""


class TokenCount(NamedTuple):
    """One conversation: its length as we estimate it, and as the agent counted it, with its tools and all."""

    estimated: int
    counted: int


def expected_at(counts: Sequence[TokenCount], budget: int) -> int:
    """Return the estimate of a conversation that the agent would count as `budget` tokens, by a line through its last counts."""
    last, before = counts[-1], counts[0]
    distance = last.estimated - before.estimated
    slope = 1.0 if abs(distance) < _DISTANCE else (last.counted - before.counted) / distance
    least, most = _SLOPES
    return last.estimated + int((budget - last.counted) / min(max(slope, least), most))


class Fitting:
    """One step of an executor, with as much of its conversation as fits its agent's context window.

    Tokens are estimated, and the estimate is corrected by the agent's own counts of its last steps. The task's state keeps the whole
    conversation; each step compresses it again, by what matters then.
    """

    def __init__(self, turn: AgentTurn, card: AgentCard) -> None:
        self._turn = turn
        self._state = turn.state
        self._policy = turn.task.policy.compression
        use = self._policy.use
        self._is_wanted = use is CompressionUse.ALWAYS or (use is CompressionUse.LAST_RESORT and not turn.has_successor)
        self._card = card
        self._window = card.limits.context_tokens
        self._counts = [TokenCount(*pair) for pair in turn.state.get("counts", [])]
        self._reason: str | None = None
        """A sentence about how the conversation was shortened; None if it was not."""

    @property
    def noted(self) -> TaskState:
        """The state's update after the step. It reports once for each attempt that the conversation was shortened."""
        was_shortened = self._state.get("is_shortened", False)
        reasons = [*self._state["reasons"], self._reason] if self._reason is not None and not was_shortened else self._state["reasons"]
        counts = [list(pair) for pair in self._counts[-2:]]
        return {"counts": counts, "is_shortened": was_shortened or self._reason is not None, "reasons": reasons}

    async def ask(self, request: StepRequest, ask: Ask, summarizer: Summarizer | None) -> StepReply:
        """Ask with the whole conversation, or a part of one that is too long. Raises `ContextOverflow` where no part is short enough."""
        sent = await self._expected_to_fit(request, summarizer)
        for tried in range(_TRIES):
            try:
                return self._measured(sent, await ask(sent))
            except ContextOverflow:
                if not self._is_wanted or self._turn.has_shown:
                    raise
                self._tighten(sent)
                key = f"{request.idempotency_key}/shorter-{tried}"  # another content under the same key would be refused
                sent = (await self._fitted(request, summarizer)).model_copy(update={"idempotency_key": key})
        return self._measured(sent, await ask(sent))

    async def _expected_to_fit(self, request: StepRequest, summarizer: Summarizer | None) -> StepRequest:
        """Return the request, cut at once if the agent is expected to refuse it. If it cannot be cut, it is sent whole."""
        if not self._is_wanted or not self._counts:
            return request
        try:
            return await self._fitted(request, summarizer)
        except ContextOverflow:
            return request

    async def _fitted(self, request: StepRequest, summarizer: Summarizer | None) -> StepRequest:
        """Return the request within the window, as far as we can tell. Raises `ContextOverflow` where it cannot be cut that far."""
        if self._window is None or not self._counts:
            return request
        reserve = min(self._policy.reserve_tokens, request.max_output_tokens or self._window, self._window // _LEAST_SHARE)
        budget = max(expected_at(self._counts, self._window - reserve), 0)
        compressed = await self._compressed(request, budget, summarizer)
        if compressed.tokens == compressed.original_tokens:
            return request
        self._reason = _reason(self._card, compressed)
        return request.model_copy(update={"messages": compressed.messages, "idempotency_key": f"{request.idempotency_key}/shorter"})

    async def _compressed(self, request: StepRequest, budget: int, summarizer: Summarizer | None) -> Compressed:
        if summarizer is None or not self._policy.summary_tokens:
            return compress(request.messages, budget=budget)
        return await compress_and_summarize(
            request.messages,
            budget=budget,
            summary_tokens=min(self._policy.summary_tokens, budget // 2),
            summarizer=summarizer,
            sensitivity=request.sensitivity,
        )

    def _tighten(self, refused: StepRequest) -> None:
        """Take a conversation for longer than we thought, and shorter ones in proportion."""
        estimated = conversation_tokens(refused.messages)
        self._window = self._card.limits.context_tokens or estimated
        self._counts = [TokenCount(0, 0), TokenCount(estimated, max(estimated, int(self._window * _TIGHTER)))]

    def _measured(self, sent: StepRequest, reply: StepReply) -> StepReply:
        counted = reply.finished.usage.input_tokens
        if counted and self._window is not None:
            self._counts.append(TokenCount(conversation_tokens(sent.messages), counted))
        return reply


async def asked_with_less(
    ask: Callable[[Sequence[Message], str], Awaitable[StepReply]], work: Sequence[Message], *, key: str, policy: CompressionConfig
) -> StepReply:
    """Ask a supervisor about the work; ask with half of it, and half of that, if it exceeds the context window. No other agent could
    take over.

    Raises `ContextOverflow` if even the last part does not fit.
    """
    for tried in range(_TRIES):
        try:
            return await ask(work, f"{key}/shorter-{tried}" if tried else key)
        except ContextOverflow:
            if policy.use is CompressionUse.NEVER:
                raise
            work = compress(work, budget=conversation_tokens(work) // 2).messages
    return await ask(work, f"{key}/shorter-{_TRIES}")


def summarizer_of(pool: AgentPool, turn: AgentTurn, log: CallLog) -> Summarizer | None:
    """Return the near agent that sums up, so that nothing leaves the device for it: the executor itself where it is near."""
    near = [turn.handle] if turn.handle.side is Side.NEAR else [each for each in pool if each.side is Side.NEAR]
    handle: AgentHandle | None = min(near, key=lambda each: each.is_elsewhere, default=None)
    if handle is None or handle.card is None:
        return None
    return Summarizer(handle.card, partial(log.ask, handle, role="summarize", turn=turn.state["acted"]))


def _reason(card: AgentCard, compressed: Compressed) -> str:
    before, after = compressed.original_tokens, compressed.tokens
    summary = compressed.summary
    added = "" if summary is None else f"; no summary: {summary.problem}" if summary.problem else ", with a summary of the rest"
    return f"the conversation was too long for {card.name}: of {before:,} tokens, as we estimate them, it was sent {after:,}{added}"
