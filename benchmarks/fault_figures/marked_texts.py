r"""Texts to measure the detectors of private values on: one line a text, `[[...]]` round the value that has to be found.

The `second_*` files in `texts/` were written by a person who had not read the patterns. Their values are made up, and wherever a number
has a check digit, it is right. A line that starts with `# ` names the subject of the lines below it. `\n`, `\t` and `\uXXXX` stand for the
characters they name. Each key has one character written that way, so that a scanner of pushed files does not take a made-up key for a
real one.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "texts"
_ESCAPE: Final = re.compile(r"\\(?:u(?P<code>[0-9a-f]{4})|(?P<letter>[nt]))")
_MARK: Final = re.compile(r"\[\[(.+?)\]\](?!\])", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t"}


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text without its marks; `text[start:end]` is the private value, and both are 0 where the text holds none."""

    subject: str
    text: str
    start: int = 0
    end: int = 0

    @property
    def value(self) -> str:
        return self.text[self.start : self.end]


def marked_texts(name: str) -> list[MarkedText]:
    """Read `texts/{name}.txt`, in which every text marks one value; raise `ValueError` for a text that does not."""
    return [_without_marks(subject, text) for subject, text in _lines(name)]


def harmless_texts(name: str) -> list[MarkedText]:
    """Read `texts/{name}.txt`, in which no text holds a private value: `[[` means itself there."""
    return [MarkedText(subject, text) for subject, text in _lines(name)]


def _lines(name: str) -> list[tuple[str, str]]:
    subject, found = "", []
    for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("# "):
            subject = line[2:]
        elif line:
            found.append((subject, _ESCAPE.sub(_character, line)))
    return found


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape["code"], 16)) if escape["code"] else _LETTERS[escape["letter"]]


def _without_marks(subject: str, text: str) -> MarkedText:
    marks = list(_MARK.finditer(text))
    if len(marks) != 1:
        raise ValueError(f"a text under {subject!r} marks {len(marks)} values instead of one: {text!r}")
    mark = marks[0]
    start = mark.start()
    return MarkedText(subject, text[:start] + mark[1] + text[mark.end() :], start, start + len(mark[1]))
