"""The parts of a trace that a replay needs: the steps with their whole requests, and the results of all tool calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....protocols import InvalidRequest, Message, Sensitivity, Side, ToolCall, ToolResult
from ....protocols.tiers import Tier
from ...safety.labels import THE_TASK
from ...task.events import AttemptStarted, Routed
from ...task.labels import Label, join_labels
from ...task.results import RouteDecision
from ...task.task import Task
from ...task.tools import Effect
from ...tracing.store import AgentStepped, AnyEntry, EntriesLost, Happened, Labelled, RunBegan, RunEnded, ToolRan, TracedTool
from ...util.json_text import canonical

Action = str
"""A tool and its arguments, as canonical JSON."""
Effects = Mapping[tuple[Action, tuple[Action, ...]], Sequence[ToolResult]]
"""Results of an action behind the changes that were made before it, in their order. A result says nothing of a world changed otherwise."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of an agent."""

    number: int
    """From 1, in the order of the trace."""
    agent: str
    side: Side
    role: str
    messages: tuple[Message, ...]
    """The whole request."""
    reply: Message
    error: str | None
    sensitivity: Sensitivity
    """Sensitivity of the request."""
    confidence: float | None
    scope: str
    """The part of the run that it belongs to; empty: the whole."""
    done: tuple[ToolCall, ...]
    """Calls that were made before the step and did not fail, in this part and attempt."""


@dataclass(frozen=True)
class RecordedRun:
    """A trace, made ready to be replayed. Raises `InvalidRequest` where it does not begin at the beginning."""

    name: str
    entries: Sequence[AnyEntry]

    @cached_property
    def task(self) -> Task:
        return self._began.task

    @property
    def tools(self) -> tuple[TracedTool, ...]:
        return self._began.tools

    @property
    def agents(self) -> Mapping[str, Side]:
        return self._began.agents

    @cached_property
    def decisions(self) -> Mapping[str, RouteDecision]:
        """The first one of the whole run and of each part, by their scopes."""
        found: dict[str, RouteDecision] = {}
        for entry in self.entries:
            if isinstance(entry, Happened) and isinstance(entry.event, Routed):
                found.setdefault(entry.scope, entry.event.decision)
        return found

    @cached_property
    def steps(self) -> tuple[RecordedStep, ...]:
        asked: dict[tuple[str, str, str], tuple[Message, ...]] = {}
        done: dict[str, list[ToolRan]] = {}
        steps: list[RecordedStep] = []
        for entry in self.entries:
            _do(entry, done)
            if isinstance(entry, AgentStepped):
                call, scope = entry.call, entry.scope
                key = (scope, call.agent, call.role)
                asked[key] = (*asked.get(key, ())[: entry.kept], *entry.messages)
                step = RecordedStep(
                    number=len(steps) + 1,
                    agent=call.agent,
                    side=call.side,
                    role=call.role,
                    messages=asked[key],
                    reply=entry.reply,
                    error=call.error,
                    sensitivity=entry.sensitivity,
                    confidence=call.confidence,
                    scope=scope,
                    done=tuple(ran.call for ran in done.get(scope, ())),
                )
                steps.append(step)
        return tuple(steps)

    @cached_property
    def label(self) -> Label:
        """Joined label of all that the run was told: any of it may be in a step's request."""
        own = Label(tier=Tier.USER, origins=(THE_TASK,)) if self.task.policy.sensitivity is Sensitivity.PRIVATE else Label()
        seen = (entry.label for entry in self.entries if isinstance(entry, (AgentStepped, Labelled, RunEnded, ToolRan)))
        return join_labels((own, *seen))

    @property
    def answer(self) -> str | None:
        """None where the run came to none."""
        last = self.entries[-1]
        return last.text if isinstance(last, RunEnded) and last.outcome == "done" else None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls that were run and did not fail."""
        return tuple(entry.call for entry in self.entries if isinstance(entry, ToolRan) and not entry.result.is_error)

    def changes_of(self, calls: Sequence[ToolCall]) -> Sequence[Action]:
        """Return the calls that may change something, sorted."""
        effects = {traced.spec.name: traced.declared.effect for traced in self.tools}
        return sorted(action_of(call) for call in calls if effects.get(call.name) is not Effect.READ)

    @cached_property
    def solutions(self) -> Mapping[str, Sequence[ToolCall]]:
        """The calls that the last attempt at the whole, and at each part, made, by their scopes, where the run went well; to look
        something up twice is no part of it."""
        done: dict[str, list[ToolRan]] = {}
        for entry in self.entries:
            _do(entry, done)
        return {scope: tuple(ran.call for ran in found) for scope, found in done.items()}

    @cached_property
    def _began(self) -> RunBegan:
        first = self.entries[0]
        if not isinstance(first, RunBegan) or any(isinstance(entry, EntriesLost) for entry in self.entries):
            raise InvalidRequest(f"a part of the trace of run {self.name} is missing", hint="blame a run whose trace is whole")
        return first


def _do(entry: AnyEntry, done: dict[str, list[ToolRan]]) -> None:
    """Add a call that did not fail to those of its scope. A new attempt starts with an empty list."""
    if isinstance(entry, Happened) and isinstance(entry.event, AttemptStarted):
        done[entry.scope] = []
    elif isinstance(entry, ToolRan) and not entry.result.is_error and not _is_repeated(entry, done.setdefault(entry.scope, [])):
        done[entry.scope].append(entry)


def _is_repeated(entry: ToolRan, before: Sequence[ToolRan]) -> bool:
    return entry.effect is Effect.READ and any(action_of(other.call) == action_of(entry.call) for other in before)


def effects_of(runs: Sequence[RecordedRun]) -> Effects:
    """Return the results of calls in any of the runs, which all began in the same world."""
    known: dict[tuple[Action, tuple[Action, ...]], list[ToolResult]] = {}
    for run in runs:
        changes = Changes()
        for entry in run.entries:
            if isinstance(entry, AgentStepped):
                changes.settle()
            elif isinstance(entry, ToolRan):
                action = action_of(entry.call)
                known.setdefault((action, changes.before), []).append(entry.result)
                changes.add(action, entry.effect)
    return known


class Changes:
    """The calls so far that may change something. Calls of one message run at the same time, so none is before another."""

    def __init__(self) -> None:
        self.before: tuple[Action, ...] = ()
        """In order, up to the last step of an agent."""
        self._beside: list[Action] = []

    def add(self, action: Action, effect: Effect) -> None:
        if effect is not Effect.READ:
            self._beside.append(action)

    def settle(self) -> None:
        """Count the calls so far as done, because an agent is asked again."""
        self.before = (*self.before, *sorted(self._beside))
        self._beside = []


def action_of(call: ToolCall) -> Action:
    return canonical([call.name, call.arguments])
