"""The nodes that strategies are made of: route, act, run tools, judge."""

import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypedDict

import anyio
from langgraph.runtime import Runtime

from ..protocols import (
    Agent,
    AgentError,
    ContextOverflow,
    Finished,
    InvalidOutput,
    Message,
    NearfarError,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolResult,
    Unsupported,
    Usage,
    stream,
)
from ..protocols.validation import parse_output
from .events import AgentText, AttemptEnded, AttemptStarted, Routed, TaskEvent, ToolFinished, ToolStarted
from .evidence import objection
from .policy import RouteDecision, decide
from .results import Attempt, price
from .task import Task
from .team import Member, Team
from .tools import Tool, run_tool_call

Json = dict[str, Any]

FALLBACK_ERRORS = (AgentError, ContextOverflow, Unsupported)
"""Failures after which another agent may do better; any other error is for the user to mend."""


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


class TaskNodes:
    """The shared nodes, bound to a team of agents and the tools that they may call."""

    def __init__(self, team: Team, tools: Sequence[Tool]) -> None:
        self._team = team
        self._tools = {tool.spec.name: tool for tool in tools}
        self._specs = tuple(tool.spec for tool in tools)

    async def route(self, state: TaskState, runtime: Runtime[None]) -> TaskState:
        """Decide who may serve the task, and in which order."""
        task = Task.model_validate(state["task"])
        policy = task.policy
        decision = decide(
            list(self._team),
            strategy=policy.strategy,
            mode=policy.mode,
            sensitivity=policy.sensitivity,
            needs=task.needs(has_tools=bool(self._specs)),
        )
        _emit(runtime, Routed(decision=decision))
        return {"decision": _json(decision), "attempts": [], **_fresh_start(task, position=0)}

    async def act(self, state: TaskState, runtime: Runtime[None]) -> TaskState:
        """Let the current agent take one turn; a failure that another agent may not have hands over to it."""
        turn = Turn(state, self._team)
        started = time.monotonic()
        if turn.is_exhausted:
            error = InvalidOutput(
                f"no answer within {turn.task.policy.maximum_turns} turns", hint="raise maximum_turns, or cut the task up"
            )
            return turn.give_up(error, started, runtime)
        try:
            agent = await turn.member.open()
            if turn.draft is None:
                turn.begin(agent, runtime, self._specs)
            reply = await self._step(agent, turn, runtime)
        except FALLBACK_ERRORS as error:
            if isinstance(error, InvalidOutput) and turn.draft is not None and not state["corrected"]:
                return turn.correct(error, started)
            return turn.give_up(error, started, runtime)
        return {
            "messages": [*state["messages"], _json(reply.message)],
            "draft": _json(turn.counted(reply.finished, agent, started)),
        }

    async def run_tools(self, state: TaskState, runtime: Runtime[None]) -> TaskState:
        """Run the calls of the last message side by side; their results follow in the order of the calls."""
        calls = Message.model_validate(state["messages"][-1]).tool_calls
        results: list[ToolResult | None] = [None] * len(calls)
        started = time.monotonic()

        async def run(index: int, call: ToolCall) -> None:
            _emit(runtime, ToolStarted(call=call))
            result = await run_tool_call(call, self._tools)
            results[index] = result
            _emit(runtime, ToolFinished(result=result))

        async with anyio.create_task_group() as running:
            for index, call in enumerate(calls):
                running.start_soon(run, index, call)
        answers = [_json(Message.tool(result)) for result in results if result is not None]
        draft = _elapsed(Attempt.model_validate(state["draft"]), started)
        return {"messages": [*state["messages"], *answers], "draft": _json(draft)}

    async def judge(self, state: TaskState, runtime: Runtime[None]) -> TaskState:
        """Accept the answer, or hand over to the next agent where the evidence speaks against it."""
        turn = Turn(state, self._team)
        draft = Attempt.model_validate(state["draft"])
        reason = self._objection(turn, draft) if turn.decision.judged and turn.has_successor else None
        if reason is None:
            return turn.end(draft, "accepted", "the answer stands", runtime)
        return turn.end(draft, "rejected", reason, runtime)

    def _objection(self, turn: "Turn", draft: Attempt) -> str | None:
        messages = [Message.model_validate(message) for message in turn.state["messages"]]
        return objection(
            messages[-1].text,
            messages=messages[:-1],
            has_tools=bool(self._specs) and turn.task.output_schema is None,
            confidence=draft.confidence,
            minimum_confidence=turn.task.policy.minimum_confidence,
        )

    async def _step(self, agent: Agent, turn: "Turn", runtime: Runtime[None]) -> StepReply:
        """One step, streamed. Raises `InvalidOutput` where the final text is not valid against the task's schema."""
        text: list[str] = []
        calls: list[ToolCall] = []
        finished: Finished | None = None
        async with stream(agent, turn.request(self._specs)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        text.append(event.text)
                        _emit(runtime, AgentText(text=event.text))
                    case ToolCalled():
                        calls.append(event.call)
                    case Finished():
                        finished = event
        if finished is None:
            raise InvalidOutput(f"agent {agent.card.name!r} ended its stream without saying why")
        reply = StepReply(text="".join(text), tool_calls=tuple(calls), finished=finished)
        if turn.task.output_schema is not None and not calls:
            parse_output(reply.text, turn.task.output_schema)
        return reply


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
        _emit(runtime, AttemptStarted(agent=self.member.name, side=self.member.side, model=agent.card.model))

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
            timeout=max(policy.attempt_timeout - draft.seconds, 0.001) if self.has_successor else None,
            sensitivity=policy.sensitivity,
            idempotency_key=f"{self.task.idempotency_key}/{self.position}/{draft.steps}",
        )

    def counted(self, finished: Finished, agent: Agent, started: float) -> Attempt:
        """The draft with a finished step added."""
        draft = self.draft or self._attempt(agent)
        usage = draft.usage + finished.usage
        known = [value for value in (draft.confidence, finished.confidence) if value is not None]
        step = {
            "model": finished.model,
            "steps": draft.steps + 1,
            "usage": usage,
            "dollars": price(agent.card, usage),
            "confidence": min(known, default=None),
        }
        return _elapsed(draft.model_copy(update=step), started)

    def correct(self, error: InvalidOutput, started: float) -> TaskState:
        """Tell the agent what was wrong with its reply; it may try once more."""
        assert self.draft is not None, "only a begun attempt is corrected"
        message = Message.user(f"Your last reply could not be used: {error.message}. Reply again.")
        draft = _elapsed(self.draft.model_copy(update={"steps": self.draft.steps + 1}), started)
        return {"messages": [*self.state["messages"], _json(message)], "draft": _json(draft), "corrected": True}

    def give_up(self, error: NearfarError, started: float, runtime: Runtime[None]) -> TaskState:
        """End the attempt as failed and hand over to the next agent, or raise where there is none."""
        draft = _elapsed(self.draft or self._attempt(None), started)
        ended = self.end(draft, "failed", f"{type(error).__name__}: {error}", runtime)
        if self.has_successor:
            return ended
        for attempt in self.state["attempts"]:
            error.add_note(f"before that, {attempt['agent']} {attempt['outcome']}: {attempt['reason']}")
        raise error

    def end(self, draft: Attempt, outcome: str, reason: str, runtime: Runtime[None]) -> TaskState:
        """Record the attempt; unless it was accepted, the next agent starts from the task alone."""
        attempt = draft.model_copy(update={"outcome": outcome, "reason": reason})
        _emit(runtime, AttemptEnded(attempt=attempt))
        ended: TaskState = {"attempts": [*self.state["attempts"], _json(attempt)], "draft": None}
        return ended if outcome == "accepted" else {**ended, **_fresh_start(self.task, position=self.position + 1)}

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


def _fresh_start(task: Task, *, position: int) -> TaskState:
    return {"messages": [_json(message) for message in task.messages], "draft": None, "corrected": False, "position": position}


def _elapsed(draft: Attempt, started: float) -> Attempt:
    return draft.model_copy(update={"seconds": draft.seconds + time.monotonic() - started})


def _emit(runtime: Runtime[None], event: TaskEvent) -> None:
    runtime.stream_writer(event)


def _json(value: Message | Attempt | RouteDecision) -> Json:
    return value.model_dump(mode="json")
