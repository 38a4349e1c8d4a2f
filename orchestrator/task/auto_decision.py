"""`SelectionDecision`: what `auto` chose for a task, among what, and why."""

from ...protocols.messages import Value
from .arm import Arm
from .profile import TaskProfile


class ConsideredArm(Value):
    """One configuration, as it was judged for a task."""

    arm: Arm
    label: str
    """How people call it."""
    score: float
    """Expected, between 0 and 1."""
    deviation: float
    """How unsure that is: the standard deviation of the expected score."""
    weight: float
    """Outcomes that the expectation is worth."""
    dollars: float | None
    """Expected US dollars of the task; None: unknown."""
    utility: float
    """What it is worth: the score less one deviation, less the dollars at `dollars_per_point`."""
    outcomes: int
    """Recorded for it on any tasks."""
    similar: int
    """Recorded for it on tasks like this one."""
    objection: str | None = None
    """Why this task may not have it; None where it may."""


class SelectionDecision(Value):
    """How one task was settled."""

    profile: TaskProfile
    """Without the words of a private task."""
    task_class: str
    """The class of recorded tasks that it was taken for; empty where it is like none of them."""
    familiarity: float
    """Share of its words that tasks of the class have used before."""
    candidates: tuple[ConsideredArm, ...]
    """The best first; those that the task may not have last."""
    chosen: Arm
    explored: bool
    """Another configuration than the best known one, to learn about it."""
    reasons: tuple[str, ...]
    """The choice in sentences."""

    @property
    def winner(self) -> ConsideredArm:
        """The candidate that was chosen."""
        return next(candidate for candidate in self.candidates if candidate.arm == self.chosen)
