"""The guard of one run: which tool calls a model may make after it has read untrusted content."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...protocols import InvalidRequest, Message, ToolCall, ToolResult
from ...protocols.messages import Value
from ..task.chosen import Chosen
from ..task.labels import Integrity, Label, may_go
from ..task.naming import named_tools
from ..task.sections.guard import GuardConfig, OnDoubt
from ..task.task import Task
from ..task.tool_outcomes import Effect
from ..task.tools import Tool
from .labels import label_of_result
from .plan_matching import Readings, quoted
from .plan_parser import Flow, calls_cut_out, flows_of, problem_of, signatures
from .provenance import Grounds, doubtful


class Decision(Value):
    """The guard's decision about a tool call."""

    outcome: Literal["allowed", "ask", "refused"] = "allowed"
    """`ask`: the call needs approval."""
    reason: str = ""
    """Reason why the call may not run at once, as a sentence for the user and the model."""


@dataclass(frozen=True)
class CallContext:
    """Everything a run has seen when it is about to run tool calls, and which part of it is trusted."""

    conversation: Sequence[Message]
    """The last message is the one with the calls."""
    label: Label
    """The label of all that the agent which makes the calls has seen."""
    chosen: Chosen = Chosen()
    """The tools and plans chosen before the run read untrusted content."""
    trusted: Sequence[int] = ()
    """Positions of the messages in the conversation that no untrusted content has influenced."""
    hide: Callable[[str], str] | None = None
    """Redacts the texts of the task as they were redacted for the agent that makes the calls; None: it saw them as they are."""
    told: "CallContext | None" = None
    """The context as an agent sees it that is shown placeholders."""


class Guard(Protocol):
    """Decides about calls by where they and their arguments come from."""

    def clearance(self, call: ToolCall, tool: Tool, standing: CallContext) -> Decision:
        """Decide whether the call may run."""
        ...

    def is_grounded(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether all arguments come from the user's words or from trusted data."""
        ...

    def is_chosen(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether the user or a plan had chosen this very call before the run read untrusted content."""
        ...

    def is_as_planned(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether a plan had named the call before the run read untrusted content.

        Every argument that decides what the call does has to be stated in the plan, or be a value that the plan says to read.
        """
        ...


def is_planned(call: ToolCall, tool: Tool, plan: str) -> bool:
    """Return whether a plan names this very call, with each of its values: as a call, or in a line with the tool's name."""
    words = calls_cut_out(plan, tool.name)
    lines = [line for line in words.rest.splitlines() if named_tools(line, [tool.name])]
    return any(not doubtful(call, tool, list(call.arguments), Grounds([said])) for said in (*words.calls, *lines))


def was_made(call: ToolCall, messages: Iterable[Message]) -> bool:
    """Return whether one of the messages makes the same call."""
    return any(made.name == call.name and made.arguments == call.arguments for message in messages for made in message.tool_calls)


def is_keyed(call: ToolCall, tool: Tool, grounds: Grounds) -> bool:
    """Return whether a call reads a record by keys that are all in trusted texts. A call without keys does not."""
    keys = [name for name in call.arguments if name in tool.declared.keys]
    return bool(keys) and not doubtful(call, tool, keys, grounds)


class History:
    """The trusted part of the messages before the task begins."""

    def __init__(self, task: Task, tools: Mapping[str, Tool]) -> None:
        self.trusted: list[str] = []
        """Results of trusted tools without influence of untrusted content, and the arguments of calls made before any of it was read."""
        self.chosen: set[str] = set()
        """Tools that were called before untrusted content was read."""
        self.made: list[Message] = []
        """Messages with those calls."""
        self._grounds = Grounds(task.said)
        self._tools = tools
        self._is_clean = task.label.integrity is Integrity.TRUSTED and task.context is None
        self.is_tainted = False
        """Untrusted content has influenced a call that changes something. Its effects may come back from any tool."""
        self._believed: set[str] = set()
        """Ids of the calls whose results are trusted."""
        for message in task.messages:
            self._read(message)

    def _read(self, message: Message) -> None:
        if self._is_clean and message.tool_calls:
            self.made.append(message)
        for call in message.tool_calls:
            self._note(call, self._tools.get(call.name))
        if message.tool_result is None:
            return
        if label_of_result(message, self._tools).integrity is Integrity.UNTRUSTED:
            self._is_clean = False
        elif self._is_believed(message.tool_result):
            self._trust(message.tool_result.content)

    def _note(self, call: ToolCall, tool: Tool | None) -> None:
        if self._is_clean:
            self.chosen.add(call.name)
            self._trust(json.dumps(call.arguments, ensure_ascii=False))
        if tool is None:
            return
        is_grounded = self._is_clean or not doubtful(call, tool, list(call.arguments), self._grounds)
        if not is_grounded:
            self.is_tainted = self.is_tainted or tool.declared.effect is not Effect.READ
        elif self._is_clean or was_made(call, self.made) or is_keyed(call, tool, self._grounds):
            self._believed.add(call.id)

    def _trust(self, text: str) -> None:
        self.trusted.append(text)
        self._grounds = self._grounds.extended([text])

    def _is_believed(self, result: ToolResult) -> bool:
        """Return whether a result is trusted. An error is not: it may quote a call that was never run."""
        return result.call_id in self._believed and not self.is_tainted and not result.is_error


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
        return known.extended(text for message in conversation for text in _texts_of_message(message))


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


def _texts_of_message(message: Message) -> Iterator[str]:
    """Yield the texts of a message: its text or result, and the arguments of its calls."""
    yield message.text if message.tool_result is None else message.tool_result.content
    yield from (json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'comes' if len(names) == 1 else 'come'}"
