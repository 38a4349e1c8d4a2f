"""Where the graphs of a run keep their steps: the task's own, and those of its parts, which run side by side."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .run import Lease

if TYPE_CHECKING:
    from .checkpointer import RunCheckpointer

EPOCH: Final = "nearfar_epoch"
"""In `configurable`: which of a run's owners writes."""
PART: Final = "nearfar_part"
"""In `configurable`: the name of a part of the run, which is a graph by itself."""


def thread(lease: Lease) -> dict[str, object]:
    """Of the task's own graph, as its configuration says it."""
    return {"thread_id": lease.run, EPOCH: lease.epoch}


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that this process owns."""

    checkpointer: "RunCheckpointer"
    lease: Lease

    def thread(self, part: str) -> dict[str, object]:
        """A graph of its own for each part, which goes with the run."""
        return {**thread(self.lease), PART: part}
