"""Preparation of a task: its policy, its memory, its strategy, and the context that its graph runs with."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ...protocols import InvalidRequest, PermissionDenied, PrivacyViolation, Sensitivity, Side, Unsupported
from ..cache.database import ErasedMemory
from ..memory.provenance import Recollection
from ..runs import Bounds
from ..runs.erasing import ErasedRuns
from ..safety.guard import Guard, SessionLabels, check_plan, quote_untrusted_data, select_tools
from ..safety.privacy import RunPrivacy
from ..strategies.state import TaskContext
from ..strategies.tool_calls import OwnResults, ToolChecks
from ..task import Task
from ..task.context import Context
from ..task.decisions import SelectionDecision
from ..task.events import CallerTools
from ..task.modes import ALONE, Mode, Strategy
from ..task.policy import Policy
from ..task.tools import Effect, Tool
from ..tracing.recorder import RunTrace
from .arguments import TaskOptions, asked_task, check_options, output_model_of, policy_of, tools_argument
from .parts import Parts

if TYPE_CHECKING:
    from ..cache.plans import PlanCache


class Preparation:
    """Makes tasks, and the contexts that they run with, for one `Hybrid`."""

    def __init__(self, parts: Parts, plans: "PlanCache | None") -> None:
        self.sessions = SessionLabels()
        self.erased_memory: ErasedMemory | None = None
        """Empties the cache before a task, if the memory has erased something."""
        self.erased_runs: ErasedRuns | None = None
        """Erases from runs and traces, before the first task, what the memory erased while this process was not there."""
        self._pool = parts.pool
        self._router = parts.router
        self._policy = parts.policy
        self._tools = parts.tools
        self._team = parts.team
        self._instructions = parts.instructions
        self._memory = parts.memory
        self._plans = plans
        self._records = parts.records
        self._observers = parts.observers

    def task(self, prompt: object, options: TaskOptions, caller: CallerTools | None = None) -> Task:
        """Return the task as the user put it. Raises `InvalidRequest` or `ConfigError` for options that cannot be used.

        `caller`: the tools that the caller runs, where it is a turn.
        """
        check_options(options, TaskOptions.__optional_keys__)
        if "thread_id" in options and not self._records.keeps_threads:
            raise InvalidRequest("a thread_id needs a checkpointer to keep the thread", hint="records=Records(checkpointer=...)")
        agents = {handle.name: handle.side for handle in self._pool}
        if "role" in options:
            self._team.require(options["role"])
        if options.get("agent", "") not in ("", *agents):
            raise InvalidRequest(f"there is no agent {options['agent']!r}", hint=f"the agents are {', '.join(agents)}")
        if caller is not None and options.get("role"):
            raise InvalidRequest("a turn is given to no role", hint="run(..., role=...) gives a whole task to one")
        return self.sessions.apply(asked_task(prompt, options, policy_of(options, self._policy(), agents), caller))

    def recall(self, task: Task, options: TaskOptions) -> Task:
        """Return the task with the memory items that match it."""
        if self._memory is None:
            return task
        erased_runs, self.erased_runs = self.erased_runs, None
        if erased_runs is not None:
            erased_runs.forget_at_last()
        if self.erased_memory is not None and not self.erased_memory.is_forgotten():
            task = task.model_copy(update={"cache": "no-store"})
        ruled = task if task.role else self._router.apply_rules(task, tools=list(self.context(options, task).tools))
        recalled = self._memory.recall(ruled, may_stay=self._may_stay(ruled.policy), stays_here=self._stays_here)
        if recalled.policy.sensitivity is ruled.policy.sensitivity:
            return recalled
        # What was recalled has made the task private, about which the rules may decide otherwise.
        policy = task.policy.model_copy(update={"sensitivity": recalled.policy.sensitivity})
        return recalled.model_copy(update={"policy": policy, "ruling": None})

    def prepare(self, task: Task, options: TaskOptions) -> tuple[Task, TaskContext]:
        """Return the task, with its strategy chosen, and its context."""
        context = self.context(options, task)
        if task.planned.plan:
            check_plan(task.planned.plan, context.tools)
        if task.caller is None:  # a caller that runs tools itself compares their results with what it has, to the letter
            task = quote_untrusted_data(task, context.tools)
        task = self._with_strategy(task, context).with_instructions(self._instructions)
        context = self.equip(task, options=options)
        # Each role's work has a strategy of its own, which says where the context stands.
        keeps_apart = bool(task.role) or task.policy.strategy in (Strategy.MINIONS, Strategy.SUBTASKS)
        return task if keeps_apart else task.with_context_in_prompt(), context

    def explain(self, task: Task, options: TaskOptions) -> SelectionDecision:
        """Return what `auto` would choose for the task, and why."""
        task, tools = self.begun(task, options)
        return self._router.explain_strategy(task, list(self._pool), tools=tools)

    def begun(self, task: Task, options: TaskOptions) -> tuple[Task, list[str]]:
        """Return what the rules decide about first, and the names of its tools: the task, or the work of the role that it is given to."""
        tools = self.context(options, task).tools
        if not task.role:
            return task, list(tools)
        return self._team.work(task.role, task), list(self._team.tools_of(task.role, tools))

    def context(self, options: TaskOptions, task: Task) -> TaskContext:
        """Return a context with the tools and the approver of a task. A tool that the caller runs hides one of the same name."""
        given = options.get("tools")
        own = () if given is None else tools_argument(given)
        of_roles = [each for each in self._team.tools if each not in self._tools] if task.role else []
        tools = tools_argument((*self._tools, *of_roles, *own)) if own or of_roles else self._tools
        tool_checks = ToolChecks(approver=options.get("approver"))
        model = output_model_of(options.get("output"))
        known = TaskContext.of(tools) if task.caller is None else TaskContext({**TaskContext.of(tools).tools, **task.caller.tools})
        return replace(known, plans=self._plans, tool_checks=tool_checks, output_model=model)

    def equip(self, task: Task, *, options: TaskOptions) -> TaskContext:
        """Return the context that the task runs with."""
        recollection = Recollection.of(task, stays_here=self._stays_here)
        records = None if self._records.privacy is None else self._records.privacy.of(task.idempotency_key)
        instructions = [handle.instructions for handle in self._pool if handle.instructions]
        instructions += [self._team[name].instructions for name in (self._team.reachable(task.role) if task.role else ())]
        privacy = RunPrivacy.of(task, records=records, recent=self.sessions.recent_texts(task), instructions=instructions)
        account = self._router.spending.account(task)
        efforts = self._router.outcomes.efforts
        context = replace(self.context(options, task), account=account, recollection=recollection, privacy=privacy, efforts=efforts)
        tools = _selected(context.tools, task)
        guard = Guard(task, tools, instructions)
        trace = self._trace(task, tools)
        own_results = OwnResults(task.policy.unchanging_tools) if task.policy.unchanging_tools else None
        tool_checks = replace(context.tool_checks, placeholders=privacy.placeholders, guard=guard, own_results=own_results)
        caller = Context(options.get("dependencies"), user=task.user, session=task.session, task=task.idempotency_key)
        return replace(context, tools=tools, tool_checks=tool_checks, trace=trace, outcomes=[], caller=caller)

    def _trace(self, task: Task, tools: Mapping[str, Tool]) -> RunTrace | None:
        """Return the recorder of a run; None where nothing is kept of it, and nothing observes it."""
        store = self._records.traces
        observers = self._observers if self._observers.spans is not None or self._observers.meters else None
        return None if store is None and observers is None else RunTrace.of(task, tools, store=store, observers=observers)

    def equip_again(self, task: Task, *, options: TaskOptions) -> TaskContext:
        """Return the context of a resumed task. The limits for all tasks together are those of the present policy."""
        now = self._policy().limits
        limits = task.policy.limits.model_copy(update={"session": now.session, "user": now.user, "day": now.day})
        policy = task.policy.model_copy(update={"limits": limits})
        return self.equip(task.model_copy(update={"policy": policy}), options=options)

    def bounds(self, task: Task, tools: Sequence[str]) -> Bounds:
        """Return how far the policy lets the task go now: what its rules say of it, and elsewhere what holds for tasks that state nothing.

        A task that is given to a role may go as far as the strictest of the roles that it may come to. Raises what the rules raise for it.
        """
        if not task.role:
            return self._bounds(task, tools)
        first, *later = self._team.reachable(task.role)
        found = self._bounds(task, self._team[first].tool_names)
        for name in later:
            work = task.model_copy(update={"role": name})
            try:
                stays = self._bounds(work, self._team[name].tool_names).mode is Mode.ONLY_ON_DEVICE
            except (PermissionDenied, PrivacyViolation):  # it may never come there
                stays = True
            if stays:
                found = found.model_copy(update={"mode": Mode.ONLY_ON_DEVICE, "sensitivity": Sensitivity.PRIVATE})
        return found

    def _bounds(self, task: Task, tools: Sequence[str]) -> Bounds:
        policy = self._policy()
        own = task.policy.model_copy(update={"rules": policy.rules})
        ruled = self._router.apply_rules(task.model_copy(update={"policy": own, "ruling": None}), tools=tools)
        if ruled.ruling is not None and ruled.ruling.mode is Mode.ONLY_ON_DEVICE:
            return Bounds.of(policy, sensitivity=ruled.policy.sensitivity, mode=Mode.ONLY_ON_DEVICE)
        with suppress(PermissionDenied, PrivacyViolation):  # The task states another mode than the policy's, against which its rules speak.
            plain = task.model_copy(update={"policy": policy, "ruling": None, "stated": frozenset()})
            policy = self._router.apply_rules(plain, tools=tools).policy
        return Bounds.of(policy)

    def _with_strategy(self, task: Task, context: TaskContext) -> Task:
        """Return the task with a strategy that has a graph: the rules' choice or, if they leave it open, that of `auto`."""
        tools = list(context.tools)
        allowed = _selected(context.tools, task)
        if task.role:  # the rules decide about each role's work, and so is its strategy chosen
            return _with_open_choice(task, allowed)
        task = _with_open_choice(self._router.apply_rules(task, tools=tools), allowed)
        return self._router.with_strategy(_for_one_agent(_for_caller(task)), list(self._pool), tools=tools)

    def _may_stay(self, policy: Policy) -> bool:
        """Return whether near agents could serve a task under this policy alone."""
        return Side.NEAR in self._sides and policy.mode is not Mode.ONLY_IN_CLOUD and policy.strategy is not Strategy.CLOUD

    @property
    def _stays_here(self) -> bool:
        """True if private data never leaves this very device, not even for another device of the same user."""
        return not any(handle.is_elsewhere for handle in self._pool if handle.side is Side.NEAR)

    @property
    def _sides(self) -> set[Side]:
        return {handle.side for handle in self._pool}


