"""Origins of drafted tokens, and how often tokens of each origin were right."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

_FADING: Final = 0.97
_PRIOR_TRIES: Final = 2.0
"""Tries that the first guess of a chance counts as."""
_MOST_ORIGINS: Final = 4096


class Source(StrEnum):
    """The source that a token was guessed from."""

    SCHEMA = "schema"
    """The grammar: it leaves no choice, or few tools, or a value has to end some time."""
    HISTORY = "history"
    """Past calls of the same tool."""
    PROMPT = "prompt"
    """The conversation."""


class Origin(NamedTuple):
    """Why a token was drafted; tokens of one origin are right about equally often."""

    source: Source
    about: str
    """The subject: a kind of guess, or the parameter whose value begins or ends."""
    degree: int
    """Length of the match, or of the value."""


FORCED: Final = Origin(Source.SCHEMA, "", 1)
"""The grammar leaves no choice but how the text is cut into tokens."""
NAME: Final = Origin(Source.SCHEMA, "", 0)
"""One of the tools' names."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next, in order, and the origin of each."""

    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)

    def extend(self, other: "Draft") -> None:
        self.tokens.extend(other.tokens)
        self.origins.extend(other.origins)

    def first(self, count: int) -> "Draft":
        return Draft(self.tokens[:count], self.origins[:count])

    @classmethod
    def forced(cls, tokens: Sequence[int]) -> "Draft":
        return cls(list(tokens), [FORCED] * len(tokens))


class Records:
    """Recent success rates of drafted tokens, by origin."""

    def __init__(self) -> None:
        self._tries: dict[Origin, tuple[float, float]] = {}

    def chance(self, origin: Origin) -> float:
        """Return the chance that a token of this origin is right, given that those in front of it are."""
        right, tries = self._tries.get(origin, (0.0, 0.0))
        return (right + _PRIOR_TRIES * _first_guess(origin)) / (tries + _PRIOR_TRIES)

    def add(self, origin: Origin, *, right: bool) -> None:
        if len(self._tries) > _MOST_ORIGINS:
            self._tries.clear()
        before, tries = self._tries.get(origin, (0.0, 0.0))
        self._tries[origin] = (before * _FADING + right, tries * _FADING + 1)


def _first_guess(origin: Origin) -> float:
    if origin == FORCED:
        return 0.98
    if origin.about or origin == NAME:
        return 0.4
    return 0.2 + 0.1 * origin.degree


@dataclass(slots=True)
class SourceCounts:
    """Counts of the drafts of one source."""

    runs: int = 0
    """Runs of neighbouring tokens of this source whose beginning was reached."""
    drafted: int = 0
    accepted: int = 0


class Counts:
    """The counts of each source since the worker started."""

    def __init__(self) -> None:
        self._sources: defaultdict[Source, SourceCounts] = defaultdict(SourceCounts)

    def add(self, draft: Draft, accepted: int) -> None:
        """Count a draft of which so many tokens were right."""
        before: Source | None = None
        for place, origin in enumerate(draft.origins):
            counts = self._sources[origin.source]
            counts.drafted += 1
            counts.accepted += place < accepted
            counts.runs += origin.source is not before and place <= accepted
            before = origin.source

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {source.value: asdict(counts) for source, counts in self._sources.items()}
