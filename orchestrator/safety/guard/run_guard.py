"""The guard of one run: it decides by where a call comes from, whatever the model that makes it has been talked into.

Until the run has read what strangers wrote, the model does what the user and the app have told it, and its calls are theirs. From then on
it may do what the strangers say: it may call the tools that it had chosen before, with arguments that the user or trusted data name. Tools
that only read and show their arguments to nobody are free, and so are those that are declared to have no sinks. What a call returns from
then on is trusted only where that very call was chosen before: whoever chooses what is read, or computed, chooses what is found.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from ....protocols import InvalidRequest, Message, ToolCall
from ...task.labels import Integrity, Label, may_go
from ...task.naming import named_tools
from ...task.sections.guard import GuardConfig, OnDoubt
from ...task.task import Task
from ...task.tool_outcomes import Effect
from ...task.tools import Tool
from ..privacy.starting import label_of_result
from .arguments import doubtful
from .choices import is_keyed, is_planned, was_made
from .decision import CallContext, Decision
from .flows import Flow, flows_of, problem_of, signatures
from .grounds import Grounds
from .history import History
from .quoting import quoted
from .readings import Readings


class RunGuard:
    """Decides about the calls of one run.

    Args:
        policy: the task's.
        said: what the user and the app have said, in their own words.
        trusted: what else stood in the task and may be acted upon.
        chosen: tools that the task lists, or that were called in its conversation before what strangers wrote.
        made: messages of its conversation from before that.
        tools: those that a plan may name.
    """

    def __init__(
        self,
        policy: GuardConfig,
        *,
        said: Sequence[str],
        trusted: Sequence[str] = (),
        chosen: frozenset[str] = frozenset(),
        made: Sequence[Message] = (),
        tools: Mapping[str, Tool] | None = None,
    ) -> None:
        self._policy = policy
        self._texts = said, trusted
        self._said = Grounds(said)
        self._trusted = self._said.extended(trusted)
        self._chosen = chosen
        self._made = made
        self._tools = {} if tools is None else tools
        self._signatures = signatures(self._tools)

    @classmethod
    def of(cls, task: Task, tools: Mapping[str, Tool]) -> "RunGuard":
        """That of a task which has these tools."""
        history = History(task, tools)
        memory = [task.memory] if task.memory is not None and task.label.integrity is Integrity.TRUSTED else []
        chosen = history.chosen | (task.allowed_tools or frozenset()) | named_tools(task.planned.plan, tools)
        trusted = (*history.trusted, *memory)
        return cls(task.policy.guard, said=task.said, trusted=trusted, chosen=frozenset(chosen), made=history.made, tools=tools)

    def clearance(self, call: ToolCall, tool: Tool, standing: CallContext) -> Decision:
        """Whether the call may run."""
        objections = list(self._objections(call, tool, standing))
        refused = any(choice is OnDoubt.REFUSE for choice, _ in objections)
        if not objections:
            return Decision()
        return Decision(outcome="refused" if refused else "ask", reason=f"{tool.name}: {'; '.join(reason for _, reason in objections)}")

    def is_grounded(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Whether all that the call says comes from the user's words or from trusted data."""
        return not doubtful(call, tool, list(call.arguments), self._grounds(standing))

    def is_chosen(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Whether the user or a plan had chosen this very call before, or it reads a record that they have named."""
        made = [standing.conversation[place] for place in standing.trusted]
        if was_made(call, made) or was_made(call, self._made) or is_planned(call, tool, standing.chosen.plan):
            return True
        return is_keyed(call, tool, self._grounds(standing))

    def is_as_planned(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Whether a plan had named the call: what decides what it does is stated or to be read, and the rest may be left to the model."""
        grounds, flows = self._grounds(standing), self._flows(tool, standing)
        sinks = [name for name in call.arguments if name in tool.declared.sinks]
        if not flows or self._unplanned(call, tool, standing, sinks, grounds):
            return False
        others = doubtful(call, tool, [name for name in call.arguments if name not in sinks], grounds)
        readings = Readings(standing.conversation[:-1], self._tools)
        return any(readings.is_named(flow, call, others) for flow in flows)

    def _objections(self, call: ToolCall, tool: Tool, standing: CallContext) -> Iterator[tuple[OnDoubt, str]]:
        tools, arguments, label = self._policy.tools, self._policy.arguments, standing.label
        if label.integrity is Integrity.UNTRUSTED and not _is_free(tool):
            read = f"the run has read what strangers may have written ({', '.join(label.told_origins)})"
            if tools is not OnDoubt.ALLOW and tool.name not in self._chosen and tool.name not in standing.chosen.tools:
                yield tools, f"it was not asked for before {read}"
            sinks = [name for name in call.arguments if name in tool.declared.sinks]
            foreign = [] if arguments is OnDoubt.ALLOW else self._unplanned(call, tool, standing, sinks, self._grounds(standing))
            if foreign:
                yield arguments, f"{_listed(foreign)} not from the user's words or trusted data, and {read}"
        if arguments is not OnDoubt.ALLOW and _tells_more(tool, label):
            shown = self._unplanned(call, tool, standing, list(call.arguments), self._said_to(standing))
            if shown:
                further = f"further than what the run has read may go ({', '.join(label.told_origins)})"
                yield arguments, f"it would show {', '.join(shown)}, not in the user's words, {further}"

    def _unplanned(self, call: ToolCall, tool: Tool, standing: CallContext, names: Sequence[str], grounds: Grounds) -> list[str]:
        """The arguments among these that come from nowhere, and that no plan had named a value for."""
        foreign = doubtful(call, tool, names, grounds)
        if not foreign or standing.label.is_disturbed:
            return foreign
        flows = self._flows(tool, standing)
        readings = Readings(standing.conversation[:-1] if flows else (), self._tools)
        left = [[name for name in foreign if name not in readings.filled(flow, call, tool.declared.sinks)] for flow in flows]
        return min(left, key=len, default=foreign)

    def _flows(self, tool: Tool, standing: CallContext) -> list[Flow]:
        """The lines of plans that call a tool."""
        return [flow for flow in flows_of(standing.chosen.plan, self._signatures) if flow.tool == tool.name]

    def _said_to(self, standing: CallContext) -> Grounds:
        """Return the user's words as whoever makes the calls was told them."""
        return self._said if standing.hide is None else Grounds(map(standing.hide, self._texts[0]))

    def _grounds(self, standing: CallContext) -> Grounds:
        conversation = [standing.conversation[place] for place in standing.trusted]
        known = self._trusted if standing.hide is None else self._said_to(standing).extended(map(standing.hide, self._texts[1]))
        return known.extended(text for message in conversation for text in _texts(message))


def allowed(tools: Mapping[str, Tool], names: frozenset[str] | None) -> dict[str, Tool]:
    """The tools that a task lists; all of them where it has no list. Raises `InvalidRequest` for names that none has."""
    if names is None:
        return dict(tools)
    if unknown := sorted(names - set(tools)):
        raise InvalidRequest(f"allowed_tools: there is no tool {unknown[0]!r}", hint=f"the tools are: {', '.join(sorted(tools)) or 'none'}")
    return {name: tool for name, tool in tools.items() if name in names}


def check_plan(plan: str, tools: Mapping[str, Tool]) -> None:
    """Raise `InvalidRequest` for a user's plan with a call of a tool that cannot be read."""
    problem = problem_of(plan, signatures(tools))
    if problem is not None:
        raise InvalidRequest(f"the plan cannot be read: {problem}", hint='write calls as in pay(account=account_of(contact="Ann").number)')


def with_data_quoted(task: Task, tools: Mapping[str, Tool]) -> Task:
    """The task with what strangers wrote in its own conversation shown as data."""
    return task.model_copy(update={"messages": tuple(_with_data_quoted(message, tools) for message in task.messages)})


def _with_data_quoted(message: Message, tools: Mapping[str, Tool]) -> Message:
    if message.tool_result is None or label_of_result(message, tools).integrity is Integrity.TRUSTED:
        return message
    return Message.tool(quoted(message.tool_result))


def _is_free(tool: Tool) -> bool:
    """Whether it does not matter who has it called. A tool without arguments that changes something has no sinks, and does."""
    return not tool.declared.sinks and (tool.declared.effect is Effect.READ or bool(tool.spec.parameters["properties"]))


def _tells_more(tool: Tool, label: Label) -> bool:
    """Whether a tool shows its arguments to more people than may see what the run has been told."""
    return not may_go(label.tier, tool.declared.sends)


def _texts(message: Message) -> Iterator[str]:
    """What a message says, its calls included."""
    yield message.text if message.tool_result is None else message.tool_result.content
    yield from (json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'comes' if len(names) == 1 else 'come'}"