def _selected(tools: Mapping[str, Tool], task: Task) -> dict[str, Tool]:
    """Return the tools that a task may call: those that it lists, and all that its caller runs."""
    names = task.allowed_tools
    return select_tools(tools, names if names is None or task.caller is None else names | set(task.caller.tools))


def _for_caller(task: Task) -> Task:
    """Return a turn with a strategy that can hand calls back. Raises `Unsupported` where another one was chosen for it."""
    chosen = task.policy.strategy
    if task.caller is None or not task.caller.specs or chosen not in (Strategy.AUTO, Strategy.MINIONS, Strategy.SUBTASKS):
        return task
    if chosen is not Strategy.AUTO:
        hint = f"strategy={Strategy.CASCADE.value!r}, or leave out the tools"
        raise Unsupported(f"strategy {chosen} cannot hand calls back to the caller of a turn", hint=hint)
    reason = f"auto: a turn whose tools the caller runs is served by {Strategy.CASCADE}"
    return _served_by(task.model_copy(update={"reasons": (*task.reasons, reason)}), Strategy.CASCADE)


def _for_one_agent(task: Task) -> Task:
    """Return the task with a strategy for one agent, if one is named. Raises `InvalidRequest` where it states one for several."""
    if not task.agent:
        return task
    if "strategy" in task.stated:
        if task.policy.strategy in ALONE:
            return task
        hint = "leave out one of the two"
        raise InvalidRequest(f"agent {task.agent!r} is to answer alone, and {task.policy.strategy} works with several", hint=hint)
    return _served_by(task, Strategy.ROUTE)


def _served_by(task: Task, strategy: Strategy) -> Task:
    return task.model_copy(update={"policy": task.policy.model_copy(update={"strategy": strategy})})


def _with_open_choice(task: Task, tools: Mapping[str, Tool]) -> Task:
    """Return the task with strategy `auto` if no strategy was chosen for it and it has a tool that is not declared read-only."""
    is_chosen = "strategy" in task.policy.model_fields_set
    own = [tool for name, tool in tools.items() if task.caller is None or not task.caller.has(name)]
    if is_chosen or all(tool.declared.effect is Effect.READ for tool in own):
        return task
    return _served_by(task, Strategy.AUTO)
