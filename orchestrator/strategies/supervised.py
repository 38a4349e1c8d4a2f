"""The nodes of a supervisor, which plans before the work and verifies during it: the control flow of PEVR and EVA (arXiv 2605.30102)."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...protocols import (
    ContextOverflow,
    InvalidOutput,
    Message,
    NearfarError,
    StepReply,
    ToolCall,
    ToolResult,
)
from ...protocols.steps import Value
from ..task import Task, task_text
from ..task.decisions import RouteDecision
from ..task.events import Move, SupervisorSpoke
from ..task.labels import Label
from ..task.modes import Strategy
from ..task.policy import Cause, SupervisionConfig, Trigger, Verdict
from ..task.results import Attempt
from ..task.routing_policy import FALLBACK_ERRORS
from .attempts import give_up, warn_of_refusal
from .calls import CallLog, TaskRuntime, emit
from .planning import Planning, Purchase, supervision_request, supervisor_of
from .prompts import NOT_YET_RUN, SupervisorVerdict, read_verdict, verify_plan_request, verify_progress_request, with_points
from .state import TaskState, as_json, chosen_by_plan, label_of, opening, value_of
from .turn import AgentTurn, after_calls, after_step, asked_with_less, is_accepted
from .verifying import AskedAgent, PriorPoints

if TYPE_CHECKING:
    from .graphs import TaskNodes


_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about the executor's work after a turn has acted."""

    turn: int
    """Turns that have acted, over all resets."""
    covered: Sequence[Message]
    """The executor's conversation up to the last check or reset, its prompt included."""
    fresh: Sequence[Message]
    """Its conversation since then."""
    confidence: float | None
    """The confidence of the last step; None where unknown, which triggers nothing."""
    share_spent: float
    """The spent share of the turns or of the timeout: the larger one."""
    half_was_covered: bool
    """A check has taken place since half was spent."""
    answered: bool = False
    """The last turn did not act but gave the answer."""


def cause_of_check(supervision: SupervisionConfig, evidence: Evidence) -> Cause | None:
    """Return the cause of a check that is due now: the schedule, else the first trigger that fires, in the configured order.

    An answer ends the task, so only the trigger for answers asks for a check of it.
    """
    if evidence.answered:
        return Trigger.ANSWER if Trigger.ANSWER in supervision.triggers else None
    if supervision.interval is not None and evidence.turn % supervision.interval == 0:
        return "interval"
    return next((trigger for trigger in supervision.triggers if _FIRES[trigger](supervision, evidence)), None)


def _has_error(_: SupervisionConfig, evidence: Evidence) -> bool:
    return any(result.is_error for result in _results(evidence.fresh))


