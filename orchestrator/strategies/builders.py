"""The shape of each graph: which of the shared nodes follows which in a strategy, and which role in a team that an app declares.

Each role's work has a strategy of its own, and its hand-off chooses the next role. The router chooses the side of a role by the role's
rules, and by the label of all that the roles before it were told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from langgraph.graph import END, START, StateGraph

from ...protocols import ConfigError, Message
from ..task import Task
from ..task.events import RoleStarted
from ..task.labels import Chosen
from ..task.modes import Strategy
from ..task.results import Attempt, RoleWork
from ..task.roles import PREFIX, HandOff, RolesWork, Team
from ..task.tools import Tool
from ..util.plugins import Plugin, find_plugin
from .act_looks import ActNodes
from .calls import CallLog, TaskGraphBuilder, TaskRuntime, add_node, emit
from .oversight import NavigatorNodes
from .state import Json, TaskContext, TaskState, as_json, label_of, outcomes_of, said_since, value_of
from .subtasks import RunningParts, build_subtasks, part_key
from .supervised import SupervisorNodes, after_act, after_act_or_plan, after_plan, after_route, after_tools, after_verify
from .tool_calls import done_note
from .turn import after_judge, after_step

if TYPE_CHECKING:
    from .graphs import TaskNodes


Builder: TypeAlias = Callable[["TaskNodes"], TaskGraphBuilder]

_BEGINNING: Final[TaskState] = {"calls": [], "tool_calls": [], "reasons": []}
_CALL_NO_TOOLS: Final = (Strategy.MINIONS, Strategy.SUBTASKS)
"""Strategies whose own agents call no tools, so that they hand off to no role."""


def build_single(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of `device`, `cloud`, `route`, `cascade` and `speculate`.

    One agent acts and runs tools until it answers; the next takes over until an answer stands. The graph's input is
    `{"task": Task.model_dump(mode="json")}`.
    """
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_step, ["act", "look", "tools", "judge", END])
    add_node(graph, "look", ActNodes(nodes).look, after_step, ["act", "tools", "judge"])
    graph.add_node("tools", nodes.run_tools)
    add_node(graph, "judge", nodes.judge, after_judge, ["act", END])
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("tools", "act")
    return graph


def build_pevr(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of Plan - Execute - Verify - Replan (PEVR, arXiv 2605.30102).

    After one plan, the executor takes turns, and a supervisor checks now and then whether they keep to it. A check is one call: the verdict
    and, with INTERVENE, the plan of what remains, from which the executor starts over. Beyond the paper, the plan may wait for a doubt:
    with `plan_below`, the executor begins alone, and is given a plan only where its first step is unsure.
    """
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    add_node(graph, "route", nodes.route, after_route, ["plan", "act"])
    add_node(graph, "plan", supervisor.plan, after_plan, ["act", "look", "tools", "verify", "judge"])
    add_node(graph, "act", NavigatorNodes(nodes).act, after_act_or_plan, ["act", "plan", "look", "tools", "verify", "judge", END])
    add_node(graph, "look", ActNodes(nodes).look, after_act, ["tools", "verify", "judge"])
    add_node(graph, "tools", nodes.run_tools, after_tools, ["verify", "act"])
    add_node(graph, "verify", supervisor.verify, after_verify, ["act", "tools", "judge"])
    graph.add_node("judge", supervisor.judge)
    graph.add_edge(START, "route")
    graph.add_edge("judge", END)
    return graph


def build_eva(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of Execute - Verify - Advise (EVA, arXiv 2605.30102).

    The executor takes turns, and a supervisor checks its progress now and then. A check is one call: the verdict and, with INTERVENE, a
    summary and advice, from which the executor starts over. Unlike in the paper's pseudocode, the check also sees the last summary and
    advice: without it, a second reset would lose what the first one kept.
    """
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_act, ["act", "look", "tools", "verify", "judge", END])
    add_node(graph, "look", ActNodes(nodes).look, after_act, ["tools", "verify", "judge"])
    add_node(graph, "tools", nodes.run_tools, after_tools, ["verify", "act"])
    add_node(graph, "verify", supervisor.verify, after_verify, ["act", "tools", "judge"])
    graph.add_node("judge", supervisor.judge)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("judge", END)
    return graph


