"""The nodes that strategies are made of: route, act, run tools, judge."""

import time
from collections.abc import Sequence

import anyio
from langgraph.runtime import Runtime

from ..protocols import (
    Agent,
    AgentError,
    ContextOverflow,
    Finished,
    InvalidOutput,
    Message,
    StepReply,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolResult,
    Unsupported,
    stream,
)
from .events import AgentText, Routed, ToolFinished, ToolStarted
from .evidence import objection
from .policy import decide
from .results import Attempt
from .task import Task
from .team import Team
from .tools import Tool, run_tool_call
from .turn import TaskState, Turn, as_json, emit, fresh_start

FALLBACK_ERRORS = (AgentError, ContextOverflow, Unsupported)
"""Failures after which another agent may do better; any other error is for the user to mend."""


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
        emit(runtime, Routed(decision=decision))
        return {"decision": as_json(decision), "attempts": [], "standby": None, **fresh_start(task, position=0)}

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
            turn.count(reply.finished, agent)
            turn.check(reply)
        except FALLBACK_ERRORS as error:
            turn.count_broken(error)
            if isinstance(error, InvalidOutput) and turn.draft is not None and not state["corrected"]:
                return turn.correct(error, started)
            return turn.give_up(error, started, runtime)
        return {
            "messages": [*state["messages"], as_json(reply.message)],
            "draft": as_json(turn.elapsed(started)),
        }

    async def run_tools(self, state: TaskState, runtime: Runtime[None]) -> TaskState:
        """Run the calls of the last message side by side; their results follow in the order of the calls."""
        calls = Message.model_validate(state["messages"][-1]).tool_calls
        results: list[ToolResult | None] = [None] * len(calls)
        started = time.monotonic()

        async def run(index: int, call: ToolCall) -> None:
            emit(runtime, ToolStarted(call=call))
            result = await run_tool_call(call, self._tools)
            results[index] = result
            emit(runtime, ToolFinished(result=result))

        async with anyio.create_task_group() as running:
            for index, call in enumerate(calls):
                running.start_soon(run, index, call)
        answers = [as_json(Message.tool(result)) for result in results if result is not None]
        return {"messages": [*state["messages"], *answers], "draft": as_json(Turn(state, self._team).elapsed(started))}

    async def judge(self, state: TaskState, runtime: Runtime[None]) -> TaskState:
        """Accept the answer, or hand over to the next agent where the evidence speaks against it."""
        turn = Turn(state, self._team)
        draft = Attempt.model_validate(state["draft"])
        reason = self._objection(turn, draft) if turn.decision.judged and turn.has_successor else None
        if reason is None:
            return turn.end(draft, "accepted", "the answer stands", runtime)
        ended = turn.end(draft, "rejected", reason, runtime)
        return {**ended, "standby": state["messages"]} if state["messages"][-1]["text"].strip() else ended

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
        """One step, streamed."""
        text: list[str] = []
        calls: list[ToolCall] = []
        finished: Finished | None = None
        async with stream(agent, turn.request(self._specs)) as events:
            async for event in events:
                turn.was_heard = True
                match event:
                    case TextDelta():
                        text.append(event.text)
                        emit(runtime, AgentText(text=event.text))
                    case ToolCalled():
                        calls.append(event.call)
                    case Finished():
                        finished = event
        if finished is None:
            raise InvalidOutput(f"agent {agent.card.name!r} ended its stream without saying why")
        return StepReply(text="".join(text), tool_calls=tuple(calls), finished=finished)
