"""What the tasks of a session have been told stays in its conversation, which comes back with the next task."""

from collections import deque
from typing import Final

from ....protocols import Sensitivity
from ....protocols.tiers import Tier
from ...task.labels import OPEN, Label
from ...task.task import Task
from .starting import THE_TASK

_TEXTS: Final = 8
"""Ends of texts that are kept for each session,"""
_SESSIONS: Final = 1000
"""and sessions for which they are."""


class SessionLabels:
    """The labels of one process's sessions, from their first task on that was told something private or untrusted."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], Label] = {}
        """By user and session."""
        self._told: dict[tuple[str, str], deque[str]] = {}

    def told(self, task: Task) -> deque[str] | None:
        """The ends of the last texts that left for the task's session, of which what leaves next may be the other half.

        None where it has no session. Those of the sessions that were begun first are forgotten first.
        """
        if task.session is None:
            return None
        told = self._told.setdefault((task.user, task.session), deque(maxlen=_TEXTS))
        while len(self._told) > _SESSIONS:
            del self._told[next(iter(self._told))]
        return told

    def label_of(self, task: Task) -> Label:
        """Of all that was told to earlier tasks of its session."""
        return OPEN if task.session is None else self._labels.get((task.user, task.session), OPEN)

    def applied(self, task: Task) -> Task:
        """The task with what its session has been told, made private where that is, so that its route is chosen accordingly.

        No cache keeps what is made of a private conversation: it would outlive what a memory erases.
        """
        label = self.label_of(task)
        task = task.model_copy(update={"label": task.label.joined(label)})
        if label.tier is Tier.SHARED:
            return task
        task = task.model_copy(update={"cache": "no-store"})
        if task.policy.sensitivity is Sensitivity.PRIVATE:
            return task
        because = f"private: an earlier task of its session was told what may not leave the device ({', '.join(label.told_origins)})"
        policy = task.policy.model_copy(update={"sensitivity": Sensitivity.PRIVATE})
        return task.model_copy(update={"policy": policy, "reasons": (*task.reasons, because)})

    def note(self, task: Task, label: Label) -> None:
        """A task of the session has ended, with this label. That it was private by its policy says nothing of later ones, which say so
        themselves."""
        if task.session is not None and set(label.origins) - {THE_TASK}:
            self._labels[task.user, task.session] = self.label_of(task).joined(label)
