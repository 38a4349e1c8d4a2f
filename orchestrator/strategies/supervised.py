"""The nodes of a supervisor, which plans before the work and verifies during it: the control flow of PEVR and EVA (arXiv 2605.30102)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocols import ContextOverflow, InvalidOutput, Message, NearfarError, Side, StepReply, StepRequest, ToolChoice
from ..agents import AgentHandle
from ..task import task_text
from ..task.events import SupervisorSpoke
from ..task.labels import Label
from ..task.modes import Strategy
from ..task.policy import Cause, Trigger, Verdict
from ..task.routing_policy import FALLBACK_ERRORS
from .attempts import give_up, warn_of_refusal
from .calls import CallLog, TaskRuntime, emit
from .oversight import Oversight, Purchase, has_answered
from .prompts import (
    NOT_YET_RUN,
    SupervisorVerdict,
    adapt_plan_request,
    plan_problem,
    plan_request,
    read_verdict,
    verify_plan_request,
    verify_progress_request,
    with_points,
)
from .state import TaskState, as_json, chosen_by_plan, label_of, opening, step_request, value_of
from .turn import AgentTurn, after_calls, after_step, asked_with_less, is_accepted
from .verifying import AskedAgent, PriorPoints

if TYPE_CHECKING:
    from .graphs import TaskNodes


_TRIES = 2
"""A reply that is no plan is asked for once more."""


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
        if not purchase.is_made(is_doubted=cause is not Trigger.ANSWER):
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
        Purchase(self._nodes, Oversight(state), runtime).conclude(after.get("calls", state["calls"]), state["attempts"])
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


class Planning:
    """The planning of one `pevr` task: its plan is that of an earlier task, the executor's own draft, else the supervisor's."""

    def __init__(self, nodes: "TaskNodes", view: Oversight, log: CallLog, runtime: TaskRuntime, purchase: Purchase) -> None:
        self._nodes = nodes
        self._view = view
        self._log = log
        self._runtime = runtime
        self._purchase = purchase
        self._text = task_text(view.task)
        self._executor = nodes.pool[view.executor]

    async def plan(self) -> tuple[str, list[str]]:
        """Return the plan, or nothing, and the reasons for it. Raises an error of `FALLBACK_ERRORS` where the supervisor fails."""
        recalled = await self._recalled()
        if recalled:
            return recalled, ["the plan is that of an earlier task of the same intent"]
        drafted, reasons = await self._drafted()
        if drafted:
            return drafted, reasons
        if not self._purchase.is_made():
            return "", [*reasons, self._purchase.refusal]
        planned, problems = await self._asked()
        return planned, [*reasons, *problems]

    async def _asked(self) -> tuple[str, list[str]]:
        """Return the supervisor's plan, or nothing and the reason for it."""
        supervisor = supervisor_of(self._nodes, self._view)
        messages = plan_request(self._text)
        problem = None
        for number in range(_TRIES):
            said = ""
            try:
                reply = await self._ask(supervisor, messages, f"plan/{number}", role="plan")
                said = reply.text.strip()
                problem = self._problem(reply)
                emit(self._runtime, SupervisorSpoke(agent=supervisor.name, text=reply.text))
            except InvalidOutput as error:
                problem = error.message
            if problem is None:
                return said, []
            messages = (*messages, *_objection(said, problem))
        return "", [f"{supervisor.name} gave no plan that can be used ({problem}); {self._executor.name} works without one"]

    async def _drafted(self) -> tuple[str, list[str]]:
        """Return the plan that the executor on this device has drafted; nothing where it drafts none, and where the draft is in doubt."""
        least = self._view.policy.draft_plan_above
        if least is None or self._executor.side is not Side.NEAR:
            return "", []
        name = self._executor.name
        try:
            reply = await self._ask(self._executor, plan_request(self._text), "plan/draft", role="plan")
        except FALLBACK_ERRORS as error:
            return "", [f"{name} could not draft a plan: {type(error).__name__}: {error}"]
        from ..cache.plans import draft_objection  # it loads many patterns, which other tasks do without

        plan, confidence = reply.text.strip(), reply.finished.confidence or 0.0
        problem = self._problem(reply) or draft_objection(self._view.task.messages[-1].text, plan)
        if problem is None and confidence < least:
            problem = f"its confidence {confidence:.4g} is below {least:g}"
        if problem is not None:
            return "", [f"the plan that {name} drafted is not used: {problem}"]
        return plan, [f"the plan is {name}'s own draft, which names all that the task names"]

    async def _recalled(self) -> str:
        """Return the plan of an earlier task, where the executor on this device can fit it to what this one names; else nothing."""
        context = self._nodes.context(self._runtime)
        found = None if context.plans is None else await context.plans.recall(self._view.task, context.tools)
        if found is None or found.is_complete:
            return "" if found is None else found.plan
        if self._executor.side is not Side.NEAR:
            return ""
        try:
            reply = await self._ask(self._executor, adapt_plan_request(self._text, found.plan), "adapt", role="adapt")
        except FALLBACK_ERRORS:
            return ""  # on record as a failed call; the plan is made again
        return "" if self._problem(reply) else reply.text.strip()

    async def _ask(self, handle: AgentHandle, messages: Sequence[Message], key: str, *, role: str) -> StepReply:
        request = await supervision_request(self._nodes, self._view, handle, messages, key, self._runtime)
        return await self._log.ask(handle, request, role=role)

    def _problem(self, reply: StepReply) -> str | None:
        return plan_problem(reply, longest=self._view.policy.maximum_guidance)


def supervisor_of(nodes: "TaskNodes", view: Oversight) -> AgentHandle:
    """Return the agent that supervises a task."""
    assert view.decision.supervisor is not None, "the graph leads here only where there is a supervisor"
    return nodes.pool[view.decision.supervisor]


async def supervision_request(
    nodes: "TaskNodes", view: Oversight, handle: AgentHandle, messages: Sequence[Message], key: str, runtime: TaskRuntime
) -> StepRequest:
    """Return a request for a plan or a check. It shows the executor's tools, if the agent takes tools at all, and allows none of them."""
    agent = await handle.open()
    tools = nodes.context(runtime).specs if agent.card.capabilities.tools else ()
    return step_request(view.task, messages, key, tools=tools, tool_choice=ToolChoice.NONE)


def _objection(said: str, problem: str) -> tuple[Message, ...]:
    """Return the supervisor's unusable reply, and a request to reply again."""
    again = Message.user(f"Your last reply could not be used: {problem}. Reply again.")
    return (Message.assistant(said), again) if said else (again,)
