"""The guard of one run: it decides about tool calls by the provenance of the call, not by the judgement of the model that makes it.

Until the run has read untrusted content, the model follows the user and the app, and its calls are theirs. From then on it may follow an
attacker: it may call the tools that it had chosen before, with arguments from the user's words or from trusted data. Tools that only read
and keep their arguments on this device are free, and so are tools declared to have no sinks. A later result is trusted only if that very
call was chosen before, because choosing what is read or computed means choosing what is found.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from ...protocols import InvalidRequest, Message, Sensitivity, ToolCall, ToolResult
from ...protocols.items import Tier
from ...protocols.steps import Value
from ..task import Task
from ..task.events import CallerTool
from ..task.labels import OF_CONTEXT, OPEN, Chosen, Integrity, Label, join_labels, may_go, named_tools
from ..task.policy import OnDoubt
from ..task.tools import Effect, Tool
from .plan_matching import PlanMatcher, is_quoted, quote_data
from .plan_parser import PlanCall, find_plan_problem, parse_plan, signatures_of, split_calls
from .provenance import TrustedTexts, untrusted_arguments

THE_TASK = "the task"
"""Origin of a label that is private because the policy says so of the task."""


def initial_label(task: Task, tools: Mapping[str, Tool]) -> Label:
    """Return the label of the task's messages, its context, and its other inputs.

    A task is private by its policy. Tool results in its conversation are labelled as their tools are declared. Results of unknown tools,
    and the context, are untrusted content.
    """
    return join_labels(_labels(task, tools))


def _labels(task: Task, tools: Mapping[str, Tool]) -> Iterator[Label]:
    yield task.label
    if task.policy.sensitivity is Sensitivity.PRIVATE:
        yield Label(tier=Tier.USER, origins=(THE_TASK,))
    if task.context is not None:
        yield OF_CONTEXT
    yield from (label_of_result(message, tools) for message in task.messages if message.tool_result is not None)


def label_of_result(message: Message, tools: Mapping[str, Tool]) -> Label:
    """Return the label of a tool's message in the conversation that a task brings along.

    A result that an earlier task has quoted is untrusted, however its tool is declared: untrusted content has influenced it.
    """
    assert message.tool_result is not None, "the caller has looked"
    name = message.tool_result.name
    tool = tools.get(name)
    untrusted = Label(integrity=Integrity.UNTRUSTED, origins=(f"tool {name}",))
    if tool is None:
        return untrusted
    label = tool.label_of(message.tool_result)
    return label.joined(untrusted) if is_quoted(message.tool_result) else label


_TEXTS: Final = 8
"""Number of ends of texts that are kept for each session."""
_SESSIONS: Final = 1000
"""Number of sessions for which they are kept."""


class SessionLabels:
    """Labels of one process's sessions, from the first task on that was told something private or untrusted."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], Label] = {}
        """Labels by user and session."""
        self._recent: dict[tuple[str, str], deque[str]] = {}

    def recent_texts(self, task: Task) -> deque[str] | None:
        """Return the ends of the last texts that left for the task's session: the next text may be the other half of a secret.

        None if the task has no session. The oldest sessions are forgotten first.
        """
        if task.session is None:
            return None
        recent = self._recent.setdefault((task.user, task.session), deque(maxlen=_TEXTS))
        while len(self._recent) > _SESSIONS:
            del self._recent[next(iter(self._recent))]
        return recent

    def label_of(self, task: Task) -> Label:
        """Return the label of all that earlier tasks of the session were told."""
        return OPEN if task.session is None else self._labels.get((task.user, task.session), OPEN)

    def apply(self, task: Task) -> Task:
        """Return the task with the label of its session, as a private task if that label is private, so that its route is chosen
        accordingly.

        Answers of a private conversation are not cached: they would outlive an erasure of the memory.
        """
        label = self.label_of(task)
        task = task.model_copy(update={"label": task.label.joined(label)})
        if label.tier is Tier.SHARED:
            return task
        task = task.model_copy(update={"cache": "no-store"})
        if task.policy.sensitivity is Sensitivity.PRIVATE:
            return task
        because = f"private: an earlier task of its session read data that may not leave the device ({', '.join(label.told_origins)})"
        policy = task.policy.model_copy(update={"sensitivity": Sensitivity.PRIVATE})
        return task.model_copy(update={"policy": policy, "reasons": (*task.reasons, because)})

    def note(self, task: Task, label: Label) -> bool:
        """Record the label with which a task of the session ended, and return whether it counts for later tasks.

        Being private by its own policy does not make later tasks private.
        """
        if task.session is None or not set(label.origins) - {THE_TASK}:
            return False
        self.add(task.session, task.user, label)
        return True

    def add(self, session: str, user: str, label: Label) -> None:
        """Join a label to that of a session."""
        self._labels[user, session] = self._labels.get((user, session), OPEN).joined(label)

    def forget(self, session: str, user: str) -> None:
        """Forget a session: a new conversation begins under its name."""
        self._labels.pop((user, session), None)
        self._recent.pop((user, session), None)


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


