"""What a detector is, and what it finds."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

UNCHECKED: Final = "unchecked"
"""Type of a whole text that a detector could not look through: it may hold anything."""


class Finding(NamedTuple):
    """A piece of a text that looks private."""

    start: int
    """In characters, as Python counts them."""
    end: int
    type: str
    """What it looks like: `email`, `card` ... Lower case letters and `_`."""
    text: str


class Detector(Protocol):
    """Looks for private data. It may be called from any thread, and takes time in proportion to the text."""

    def find(self, text: str) -> Sequence[Finding]:
        """What it finds, in any order; findings may overlap."""
        ...


def resolved(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order of the text, of those that overlap the longest one."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda each: (each.start - each.end, each.start, each.type)):
        if all(finding.end <= other.start or other.end <= finding.start for other in kept):
            kept.append(finding)
    return sorted(kept)
