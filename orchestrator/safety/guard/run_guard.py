"""The guard of one run: it decides about tool calls by the provenance of the call, not by the judgement of the model that makes it.

Until the run has read untrusted content, the model follows the user and the app, and its calls are theirs. From then on it may follow
an attacker: it may call the tools that it had chosen before, with arguments from the user's words or from trusted data. Tools that only
read and keep their arguments on this device are free, and so are tools declared to have no sinks. A later result is trusted only if that
very call was chosen before, because choosing what is read or computed means choosing what is found.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from ....protocols import InvalidRequest, Message, ToolCall
from ...task.labels import Integrity, Label, may_go, named_tools
from ...task.policy import GuardConfig, OnDoubt
from ...task.task import Task
from ...task.tools import Effect, Tool
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
    """Decides about the tool calls of one run.

    Args:
        policy: the `[policy.guard]` section of the task.
        said: the words of the user and the app.
        trusted: other trusted texts of the task.
        chosen: tools that the task lists, or that its conversation called before it read untrusted content.
        made: the messages with those calls.
        tools: the tools that a plan may name.
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
        """Return the guard of a task which has these tools."""
        history = History(task, tools)
        memory = [task.memory] if task.memory is not None and task.label.integrity is Integrity.TRUSTED else []
        chosen = history.chosen | (task.allowed_tools or frozenset()) | named_tools(task.planned.plan, tools)
        trusted = (*history.trusted, *memory)
        return cls(task.policy.guard, said=task.said, trusted=trusted, chosen=frozenset(chosen), made=history.made, tools=tools)

    def clearance(self, call: ToolCall, tool: Tool, standing: CallContext) -> Decision:
        """Decide whether the call may run."""
        objections = list(self._objections(call, tool, standing))
        refused = any(choice is OnDoubt.REFUSE for choice, _ in objections)
        if not objections:
            return Decision()
        return Decision(outcome="refused" if refused else "ask", reason=f"{tool.name}: {'; '.join(reason for _, reason in objections)}")

    def is_grounded(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether all arguments come from the user's words or from trusted data."""
        return not doubtful(call, tool, list(call.arguments), self._grounds(standing))

    def is_chosen(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether the user or a plan had chosen this very call before, or it reads a record that they have named."""
        made = [standing.conversation[place] for place in standing.trusted]
        if was_made(call, made) or was_made(call, self._made) or is_planned(call, tool, standing.chosen.plan):
            return True
        return is_keyed(call, tool, self._grounds(standing))

    def is_as_planned(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether a plan had named the call. Its sinks have to be stated or read as planned; the rest may be left to the model."""
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
            read = f"the run has read untrusted content ({', '.join(label.told_origins)})"
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
        """Return the arguments among `names` that come from no trusted text and for which no plan names a value."""
        foreign = doubtful(call, tool, names, grounds)
        if not foreign or standing.label.is_disturbed:
            return foreign
        flows = self._flows(tool, standing)
        readings = Readings(standing.conversation[:-1] if flows else (), self._tools)
        left = [[name for name in foreign if name not in readings.filled(flow, call, tool.declared.sinks)] for flow in flows]
        return min(left, key=len, default=foreign)

    def _flows(self, tool: Tool, standing: CallContext) -> list[Flow]:
        """Return the calls of a tool that plans name."""
        return [flow for flow in flows_of(standing.chosen.plan, self._signatures) if flow.tool == tool.name]

    def _said_to(self, standing: CallContext) -> Grounds:
        """Return the user's words as the agent that makes the calls was shown them."""
        return self._said if standing.hide is None else Grounds(map(standing.hide, self._texts[0]))

    def _grounds(self, standing: CallContext) -> Grounds:
        conversation = [standing.conversation[place] for place in standing.trusted]
        known = self._trusted if standing.hide is None else self._said_to(standing).extended(map(standing.hide, self._texts[1]))
        return known.extended(text for message in conversation for text in _texts(message))


def allowed(tools: Mapping[str, Tool], names: frozenset[str] | None) -> dict[str, Tool]:
    """Return the tools that a task lists, or all if it has no list. Raises `InvalidRequest` for names of unknown tools."""
    if names is None:
        return dict(tools)
    if unknown := sorted(names - set(tools)):
        raise InvalidRequest(f"allowed_tools: there is no tool {unknown[0]!r}", hint=f"the tools are: {', '.join(sorted(tools)) or 'none'}")
    return {name: tool for name, tool in tools.items() if name in names}


def check_plan(plan: str, tools: Mapping[str, Tool]) -> None:
    """Raise `InvalidRequest` if a user's plan contains a tool call that cannot be parsed."""
    problem = problem_of(plan, signatures(tools))
    if problem is not None:
        raise InvalidRequest(f"the plan cannot be read: {problem}", hint='write calls as in pay(account=account_of(contact="Ann").number)')


def with_data_quoted(task: Task, tools: Mapping[str, Tool]) -> Task:
    """Return the task with the untrusted content in its own conversation quoted as data."""
    return task.model_copy(update={"messages": tuple(_with_data_quoted(message, tools) for message in task.messages)})


def _with_data_quoted(message: Message, tools: Mapping[str, Tool]) -> Message:
    if message.tool_result is None or label_of_result(message, tools).integrity is Integrity.TRUSTED:
        return message
    return Message.tool(quoted(message.tool_result))


def _is_free(tool: Tool) -> bool:
    """Return whether it does not matter who causes a call: the tool has no sinks. A tool that changes something has to have arguments,
    too."""
    return not tool.declared.sinks and (tool.declared.effect is Effect.READ or bool(tool.spec.parameters["properties"]))


def _tells_more(tool: Tool, label: Label) -> bool:
    """Return whether a tool shows its arguments to more people than may see what the run has read."""
    return not may_go(label.tier, tool.declared.sends)


def _texts(message: Message) -> Iterator[str]:
    """Yield the texts of a message: its text or result, and the arguments of its calls."""
    yield message.text if message.tool_result is None else message.tool_result.content
    yield from (json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'comes' if len(names) == 1 else 'come'}"