class Guard:
    """Decides about the tool calls of one run, by where the calls and their arguments come from.

    Args:
        task: the task, with what its conversation called before it read untrusted content.
        tools: the tools that a plan may name.
        instructions: the app's instructions for single agents.
    """

    def __init__(self, task: Task, tools: Mapping[str, Tool], instructions: Sequence[str] = ()) -> None:
        history = TrustedHistory(task, tools)
        memory = [task.memory] if task.memory is not None and task.label.integrity is Integrity.TRUSTED else []
        self._policy = task.policy.guard
        self._instructions = instructions
        self._said = (*task.said, *instructions)
        """The words of the user and the app."""
        self._known = (*history.trusted, *memory)
        """Other trusted texts of the task."""
        self._chosen = history.chosen | (task.allowed_tools or frozenset()) | named_tools(task.planned.plan, tools)
        self._made = history.made
        self._tools = tools

    @cached_property
    def _trusted_said(self) -> TrustedTexts:
        return TrustedTexts(self._said)

    @cached_property
    def _trusted_task(self) -> TrustedTexts:
        return self._trusted_said.plus(self._known)

    def of_part(self, part: Task, tools: Mapping[str, Tool]) -> "Guard":
        """Return the guard of a part of the run, which is a task of its own."""
        return Guard(part, tools, self._instructions)

    def check_call(self, call: ToolCall, tool: Tool, context: CallContext) -> Decision:
        """Decide whether the call may run."""
        objections = list(self._objections(call, tool, context))
        if not objections:
            return Decision()
        refused = any(choice is OnDoubt.REFUSE for choice, _ in objections)
        return Decision(outcome="refused" if refused else "ask", reason=f"{tool.name}: {'; '.join(reason for _, reason in objections)}")

    def has_trusted_arguments(self, call: ToolCall, tool: Tool, context: CallContext) -> bool:
        """Return whether all arguments come from the user's words or from trusted data."""
        return not untrusted_arguments(call, tool, list(call.arguments), self._trusted_texts(context))

    def is_chosen(self, call: ToolCall, tool: Tool, context: CallContext) -> bool:
        """Return whether the user or a plan had chosen this very call before the run read untrusted content, or it reads a record that
        they have named."""
        made = [context.conversation[place] for place in context.trusted]
        if _is_repeated(call, made) or _is_repeated(call, self._made) or _is_planned(call, tool, context.chosen.plan):
            return True
        return _reads_named_record(call, tool, self._trusted_texts(context))

    def is_as_planned(self, call: ToolCall, tool: Tool, context: CallContext) -> bool:
        """Return whether a plan had named the call before the run read untrusted content.

        Its sinks have to be stated or read as planned; the rest may be left to the model.
        """
        trusted, plans = self._trusted_texts(context), self._planned_calls(tool, context)
        sinks = [name for name in call.arguments if name in tool.declared.sinks]
        if not plans or self._unplanned(call, tool, context, sinks, trusted):
            return False
        others = untrusted_arguments(call, tool, [name for name in call.arguments if name not in sinks], trusted)
        matcher = PlanMatcher(context.conversation[:-1], self._tools)
        return any(matcher.names_arguments(planned, call, others) for planned in plans)

    def _objections(self, call: ToolCall, tool: Tool, context: CallContext) -> Iterator[tuple[OnDoubt, str]]:
        tools, arguments, label = self._policy.tools, self._policy.arguments, context.label
        if label.integrity is Integrity.UNTRUSTED and not _is_free(tool):
            read = f"the run has read untrusted content ({', '.join(label.told_origins)})"
            if tools is not OnDoubt.ALLOW and tool.name not in self._chosen and tool.name not in context.chosen.tools:
                yield tools, f"it was not asked for before {read}"
            sinks = [name for name in call.arguments if name in tool.declared.sinks]
            untrusted = [] if arguments is OnDoubt.ALLOW else self._unplanned(call, tool, context, sinks, self._trusted_texts(context))
            if untrusted:
                yield arguments, f"{_listed(untrusted)} not from the user's words or trusted data, and {read}"
        if arguments is not OnDoubt.ALLOW and _tells_more(tool, label):
            shown = self._unplanned(call, tool, context, list(call.arguments), self._said_as_shown(context))
            if shown:
                further = f"further than what the run has read may go ({', '.join(label.told_origins)})"
                yield arguments, f"it would show {', '.join(shown)}, not in the user's words, {further}"

    def _unplanned(self, call: ToolCall, tool: Tool, context: CallContext, names: Sequence[str], trusted: TrustedTexts) -> list[str]:
        """Return the arguments among `names` that come from no trusted text and for which no plan names a value."""
        untrusted = untrusted_arguments(call, tool, names, trusted)
        if not untrusted or context.label.is_disturbed:
            return untrusted
        plans = self._planned_calls(tool, context)
        matcher = PlanMatcher(context.conversation[:-1] if plans else (), self._tools)
        left = [[name for name in untrusted if name not in matcher.match_arguments(one, call, tool.declared.sinks)] for one in plans]
        return min(left, key=len, default=untrusted)

    def _planned_calls(self, tool: Tool, context: CallContext) -> list[PlanCall]:
        """Return the calls of a tool that plans name."""
        return [one for one in parse_plan(context.chosen.plan, signatures_of(self._tools)) if one.tool == tool.name]

    def _said_as_shown(self, context: CallContext) -> TrustedTexts:
        """Return the user's words as the agent that makes the calls was shown them."""
        return self._trusted_said if context.hide is None else TrustedTexts(map(context.hide, self._said))

    def _trusted_texts(self, context: CallContext) -> TrustedTexts:
        conversation = [context.conversation[place] for place in context.trusted]
        known = self._trusted_task if context.hide is None else self._said_as_shown(context).plus(map(context.hide, self._known))
        return known.plus(text for message in conversation for text in _texts_of_message(message))


