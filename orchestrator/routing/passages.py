"""A text in which an answer is to be found: its parts, and the value that a worked solution comes to.

Every repetition in a pattern is bounded, and the weaker rules read only the end of a text: the time does not grow faster than the text.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Final

from ...protocols import JsonSchema
from ..task.decisions import AnswerSource, ExtractedAnswer
from .forms import is_value
from .quantities import UNITS, UNSIGNED, quantity_of

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
_WORKED: Final = re.compile(
    r"\b(?:therefore|thus|hence|so|total|equals?|altogether|conclude|conclusion|get|have|makes?|gives?|yields?|finally|comes to|end up|"
    r"returns?|outputs?|prints?|result|also|daher|insgesamt|ergibt|donc|luego|entonces)\b|=",
    re.IGNORECASE,
)
_WANTS_NUMBER: Final = re.compile(
    r"\b(?:how (?:many|much|long|far|old|tall|fast|often)|find|compute|calculate|evaluate|determine|solve|wie ?viele?|combien|cuánt[oa]s?|"
    r"what(?:'s| is| are| was)(?: the)?(?: [\w-]{1,20}){0,3} (?:value|sum|product|difference|ratio|number|amount|total|probability|"
    r"percentage|length|distance|perimeter|area|volume|radius|angle|measure|largest|smallest|greatest|least|larger|smaller|minimum|maximum|average|mean|"
    r"median|price|cost|speed|age|remainder))\b",
    re.IGNORECASE,
)
_FORMAL: Final = re.compile(r"\$[^$\n]{1,200}\$|\\[\[(]|```|\bdef \w|\bassert\b")
"""Formulas or code in a prompt."""
_SYMBOL_UNITS: Final = "|".join(sorted((re.escape(unit) for unit in UNITS if unit != "in"), key=len, reverse=True))
_QUANTITIES: Final = re.compile(
    rf"(?<![\w.,])(?:(?:minus|negative)\s)?(?:[-+−]?[$€£¥]?\s?[-+−]?)(?:(?:\d{{1,9}}\s)?\d{{1,9}}/\d{{1,9}}|{UNSIGNED})(?:\s?(?:thousand|million|billion)\b)?"
    rf"(?:\s?(?:{_SYMBOL_UNITS})(?![\w/^]))?(?![\w]|[.,]\d)"
)
_CONCLUDES: Final = re.compile(
    r"[*_\s]{0,4}(?:therefore|thus|hence|so|finally|in conclusion|consequently|daher|also|donc|luego|since)\b", re.IGNORECASE
)
_COPULA: Final = re.compile(r"\b(?:is|are|was|were|ist|war|est|était|es|fue)\b", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2,40}")
_AFTER_BLOCK: Final = 300
"""Characters behind a block of code up to which it still closes the text."""
_AFTER_FORMULA: Final = 3
_FEW_WORDS: Final = 6
_MOST_WORDS: Final = 8
_BEFORE: Final = 40
_JOINED: Final = re.compile(r"\d(?:\S{0,12}|\s\S{1,12})\s{1,2}(?:and|or|to|und|oder|bis|et|ou|à|y|o)\s{1,2}(?:[\w(]{1,4}\s{0,2}=\s{0,2})?$")
"""A number, and a word that joins it to the next one."""
_SMALL_WORDS: Final = ("one", "no", "a")
"""Words that seldom are the value that a sentence comes to."""
_FORMULA_PART: Final = re.compile(r"[-+−*/^=×·]|-?[a-z]|.{0,60}[\d√π∞].{0,60}")
_CODE: Final = re.compile(r"```|\bdef \w|\bassert\b")
_SAYS: Final = re.compile(
    r"(?:\b(?:returns?|outputs?|prints?|produces?|evaluates? to|results? in)\b(?!\s(?:of|is|the|will|would|from))"
    r"|\b(?:output|result|value|string|list|dictionary|ausgabe|ergebnis)\b[^.:=]{0,40}?\s(?:is|will be|would be|becomes|ist)\b|==)",
    re.IGNORECASE,
)
"""Words after which a program's output follows."""
_EACH: Final = re.compile(r"\b(is|are|has|have|was|were)\s\S{0,3}\d[^.;]{0,40}?\b(?:and|but|while)\b[^.;]{1,40}?\b\1\s\S{0,3}\d")
"""Two things of which a value is told: `Ann has 5 and Bob has 7`."""
_DENIES: Final = re.compile(r"(?:\b(?:not|never|cannot|nicht|kein\w{0,2}|pas)|n['’]t)(?:\s\S{1,20}){0,2}\s{0,3}$", re.IGNORECASE)
"""Words before a value that deny it."""
_LEAST_WORDS: Final = 4
_ECHO: Final = 0.6
"""Share of the words before the verb that the prompt has, too."""


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


