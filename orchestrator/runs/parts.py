"""LangGraph thread configurations of a run: for the task's own graph, and for each of its parallel parts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .run import Lease

if TYPE_CHECKING:
    from .checkpointer import RunCheckpointer

EPOCH: Final = "nearfar_epoch"
"""Key in `configurable`: the epoch of the owner that writes."""
PART: Final = "nearfar_part"
"""Key in `configurable`: the name of a part of the run, which is a graph of its own."""


def thread(lease: Lease) -> dict[str, object]:
    """Return the configuration of the task's own graph."""
    return {"thread_id": lease.run, EPOCH: lease.epoch}


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that this process owns."""

    checkpointer: "RunCheckpointer"
    lease: Lease

    def thread(self, part: str) -> dict[str, object]:
        """Return the configuration of a part's graph, which is kept with the run."""
        return {**thread(self.lease), PART: part}
