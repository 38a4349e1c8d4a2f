"""Labels of sessions: a private or untrusted text that one task was told comes back in the conversation of the next one."""

from collections import deque
from typing import Final

from ....protocols import Sensitivity
from ....protocols.tiers import Tier
from ...task.labels import OPEN, Label
from ...task.task import Task
from .starting import THE_TASK

_TEXTS: Final = 8
"""Number of ends of texts that are kept for each session."""
_SESSIONS: Final = 1000
"""Number of sessions for which they are kept."""


class SessionLabels:
    """Labels of one process's sessions, from the first task on that was told something private or untrusted."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], Label] = {}
        """Labels by user and session."""
        self._told: dict[tuple[str, str], deque[str]] = {}

    def told(self, task: Task) -> deque[str] | None:
        """Return the ends of the last texts that left for the task's session: the next text may be the other half of a secret.

        None if the task has no session. The oldest sessions are forgotten first.
        """
        if task.session is None:
            return None
        told = self._told.setdefault((task.user, task.session), deque(maxlen=_TEXTS))
        while len(self._told) > _SESSIONS:
            del self._told[next(iter(self._told))]
        return told

    def label_of(self, task: Task) -> Label:
        """Return the label of all that earlier tasks of the session were told."""
        return OPEN if task.session is None else self._labels.get((task.user, task.session), OPEN)

    def applied(self, task: Task) -> Task:
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

    def note(self, task: Task, label: Label) -> None:
        """Record the label with which a task of the session ended. Being private by its own policy does not make later tasks private."""
        if task.session is not None and set(label.origins) - {THE_TASK}:
            self._labels[task.user, task.session] = self.label_of(task).joined(label)
