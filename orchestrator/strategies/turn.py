"""One look at a task's state by a node that serves it."""

import time
from collections.abc import Sequence
from decimal import Decimal

from ...protocols import (
    Agent,
    BudgetExceeded,
    InvalidOutput,
    Message,
    NearfarError,
    Side,
    StepReply,
    StepRequest,
    ToolSpec,
    Unsupported,
    Usage,
)
from ...protocols.validation import parse_output
from ..agents.pool import AgentHandle, AgentPool
from ..routing.evidence.checks import ConfidenceWatch, EarlyStop
from ..safety.privacy import reach_of
from ..task.events import AgentText, AttemptEnded, AttemptStarted
from ..task.labels import may_go
from ..task.modes import SUPERVISED
from ..task.results import Attempt, Call, Energy
from ..task.route_decision import RouteDecision
from ..task.sections.routing import FallbackTrigger
from ..task.task import Task
from .runtime import TaskRuntime, emit, is_heard
from .state import Json, TaskState, as_json, done_note, fresh_start, label_of, value_of


class Turn:
    """One look at the state by a node: the task, the decision, and the attempt under way."""

    def __init__(self, state: TaskState, pool: AgentPool) -> None:
        self.state = state
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
        """Emit a piece of the agent's text."""
        self.has_shown = self.has_shown or is_heard(runtime)
        emit(runtime, AgentText(text=text))

    def was_shown(self, runtime: TaskRuntime) -> bool:
        """Return whether any text of the agent in this attempt was shown while it streamed."""
        said = self.state["messages"][len(self.task.messages) :]
        return self.has_shown or (is_heard(runtime) and any(message["role"] == "assistant" and message["text"] for message in said))

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
        return ConfidenceWatch(EarlyStop(threshold=self.task.policy.evidence.stop_below)).stops(call.confidence)

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
        self.draft = self._attempt(agent)

    def announce(self, runtime: TaskRuntime) -> None:
        """Tell that the attempt under way has begun."""
        assert self.draft is not None, "an attempt was prepared"
        emit(runtime, AttemptStarted(agent=self.handle.name, side=self.handle.side, model=self.draft.model or self.handle.name))

    def request(self, tools: Sequence[ToolSpec]) -> StepRequest:
        """Return the next step of the attempt under way."""
        draft = self.draft
        policy = self.task.policy
        assert draft is not None, "an attempt is begun before it takes a step"
        return StepRequest(
            messages=tuple(value_of(Message, message) for message in self.state["messages"]),
            tools=tuple(tools),
            output_schema=self.task.output_schema,
            max_output_tokens=policy.maximum_output_tokens,
            temperature=policy.temperature,
            effort=policy.effort,
            timeout=self._timeout(draft),
            sensitivity=policy.sensitivity,
            idempotency_key=f"{self.task.idempotency_key}/{self.position}/{draft.steps}",
        )

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
        """Raise `InvalidOutput` where the final text is not valid against the task's schema."""
        if self.task.output_schema is not None and not reply.tool_calls:
            parse_output(reply.text, self.task.output_schema)

    def correct(self, error: InvalidOutput) -> TaskState:
        """Tell the agent what was wrong with its reply; it may try once more."""
        draft = self.elapsed()
        if not self.is_counted:
            draft = draft.model_copy(update={"steps": draft.steps + 1})
        message = Message.user(f"Your last reply could not be used: {error.message}. Reply again.")
        return {"messages": [*self.state["messages"], as_json(message)], "draft": as_json(draft), "corrected": True}

    def stop(self, runtime: TaskRuntime) -> TaskState:
        """Give the draft up in the middle of its work; the next agent takes over."""
        draft = self.elapsed()
        assert draft.confidence is not None, "the caller has looked"
        limit = self.task.policy.evidence.stop_below
        return self.end(draft, "rejected", f"stopped at confidence {draft.confidence:.2f}, below {limit:.2f}", runtime)

    def reject(self, reason: str, runtime: TaskRuntime) -> TaskState:
        """Give the draft up before it acts; the next agent takes over."""
        return self.end(self.elapsed(), "rejected", reason, runtime)

    def give_up(self, error: NearfarError, runtime: TaskRuntime, *, is_final: bool = False) -> TaskState:
        """End the attempt as failed; the next agent takes over, else a draft rejected earlier, else what was said when a budget ended.

        Raises the error where there is none of them. `is_final`: no other agent is to try.
        """
        self.draft = (self.draft or self._attempt(None)).model_copy(update={"error": type(error).__name__})
        problem = f"{type(error).__name__}: {error}"
        is_last, standby = is_final or not self.has_successor, self.state["standby"]
        if is_last and standby is None and isinstance(error, BudgetExceeded) and (said := self._said()):
            return {**self.end(self.elapsed(), "accepted", f"{problem}; what was said until then stands", runtime), "messages": said}
        ended = self.end(self.elapsed(), "failed", problem, runtime)
        if not is_last:
            return ended
        if standby is not None:
            return {**ended, "messages": standby, "attempts": [_reinstated(attempt, self.handle.name) for attempt in ended["attempts"]]}
        for attempt in self.state["attempts"]:
            error.add_note(f"before that, {attempt['agent']} {attempt['outcome']}: {attempt['reason']}")
        if done := done_note(self.state, may_read=True):
            error.add_note(done)
        raise error

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
        done = done_note(self.state, may_read=self._may_hear_all(following))
        return {**ended, **fresh_start(self.task, position=following, guidance=self.state["guidance"], done=done)}

    def _may_hear_all(self, position: int) -> bool:
        """Return whether the candidate at `position` may be told all that the run has seen."""
        following = self.decision.candidates[position : position + 1]
        return all(may_go(label_of(self.state).tier, reach_of(self._pool[name])) for name in following)

    def _said(self) -> list[Json]:
        """Return the conversation up to the agent's last words if they can be an answer; else an empty list."""
        messages = self.state["messages"]
        spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant" and message["text"].strip()]
        if not spoken or spoken[-1] < len(self.task.messages):
            return []
        text = messages[spoken[-1]]["text"]
        try:
            if self.task.output_schema is not None:
                parse_output(text, self.task.output_schema)
        except InvalidOutput:
            return []
        return [*messages[: spoken[-1]], as_json(Message.assistant(text))]

    def _timeout(self, draft: Attempt) -> float | None:
        """Seconds for the next step. A supervised run is long by design, so there the limit is each step's and not the attempt's."""
        if not self.has_successor:
            return None
        limit = self.task.policy.attempt_timeout
        return limit if self.is_supervised else max(limit - draft.seconds, 0.001)

    def _attempt(self, agent: Agent | None) -> Attempt:
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


def _reinstated(attempt: Json, failed: str) -> Json:
    """Return a rejected attempt as the accepted one; any other unchanged."""
    if attempt["outcome"] != "rejected":
        return attempt
    return {**attempt, "outcome": "accepted", "reason": f"{attempt['reason']}, but {failed} failed, so the draft stands"}
