"""The state of a task's graph, and one look at it by a node."""

import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypedDict

from langgraph.runtime import Runtime

from ..protocols import (
    Agent,
    Cancelled,
    ContentFiltered,
    DeadlineExceeded,
    Finished,
    InternalError,
    InvalidOutput,
    Message,
    NearfarError,
    ResumeLost,
    Stalled,
    StepReply,
    StepRequest,
    Unsupported,
    Usage,
)
from ..protocols.validation import parse_output
from .events import AttemptEnded, AttemptStarted, TaskEvent
from .policy import RouteDecision
from .results import Attempt, price
from .task import Task
from .team import Member, Team

Json = dict[str, Any]

WORK_LOST = (Cancelled, ContentFiltered, DeadlineExceeded, InternalError, InvalidOutput, ResumeLost, Stalled)
"""Failures that may come after the model has worked, also where nothing was heard of it."""


class TaskState(TypedDict, total=False):
    """The state of a task's graph: plain JSON, so that any checkpointer can keep it."""

    task: Json
    """A `Task`."""
    decision: Json
    """A `RouteDecision`."""
    position: int
    """Index of the current candidate in the decision."""
    messages: list[Json]
    """The current attempt's conversation, as `Message`s."""
    draft: Json | None
    """The attempt under way, as an `Attempt`; None between attempts."""
    corrected: bool
    """The current agent was told once that its reply could not be used."""
    attempts: list[Json]
    """The attempts that ended."""
    standby: list[Json] | None
    """The conversation of a rejected draft, which stands after all where every later agent fails."""