def code_block(reply: Reply) -> ExtractedAnswer | None:
    """Find the value in a closing block of code, which may be the right side of an assertion."""
    *_, last = [None, *FENCE.finditer(reply.end)]
    if last is None or len(reply.end) - last.end() > _AFTER_BLOCK:
        return None
    if _SAYS.search(reply.end, last.end()):
        return None  # the result stands behind the block
    inside = last[1].strip()
    is_assertion = "assert" in inside and "==" in inside
    if not is_value(inside):
        inside = inside.rsplit("\n", 1)[-1].rpartition("==")[2].strip()
    closes = last.end() == len(reply.end) and "\n" not in last[1].strip() and _is_solution(reply)
    return taken(AnswerSource.CODE_BLOCK, inside if closes or is_assertion or is_value(inside) else None)


def emphasis(reply: Reply) -> ExtractedAnswer | None:
    """Find a value set off from the text: on the last or the first line by itself, in bold, in code, or in a formula."""
    if len(_WORD.findall(reply.text[:REACH])) < _LEAST_WORDS or not reply.sentences:
        return None
    is_solution = _is_solution(reply)
    return taken(AnswerSource.EMPHASIS, _alone(reply, is_solution=is_solution) or _set_off(reply, is_solution=is_solution))


def _alone(reply: Reply, *, is_solution: bool) -> str | None:
    lines = [line.strip() for line in reply.text.strip().split("\n")]
    if len(lines) == 1:
        return None
    first = lines[0].strip("*$ ")
    coded = SPAN.fullmatch(first)
    if coded is not None and coded[2] is not None and is_solution:
        return coded[2]
    *_, display = [None, *DISPLAY.finditer(reply.end)]
    if display is not None and len(reply.end) - display.end() <= _AFTER_FORMULA:
        return right_side((display[1] or display[2]).strip())
    last = reply.sentences[0].strip("*`$ ").removesuffix(".")
    value = next((line for line in (last, first.strip("`")) if is_value(line)), None)
    leads_there = is_solution and lines[-2] == "" and lines[-3:-2] and lines[-3][-1:].isalpha() and lines[-1] != lines[0]
    return lines[-1] if value is None and leads_there and len(lines[-1]) <= LONGEST_ANSWER else value


def _set_off(reply: Reply, *, is_solution: bool) -> str | None:
    closing = reply.sentences[0]
    spans = list(SPAN.finditer(closing))
    if not spans or not (is_solution or len(list(SPAN.finditer(reply.end))) == 1):
        return None
    inside = right_side(next(group for group in spans[-1].groups() if group is not None).strip())
    if is_value(inside):
        return inside
    is_short = spans[-1][2] is not None or (spans[-1][1] is not None and len(inside.split()) <= _FEW_WORDS)
    return inside if is_solution and is_short and not inside.endswith(":") else None


