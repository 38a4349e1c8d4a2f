"""The inputs and the outcome of a consolidation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ....protocols.namespaces import Namespace
from ...compression.compressor import Summarizer
from ...task.stores import ConsolidationConfig
from ..store import MemoryStore
from .journal import Journal

ALL = 1_000_000
"""More items than any scope has."""


@dataclass(slots=True)
class Slept:
    """The outcome of a consolidation."""

    batch: str | None = None
    """The identifier by which the batch can be reverted or confirmed; None: nothing was done."""
    summaries: int = 0
    by_model: int = 0
    """Number of summaries made by a model; the others are extracts."""
    retired: int = 0
    """Number of facts that repeat another one, or are outdated."""
    refused: list[str] = field(default_factory=list)
    """Reasons why summaries of the model were not used."""
    stopped: str | None = None
    """The reason why it ended early; the next consolidation continues from there."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A scope of a store, and the means to consolidate it."""

    store: MemoryStore
    scope: Namespace
    policy: ConsolidationConfig
    journal: Journal
    summarizer: Summarizer | None
    now: Callable[[], float]
    """Seconds since the epoch."""

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    def batch(self, slept: Slept) -> str:
        """Return the batch of this run, which begins with its first entry."""
        slept.batch = slept.batch or self.journal.begin()
        return slept.batch