class Turn:
    """One look at the state by a node: the task, the decision, and the attempt under way."""

    def __init__(self, state: TaskState, team: Team) -> None:
        self.state = state
        self.task = Task.model_validate(state["task"])
        self.decision = RouteDecision.model_validate(state["decision"])
        self.position = state["position"]
        self.member: Member = team[self.decision.candidates[self.position]]
        draft = state["draft"]
        self.draft = Attempt.model_validate(draft) if draft is not None else None
        self.was_heard = False
        """The step under way has sent something."""
        self.is_counted = False
        """Its usage is part of the draft."""

    @property
    def has_successor(self) -> bool:
        return self.position + 1 < len(self.decision.candidates)

    @property
    def is_exhausted(self) -> bool:
        """The current agent has used up its turns."""
        return self.draft is not None and self.draft.steps >= self.task.policy.maximum_turns

    def begin(self, agent: Agent, runtime: Runtime[None], tools: Sequence[object]) -> None:
        """Start an attempt. Raises `Unsupported` where the agent, now that it is open, lacks a capability that the task needs."""
        missing = self.task.needs(has_tools=bool(tools)).missing_in(agent.card.capabilities)
        if missing:
            raise Unsupported(f"agent {self.member.name!r} ({agent.card.model}) lacks {' and '.join(missing)}")
        self.draft = self._attempt(agent)
        emit(runtime, AttemptStarted(agent=self.member.name, side=self.member.side, model=agent.card.model))

    def request(self, tools: Sequence[Any]) -> StepRequest:
        """The next step of the attempt under way."""
        draft = self.draft
        policy = self.task.policy
        assert draft is not None, "an attempt is begun before it takes a step"
        return StepRequest(
            messages=tuple(Message.model_validate(message) for message in self.state["messages"]),
            tools=tuple(tools),
            output_schema=self.task.output_schema,
            max_output_tokens=policy.maximum_output_tokens,
            temperature=policy.temperature,
            timeout=max(policy.attempt_timeout - draft.seconds, 0.001) if self.has_successor else None,
            sensitivity=policy.sensitivity,
            idempotency_key=f"{self.task.idempotency_key}/{self.position}/{draft.steps}",
        )

    def count(self, finished: Finished, agent: Agent) -> None:
        """Add a finished step to the draft."""
        assert self.draft is not None, "an attempt is begun before it takes a step"
        usage = self.draft.usage + finished.usage
        known = [value for value in (self.draft.confidence, finished.confidence) if value is not None]
        step = {
            "model": finished.model,
            "steps": self.draft.steps + 1,
            "usage": usage,
            "dollars": None if self.draft.dollars is None else price(agent.card, usage),
            "confidence": min(known, default=None),
        }
        self.draft = self.draft.model_copy(update=step)
        self.is_counted = True

    def count_broken(self, error: NearfarError) -> None:
        """A step that broke after its work had begun has spent tokens that nobody reported: where they cost, the sum is unknown."""
        if self.draft is None or self.is_counted or self._is_free:
            return
        if self.was_heard or isinstance(error, WORK_LOST):
            self.draft = self.draft.model_copy(update={"dollars": None})

    def check(self, reply: StepReply) -> None:
        """Raise `InvalidOutput` where the final text is not valid against the task's schema."""
        if self.task.output_schema is not None and not reply.tool_calls:
            parse_output(reply.text, self.task.output_schema)

    def correct(self, error: InvalidOutput, started: float) -> TaskState:
        """Tell the agent what was wrong with its reply; it may try once more."""
        draft = self.elapsed(started)
        if not self.is_counted:
            draft = draft.model_copy(update={"steps": draft.steps + 1})
        message = Message.user(f"Your last reply could not be used: {error.message}. Reply again.")
        return {"messages": [*self.state["messages"], as_json(message)], "draft": as_json(draft), "corrected": True}

    def give_up(self, error: NearfarError, started: float, runtime: Runtime[None]) -> TaskState:
        """End the attempt as failed; the next agent takes over, else a draft rejected earlier. Raises the error where there is neither."""
        self.draft = self.draft or self._attempt(None)
        ended = self.end(self.elapsed(started), "failed", f"{type(error).__name__}: {error}", runtime)
        if self.has_successor:
            return ended
        if (standby := self.state["standby"]) is not None:
            return {**ended, "messages": standby, "attempts": [_reinstated(attempt, self.member.name) for attempt in ended["attempts"]]}
        for attempt in self.state["attempts"]:
            error.add_note(f"before that, {attempt['agent']} {attempt['outcome']}: {attempt['reason']}")
        raise error

    def elapsed(self, started: float) -> Attempt:
        """The draft, with the time since `started` added."""
        assert self.draft is not None, "an attempt is under way"
        return self.draft.model_copy(update={"seconds": self.draft.seconds + time.monotonic() - started})

    def end(self, draft: Attempt, outcome: str, reason: str, runtime: Runtime[None]) -> TaskState:
        """Record the attempt; unless it was accepted, the next agent starts from the task alone."""
        attempt = draft.model_copy(update={"outcome": outcome, "reason": reason})
        emit(runtime, AttemptEnded(attempt=attempt))
        ended: TaskState = {"attempts": [*self.state["attempts"], as_json(attempt)], "draft": None}
        return ended if outcome == "accepted" else {**ended, **fresh_start(self.task, position=self.position + 1)}

    @property
    def _is_free(self) -> bool:
        card = self.member.card
        return card is not None and price(card, Usage(input_tokens=1, output_tokens=1)) == 0

    def _attempt(self, agent: Agent | None) -> Attempt:
        return Attempt(
            agent=self.member.name,
            side=self.member.side,
            model=agent.card.model if agent is not None else None,
            outcome="running",
            reason="",
            steps=0,
            usage=Usage(),
            dollars=Decimal(0),
            seconds=0.0,
        )


def fresh_start(task: Task, *, position: int) -> TaskState:
    return {"messages": [as_json(message) for message in task.messages], "draft": None, "corrected": False, "position": position}


def _reinstated(attempt: Json, failed: str) -> Json:
    """A rejected attempt as the accepted one; any other as it is."""
    if attempt["outcome"] != "rejected":
        return attempt
    return {**attempt, "outcome": "accepted", "reason": f"{attempt['reason']}, but {failed} failed, so the draft stands"}


def emit(runtime: Runtime[None], event: TaskEvent) -> None:
    runtime.stream_writer(event)


def as_json(value: Message | Attempt | RouteDecision) -> Json:
    return value.model_dump(mode="json")
