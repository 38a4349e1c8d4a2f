"""What the kinds of consolidation work with, and what they tell."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ....protocols.namespaces import Namespace
from ...compression.summary import Summarizer
from ...task.sections.consolidation import ConsolidationConfig
from ..store import MemoryStore
from .journal import Journal

ALL = 1_000_000
"""More items than any scope has."""


@dataclass(slots=True)
class Slept:
    """What a consolidation came to."""

    batch: str | None = None
    """By which it can be taken back or confirmed; None: nothing was done."""
    summaries: int = 0
    by_model: int = 0
    """Of the summaries; the others are extracts."""
    retired: int = 0
    """Facts that repeat another one, or are outdated."""
    refused: list[str] = field(default_factory=list)
    """Why summaries of the model were not used."""
    stopped: str | None = None
    """Why it ended before all was done; the next one goes on from there."""


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
        """That of this run, which is opened when there is something to be written into it."""
        slept.batch = slept.batch or self.journal.begin()
        return slept.batch
