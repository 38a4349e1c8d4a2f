"""The knobs of `auto`."""

from pathlib import Path

from pydantic import Field

from ....protocols.messages import Value


class AutoConfig(Value):
    """How `auto` chooses: the `[policy.auto]` section of nearfar.toml.

    A configuration is worth its score minus its dollars, and the best one serves the task. Without outcomes the choice is the
    documented default for the kind of task.
    """

    outcomes: Path | None = None
    """The `runs.jsonl` of a sweep, to learn from; None: nothing was measured."""
    reports: Path | None = None
    """File to which `Hybrid.report` appends the outcomes that the app observes, and which is learned from too; None: they are forgotten
    with the process."""
    dollars_per_point: float = Field(default=0.01, gt=0)
    """Dollars worth spending on a task for one more point of score, a hundredth of a perfect answer."""
    explore_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of tasks that may be served by another configuration than the best one known, to learn about it. 0 never explores:
    the same outcomes then always give the same choice."""
    minimum_familiarity: float = Field(default=0.5, ge=0, le=1)
    """Share of a prompt's words that a class of tasks must have seen before the prompt is taken for one of them."""

    @property
    def dollars_per_score(self) -> float:
        """Dollars worth spending for a perfect answer in place of none."""
        return 100 * self.dollars_per_point
