"""The `[policy.auto]` section."""

from pathlib import Path

from pydantic import Field

from ....protocols.messages import Value


class AutoConfig(Value):
    """How `auto` chooses a strategy: the `[policy.auto]` section of nearfar.toml.

    A configuration is worth its score minus its dollars, and the best one serves the task. Without outcomes, each kind of task has a
    documented default.
    """

    outcomes: Path | None = None
    """Path of a sweep's `runs.jsonl` to learn from; None: no measured outcomes are used."""
    reports: Path | None = None
    """Path of a file to which `Hybrid.report` appends outcomes that the app observes, and from which `auto` learns; None: they are lost
    with
    the process.
    """
    dollars_per_point: float = Field(default=0.01, gt=0)
    """US dollars per task worth spending for one more point of score, a hundredth of a perfect answer."""
    explore_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of tasks, 0 to 1, that may be served by another configuration than the best known one, to learn about it; 0: the
    same
    outcomes always give the same choice.
    """
    minimum_familiarity: float = Field(default=0.5, ge=0, le=1)
    """Share of a prompt's words, 0 to 1, that a class of tasks must have seen before for the prompt to count as one of them."""

    @property
    def dollars_per_score(self) -> float:
        """Return the dollars worth spending for a perfect answer in place of none."""
        return 100 * self.dollars_per_point