class TrustedHistory:
    """The trusted part of the conversation that a task brings along: its calls are judged as if the run had made them."""

    def __init__(self, task: Task, tools: Mapping[str, Tool]) -> None:
        self.trusted: list[str] = []
        """Results of trusted tools without influence of untrusted content, and the arguments of calls made before any of it was read."""
        self.chosen: set[str] = set()
        """Tools that were called before untrusted content was read."""
        self.made: list[Message] = []
        """Messages with those calls."""
        self._said = task.said
        self._tools = tools
        self._is_clean = task.label.integrity is Integrity.TRUSTED and task.context is None
        self.is_tainted = False
        """Untrusted content has influenced a call that changes something. Its effects may come back from any tool."""
        self._trusted_ids: set[str] = set()
        """Ids of the calls whose results are trusted."""
        for message in task.messages:
            self._read(message)

    @cached_property
    def _trusted_texts(self) -> TrustedTexts:
        return TrustedTexts(self._said)

    def _read(self, message: Message) -> None:
        if self._is_clean and message.tool_calls:
            self.made.append(message)
        for call in message.tool_calls:
            self._note(call, self._tools.get(call.name))
        if message.tool_result is None:
            return
        if label_of_result(message, self._tools).integrity is Integrity.UNTRUSTED:
            self._is_clean = False
        elif self._is_trusted(message.tool_result):
            self._trust(message.tool_result.content)

    def _note(self, call: ToolCall, tool: Tool | None) -> None:
        if self._is_clean:
            self.chosen.add(call.name)
            self._trust(json.dumps(call.arguments, ensure_ascii=False))
        if tool is None:
            return
        if not self._is_clean and isinstance(tool, CallerTool):  # not known to be harmless, and there may be hundreds of calls
            self.is_tainted = True
        elif not self._is_clean and untrusted_arguments(call, tool, list(call.arguments), self._trusted_texts):
            self.is_tainted = self.is_tainted or tool.declared.effect is not Effect.READ
        elif self._is_clean or _is_repeated(call, self.made) or _reads_named_record(call, tool, self._trusted_texts):
            self._trusted_ids.add(call.id)
            return
        self._trusted_ids.discard(call.id)  # a later turn may use an id again

    def _trust(self, text: str) -> None:
        self.trusted.append(text)
        self._trusted_texts = self._trusted_texts.plus([text])

    def _is_trusted(self, result: ToolResult) -> bool:
        """Return whether a result is trusted. An error is not: it may quote a call that was never run."""
        return result.call_id in self._trusted_ids and not self.is_tainted and not result.is_error


