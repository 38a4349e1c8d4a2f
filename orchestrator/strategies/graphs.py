"""The graphs of the strategies, compiled when they are first asked for, and the nodes that they share: route, act, run tools, judge."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from ...protocols import DeadlineExceeded, InvalidOutput, Message, Side, Stalled, StepReply
from ..agents import AgentPool
from ..budgets import Spent
from ..memory.provenance import Recollection
from ..routing import Router
from ..routing.call_looks import text_of_calls
from ..routing.costs import StepTaken
from ..routing.escalation import Escalation
from ..runs.tool_calls import Occurrences
from ..safety.guard import CallContext, initial_label
from ..task import Task
from ..task.context import asking, calling_for
from ..task.events import ApprovalAsked, Routed, ToolFinished
from ..task.labels import Chosen, Label, join_labels, label_of_stranger
from ..task.modes import Strategy
from ..task.results import Call
from ..task.roles import HandOff, Team
from ..task.routing_policy import FALLBACK_ERRORS, SHOWN
from ..task.tools import Tool
from ..util.text import canonical
from .act_looks import ActJudging
from .attempts import Hedge, correct, give_up, hedge_of, warn_of_refusal
from .builders import Builder, build_roles, builder_of
from .calls import CallLog, TaskGraph, TaskGraphBuilder, TaskRuntime, emit, running_tool
from .judging import end_arbitrated, judged
from .near_path import near_path
from .state import (
    Json,
    Keeping,
    TaskContext,
    TaskState,
    Trust,
    as_agent_sees,
    as_json,
    as_told,
    fresh_start,
    label_of,
    labels_after_tools,
    left_by_history,
    seen_by,
    spill_before_tools,
    value_of,
)
from .tool_calls import ToolCalls, hand_off_in, record_outcomes
from .turn import AgentTurn, Fitting, acts, call_of, is_accepted, left_out, summarizer_of
from .verifying import with_votes

_SILENT = "allow more output tokens, or less effort: a model may spend them all on its thoughts"


class TaskNodes:
    """The shared nodes, bound to agents, a router, and the tools and instructions of a run that brings none of its own. A node takes the
    `state` of a task and the `runtime` in which LangGraph runs it, and returns what it changes."""

    def __init__(self, pool: AgentPool, tools: Sequence[Tool], router: Router, instructions: str) -> None:
        self.pool = pool
        self.router = router
        self._instructions = instructions
        self._context = TaskContext.of(tools)
        self.escalations: dict[Path, Escalation] = {}
        """The learned escalations that policies name, each loaded once."""
        self.priors: dict[str, str] = {}
        """Lists of points that must be true of a right outcome, by kind of task."""
        self._part_graphs: dict[tuple[Strategy, bool], TaskGraph] = {}

    def build(self, strategy: Strategy) -> TaskGraphBuilder:
        """Return the graph of a `strategy`, not compiled yet. Raises what `builder_of` and the builder of a plugin raise."""
        return builder_of(strategy)(self)

    def part_graph(self, strategy: Strategy, keeping: Keeping | None) -> TaskGraph:
        """Return the graph of a part of a task. Parts without a thread of their own get no checkpointer: they would share the task's."""
        kind = strategy, keeping is not None
        if kind not in self._part_graphs:
            checkpointer = False if keeping is None else keeping.checkpointer
            self._part_graphs[kind] = TaskGraph.compiled(self.build(strategy), checkpointer=checkpointer, name="part")
        return self._part_graphs[kind]

    def context(self, runtime: TaskRuntime) -> TaskContext:
        """Return the context of the run, or a default one if the graph runs by itself in another app."""
        given: TaskContext | None = runtime.context
        return self._context if given is None else given

    def instructed(self, task: Task, runtime: TaskRuntime) -> Task:
        """Return the `task` with its instructions, where the graph runs by itself in another app: none was prepared there."""
        return task.with_instructions(self._instructions) if self.context(runtime) is self._context else task

    async def route(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Decide who may serve the task, and in which order."""
        task, context = self.instructed(value_of(Task, state["task"]), runtime), self.context(runtime)
        spent = Spent() if context.account is None else context.account.spent
        ruled = self.router.apply_rules(task, tools=context.tools).policy
        if ruled != task.policy:
            task = task.model_copy(update={"policy": ruled.model_copy(update={"strategy": task.policy.strategy})})
        self._look_for_those_who_may_be_back(task, context, spent)
        commitments = None if context.account is None else context.account.commitments
        decision = self.router.decide(task, list(self.pool), tools=context.tools, spent=spent, commitments=commitments)
        emit(runtime, Routed(decision=decision))
        world = left_by_history(task, context.conversation_tools)
        label = as_json(initial_label(task, context.conversation_tools).joined(world))
        empty: TaskState = {
            "attempts": [],
            "label": label,
            "opening": label,
            "world": as_json(world),
            "chosen": as_json(task.planned),
            "standby": None,
            "standby_attempt": 0,
            "calls": [],
            "tool_calls": [],
            "reasons": [],
            "guidance": "",
            "watch": None,
        }
        return {"task": as_json(task), "decision": as_json(decision), **empty, **fresh_start(task, position=0)}

    def _look_for_those_who_may_be_back(self, task: Task, context: TaskContext, spent: Spent) -> None:
        """Probe unreachable agents in the background, if others can serve meanwhile, so that no task waits for the result."""
        doubtful = {handle.name for handle in self.pool if handle.needs_probe}
        if not doubtful:
            return
        candidates = self.router.explain(task, list(self.pool), tools=context.tools, spent=spent).candidates
        if not doubtful.issuperset(candidates):
            for name in doubtful.intersection(candidates):
                self.pool[name].probe()

    async def act(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let the current agent take one turn; a failure that another agent may not have hands over to it."""
        if is_accepted(state):  # its tools have handed the task to another role
            return {}
        turn = AgentTurn(state, self.pool, self.context(runtime).output_model)
        if turn.is_exhausted:
            error = InvalidOutput(
                f"no answer within {turn.task.policy.maximum_turns} turns", hint="raise maximum_turns, or cut the task up"
            )
            # Another agent would start over in an environment that is changed already, at a price that the user's interval does not bound.
            return give_up(turn, error, runtime, is_final=turn.is_supervised or turn.is_committed(runtime))
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
                return {**correct(turn, error), "calls": log.as_json}
            if isinstance(error, InvalidOutput):
                self.router.learn(turn.task, turn.decision, turn.handle.name, score=0.0)
            fallback = turn.task.policy.fallback
            may_restart = fallback.hands_over(was_shown=turn.was_shown(runtime))
            if not may_restart and turn.has_successor:
                error.add_note(SHOWN)
            self._learn_costs(turn, log.as_json, runtime)
            is_final = not (may_restart and fallback.follows(error))
            ended = give_up(turn, error, runtime, is_final=is_final)
            reasons = [*state["reasons"], *warn_of_refusal(turn.handle.name, error)]
            return {**ended, "reasons": reasons, "calls": log.as_json}

    async def _act(self, turn: AgentTurn, log: CallLog, runtime: TaskRuntime) -> TaskState:
        if turn.draft is None:
            turn.prepare(await turn.open(), self.context(runtime).specs)
            turn.announce(runtime)
        if turn.task.policy.hedge.enabled and (hedge := hedge_of(turn, self.pool, self.router.running)) is not None:
            return await self._hedged(turn, hedge, log, runtime)
        reply, noted = await self._asked(turn, log, runtime, lambda text: turn.show(text, runtime))
        return self._acted(turn, reply, noted, log, runtime)

    async def _asked(
        self, turn: AgentTurn, log: CallLog, runtime: TaskRuntime, listener: Callable[[str], None] | None
    ) -> tuple[StepReply, TaskState]:
        """Run one step of the turn's agent. Return its reply and the state's update."""
        fitting = Fitting(turn, (await turn.open()).card)
        ask = partial(log.ask, turn.handle, role="execute", turn=turn.state["acted"], listener=listener)
        context = self.context(runtime)
        request, label = await as_agent_sees(turn.state, turn.handle, turn.request(context.specs), context)
        # Who sums up is on this device and reads all: what they write of what is covered here may not leave.
        summarizer = summarizer_of(self.pool, turn, log) if label is None else None
        ask = partial(ask, label=label)
        if label is None and context.ahead is not None and (path := near_path(turn, self, runtime, request)) is not None:
            reply = await fitting.ask(request, partial(context.ahead.ask, path, ask, log, listener=listener), summarizer)
            return reply, {**fitting.noted, "speculation": as_json(context.ahead.figures)}
        reply = await fitting.ask(request, ask, summarizer)
        return reply, fitting.noted

    def _acted(self, turn: AgentTurn, reply: StepReply, noted: TaskState, log: CallLog, runtime: TaskRuntime) -> TaskState:
        """Return the state after the step. Raises `InvalidOutput` if the reply cannot be used."""
        call = call_of(log, turn)
        assert call is not None, "it has replied"
        turn.count(call)
        if call.saved is None:  # what a cache takes says nothing of the agent
            self.router.running.add_step(turn.handle.name, _taken(call))
        if (account := self.context(runtime).account) is not None:
            self.router.extend(turn.task, account.commitments, account.spent.dollars, is_far=turn.handle.side is Side.FAR)
        turn.check(reply)
        said = turn.said(reply)
        if said.tool_calls and turn.is_judged and turn.is_doubtful(call):
            return {**turn.stop(runtime), "calls": log.as_json}
        before, made = turn.state["messages"], log.as_json
        context = self.context(runtime)
        if any(acts(call, context) for call in said.tool_calls):
            judging = ActJudging(turn, said, before, made, self, context)
            settled = judging.settled(judging.verdict(), runtime)
        else:
            settled = turn.go_on()
        if settled["draft"] is None:  # the draft was rejected
            return {**settled, "calls": made}
        noted = {**noted, "reasons": [*noted["reasons"], *left_out(reply.message, said)]}
        if turn.handle.is_foreign:
            noted["label"] = as_json(label_of(turn.state).joined(label_of_stranger(turn.handle.name)))
        return {"messages": [*before, as_json(said)], "calls": made, **noted, **settled}

    async def _hedged(self, turn: AgentTurn, hedge: Hedge, log: CallLog, runtime: TaskRuntime) -> TaskState:
        """Run the step with the agent and, if it is slow, with a second agent at the same time; the first useful reply is used."""
        reply, noted = await hedge.run(lambda who, listener: self._asked(who, log, runtime, listener), self.context(runtime).specs, runtime)
        if hedge.race.was_started:
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
        calls.refuse_further(context.hand_offs)
        await calls.clear(standing, lambda requests: emit(runtime, ApprovalAsked(requests=tuple(requests))))
        spilled = await spill_before_tools(state, calls, context)
        async with context.turn_taking or nullcontext():
            started = time.monotonic()  # the wait for others' tools is not this agent's time
            record = record_outcomes(draft["agent"], calls, context.outcomes)
            in_use = recollection.in_use(draft["agent"], label.joined(calls.label))
            with in_use, record as outcomes, calling_for(context.caller), asking(context.tool_checks.approver):
                results = await calls.run(partial(running_tool, runtime), lambda result: emit(runtime, ToolFinished(result=result)))
        noted = labels_after_tools(state, calls, results, context, recalled=recollection.label, spilled=spilled)
        trust = Trust(state, calls, standing, join_labels((recollection.label, value_of(Label, noted["world"]))))
        answers = [as_json(Message.tool(result)) for result in trust.quoted_results()]
        ended: TaskState = {"draft": {**draft, "seconds": draft["seconds"] + time.monotonic() - started}}
        if (hand_off := hand_off_in(calls, context.hand_offs)) is not None:
            ended = self._handed_over({**state, **ended}, hand_off, runtime)
        return {
            "messages": [*state["messages"], *answers],
            **ended,
            "acted": state["acted"] + 1,
            "tool_calls": [*state["tool_calls"], *map(as_json, outcomes)],
            "made": calls.made,
            "recalled": [as_json(item) for item in recollection.items],
            **noted,
            **trust.noted,
        }

    def _handed_over(self, state: TaskState, hand_off: HandOff, runtime: TaskRuntime) -> TaskState:
        """Return the state after the current agent has handed the task to another role, which ends its attempt."""
        turn = AgentTurn(state, self.pool, self.context(runtime).output_model)
        assert turn.draft is not None, "an attempt is under way"
        self._learn_costs(turn, state["calls"], runtime)
        return {**turn.end(turn.draft, "accepted", f"handed over to {hand_off.role}", runtime), "hand_off": as_json(hand_off)}

    def _learn_costs(self, turn: AgentTurn, calls: Sequence[Json], runtime: TaskRuntime) -> None:
        """Let the router learn what the attempt that has ended took, over all its steps."""
        agent = turn.handle.name
        own = [call for call in (value_of(Call, each) for each in calls if each["agent"] == agent) if call.took_step]
        self.router.learn_costs(turn.task, agent, own, tools=self.context(runtime).tools)

    async def judge(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let further samples vote if the policy says so. Accept the answer, or hand over to the next agent where the evidence speaks
        against it."""
        turn = AgentTurn(state, self.pool, self.context(runtime).output_model)
        if turn.task.policy.evidence.votes == 1:
            return await self._judge(turn, state, runtime)
        voted = await with_votes(turn, state, runtime)
        left: TaskState = {**state, **voted}
        return {**voted, **await self._judge(AgentTurn(left, self.pool, self.context(runtime).output_model), left, runtime)}

    async def _judge(self, turn: AgentTurn, state: TaskState, runtime: TaskRuntime) -> TaskState:
        assert turn.draft is not None, "an attempt is under way"
        said = value_of(Message, state["messages"][-1])
        draft = turn.draft.model_copy(update={"answer": text_of_calls(said.tool_calls) if said.tool_calls else said.text})
        self._learn_costs(turn, state["calls"], runtime)
        if said.tool_calls:  # they were looked at before
            return turn.end(draft, "accepted", "it calls tools that the caller runs", runtime)
        if turn.is_judged:
            return await judged(turn, draft, self, self.context(runtime), runtime)
        silent = None if said.text.strip() or turn.is_committed(runtime) else InvalidOutput("the answer is empty", hint=_SILENT)
        if silent is not None and turn.leaves_to_others(silent):
            self.router.learn(turn.task, turn.decision, turn.handle.name, score=0.0)
            return give_up(turn, silent, runtime)
        return end_arbitrated(turn, draft, runtime) if state["attempts"] else turn.end(draft, "accepted", "the answer stands", runtime)


def _taken(call: Call) -> StepTaken:
    return StepTaken(
        input_tokens=call.usage.input_tokens,
        output_tokens=call.usage.output_tokens,
        seconds=call.seconds - call.queued_seconds,
        first_token_seconds=None if call.first_token_seconds is None else max(call.first_token_seconds - call.queued_seconds, 0.0),
        dollars=None if call.dollars is None else float(call.dollars),
        joules=call.energy.joules if call.side is Side.NEAR else None,
    )


class Graphs:
    """The compiled graphs of a pool, each built when it is first asked for. Strategies of one shape share a graph."""

    def __init__(
        self,
        pool: AgentPool,
        tools: Sequence[Tool],
        router: Router,
        *,
        instructions: str = "",
        team: Team = Team({}),  # noqa: B008 - nothing is added to it
        checkpointer: Checkpointer = None,
        store: BaseStore | None = None,
    ) -> None:
        self._nodes = TaskNodes(pool, tools, router, instructions)
        self._team = team
        self._checkpointer = checkpointer
        self._store = store
        self._compiled: dict[Builder | str, TaskGraph] = {}
        """By the builder of a strategy, or the role that a task begins with."""
        self._of_strategies: dict[Strategy, TaskGraph] = {}

    def __getitem__(self, strategy: Strategy) -> TaskGraph:
        """Return the graph of a strategy. Raises what `builder_of` raises."""
        if strategy not in self._of_strategies:
            self._of_strategies[strategy] = self._whole(builder_of(strategy))
        return self._of_strategies[strategy]

    def of_role(self, name: str) -> TaskGraph:
        """Return the graph of the roles that work on a task which begins with this one. Raises `InvalidRequest` for an unknown role."""
        return self._whole(name)

    def of_task(self, task: Task) -> TaskGraph:
        """Return the graph that serves a task."""
        return self.of_role(task.role) if task.role else self[task.policy.strategy]

    def _whole(self, kind: Builder | str) -> TaskGraph:
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(self._build(kind))
        return self._compiled[kind]

    def _build(self, kind: Builder | str) -> TaskGraphBuilder:
        return build_roles(self._nodes, self._team, kind) if isinstance(kind, str) else kind(self._nodes)

    def _compile(self, graph: TaskGraphBuilder) -> TaskGraph:
        return TaskGraph.compiled(graph, checkpointer=self._checkpointer, store=self._store, name="nearfar")