def build_minions(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of `minions`, whose modules no other strategy needs."""
    from . import minions

    return minions.build_minions(nodes)


BUILDERS: Mapping[Strategy, Builder] = {
    **dict.fromkeys((Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.SPECULATE), build_single),
    Strategy.PEVR: build_pevr,
    Strategy.EVA: build_eva,
    Strategy.MINIONS: build_minions,
    Strategy.SUBTASKS: build_subtasks,
}
"""The builder of each strategy's graph. Every graph takes `{"task": Task.model_dump(mode="json")}` and leaves the accepted attempt."""


def builder_of(strategy: Strategy) -> Builder:
    """Return the builder of a strategy's graph.

    Raises `ConfigError` for `auto`, which only chooses among the others, and for a plugin that cannot be used.
    """
    if strategy is Strategy.AUTO:
        raise ConfigError(f"strategy {strategy} has no graph of its own", hint="name one of " + ", ".join(BUILDERS))
    return BUILDERS.get(strategy) or plugin_builder(find_plugin("strategies", strategy))


@cache
def plugin_builder(plugin: Plugin) -> Builder:
    """Load a plugin and return its builder. Raises `ConfigError` where it fails, or is no function."""
    loaded = plugin.load()
    if not callable(loaded):
        raise plugin.misfit("a function from `TaskNodes` to a StateGraph", loaded)

    def build(nodes: "TaskNodes") -> TaskGraphBuilder:
        with plugin.blamed("has built no graph"):
            graph = loaded(nodes)
        if not isinstance(graph, StateGraph):
            raise plugin.misfit("a function from `TaskNodes` to a StateGraph", graph)
        return graph

    return build


def build_roles(nodes: "TaskNodes", team: Team, first: str) -> TaskGraphBuilder:
    """Return the graph of the roles that may work on a task which begins with `first`. Raises `InvalidRequest` for an unknown role.

    Its nodes are the roles, its edges their hand-offs.
    """
    roles = RoleNodes(nodes, team)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    for name in team.reachable(first):
        add_node(graph, name, partial(roles.work, name), after_role, [*team.following(name), END])
    graph.add_edge(START, first)
    return graph


def after_role(state: TaskState) -> str:
    """Go on with the role that the task was handed to; end after an answer."""
    following = value_of(RolesWork, state["roles"]).following
    return END if following is None else following.role


class RoleNodes:
    """The nodes of a team of roles, bound to the nodes that all strategies share."""

    def __init__(self, nodes: "TaskNodes", team: Team) -> None:
        self._nodes = nodes
        self._team = team

    async def work(self, name: str, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let a role work until it answers, or hands the task to another role. Raises what its strategy raises."""
        state = {**_BEGINNING, **state}
        before = value_of(RolesWork, state["roles"]) if "roles" in state else RolesWork()
        asked = "" if before.following is None else before.following.task
        emit(runtime, RoleStarted(role=name, by=before.done[-1].role if before.done else "", task=asked))
        conversation = self._conversation(state, runtime)
        context = self._context(name, runtime)
        scope = f"role {len(before.done) + 1} {name}"  # a role may work more than once
        part = self._part(name, state, conversation, context.tools, scope=scope)
        may_hand_off = part.policy.strategy not in _CALL_NO_TOOLS and len(before.done) < part.policy.maximum_hand_offs
        context = self._equipped(name, part, context, may_hand_off=may_hand_off)
        parts = RunningParts(
            task=part,
            graph=self._nodes.part_graph(part.policy.strategy, context.keeping),
            label=part.label,
            planned=part.planned,
            context=context,
            agents=len(self._nodes.pool),
            log=CallLog(state, runtime),
            runtime=runtime,
            shows_routes=True,
        )
        final = await parts.run(part, account=context.account, seconds=None, is_heard=True, name=scope)
        done = _work_of(final, name, asked)
        hand_off = None if "hand_off" not in final else value_of(HandOff, final["hand_off"])
        reasons = []
        if hand_off is not None:
            reasons, conversation = _reasons(final, done), _told_of_lost(conversation, final)
        return {
            "roles": as_json(RolesWork(done=(*before.done, done), following=hand_off)),
            "messages": [*map(as_json, conversation), *_said(final, part)],
            "calls": parts.log.as_json,
            "tool_calls": [*state["tool_calls"], *final["tool_calls"]],
            "reasons": [*state["reasons"], *reasons, *parts.reasons],
            **_passed_on(final),
        }

    def _conversation(self, state: TaskState, runtime: TaskRuntime) -> list[Message]:
        """Return the conversation so far, without the instructions of roles."""
        if "messages" not in state:
            return list(self._nodes.instructed(value_of(Task, state["task"]), runtime).messages)
        return [value_of(Message, message) for message in state["messages"]]

    def _context(self, name: str, runtime: TaskRuntime) -> TaskContext:
        """Return the context of the run, with the tools of one role."""
        whole = self._nodes.context(runtime)
        known = {**whole.tools, **{tool.name: tool for tool in self._team.tools}}
        hand_offs = {tool.name: tool for tool in self._team.hand_offs.values()}
        return replace(whole, tools=self._team.tools_of(name, known), other_tools={**known, **hand_offs})

    def _equipped(self, name: str, part: Task, context: TaskContext, *, may_hand_off: bool) -> TaskContext:
        """Return the context with the role's hand-offs, and with a guard that knows the conversation so far."""
        following = self._team.following(name) if may_hand_off else ()
        tools = {**context.tools, **{f"{PREFIX}{other}": self._team.hand_offs[other] for other in following}}
        checks = context.tool_checks
        if checks.guard is not None:
            checks = replace(checks, guard=checks.guard.of_part(part, context.other_tools))
        if context.privacy is not None:
            context.privacy.begin_part(part.messages)
        return replace(context, tools=tools, hand_offs={f"{PREFIX}{other}": other for other in following}, tool_checks=checks)

    def _part(self, name: str, state: TaskState, conversation: Sequence[Message], tools: Mapping[str, Tool], *, scope: str) -> Task:
        """Return the work of a role as a task, with the rules' decision and with its strategy.

        Raises `PermissionDenied` or `PrivacyViolation` where the rules of the policy and of the role refuse it.
        """
        task, router = value_of(Task, state["task"]), self._nodes.router
        planned = value_of(Chosen, state["chosen"]) if "chosen" in state else task.planned
        before = task.model_copy(update={"messages": tuple(conversation), "label": label_of(state).joined(task.label), "planned": planned})
        part = self._team.work(name, before).model_copy(update={"idempotency_key": part_key(task.idempotency_key, scope)})
        part = router.with_strategy(router.apply_rules(part, tools=tools), list(self._nodes.pool), tools=tools)
        return part if part.policy.strategy in _CALL_NO_TOOLS else part.with_context_in_prompt()


def _said(final: Json, part: Task) -> list[Json]:
    """Return what a role has added to the conversation.

    The prompt stays as it was, without the plans of the role's strategy, and without what its agents were told of unusable replies.
    """
    if part.policy.strategy in _CALL_NO_TOOLS:
        return [final["messages"][-1]]
    return said_since(final["messages"], len(part.messages))


def _told_of_lost(conversation: Sequence[Message], final: Json) -> list[Message]:
    """Return the conversation, with a note behind its prompt of what attempts that failed have done: their own words are dropped."""
    told = [call for message in final["messages"] for call in message["tool_calls"]]
    lost = [outcome for outcome in final["tool_calls"] if outcome["call"] not in told]
    note = done_note(outcomes_of({"tool_calls": lost}), label_of({"label": final["label"]}), may_read=True)
    place = max(index for index, message in enumerate(conversation) if message.role == "user")
    prompt = conversation[place].with_text(f"{conversation[place].text}\n\n{note}") if note else conversation[place]
    return [*conversation[:place], prompt, *conversation[place + 1 :]]


def _passed_on(final: Json) -> TaskState:
    """Return what the next role, or the result, takes from the end of a role's work."""
    passed: TaskState = {
        "attempts": final["attempts"],
        "decision": final["decision"],
        "label": final["label"],
        "chosen": final["chosen"],
    }
    if "recalled" in final:
        passed["recalled"] = final["recalled"]
    if "speculation" in final:
        passed["speculation"] = final["speculation"]
    return passed


def _work_of(final: Json, name: str, asked: str) -> RoleWork:
    attempts = tuple(value_of(Attempt, attempt) for attempt in final["attempts"])
    accepted = next(attempt for attempt in attempts if attempt.outcome == "accepted")
    return RoleWork(
        role=name, task=asked, agent=accepted.agent, side=accepted.side, model=accepted.model or accepted.agent, attempts=attempts
    )


def _reasons(final: Json, done: RoleWork) -> list[str]:
    """Return the reasons of work that ended with a hand-off. The last role's are told by the result itself."""
    tried = [f"{attempt.agent} {attempt.outcome}: {attempt.reason}" for attempt in done.attempts]
    return [f"role {done.role}: {reason}" for reason in (*final["decision"]["reasons"], *tried)]
