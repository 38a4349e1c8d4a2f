"""A text in which an answer is to be found, and the parts of it: sentences, formulas, blocks, the value that a line begins with.

Every repetition in a pattern is bounded, and the weaker rules read only the end of a text: the time does not grow faster than the text.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...protocols import JsonSchema
from ..task.decisions import AnswerSource, ExtractedAnswer
from .forms import is_value

REACH: Final = 2_000
"""Characters at the end of a text in which the weaker rules look."""
LONGEST_ANSWER: Final = 400
"""Characters of an answer that is marked as one; a longer one is no answer but a text."""
_ASIDE: Final = re.compile(
    r"(?:,\s{1,3}(?:not|which|because|since|as|so|where|but|and|if|when|et|und|y)\b|\s(?:because|since|weil|car|porque)\b"
    r"|[.!?]\s{1,3}(?=\S)|[.!?]?[*_]{2}\s{1,3}(?=[A-Z])|\s[\[<]/)"
)
"""The beginning of words behind an answer that do not belong to it."""
_LEADING: Final = re.compile(
    r"(?:thus|therefore|hence|then|simply|just|indeed|also|so|donc|also|daher|now|option|choice)[:,]?\s{1,3}", re.IGNORECASE
)
SPAN: Final = re.compile(
    r"\*\*([^*\n]{1,200})\*\*|`([^`\n]{1,400})`|\\\(([^\n]{1,300}?)\\\)|\$\$?([^$\n]{1,300})\$\$?|\\\[([^\n]{1,300}?)\\\]"
)
DISPLAY: Final = re.compile(r"\$\$([^$]{1,400})\$\$|\\\[([^\\\]]{0,3}(?:\\[^\]]|[^\\]){1,400}?)\\\]")
FENCE: Final = re.compile(r"```[\w+-]{0,20}[ \t]{0,3}\n([^`]{1,2000}?)\n?[ \t]{0,4}```")
_OFFERED: Final = re.compile(r"(?:^|[\s(])\(?([A-J])[).:][ \t]{1,4}([^\n(]{1,200})", re.MULTILINE)
_SENTENCE: Final = re.compile(r"\n{1,9}|(?<=[.!?])\s{1,3}(?=[A-ZÄÖÜÉ*`$\\(¿])|(?<=[.!?]\*\*)\s{1,3}")
_CLOSING: Final = re.compile(
    r"(?:let me know|i hope|hope|feel free|please|if you|thanks?|do you|would you|shall i|is there|note that|note:|check:|"
    r"(?:this|we|you|which) can (?:be )?(?:verif|check)|verif|checking\b|to (?:verify|check))",
    re.IGNORECASE,
)
COMES_TO: Final = re.compile(
    r"(?:\b(?:is|are|be|was|equals?|returns?|outputs?|prints?|comes (?:out )?(?:to|as)|makes?|get|gives?|yields?|have|becomes?|amounts? to|"
    r"leaves?(?: us with)?|obtain|find|reach(?:es)?|arrive at|works out (?:to|as)|adds? up to|sums? to|evaluates? to|results? in|produces?|"
    r"takes?|lasts?|costs?|weighs?|namely|hence|thus|therefore|so|ist|ergibt|beträgt|est|vaut|donne|es|son|da)\b|(?<![=<>!])==?|(?<!\d)(?<!\d\s):|≈|=>|[⇒→∴]|\bi\.e\.,?\s)[*\s]{0,4}",
    re.IGNORECASE,
)
_EQUALITIES: Final = re.compile(
    r"[=≈]\s{0,3}[^\s=≈][^=≈]{0,80}?(?:[,;]|\s(?:and|or|und|oder|et|ou|y|o)\s|\\quad|\\text\s?\{)[\s}]{0,5}(?:and\s|or\s)?[^\W\d]\w{0,10}\s{0,3}[=≈]"
)
"""Two equalities that are only right together: `x = 5, y = 3`."""
_BRACKETS: Final = {"[": "]", "(": ")", "{": "}"}
_OPENING: Final = "[({'\""


@dataclass(frozen=True)
class Reply:
    """A text, the question that it answers, and the parts that several rules read."""

    text: str
    prompt: str
    schema: JsonSchema | None

    @cached_property
    def end(self) -> str:
        """Its end."""
        return self.text[-REACH:].strip()

    @cached_property
    def first_line(self) -> str:
        """Its first line."""
        return self.text[:REACH].lstrip().split("\n", 1)[0]

    @cached_property
    def sentences(self) -> list[str]:
        """The last sentences, the last one first, without such as only take leave."""
        found = [sentence.strip() for sentence in _SENTENCE.split(self.end) if sentence.strip()]
        kept = [sentence for sentence in found if not _CLOSING.match(sentence.strip("*_ ")) and not sentence.endswith("?")]
        return kept[::-1][:6]

    @cached_property
    def choices(self) -> dict[str, str]:
        """The prompt's choices by their letters; empty if it offers none."""
        offered = {found[1]: found[2].strip(" .;,*").casefold() for found in _OFFERED.finditer(self.prompt)}
        return offered if {"A", "B"} <= offered.keys() else {}


def taken(source: AnswerSource, text: str | None) -> ExtractedAnswer | None:
    return None if text is None else ExtractedAnswer(source=source, text=text)


def settled(text: str) -> str:
    """Return what an equation or a clause comes to, if that is a value; else the text itself."""
    if _EQUALITIES.search(text) or (is_value(text) and ("=" not in text or text[0] in _OPENING)):
        return text
    tails = [right_side(text), *(value_at(text[verb.end() :].strip()) for verb in reversed(list(COMES_TO.finditer(text))[-4:]))]
    return next((tail for tail in tails if tail != text and is_value(tail)), text)


def right_side(formula: str) -> str:
    """Return what a formula comes to: the right side of its last equality; the formula itself if it states several."""
    if _EQUALITIES.search(formula):
        return formula
    right = re.split(r"(?<![=<>!])={1,2}|\\approx", formula)[-1].strip()
    return right or formula


def value_at(line: str) -> str:
    """Return the value that a line begins with, without words and marks that do not belong to it."""
    line = _LEADING.sub("", line, count=1) if _LEADING.match(line) else line
    literal = balanced(line) if line[:1] and line[0] in _OPENING else None
    if literal is not None and is_value(literal) and (line == literal or not line[len(literal)].isalnum()):
        return literal
    plain = line.replace("**", "").strip(" \t_").removesuffix(".")
    if is_value(plain):
        return plain
    span = SPAN.match(line)
    if span is not None:
        return next(group for group in span.groups() if group is not None)
    aside = _ASIDE.search(line)
    return (line if aside is None else line[: aside.start()]).replace("**", "").strip(" \t*_`").removesuffix(".").strip()


def balanced(text: str) -> str | None:
    """Return the bracketed or quoted value that a text begins with, up to its closing bracket or quote; None if it has none."""
    open_brackets: list[str] = []
    quote, is_escaped = "", False
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote and not is_escaped else quote
            is_escaped = character == "\\" and not is_escaped
        elif character in "'\"" and (text[0] in "'\"[(" or ":" in text[:40]):
            quote = character
        elif character in _BRACKETS:
            open_brackets.append(_BRACKETS[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        if not quote and not open_brackets:
            return text[: place + 1]
    return None