def _is_planned(call: ToolCall, tool: Tool, plan: str) -> bool:
    """Return whether a plan names this very call, with each of its values: as a call, or in a line with the tool's name."""
    words = split_calls(plan, tool.name)
    lines = [line for line in words.rest.splitlines() if named_tools(line, [tool.name])]
    return any(not untrusted_arguments(call, tool, list(call.arguments), TrustedTexts([text])) for text in (*words.calls, *lines))


def _is_repeated(call: ToolCall, messages: Iterable[Message]) -> bool:
    """Return whether one of the messages makes the same call."""
    return any(made.name == call.name and made.arguments == call.arguments for message in messages for made in message.tool_calls)


def _reads_named_record(call: ToolCall, tool: Tool, trusted: TrustedTexts) -> bool:
    """Return whether a call reads a record by keys that are all in trusted texts. A call without keys does not."""
    keys = [name for name in call.arguments if name in tool.declared.keys]
    return bool(keys) and not untrusted_arguments(call, tool, keys, trusted)


def select_tools(tools: Mapping[str, Tool], names: frozenset[str] | None) -> dict[str, Tool]:
    """Return the tools that a task lists, or all if it has no list. Raises `InvalidRequest` for names of unknown tools."""
    if names is None:
        return dict(tools)
    if unknown := sorted(names - set(tools)):
        raise InvalidRequest(f"allowed_tools: there is no tool {unknown[0]!r}", hint=f"the tools are: {', '.join(sorted(tools)) or 'none'}")
    return {name: tool for name, tool in tools.items() if name in names}


def check_plan(plan: str, tools: Mapping[str, Tool]) -> None:
    """Raise `InvalidRequest` if a user's plan contains a tool call that cannot be parsed."""
    problem = find_plan_problem(plan, signatures_of(tools))
    if problem is not None:
        raise InvalidRequest(f"the plan cannot be read: {problem}", hint='write calls as in pay(account=account_of(contact="Ann").number)')


def quote_untrusted_data(task: Task, tools: Mapping[str, Tool]) -> Task:
    """Return the task with the untrusted content in its own conversation quoted as data.

    The turns that its session keeps are as agents saw them, and stay so.
    """
    begun = 0 if task.turn is None else len(task.messages) - task.turn
    quoted = (_quote_untrusted(message, tools) for message in task.messages[begun:])
    return task.model_copy(update={"messages": (*task.messages[:begun], *quoted)})


def _quote_untrusted(message: Message, tools: Mapping[str, Tool]) -> Message:
    if message.tool_result is None or label_of_result(message, tools).integrity is Integrity.TRUSTED:
        return message
    return Message.tool(quote_data(message.tool_result), message.attachments)


def _is_free(tool: Tool) -> bool:
    """Return whether it does not matter who causes a call: the tool has no sinks, and arguments if it changes something."""
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