def _loops(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    counts = Counter(canonical(call) for message in evidence.fresh for call in message.tool_calls)
    return any(count >= supervision.loop_calls for count in counts.values())


def _stalls(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    starts = [index for index, message in enumerate(evidence.fresh) if message.tool_calls]
    if len(starts) < supervision.stall_turns:
        return False
    first = starts[-supervision.stall_turns]
    known = _words([*evidence.covered, *evidence.fresh[:first]])
    return not _words(evidence.fresh[first:]) - known


def _is_long(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    return any(len(result.content) > supervision.observation_characters for result in _results(evidence.fresh))


def _is_unsure(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.confidence is not None and evidence.confidence < supervision.minimum_confidence


def _is_half_spent(_: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.share_spent >= 0.5 and not evidence.half_was_covered


def _has_answered(_: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.answered


_FIRES: Mapping[Trigger, Callable[[SupervisionConfig, Evidence], bool]] = {
    Trigger.TOOL_ERROR: _has_error,
    Trigger.LOOP: _loops,
    Trigger.STALL: _stalls,
    Trigger.LONG_OBSERVATION: _is_long,
    Trigger.LOW_CONFIDENCE: _is_unsure,
    Trigger.HALF_SPENT: _is_half_spent,
    Trigger.ANSWER: _has_answered,
}


def canonical(call: ToolCall) -> str:
    """Return a call as text such that equal calls are equal text: keys sorted, white space single, 2.0 the same as 2."""
    return f"{call.name} {json.dumps(_canonical(call.arguments), sort_keys=True)}"


def _canonical(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: _canonical(item) for key, item in value.items()}
        case list():
            return [_canonical(item) for item in value]
        case str():
            return " ".join(value.split())
        case float() if value.is_integer():
            return int(value)
    return value


def _results(messages: Sequence[Message]) -> list[ToolResult]:
    return [message.tool_result for message in messages if message.tool_result is not None]


def _words(messages: Sequence[Message]) -> set[str]:
    """Return the words that the executor was told: prompts and results, but neither errors nor its own text."""
    prompts = [message.text for message in messages if message.role in ("user", "system")]
    results = [result.content for result in _results(messages) if not result.is_error]
    return set(_WORD.findall(" ".join([*prompts, *results]).casefold()))


class Watch(Value):
    """The part of a supervised task that its checks have covered so far."""

    covered: int
    """Messages of the executor's conversation that the last check has seen, or that it began with after a reset."""
    half: bool = False
    """A check has taken place since half of the turns or of the time was spent."""
    is_over: bool = False
    """The supervisor failed, and the executor goes on alone."""


class Oversight:
    """One look at a supervised task: who does what, the work so far, and whether it is to be checked now."""

    def __init__(self, state: TaskState) -> None:
        self.state = state
        self.task = value_of(Task, state["task"])
        self.decision = value_of(RouteDecision, state["decision"])
        self.watch = Watch.model_validate(state["watch"]) if state["watch"] is not None else Watch(covered=len(self.task.messages))

    @property
    def policy(self) -> SupervisionConfig:
        return self.task.policy.supervision

    @property
    def executor(self) -> str:
        return self.decision.candidates[self.state["position"]]

    @property
    def is_on(self) -> bool:
        """True if the current agent is supervised: an agent that took over from a failed one works alone."""
        return self.decision.supervisor is not None and self.state["position"] == 0 and not self.watch.is_over

    @property
    def is_supervised(self) -> bool:
        """The current agent is supervised, and no budget has better uses than that."""
        return self.is_on and self.decision.is_supervisor_bought is not False

    @property
    def is_navigated(self) -> bool:
        """A navigator, or chance, chooses when the supervisor is asked."""
        return self.policy.is_navigated and self.decision.strategy is Strategy.PEVR and self.is_supervised

    @property
    def is_at_first_step(self) -> bool:
        """The first step was made, and has neither acted nor led to a plan."""
        has_stepped = self.state["draft"] is not None and self.state["messages"][-1]["role"] == "assistant"
        return has_stepped and self.state["acted"] == 0 and not any(call["role"] == "plan" for call in self.state["calls"])

    @property
    def work(self) -> list[Message]:
        """The executor's conversation behind its prompt."""
        return [value_of(Message, message) for message in self.state["messages"][len(self.task.messages) :]]

    def cause(self) -> Cause | None:
        """Return the cause of a check that is due now; None if none is. With no turn left, a check could change nothing, and is not
        made."""
        if not self.is_supervised or not self.has_turns_left:
            return None
        if self.is_navigated:
            return "navigator" if self.state.get("move") == Move.CHECK else None
        messages = [value_of(Message, message) for message in self.state["messages"]]
        evidence = Evidence(
            turn=self.state["acted"],
            covered=messages[: self.watch.covered],
            fresh=messages[self.watch.covered :],
            confidence=self.confidence,
            share_spent=self.share_spent(),
            half_was_covered=self.watch.half,
            answered=has_answered(self.state),
        )
        return cause_of_check(self.policy, evidence)

    def doubt(self) -> str | None:
        """Return why the last step, which has not acted yet, must wait for a plan; None if it need not."""
        if self.is_navigated:
            return f"step {self.draft.steps} of {self.executor} was to wait for a plan" if self.state.get("move") == Move.PLAN else None
        limit = self.policy.plan_below
        if limit is None or not self.is_at_first_step or not self.is_supervised or not self.has_turns_left:
            return None
        confidence = self.confidence
        if confidence is None or confidence < limit:
            known = "unknown" if confidence is None else f"{confidence:.6g}, below {limit:g}"
            return f"the confidence of {self.executor}'s first step is {known}, so it was to wait for a plan"
        has_room = self.decision.is_supervisor_bought
        return f"the budget has room for a plan, so {self.executor}'s first step was to wait for one" if has_room else None

    @property
    def draft(self) -> Attempt:
        draft = self.state["draft"]
        assert draft is not None, "an attempt is under way"
        return value_of(Attempt, draft)

    @property
    def act_doubt(self) -> str | None:
        """Why the calls of the last message, which have not run yet, are to be looked at; None where they are not, or there are none."""
        is_pending = bool(self.state["messages"][-1]["tool_calls"])
        return self.state["act_doubt"] if is_pending else None

    @property
    def has_turns_left(self) -> bool:
        return self.draft.steps < self.task.policy.maximum_turns

    @property
    def confidence(self) -> float | None:
        """The confidence of the executor's last step; None: unknown."""
        return next((call["confidence"] for call in reversed(self.state["calls"]) if call["role"] == "execute"), None)

    def share_spent(self) -> float:
        """Return the share of the turns, or of the task's timeout, that is spent: the larger one."""
        draft = self.draft
        turns = draft.steps / self.task.policy.maximum_turns
        if self.task.timeout is None:
            return turns
        supervision: float = sum(call["seconds"] for call in self.state["calls"] if call["role"] != "execute")
        return max(turns, (draft.seconds + supervision) / self.task.timeout)

    def watch_after_check(self, messages: int) -> Watch:
        """Return the watch after a check that has seen everything. `messages`: the length of the conversation from then on."""
        return Watch(covered=messages, half=self.share_spent() >= 0.5)

    def alone(self, reason: str) -> TaskState:
        """Return the state in which the executor goes on without a supervisor."""
        watch = self.watch.model_copy(update={"is_over": True})
        return {"watch": as_json(watch), "reasons": [*self.state["reasons"], f"{reason}; {self.executor} goes on alone"]}


class SupervisorNodes:
    """The nodes in which the supervisor speaks."""

    def __init__(self, nodes: "TaskNodes") -> None:
        self._nodes = nodes

    async def plan(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let the supervisor plan the task, and the executor start from the plan; without one that can be used, it goes on as it is."""
        view = Oversight(state)
        log = CallLog(state, runtime)
        purchase = Purchase(self._nodes, view, runtime)
        doubt = view.doubt()
        reasons = [*state["reasons"], doubt] if doubt is not None else state["reasons"]
        try:
            plan, problems = await Planning(self._nodes, view, log, runtime, purchase).plan()
        except FALLBACK_ERRORS as error:
            warn_of_refusal(supervisor_of(self._nodes, view).name, error, role="plan")
            plan, problems = (
                "",
                [f"{view.decision.supervisor} could not plan: {type(error).__name__}: {error}; {view.executor} goes on alone"],
            )
            over: TaskState = {"watch": as_json(view.watch.model_copy(update={"is_over": True}))}
        else:
            over = {}
        start = _planned_start(view, plan) if plan else {}
        if plan and any(call.role == "plan" for call in log.made):  # one of an earlier task may have been made in worse company
            start["chosen"] = chosen_by_plan(state, plan, self._nodes.context(runtime))
        return {**over, **start, **purchase.noted, "reasons": [*reasons, *problems], "calls": log.as_json}

    async def verify(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let the supervisor check the work. If it intervenes, the executor starts over from its words."""
        view = Oversight(state)
        log = CallLog(state, runtime)
        if view.act_doubt is not None:
            return await self._look(view, view.act_doubt, log, runtime)
        cause = view.cause()
        purchase = Purchase(self._nodes, view, runtime)
        if not purchase.is_made():
            return {**purchase.noted, "reasons": [*state["reasons"], purchase.refusal]}
        try:
            judgement = await self._judged(view, log, cause, runtime)
        except FALLBACK_ERRORS as error:
            warn_of_refusal(supervisor_of(self._nodes, view).name, error, role="verify")
            reason = f"{view.decision.supervisor} could not check turn {state['acted']}: {type(error).__name__}: {error}"
            return {**view.alone(reason), **purchase.noted, "calls": log.as_json}
        after = _after(view, judgement)
        if any(call.error == ContextOverflow.__name__ for call in log.made):
            reason = f"{view.decision.supervisor} could hold only a part of the work, and judged that after turn {state['acted']}"
            after = {**after, "reasons": [*after.get("reasons", state["reasons"]), reason]}
        return {**after, **purchase.noted, "calls": log.as_json}

    async def judge(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Judge the answer as in other strategies, and let the budget know whether the far side was asked."""
        after = await self._nodes.judge(state, runtime)
        Purchase(self._nodes, Oversight(state), runtime).conclude(after.get("calls", state["calls"]))
        return after

    async def _look(self, view: Oversight, doubt: str, log: CallLog, runtime: TaskRuntime) -> TaskState:
        """Ask the supervisor about calls that have not run yet. Unless it lets them run, or intervenes, the next agent takes over."""
        turn = AgentTurn(view.state, self._nodes.pool, self._nodes.context(runtime).output_model)
        problem: NearfarError = InvalidOutput(f"{doubt}, and no agent is left to check that", hint="name a far agent that can use tools")
        try:
            judgement = await self._judged(view, log, "act", runtime) if view.is_on else None
        except FALLBACK_ERRORS as error:
            warn_of_refusal(supervisor_of(self._nodes, view).name, error, role="verify")
            problem, judgement = error, None
        if judgement is not None and judgement.verdict is not Verdict.UNREADABLE:
            return {**_after(view, judgement, is_binding=True), "act_doubt": None, "calls": log.as_json}
        why = _unchecked(view, judgement, problem)
        ended = turn.reject(f"{doubt}{why}", runtime) if turn.has_successor else give_up(turn, problem, runtime)
        return {**ended, "calls": log.as_json}

    async def _judged(self, view: Oversight, log: CallLog, cause: Cause | None, runtime: TaskRuntime) -> SupervisorVerdict:
        state, shadow = view.state, view.policy.shadow and cause != "act"
        strategy, longest = view.decision.strategy, view.policy.maximum_guidance
        supervisor = supervisor_of(self._nodes, view)

        def reading(reply: StepReply) -> Verdict:
            return read_verdict(reply, strategy=strategy, longest=longest).verdict

        points = await self._prior(view, log, runtime) if view.policy.prior else ()

        async def ask(work: Sequence[Message], key: str) -> StepReply:
            request = await supervision_request(self._nodes, view, supervisor, _check_request(view, work, cause, points), key, runtime)
            return await log.ask(supervisor, request, role="verify", turn=state["acted"], cause=cause, shadow=shadow, reading=reading)

        try:
            key = f"{'act' if cause == 'act' else 'verify'}/{view.draft.steps}"  # both may come at one step
            reply = await asked_with_less(ask, view.work, key=key, policy=view.task.policy.compression)
        except InvalidOutput as error:
            return SupervisorVerdict(Verdict.UNREADABLE, problem=error.message)
        judgement = read_verdict(reply, strategy=strategy, longest=longest)
        emit(
            runtime,
            SupervisorSpoke(agent=supervisor.name, text=reply.text, verdict=judgement.verdict, trigger=cause, shadow=shadow),
        )
        return judgement

    async def _prior(self, view: Oversight, log: CallLog, runtime: TaskRuntime) -> Sequence[str]:
        """Return what must be true of a right outcome. Raises `ConfigError` if the supervisor reads no such points."""
        asked = AskedAgent(supervisor_of(self._nodes, view), log, "prior", value_of(Label, view.state["opening"]))
        await asked.require_reader()
        return await PriorPoints(self._nodes.priors, [asked], self._nodes.context(runtime).specs)(view.task)


def _planned_start(view: Oversight, plan: str) -> TaskState:
    """Return the state in which the executor starts from a plan. The confidence of the dropped step does not count."""
    messages = [as_json(message) for message in opening(view.task, plan)]
    draft = view.state["draft"]
    return {**_spoken(view), "guidance": plan, "messages": messages, "draft": None if draft is None else {**draft, "confidence": None}}


def _spoken(view: Oversight) -> TaskState:
    """Return the state's update for a conversation that starts over from the words of an agent that knows all that the run has seen."""
    return {"opening": as_json(label_of(view.state)), "private": [], "trusted": [], "made": {}, "act_doubt": None, "act_look": None}


def after_route(state: TaskState) -> str:
    """Plan first, unless there is no supervisor, or `plan_below` leaves the plan for later."""
    view = Oversight(state)
    may_wait = view.policy.plan_below is not None or view.is_navigated
    return "plan" if view.is_on and not may_wait else "act"


def after_plan(state: TaskState) -> str:
    """Let the executor start from the plan; without one, continue from its first step."""
    return after_act(state) if len(state["messages"]) > len(state["task"]["messages"]) else "act"


def after_act_or_plan(state: TaskState) -> str:
    """Plan before a first step in doubt is carried out."""
    following = after_act(state)
    return "plan" if following in ("look", "tools", "judge", "verify") and Oversight(state).doubt() is not None else following


def after_act(state: TaskState) -> str:
    """Choose the node after `act`: the same as without supervision, except that an answer or a doubtful call may be checked first."""
    following = after_step(state)
    if following in ("judge", "tools") and state["messages"][-1]["tool_calls"]:
        return following if state["act_doubt"] is None else "verify"
    return "verify" if following == "judge" and Oversight(state).cause() is not None else following


def after_verify(state: TaskState) -> str:
    """Choose the node after a check: `judge` for an answer that stands, that of `after_calls` for calls that may run, else `act`."""
    if has_answered(state):
        return "judge"
    return after_calls(state) if state["draft"] is not None and state["messages"][-1]["tool_calls"] else "act"


def has_answered(state: TaskState) -> bool:
    """Return whether the conversation ends with the executor's answer, and not with a message of the task itself."""
    last = state["messages"][-1]
    return len(state["messages"]) > len(state["task"]["messages"]) and last["role"] == "assistant" and not last["tool_calls"]


def after_tools(state: TaskState) -> str:
    """Check a turn that has acted if the schedule or a trigger asks for it. One that handed the task to another role ends the work."""
    return "verify" if not is_accepted(state) and Oversight(state).cause() is not None else "act"


def _check_request(view: Oversight, work: Sequence[Message], cause: Cause | None, points: Sequence[str]) -> tuple[Message, ...]:
    text, guidance = with_points(task_text(view.task), points), view.state["guidance"]
    request = verify_plan_request if view.decision.strategy is Strategy.PEVR else verify_progress_request
    *before, last = request(text, guidance, work)
    return (*before, Message.user(f"{last.text}\n\n{NOT_YET_RUN}")) if cause == "act" else (*before, last)


def _unchecked(view: Oversight, judgement: SupervisorVerdict | None, problem: NearfarError) -> str:
    """Return why the supervisor did not settle the calls that it was asked about; empty if there is no supervisor."""
    if not view.is_on:
        return ""
    told = f"{type(problem).__name__}: {problem}" if judgement is None else f"its verdict is unreadable, {judgement.problem}"
    return f"; {view.decision.supervisor} could not check that ({told})"


def _after(view: Oversight, judgement: SupervisorVerdict, *, is_binding: bool = False) -> TaskState:
    """Return the state after a check. It has covered everything so far; an intervention that counts starts the conversation over.

    Args:
        is_binding: the verdict also counts in shadow mode.
    """
    state = view.state
    if judgement.verdict is Verdict.INTERVENE and (is_binding or not view.policy.shadow):
        messages = [as_json(message) for message in opening(view.task, judgement.guidance)]
        watch = as_json(view.watch_after_check(len(messages)))
        return {**_spoken(view), "messages": messages, "guidance": judgement.guidance, "watch": watch}
    checked: TaskState = {"watch": as_json(view.watch_after_check(len(state["messages"])))}
    if judgement.verdict is not Verdict.UNREADABLE:
        return checked
    reason = f"the verdict of {view.decision.supervisor} on turn {state['acted']} was unreadable ({judgement.problem}), so the work went on"
    return {**checked, "reasons": [*state["reasons"], reason]}
