"""Pairs of questions written by hand, by kind: what a semantic cache must tell apart, and what asks the same in other words.

`questions_development.txt` was open while the guards were written; `questions_fresh.txt` was written before them, over other subjects, and
read by nothing until they were done.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

SETS: Final = ("development", "fresh")
_BRACKETS: Final = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class Written:
    """A pair of questions."""

    kind: str
    """The kind of change, or the subject."""
    is_same: bool
    first: str
    second: str


def written(name: str) -> Iterator[Written]:
    """Yield the pairs of a set: the first version of each line with every other version of it."""
    heading, kind = "", ""
    for line in (Path(__file__).parent / f"questions_{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading, _, kind = line.removeprefix("## ").partition(": ")
        elif line and not line.startswith("# "):
            first, *others = versions(line)
            yield from (Written(kind, heading == "same", first, other) for other in dict.fromkeys(others) if other != first)


def versions(line: str) -> list[str]:
    """Return every version of a line. A bracket with fewer alternatives than another keeps its last one."""
    count = max((found[1].count("|") + 1 for found in _BRACKETS.finditer(line)), default=1)
    return [_BRACKETS.sub(partial(_alternative, place=place), line).strip() for place in range(count)]


def _alternative(found: re.Match[str], *, place: int) -> str:
    alternatives = found[1].split("|")
    return alternatives[min(place, len(alternatives) - 1)]
