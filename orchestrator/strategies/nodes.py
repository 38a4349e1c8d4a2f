"""The nodes that strategies share: route, act, run tools, judge."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from langgraph.graph import END

from ...protocols import DeadlineExceeded, InvalidOutput, Message, NearfarError, Side, Stalled, StepReply
from ..agents.pool import AgentPool
from ..budgets.amounts import Spent
from ..memory.provenance import Recollection
from ..routing.costs import StepTaken
from ..routing.router import Router
from ..runs.ledger.occurrences import Occurrences
from ..safety.guard.decision import CallContext
from ..safety.privacy.starting import starting_label
from ..task.chosen import Chosen
from ..task.events import ApprovalAsked, Routed, ToolFinished, ToolStarted
from ..task.labels import Label, joined
from ..task.results import Call
from ..task.sections.routing import FALLBACK_ERRORS, SHOWN
from ..task.task import Task
from ..task.tools import Tool
from ..util.canonical import canonical
from .calls import CallLog, warn_of_refusal
from .context import TaskContext
from .fitting import Fitting, summarizer_of
from .hedging import Hedge, call_of, hedge_of
from .information_flow import Trust, after_tools, as_told, before_tools, left_by_history, seen_by, shown
from .judging import Escalations, Judging, act_doubt
from .runtime import TaskRuntime, emit
from .state import Json, TaskState, as_json, fresh_start, label_of, value_of
from .tool_calls import ToolCalls, record_outcomes
from .turn import Turn

_SILENT = "allow more output tokens, or less effort: a model may spend them all on its thoughts"


class TaskNodes:
    """The shared nodes, bound to a pool of agents, a router, and the tools that agents may call where a run brings none of its own."""

    def __init__(self, pool: AgentPool, tools: Sequence[Tool], router: Router) -> None:
        self.pool = pool
        self.router = router
        self._context = TaskContext.of(tools)
        self._escalations = Escalations()

    def context(self, runtime: TaskRuntime) -> TaskContext:
        """Return the context of the run, or a default one if the graph runs by itself in another app."""
        given: TaskContext | None = runtime.context
        return self._context if given is None else given

    async def route(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Decide who may serve the task, and in which order."""
        task = value_of(Task, state["task"])
        context = self.context(runtime)
        spent = Spent() if context.account is None else context.account.spent
        ruled = self.router.ruled(task, tools=context.tools).policy
        if ruled != task.policy:
            task = task.model_copy(update={"policy": ruled.model_copy(update={"strategy": task.policy.strategy})})
        self._look_for_those_who_may_be_back(task, context, spent)
        commitments = None if context.account is None else context.account.commitments
        decision = self.router.decide(task, list(self.pool), tools=context.tools, spent=spent, commitments=commitments)
        emit(runtime, Routed(decision=decision))
        world = left_by_history(task, context.tools)
        label = as_json(starting_label(task, context.tools).joined(world))
        empty: TaskState = {
            "attempts": [],
            "label": label,
            "opening": label,
            "world": as_json(world),
            "chosen": as_json(task.planned),
            "standby": None,
            "calls": [],
            "tool_calls": [],
            "reasons": [],
            "guidance": "",
            "watch": None,
        }
        return {"task": as_json(task), "decision": as_json(decision), **empty, **fresh_start(task, position=0)}

    def _look_for_those_who_may_be_back(self, task: Task, context: TaskContext, spent: Spent) -> None:
        """Probe unreachable agents in the background, if others can serve meanwhile, so that no task waits for the result."""
        doubtful = {handle.name for handle in self.pool if handle.is_worth_a_look}
        if not doubtful:
            return
        candidates = self.router.explain(task, list(self.pool), tools=context.tools, spent=spent).candidates
        if not doubtful.issuperset(candidates):
            for name in doubtful.intersection(candidates):
                self.pool[name].look()

    async def act(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let the current agent take one turn; a failure that another agent may not have hands over to it."""
        turn = Turn(state, self.pool)
        if turn.is_exhausted:
            error = InvalidOutput(
                f"no answer within {turn.task.policy.maximum_turns} turns", hint="raise maximum_turns, or cut the task up"
            )
            # Another agent would start over in an environment that is changed already, at a price that the user's interval does not bound.
            return turn.give_up(error, runtime, is_final=turn.is_supervised)
        log = CallLog(state, runtime)
        try:
            return await self._act(turn, log, runtime)
        except FALLBACK_ERRORS as error:
            call = call_of(log, turn)
            if call is not None and not turn.is_counted:
                turn.count(call)
            if call is not None and isinstance(error, (DeadlineExceeded, Stalled)):
                self.router.running.add_step(turn.handle.name, _taken(call))
            if isinstance(error, InvalidOutput) and turn.draft is not None and not state["corrected"]:
                return {**turn.correct(error), "calls": log.as_json}
            if isinstance(error, InvalidOutput):
                self.router.learn(turn.task, turn.decision, turn.handle.name, score=0.0)
            fallback = turn.task.policy.fallback
            may_restart = fallback.hands_over(was_shown=turn.was_shown(runtime))
            if not may_restart and turn.has_successor:
                error.add_note(SHOWN)
            self._learn_costs(turn, log.as_json, runtime)
            is_final = not (may_restart and fallback.follows(error))
            ended = turn.give_up(error, runtime, is_final=is_final)
            reasons = [*state["reasons"], *warn_of_refusal(turn.handle.name, error)]
            return {**ended, "reasons": reasons, "calls": log.as_json}

    async def _act(self, turn: Turn, log: CallLog, runtime: TaskRuntime) -> TaskState:
        if turn.draft is None:
            turn.prepare(await turn.open(), self.context(runtime).specs)
            turn.announce(runtime)
        hedge = hedge_of(turn, self.pool, self.router.running)
        if hedge is not None:
            return await self._hedged(turn, hedge, log, runtime)
        reply, noted = await self._asked(turn, log, runtime, lambda text: turn.show(text, runtime))
        return self._acted(turn, reply, noted, log, runtime)

    async def _asked(
        self, turn: Turn, log: CallLog, runtime: TaskRuntime, listener: Callable[[str], None] | None
    ) -> tuple[StepReply, TaskState]:
        """Run one step of the turn's agent. Return its reply and the state's update."""
        fitting = Fitting(turn, (await turn.open()).card)
        ask = partial(log.ask, turn.handle, role="execute", turn=turn.state["acted"], listener=listener)
        context = self.context(runtime)
        request, label = await shown(turn, turn.request(context.specs), context)
        # Who sums up is on this device and reads all: what they write of what is covered here may not leave.
        summarizer = summarizer_of(self.pool, turn, log) if label is None else None
        reply = await fitting.ask(request, partial(ask, label=label), summarizer)
        return reply, fitting.noted

    def _acted(self, turn: Turn, reply: StepReply, noted: TaskState, log: CallLog, runtime: TaskRuntime) -> TaskState:
        """Return the state after the step. Raises `InvalidOutput` if the reply cannot be used."""
        call = call_of(log, turn)
        assert call is not None, "it has replied"
        turn.count(call)
        if call.saved is None:  # what a cache takes says nothing of the agent
            self.router.running.add_step(turn.handle.name, _taken(call))
        if (account := self.context(runtime).account) is not None:
            self.router.extend(turn.task, account.commitments, account.spent.dollars)
        turn.check(reply)
        if reply.tool_calls and turn.is_judged and turn.is_doubtful(call):
            return {**turn.stop(runtime), "calls": log.as_json}
        doubt = act_doubt(turn, reply.tool_calls, log.as_json, self.pool, self.context(runtime))
        if doubt is not None and not turn.is_supervised:
            return {**turn.reject(doubt, runtime), "calls": log.as_json}
        return {
            "messages": [*turn.state["messages"], as_json(reply.message)],
            "act_doubt": doubt,
            "draft": as_json(turn.elapsed()),
            "calls": log.as_json,
            **noted,
        }

    async def _hedged(self, turn: Turn, hedge: Hedge, log: CallLog, runtime: TaskRuntime) -> TaskState:
        """Run the step with the agent and, if it is slow, with a second agent at the same time; the first useful reply is used."""
        may_restart = turn.task.policy.fallback.hands_over(was_shown=True)

        def listen(text: str) -> None:
            turn.show(text, runtime)
            if turn.has_shown and not may_restart:
                hedge.race.settle()

        async def first() -> tuple[StepReply, TaskState]:
            try:
                return await self._asked(turn, log, runtime, listen)
            except NearfarError as error:
                hedge.problem = error
                raise

        async def second() -> tuple[StepReply, TaskState]:
            hedge.other.prepare(await hedge.other.open(), self.context(runtime).specs)
            return await self._asked(hedge.other, log, runtime, None)

        reply, noted = await hedge.race.run(first(), second)
        if not hedge.race.was_started:
            return self._acted(turn, reply, noted, log, runtime)
        noted = {**noted, "reasons": [*noted["reasons"], hedge.reason(log)]}
        if not hedge.race.second_won:
            return self._acted(turn, reply, noted, log, runtime)
        self.router.running.add_cut_step(turn.handle.name, hedge.tokens, turn.seconds)
        ended = hedge.taken_over(log, reply, runtime)
        return {**ended, **self._acted(hedge.other, reply, noted, log, runtime)}

    async def run_tools(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Run the calls of the last message side by side; their results follow in the order of the calls."""
        conversation = [value_of(Message, message) for message in state["messages"]]
        context = self.context(runtime)
        draft = state["draft"]
        assert draft is not None, "an attempt is under way"
        recollection = context.recollection or Recollection.of(value_of(Task, state["task"]))
        recollection.restore(state.get("recalled", ()))
        before = Occurrences(state["made"], turn=len(state["calls"]))
        task = canonical((state["task"]["user"], state["task"]["idempotency_key"]))
        calls = ToolCalls(conversation[-1].tool_calls, context.tools, context.tool_checks, before, task=task)
        label = label_of(state)
        standing = CallContext(
            conversation, seen_by(draft["side"], state), chosen=value_of(Chosen, state["chosen"]), trusted=state["trusted"]
        )
        standing = replace(standing, told=as_told(standing, self.pool[draft["agent"]], state, context))
        await calls.clear(standing, lambda requests: emit(runtime, ApprovalAsked(requests=tuple(requests))))
        spilled = await before_tools(state, calls, context)
        async with context.turn_taking or nullcontext():
            started = time.monotonic()  # the wait for others' tools is not this agent's time
            record = record_outcomes(draft["agent"], calls, context.outcomes)
            with recollection.in_use(draft["agent"], label.joined(calls.label)), record as outcomes:
                results = await calls.run(
                    lambda call: emit(runtime, ToolStarted(call=call)), lambda result: emit(runtime, ToolFinished(result=result))
                )
        noted = after_tools(state, calls, results, context, recalled=recollection.label, spilled=spilled)
        trust = Trust(state, calls, standing, joined((recollection.label, value_of(Label, noted["world"]))))
        answers = [as_json(Message.tool(result)) for result in trust.shown()]
        draft = {**draft, "seconds": draft["seconds"] + time.monotonic() - started}
        return {
            "messages": [*state["messages"], *answers],
            "draft": draft,
            "acted": state["acted"] + 1,
            "tool_calls": [*state["tool_calls"], *map(as_json, outcomes)],
            "made": calls.made,
            "recalled": [as_json(item) for item in recollection.items],
            **noted,
            **trust.noted,
        }

    def _learn_costs(self, turn: Turn, calls: Sequence[Json], runtime: TaskRuntime) -> None:
        """Let the router learn what the attempt that has ended took, over all its steps."""
        agent = turn.handle.name
        own = [value_of(Call, call) for call in calls if call["agent"] == agent and call["role"] == "execute"]
        self.router.learn_costs(turn.task, agent, own, tools=self.context(runtime).tools)

    async def judge(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Accept the answer, or hand over to the next agent where the evidence speaks against it."""
        turn = Turn(state, self.pool)
        draft = turn.draft
        assert draft is not None, "an attempt is under way"
        draft = draft.model_copy(update={"answer": state["messages"][-1]["text"]})
        self._learn_costs(turn, state["calls"], runtime)
        if not turn.is_judged:
            silent = InvalidOutput("the answer is empty", hint=_SILENT)
            if state["messages"][-1]["text"].strip() or not turn.leaves_to_others(silent):
                return turn.end(draft, "accepted", "the answer stands", runtime)
            self.router.learn(turn.task, turn.decision, turn.handle.name, score=0.0)
            return turn.give_up(silent, runtime)
        log = CallLog(state, runtime)
        judging = Judging(turn, self.pool, log, self.context(runtime), self._escalations)
        reason = await judging.objection()
        draft = draft.model_copy(update={"is_grounded": judging.is_grounded, "opinions": judging.opinions})
        if reason is None:
            return {**turn.end(draft, "accepted", judging.praise, runtime), "calls": log.as_json}
        ended: TaskState = {**turn.end(draft, "rejected", reason, runtime), "calls": log.as_json}
        return {**ended, "standby": state["messages"]} if state["messages"][-1]["text"].strip() else ended


def after_step(state: TaskState) -> str:
    """Choose the node after `act`: `act` after a failed or corrected attempt, `tools` for calls, `judge` for an answer, else the end."""
    if is_accepted(state):
        return END
    last = state["messages"][-1]
    if state["draft"] is None or last["role"] != "assistant":
        return "act"
    return "tools" if last["tool_calls"] else "judge"


def is_accepted(state: TaskState) -> bool:
    """Return whether an attempt was accepted, be it a draft that was reinstated."""
    return any(attempt["outcome"] == "accepted" for attempt in state["attempts"])


def _taken(call: Call) -> StepTaken:
    return StepTaken(
        input_tokens=call.usage.input_tokens,
        output_tokens=call.usage.output_tokens,
        seconds=call.seconds,
        first_token_seconds=call.first_token_seconds,
        dollars=None if call.dollars is None else float(call.dollars),
        joules=call.energy.joules if call.side is Side.NEAR else None,
    )
