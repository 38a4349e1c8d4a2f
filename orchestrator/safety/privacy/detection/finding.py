"""The interface of detectors, and their findings."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

UNCHECKED: Final = "unchecked"
"""Type of a whole text that a detector could not look through: it may hold anything."""
_SPECIFIC: Final = ("key", "iban", "card", "ssn", "national_id", "email", "ip", "birth_date", "phone", "address", "url")
"""Types from the most to the least specific. The order decides between findings of the same length."""
_RANKS: Final = {type: rank for rank, type in enumerate(_SPECIFIC)}


class Finding(NamedTuple):
    """A piece of a text that looks private."""

    start: int
    """In characters, as Python counts them."""
    end: int
    type: str
    """Type of the finding, such as `email` or `card`: lower case letters and `_`."""
    text: str


class Detector(Protocol):
    """Looks for private data. Any thread may call it, and it takes time in proportion to the text."""

    def find(self, text: str) -> Sequence[Finding]:
        """Return the findings in any order; they may overlap."""
        ...


def resolved(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in the order of the text. Overlapping ones become one, of the type of the longest and then most specific one."""
    joined: list[Finding] = []
    best = (0, 0)
    for finding in sorted(findings):
        weight = (finding.end - finding.start, -_RANKS.get(finding.type, len(_RANKS)))
        if not joined or finding.start >= joined[-1].end:
            joined.append(finding)
            best = weight
            continue
        last = joined[-1]
        type, best = (finding.type, weight) if weight > best else (last.type, best)
        rest = finding.text[last.end - finding.start :] if finding.end > last.end else ""
        joined[-1] = Finding(last.start, max(last.end, finding.end), type, last.text + rest)
    return joined
