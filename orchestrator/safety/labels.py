"""Labels that tasks and sessions begin with, before any agent has acted."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from ...protocols import Message, Sensitivity
from ...protocols.items import Tier
from ..task.labels import OF_CONTEXT, OPEN, Integrity, Label, join_labels
from ..task.task import Task
from ..task.tools import Tool
from .plan_matching import is_quoted

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
