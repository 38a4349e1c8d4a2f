"""`SubtasksConfig`: how `subtasks` cuts a task, and how its parts are served."""

from typing import Literal

from pydantic import Field

from ....protocols.messages import Value
from ..modes import Strategy

PartStrategy = Literal[Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.PEVR, Strategy.EVA]


class SubtasksConfig(Value):
    """How `subtasks` works: the `[policy.subtasks]` section of nearfar.toml."""

    maximum_subtasks: int = Field(default=8, gt=0)
    """Subtasks of a task; a plan with more is sent back."""
    parallel: int = Field(default=4, gt=0)
    """Subtasks that run at a time."""
    strategy: PartStrategy = Strategy.CASCADE
    """How each subtask is served."""
    aggregate: Literal["when_needed", "always"] = "when_needed"
    """Who makes the answer: `when_needed`, the last subtask where there is one that all others lead to, and otherwise a call that is
    shown all results; `always`, that call in any case."""
    exclusive_tools: bool = True
    """The tools of only one subtask run at a time, so that they cannot race in a world that they change. False where they only read."""
