"""`SelectionDecision`: what `auto` chose for a task, among what, and why."""

from ...protocols.messages import Value
from .arm import Arm
from .profile import TaskProfile


class ConsideredArm(Value):
    """One configuration and its rating for a task."""

    arm: Arm
    label: str
    """Name for people."""
    score: float
    """Expected score, between 0 and 1."""
    deviation: float
    """Standard deviation of the expected score."""
    weight: float
    """Number of outcomes that the expectation is worth."""
    dollars: float | None
    """Expected US dollars of the task; None: unknown."""
    utility: float
    """The score less one deviation, less the dollars at `dollars_per_point`."""
    outcomes: int
    """Number of outcomes recorded for it on any tasks."""
    similar: int
    """Number of outcomes recorded for it on similar tasks."""
    objection: str | None = None
    """Reason why this task may not have it; None: it may."""


class SelectionDecision(Value):
    """The choice that `auto` made for one task."""

    profile: TaskProfile
    """Features of the task, without the words of a private task."""
    task_class: str
    """The class of recorded tasks that it belongs to; empty: it is like none of them."""
    familiarity: float
    """Share of its words that tasks of the class have used before."""
    candidates: tuple[ConsideredArm, ...]
    """The best first; those that the task may not have last."""
    chosen: Arm
    explored: bool
    """Another configuration than the best known one was chosen, to learn about it."""
    reasons: tuple[str, ...]
    """The choice in sentences."""

    @property
    def winner(self) -> ConsideredArm:
        """Return the candidate that was chosen."""
        return next(candidate for candidate in self.candidates if candidate.arm == self.chosen)
