"""What a trace knows that a replay needs: the steps with their whole requests, and what each call of a tool came to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....protocols import InvalidRequest, Message, Sensitivity, Side, ToolCall, ToolResult
from ...effects.canonical import canonical
from ...events import AttemptStarted, Routed
from ...labels import Label, joined
from ...memory.item import Tier
from ...privacy.starting import THE_TASK
from ...routing.decision import RouteDecision
from ...task import Task
from ...tools import Effect
from ..entries import AgentStepped, AnyEntry, Happened, Labelled, RunBegan, RunEnded, ToolRan, TracedTool

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

    @cached_property
    def decision(self) -> RouteDecision | None:
        """Of the whole run."""
        events = (entry.event for entry in self.entries if isinstance(entry, Happened) and not entry.scope)
        return next((event.decision for event in events if isinstance(event, Routed)), None)

    @cached_property
    def steps(self) -> tuple[RecordedStep, ...]:
        asked: dict[tuple[str, str, str], tuple[Message, ...]] = {}
        steps: list[RecordedStep] = []
        for entry in self.entries:
            if isinstance(entry, AgentStepped):
                call = entry.call
                key = (entry.scope, call.agent, call.role)
                asked[key] = (*asked.get(key, ())[: entry.kept], *entry.messages)
                number = len(steps) + 1
                steps.append(RecordedStep(number, call.agent, call.side, call.role, asked[key], entry.reply, call.error))
        return tuple(steps)

    @cached_property
    def label(self) -> Label:
        """Of all that the run was told: any of it may be in a step's request."""
        own = Label(tier=Tier.USER, origins=(THE_TASK,)) if self.task.policy.sensitivity is Sensitivity.PRIVATE else Label()
        seen = (entry.label for entry in self.entries if isinstance(entry, (AgentStepped, Labelled, RunEnded, ToolRan)))
        return joined((own, *seen))

    @property
    def answer(self) -> str | None:
        """None where the run came to none."""
        last = self.entries[-1]
        return last.text if isinstance(last, RunEnded) and last.outcome == "done" else None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Those that were run and did not fail."""
        return tuple(entry.call for entry in self.entries if isinstance(entry, ToolRan) and not entry.result.is_error)

    @property
    def solution(self) -> tuple[ToolCall, ...]:
        """The calls that the last attempt made, where the run went well; to look something up twice is no part of it."""
        found: list[ToolRan] = []
        for entry in self.entries:
            if isinstance(entry, Happened) and isinstance(entry.event, AttemptStarted) and not entry.scope:
                found = []
            elif isinstance(entry, ToolRan) and not entry.result.is_error and not _is_repeated(entry, found):
                found.append(entry)
        return tuple(entry.call for entry in found)

    @cached_property
    def _began(self) -> RunBegan:
        first = self.entries[0]
        if not isinstance(first, RunBegan):
            raise InvalidRequest(f"the beginning of the trace of run {self.name} is missing", hint="blame a run whose trace is whole")
        return first


def _is_repeated(entry: ToolRan, before: Sequence[ToolRan]) -> bool:
    return entry.effect is Effect.READ and any(action_of(other.call) == action_of(entry.call) for other in before)


def effects_of(runs: Sequence[RecordedRun]) -> Effects:
    """What calls came to in any of the runs, which all began in the same world."""
    known: dict[tuple[Action, tuple[Action, ...]], list[ToolResult]] = {}
    for run in runs:
        changes: tuple[Action, ...] = ()
        for entry in run.entries:
            if isinstance(entry, ToolRan):
                action = action_of(entry.call)
                known.setdefault((action, changes), []).append(entry.result)
                changes = changes if entry.effect is Effect.READ else (*changes, action)
    return known


def action_of(call: ToolCall) -> Action:
    return canonical([call.name, call.arguments])
