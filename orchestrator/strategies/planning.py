"""`Purchase`: the budget's choice whether the supervisor of a task is asked. `Planning`: the plan of a `pevr` task, from an earlier task,
from the executor's own draft, else from the supervisor."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocols import InvalidOutput, Message, Side, StepReply, StepRequest, ToolChoice
from ..agents import AgentHandle
from ..routing.navigator import SupervisionChoice
from ..routing.steering import is_supervision_weighed
from ..task import task_text
from ..task.events import SupervisorSpoke
from ..task.routing_policy import FALLBACK_ERRORS
from .calls import CallLog, TaskRuntime, emit
from .prompts import adapt_plan_request, plan_problem, plan_request
from .state import Json, TaskState, as_json, step_request

if TYPE_CHECKING:
    from .graphs import TaskNodes
    from .supervised import Oversight

_TRIES = 2
"""A reply that is no plan is asked for once more."""


class Purchase:
    """The choice for one task. It is made once, and counted again where the task went another way in the end."""

    def __init__(self, nodes: "TaskNodes", view: "Oversight", runtime: TaskRuntime) -> None:
        self._view = view
        self._is_made = view.decision.is_supervisor_bought
        self._choice: SupervisionChoice | None = None
        task, supervisor = view.task, view.decision.supervisor
        if supervisor is not None and is_supervision_weighed(task.policy.router, view.decision):
            account = nodes.context(runtime).account
            commitments = None if account is None else account.commitments
            prices = nodes.pool[supervisor].prices
            self._choice = SupervisionChoice(nodes.router.steering, task, view.decision, prices=prices, commitments=commitments)

    @property
    def counts_tasks(self) -> bool:
        """A budget chooses in every task, and not only where the supervisor would be asked anyway."""
        return self._choice is not None and self._choice.counts_tasks

    @property
    def price(self) -> float:
        """The worth, in right outcomes, that a budget of dollars asks one call of the supervisor to bring."""
        return 0.0 if self._choice is None else self._choice.price

    @property
    def noted(self) -> TaskState:
        """The state's update that keeps the choice."""
        if self._is_made is self._view.decision.is_supervisor_bought:
            return {}
        return {"decision": as_json(self._view.decision.model_copy(update={"is_supervisor_bought": self._is_made}))}

    @property
    def refusal(self) -> str:
        return f"{self._view.decision.supervisor} is not asked, as the budget has better uses; {self._view.executor} goes on alone"

    def is_made(self, gain: float | None = None) -> bool:
        """Return whether the supervisor may be asked. The first call chooses; `gain`: see `SupervisionChoice.buys`."""
        if self._choice is not None and self._is_made is None:
            self._is_made = self._choice.buys(gain)
        return self._is_made is not False

    def conclude(self, calls: Sequence[Json]) -> None:
        """Count the task at its end. `calls`: all that were made."""
        if self._choice is None:
            return
        went_far = any(call["side"] == Side.FAR for call in calls)
        if self._is_made is None:
            self._choice.pass_by(went_far=went_far)
        elif went_far is not self._is_made:
            self._choice.correct(went_far=went_far)


class Planning:
    """The planning of one task."""

    def __init__(self, nodes: "TaskNodes", view: "Oversight", log: CallLog, runtime: TaskRuntime, purchase: Purchase) -> None:
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


def supervisor_of(nodes: "TaskNodes", view: "Oversight") -> AgentHandle:
    """Return the agent that supervises a task."""
    assert view.decision.supervisor is not None, "the graph leads here only where there is a supervisor"
    return nodes.pool[view.decision.supervisor]


async def supervision_request(
    nodes: "TaskNodes", view: "Oversight", handle: AgentHandle, messages: Sequence[Message], key: str, runtime: TaskRuntime
) -> StepRequest:
    """Return a request for a plan or a check. It shows the executor's tools, if the agent takes tools at all, and allows none of them."""
    agent = await handle.open()
    tools = nodes.context(runtime).specs if agent.card.capabilities.tools else ()
    return step_request(view.task, messages, key, tools=tools, tool_choice=ToolChoice.NONE)


def _objection(said: str, problem: str) -> tuple[Message, ...]:
    """Return the supervisor's unusable reply, and a request to reply again."""
    again = Message.user(f"Your last reply could not be used: {problem}. Reply again.")
    return (Message.assistant(said), again) if said else (again,)
