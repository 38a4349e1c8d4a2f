"""Detect the end of a topic, turn by turn: the short-term memory of LightMem (arXiv 2510.18866)."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ....protocols.tiers import Tier
from .granularity import Span

if TYPE_CHECKING:
    from ..engine import Vector

_SIMILAR: Final = 0.45
"""Cosine similarity of a turn with the mean of its topic's turns, below which it begins another one."""
_FEWEST: Final = 2
"""The fewest turns of a topic, unless privacy or the end of a session cut it."""
_MOST: Final = 8
_LONGEST: Final = 2400
"""Characters of a topic, about 600 tokens."""


@dataclass(slots=True)
class Topic:
    """Consecutive turns about one topic, so far."""

    span: Span
    about: tuple[Tier, str]
    """Tier and subject of all its turns: a turn that differs begins another topic."""
    lines: list[str] = field(default_factory=list)
    vectors: "list[Vector]" = field(default_factory=list)

    def continues(self, line: str, vector: "Vector | None", about: tuple[Tier, str]) -> bool:
        """Return whether a further turn belongs to the topic."""
        if about != self.about or len(self.lines) >= _MOST or sum(map(len, self.lines)) + len(line) > _LONGEST:
            return False
        if len(self.lines) < _FEWEST or vector is None or not self.vectors:
            return True
        mean = sum(self.vectors[1:], self.vectors[0])
        length = math.sqrt(mean @ mean)
        return length > 0 and bool(mean @ vector >= _SIMILAR * length)

    def add(self, line: str, vector: "Vector | None") -> None:
        """Add the next turn."""
        self.span = Span(self.span.session, self.span.first, self.span.first + len(self.lines))
        self.lines.append(line)
        if vector is not None:
            self.vectors.append(vector)
