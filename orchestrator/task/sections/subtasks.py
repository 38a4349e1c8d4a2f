"""The `[policy.subtasks]` section."""

from typing import Literal

from pydantic import Field

from ....protocols.messages import Value
from ..modes import Strategy

PartStrategy = Literal[Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.PEVR, Strategy.EVA]


class SubtasksConfig(Value):
    """How `subtasks` divides a task: the `[policy.subtasks]` section of nearfar.toml."""

    maximum_subtasks: int = Field(default=8, gt=0)
    """Most subtasks of a task; a plan with more is sent back."""
    parallel: int = Field(default=4, gt=0)
    """Most subtasks that run at a time."""
    strategy: PartStrategy = Strategy.CASCADE
    """Strategy for each subtask."""
    aggregate: Literal["when_needed", "always"] = "when_needed"
    """Source of the answer: `when_needed`, the last subtask if all others lead to it, else a call that is shown all results; `always`,
    that call
    in any case.
    """
    exclusive_tools: bool = True
    """Let the tools of only one subtask run at a time, so that they cannot interfere; false if they only read."""
