"""Group turns that are summarized together: consecutive segments about one topic, and a whole session."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from ....protocols.tiers import Tier
from ...compression.tokens import estimated_tokens
from ...task.sections.consolidation import ConsolidationConfig
from ..memory_item import MemoryItem
from ..recall.granularity import TEXT, Span

if TYPE_CHECKING:
    from ..engine import Vector


@dataclass(frozen=True, slots=True)
class Segment:
    """A stored segment of a session with its vector."""

    item: MemoryItem
    span: Span
    vector: "Vector | None"

    @property
    def about(self) -> tuple[Tier, str]:
        """Tier and subject: only segments that agree in both are summarized together."""
        return self.item.tier, self.item.subject

    @property
    def tokens(self) -> int:
        return estimated_tokens(self.item.value[TEXT])


@dataclass(frozen=True, slots=True)
class Topic:
    """Consecutive segments about one topic."""

    segments: tuple[Segment, ...]
    is_last: bool
    """True for the last topic of its session: it may not be finished."""

    @property
    def span(self) -> Span:
        first, last = self.segments[0].span, self.segments[-1].span
        return Span(first.session, first.first, last.last)

    @property
    def texts(self) -> list[str]:
        return [segment.item.value[TEXT] for segment in self.segments]


def topics(segments: Iterable[Segment], policy: ConsolidationConfig) -> list[Topic]:
    """Return the topics of several sessions. A topic ends if similarity drops, if tier or subject changes, or if it gets too long to be
    read at once (the short-term buffer of LightMem, arXiv 2510.18866)."""
    ordered = sorted(segments, key=lambda segment: segment.span)
    sessions = (list(members) for _, members in groupby(ordered, key=lambda segment: segment.span.session))
    return [topic for session in sessions for topic in _topics_of(session, policy)]


def _topics_of(session: Sequence[Segment], policy: ConsolidationConfig) -> list[Topic]:
    buffers = [[session[0]]]
    for before, segment in pairwise(session):
        tokens = sum(each.tokens for each in buffers[-1])
        if tokens + segment.tokens > policy.topic_tokens or not _continue(before, segment, policy):
            buffers.append([])
        buffers[-1].append(segment)
    return [Topic(tuple(buffer), is_last=number == len(buffers)) for number, buffer in enumerate(buffers, start=1)]


def _continue(before: Segment, segment: Segment, policy: ConsolidationConfig) -> bool:
    if before.about != segment.about or before.span.last + 1 != segment.span.first:
        return False
    if before.vector is None or segment.vector is None:
        return True
    return bool(before.vector @ segment.vector >= policy.topic_similarity)
