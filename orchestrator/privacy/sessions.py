"""What the tasks of a session have been told stays in its conversation, which comes back with the next task."""

from ...protocols import Sensitivity
from ..labels import Label
from ..memory.item import Tier
from ..task import Task
from .starting import THE_TASK


class SessionLabels:
    """The labels of one process's sessions, from their first task on that was told something private or untrusted."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], Label] = {}
        """By user and session."""

    def label_of(self, task: Task) -> Label:
        """Of all that was told to earlier tasks of its session."""
        return Label() if task.session is None else self._labels.get((task.user, task.session), Label())

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
        because = f"private: an earlier task of its session was told what may not leave the device ({', '.join(label.origins)})"
        policy = task.policy.model_copy(update={"sensitivity": Sensitivity.PRIVATE})
        return task.model_copy(update={"policy": policy, "reasons": (*task.reasons, because)})

    def note(self, task: Task, label: Label) -> None:
        """A task of the session has ended, with this label. That it was private by its policy says nothing of later ones, which say so
        themselves."""
        if task.session is not None and set(label.origins) - {THE_TASK}:
            self._labels[task.user, task.session] = self.label_of(task).joined(label)