def closing(reply: Reply) -> ExtractedAnswer | None:
    """Find what the last sentence of a solution comes to, else the last number of one before."""
    if not _is_solution(reply):
        return None
    is_code = _CODE.search(reply.prompt[:REACH]) is not None or _CODE.search(reply.prompt[-REACH:]) is not None
    for sentence in reply.sentences[: 1 if is_code else 3]:
        *_, said = [None, *_SAYS.finditer(sentence)]
        if said is None and is_code and len(reply.sentences) == 1:
            return None
        value = _worth(sentence) if said is None or not is_code else value_at(sentence[said.end() :].strip())
        if value:
            return taken(AnswerSource.ENTITY if quantity_of(value) is None else AnswerSource.NUMBER, value)
    return None


def _worth(sentence: str) -> str | None:
    """Return the value that a sentence comes to, its last number, or the few words that a conclusion ends with."""
    tails = [sentence[verb.end() :].strip() for verb in list(COMES_TO.finditer(sentence))[-4:]]
    value = next((found for tail in reversed(tails) if (found := _leading_value(tail)) is not None), None)
    if value is None:
        value = next((found[0].strip() for found in reversed(list(_QUANTITIES.finditer(sentence)))), None)
    if value is not None and (_EACH.search(sentence) or _DENIES.search(sentence[: max(sentence.rfind(value), 0)][-_BEFORE:])):
        return sentence
    if value is not None and _JOINED.search(sentence[: max(sentence.rfind(value), 0)][-_BEFORE:]):
        return value_at(tails[0]) if tails else sentence  # several values are only right together
    if value is None and tails and _CONCLUDES.match(sentence):
        words = value_at(tails[-1])
        value = words if len(words.split()) <= _FEW_WORDS else None
    return value


def _leading_value(text: str) -> str | None:
    """Return the value that a text is or begins with, the longest one of at most eight words."""
    whole = value_at(text)
    if is_value(whole):
        return whole
    words = text.split(" ", _MOST_WORDS)[:_MOST_WORDS]
    run = list(takewhile(_is_formula_part, words))
    prefixes = (" ".join(run[:count]).strip("*_,;$ ").removesuffix(".") for count in range(len(run), 0, -1))
    return next((prefix for prefix in prefixes if is_value(prefix) and prefix.casefold() not in _SMALL_WORDS), None)


def _is_formula_part(word: str) -> bool:
    plain = word.strip("*_,;.$")
    return _FORMULA_PART.fullmatch(plain) is not None or (plain in UNITS and plain != "in")


def entity(reply: Reply) -> ExtractedAnswer | None:
    """Find the name in a single sentence that repeats the question before it: `The capital of France is Paris.`"""
    if len(reply.sentences) != 1 or len(reply.text) > LONGEST_ANSWER:
        return None
    *_, verb = [None, *_COPULA.finditer(reply.sentences[0])]
    if verb is None:
        return None
    said = set(_WORD.findall(reply.sentences[0][: verb.start()].casefold()))
    name = value_at(reply.sentences[0][verb.end() :].strip())
    repeats = bool(said) and len(said & set(_WORD.findall(reply.prompt.casefold()))) >= _ECHO * len(said)
    return taken(AnswerSource.ENTITY, name if repeats and 0 < len(name.split()) <= _FEW_WORDS else None)


def _is_solution(reply: Reply) -> bool:
    """Return True for prose that works towards a value, by the question and its closing sentences."""
    if len(_WORD.findall(reply.text[:REACH])) < _LEAST_WORDS:
        return False
    if _WANTS_NUMBER.search(reply.prompt[:REACH]) or _WANTS_NUMBER.search(reply.prompt[-REACH:]):
        return True
    if _FORMAL.search(reply.prompt[:REACH]) or _FORMAL.search(reply.prompt[-REACH:]):
        return True
    is_exact = not reply.prompt or any(character.isdigit() for character in reply.prompt)
    return is_exact and _WORKED.search(" ".join(reply.sentences[:2])) is not None
