"""The layout of episodes at several granularities: their namespaces and keys, and the fields of their items.

Turns are kept verbatim. The same episode is kept again in larger and in condensed pieces, each of which names the turns it is about. A
question is compared with all of them, and answered with turns (MemGAS, arXiv 2505.19549).

    (*scope, "episodic", "turn")        one turn each                       key: SESSION:000012
    (*scope, "episodic", "segment")     turns in a row about one topic      key: SESSION:000012-000015
    (*scope, "episodic", "summary")     a summary of turns in a row         key: SESSION:000012-000031
    (*scope, "episodic", "keywords")    keywords of turns in a row, with the same key as their summary
    (*scope, "semantic")                a fact each, see `semantic.py`
    (*scope, "working", RUN)            notes of a run, see `working.py`

The value of every episodic item has `TEXT`, which is shown, and `SEARCHABLE`, the passages by which it is found.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from ....protocols.namespaces import Namespace

EPISODIC: Final = "episodic"
SEMANTIC: Final = "semantic"
WORKING: Final = "working"

TEXT: Final = "text"
SEARCHABLE: Final = "searchable"
INDEX: Final = [f"{SEARCHABLE}[*]"]
"""The `index` to pass when an item of this layout is put."""

_DIGITS: Final = 6
_KEY: Final = re.compile(r"(?P<session>.*):(?P<first>\d{6,})(?:-(?P<last>\d{6,}))?", re.DOTALL)


class Granularity(StrEnum):
    """The size of an episodic item, in turns."""

    TURN = "turn"
    SEGMENT = "segment"
    SUMMARY = "summary"
    KEYWORDS = "keywords"


class Span(NamedTuple):
    """Consecutive turns of one session; a single turn is its own first and last."""

    session: str
    first: int
    last: int

    @property
    def key(self) -> str:
        """The key of an item about these turns. Keys of a session are in the order of its turns."""
        first = f"{self.session}:{self.first:0{_DIGITS}d}"
        return first if self.first == self.last else f"{first}-{self.last:0{_DIGITS}d}"

    @property
    def turns(self) -> tuple[str, ...]:
        """The keys of the turns."""
        return tuple(turn_key(self.session, number) for number in range(self.first, self.last + 1))


def turn_key(session: str, number: int) -> str:
    """Return the key of the `number`-th turn of a session, counted from 0."""
    return Span(session, number, number).key


def span(key: str) -> Span | None:
    """Return the turns that the item of this key is about; None if the key is of another layout."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    first = int(match["first"])
    return Span(match["session"], first, int(match["last"] or first))


def episodic(scope: Namespace, granularity: Granularity) -> Namespace:
    """Return the namespace of the episodic items of a granularity."""
    return (*scope, EPISODIC, granularity.value)
