"""Find the answer in a text: a field, a box, a line that is marked as the answer, a choice, a value that closes a solution.

Rules are tried from the surest to the weakest. Every repetition in a pattern is bounded, and weak rules read only the end of a text, so that
the time grows with the length of the text at most.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Final

from ...protocols import JsonSchema
from ..task.results import AnswerSource, ExtractedAnswer
from .forms import is_value
from .quantities import UNITS, UNSIGNED, date_of, quantity_of, truth_of

_REACH: Final = 2_000
"""Characters at the end of a text in which the weaker rules look."""
_LONGEST: Final = 400
"""Characters of an answer that is marked as one; a longer one is no answer but a text."""
_LONGEST_FIELD: Final = 100_000
_FIELDS: Final = ("answer", "final_answer", "finalanswer", "final", "result", "value", "solution", "output", "choice", "label", "response")
_REASONING: Final = ("reasoning", "explanation", "thought", "thoughts", "steps", "rationale", "analysis", "work")
_ANSWER_WORDS: Final = r"(?:answer|antwort|réponse|respuesta|risposta|resposta|antwoord)"
_RESULT_WORDS: Final = r"(?:result|solution|output|total|conclusion|ergebnis|lösung|ausgabe|résultat|resultado|solución|risultato)"
_VERBS: Final = r"(?:is|are|was|=|:|ist|lautet|sind|est|sont|es|son|è)"
_MARKED: Final = re.compile(
    rf"\b{_ANSWER_WORDS}\b(?:[ \t]{{1,3}}(?!{_VERBS}\s)[\w'-]{{1,20}}){{0,6}}?[ \t*_]{{0,6}}{_VERBS}(?![\w=])", re.IGNORECASE
)
"""`Answer:`, `the final answer to the question is`, `die Antwort lautet`."""
_LINE: Final = re.compile(
    rf"^[ \t>#*_\-]{{0,12}}(?:(?:the|my|our|die|das|la|le|el)[ \t])?(?:(?:final|correct)[ \t])?(?:{_ANSWER_WORDS}|{_RESULT_WORDS}|ans\.?|value|final)"
    r"(?:[ \t]\([^)\n]{1,40}\))?(?:[ \t](?:finale?|definitiva|is|ist|lautet|est|es))?[ \t*_]{0,6}(?:[:=]|$)|^####[ \t](?=[-$\d])",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that begins with `Result:`, or a heading that says `Final answer`."""
_TAGGED: Final = re.compile(r"[<\[](?:final[_ ])?answer[>\]](.{1,400}?)[<\[]/(?:final[_ ])?answer[>\]]", re.IGNORECASE | re.DOTALL)
_BOX: Final = re.compile(r"\\f?boxed\s{0,3}(\{|\w)")
_ASIDE: Final = re.compile(
    r"(?:,\s{1,3}(?:not|which|because|since|as|so|where|but|and|if|when|et|und|y)\b|\s(?:because|since|weil|car|porque)\b"
    r"|[.!?]\s{1,3}(?=\S)|[.!?]?[*_]{2}\s{1,3}(?=[A-Z])|\s[\[<]/)"
)
"""The beginning of words behind an answer that do not belong to it."""
_LEADING: Final = re.compile(r"(?:thus|therefore|hence|then|simply|just|indeed|also|so|donc|also|daher|now|option|choice)[:,]?\s{1,3}", re.IGNORECASE)
_SPAN: Final = re.compile(r"\*\*([^*\n]{1,200})\*\*|`([^`\n]{1,400})`|\\\(([^\n]{1,300}?)\\\)|\$\$?([^$\n]{1,300})\$\$?|\\\[([^\n]{1,300}?)\\\]")
_DISPLAY: Final = re.compile(r"\$\$([^$]{1,400})\$\$|\\\[([^\\\]]{0,3}(?:\\[^\]]|[^\\]){1,400}?)\\\]")
_FENCE: Final = re.compile(r"```[\w+-]{0,20}[ \t]{0,3}\n([^`]{1,2000}?)\n?[ \t]{0,4}```")
_OFFERED: Final = re.compile(r"(?:^|[\s(])\(?([A-J])[).:][ \t]{1,4}([^\n(]{1,200})", re.MULTILINE)
_CHOSEN: Final = re.compile(r"(?:\b(?:option|choice|letter)(?:\sis|:)?\s{1,3}|\()\**([A-J])\b\**\)?|(?:^|\s)\**([A-J])\)", re.MULTILINE)
_LETTER: Final = re.compile(r"[\s(*\[]{0,4}(?:(?:option|choice)\s)?\(?([A-J])(?:[).:\]*]{1,4}|$)", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"\n+|(?<=[.!?])\s{1,3}(?=[A-ZÄÖÜÉ*`$\\(¿])|(?<=[.!?]\*\*)\s{1,3}")
_CLOSING: Final = re.compile(
    r"(?:let me know|i hope|hope|feel free|please|if you|thanks?|do you|would you|shall i|is there|note that|note:|check:|(?:this|we|you|which) can (?:be )?(?:verif|check)|verif|checking\b|to (?:verify|check))", re.IGNORECASE
)
_WORKED: Final = re.compile(
    r"\b(?:therefore|thus|hence|so|total|equals?|altogether|conclude|conclusion|get|have|makes?|gives?|yields?|finally|comes to|end up|"
    r"returns?|outputs?|prints?|result|also|daher|insgesamt|ergibt|donc|luego|entonces)\b|=",
    re.IGNORECASE,
)
_WANTS_NUMBER: Final = re.compile(
    r"\b(?:how (?:many|much|long|far|old|tall|fast|often)|find|compute|calculate|evaluate|determine|solve|wie ?viele?|combien|cuánt[oa]s?|"
    r"what(?:'s| is| are| was)(?: the)?(?: [\w-]{1,20}){0,3} (?:value|sum|product|difference|ratio|number|amount|total|probability|percentage|"
    r"length|distance|perimeter|area|volume|radius|angle|measure|largest|smallest|greatest|least|larger|smaller|minimum|maximum|average|mean|"
    r"median|price|cost|speed|age|remainder))\b",
    re.IGNORECASE,
)
_FORMAL: Final = re.compile(r"\$[^$\n]{1,200}\$|\\[\[(]|```|\bdef \w|\bassert\b")
"""Formulas or code in a prompt."""
_WANTS_DATE: Final = re.compile(r"\b(?:when|what (?:date|day|time)|which (?:date|day)|on what|wann|quand|cuándo|at what time)\b", re.IGNORECASE)
_WANTS_TRUTH: Final = re.compile(
    r"(?:^|[.\n]\s{0,3})(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have|had|may|must)\b[^?\n]{1,400}\?", re.IGNORECASE
)
_DATES: Final = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}(?:st|nd|rd|th|\.)?\s(?:of\s)?[A-Za-zäé]{3,10}\.?,?\s\d{4}|[A-Z][a-zäé]{2,9}\.?\s\d{1,2}(?:st|nd|rd|th)?,?\s\d{4}"
    r"|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}:\d{2}(?:\s?[ap]\.?m\.?)?|\d{1,2}\s?[ap]\.?m\.?\b",
    re.IGNORECASE,
)
_COMES_TO: Final = re.compile(
    r"(?:\b(?:is|are|be|was|equals?|returns?|outputs?|prints?|comes (?:out )?(?:to|as)|makes?|get|gives?|yields?|have|becomes?|amounts? to|"
    r"leaves?(?: us with)?|obtain|find|reach(?:es)?|arrive at|works out (?:to|as)|adds? up to|sums? to|evaluates? to|results? in|produces?|"
    r"namely|ist|ergibt|beträgt|est|vaut|donne|es|son|da)\b|==?|:|≈|=>|[⇒→∴]|\bi\.e\.,?\s)[*\s]{0,4}",
    re.IGNORECASE,
)
_SYMBOL_UNITS: Final = "|".join(sorted((re.escape(unit) for unit in UNITS if unit != "in"), key=len, reverse=True))
_QUANTITIES: Final = re.compile(
    rf"(?<![\w.,])(?:[-+−]?[$€£¥]?\s?[-+−]?)(?:(?:\d{{1,9}}\s)?\d{{1,9}}/\d{{1,9}}|{UNSIGNED})(?:\s?(?:thousand|million|billion)\b)?"
    rf"(?:\s?(?:{_SYMBOL_UNITS})(?![\w/^]))?(?![\w]|[.,]\d)"
)
_EMPTY: Final = re.compile(r"(?:right|wrong|correct|incorrect|as follows|below|above|that|given)\b(?!\s{0,3}$)", re.IGNORECASE)
"""Words behind `the answer is` after which no answer follows."""
_FIRST_WORD: Final = re.compile(r"[\s*_\"']{0,6}([^\W\d_]{2,10})\b[*_]{0,3}(?=[,.:;!\s]|$)")
_CONCLUDES: Final = re.compile(r"[*_\s]{0,4}(?:therefore|thus|hence|so|finally|in conclusion|consequently|daher|also|donc|luego|since)\b", re.IGNORECASE)
_COPULA: Final = re.compile(r"\b(?:is|are|was|were|ist|war|est|était|es|fue)\b", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2,40}")
_AFTER_BLOCK: Final = 300
"""Characters behind a block of code up to which it still closes the text."""
_AFTER_FORMULA: Final = 3
_FEW_WORDS: Final = 6
_MOST_WORDS: Final = 8
_SMALL_WORDS: Final = ("one", "no", "a")
"""Words that seldom are the value that a sentence comes to."""
_FORMULA_PART: Final = re.compile(r"[-+−*/^=×·]|-?[a-z]|.{0,60}[\d√π∞].{0,60}")
_CODE: Final = re.compile(r"```|\bdef \w|\bassert\b")
_SAYS: Final = re.compile(
    r"(?:\b(?:returns?|outputs?|prints?|produces?|evaluates? to|results? in)\b(?!\s(?:of|is|the|will|would|from))"
    r"|\b(?:output|result|value|return value|string|list|dictionary|ausgabe|ergebnis)\b[^.:=]{0,40}?\s(?:is|will be|would be|becomes|ist)\b|==)",
    re.IGNORECASE,
)
"""Words after which a program's output follows."""
_LEAST_WORDS: Final = 4
_ECHO: Final = 0.6
"""Share of the words before the verb that the prompt has, too."""
_BRACKETS: Final = {"[": "]", "(": ")", "{": "}"}
_OPENING: Final = "[({'\""


@dataclass(frozen=True)
class _Reply:
    """A text, the question that it answers, and the parts that several rules read."""

    text: str
    prompt: str
    schema: JsonSchema | None

    @cached_property
    def end(self) -> str:
        """Its end."""
        return self.text[-_REACH:].strip()

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


def extract(text: str, *, prompt: str = "", schema: JsonSchema | None = None) -> ExtractedAnswer:
    """Return the answer that stands in a text; the whole text where none can be told from the rest.

    Args:
        prompt: the question. It tells which choices there are, and what kind of answer is asked for.
        schema: of the task's output.
    """
    reply = _Reply(text, prompt, schema)
    for rule in _RULES:
        found = rule(reply)
        if found is not None and found.text.strip():
            return found.model_copy(update={"text": _as_choice(found.text.strip(), reply.choices)})
    return ExtractedAnswer(source=AnswerSource.TEXT, text=text)


def answer_field(schema: JsonSchema) -> str | None:
    """Return the name of the field that holds the answer: the only required one, the only one, or the only one with such a name."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return None
    names = [name for name in required if name in properties] if isinstance(required, list) else []
    for candidates in (names, list(properties), [name for name in properties if name.casefold() in _FIELDS]):
        if len(candidates) == 1:
            return str(candidates[0])
    return None


def _field(reply: _Reply) -> ExtractedAnswer | None:
    """Find the schema's field. Without a schema: the only field with such a name in an object that holds reasoning, too."""
    found = _object(reply.text)
    if found is None:
        return None
    if reply.schema is not None:
        name = answer_field(reply.schema)
        return _taken(AnswerSource.FIELD, json.dumps(found)) if name not in found else _field_value(found, str(name))
    named = [name for name in found if name.casefold() in _FIELDS]
    has_reasoning = any(name.casefold() in _REASONING for name in found)
    return _field_value(found, named[0]) if len(named) == 1 and has_reasoning else None


def _object(text: str) -> Mapping[str, object] | None:
    fenced = _FENCE.fullmatch(text.strip())
    stripped = fenced[1].strip() if fenced is not None else text.strip()
    if not stripped.startswith("{") or len(stripped) > _LONGEST_FIELD:
        return None
    try:
        found = json.loads(stripped)
    except (ValueError, RecursionError):  # it is no JSON
        return None
    return found if isinstance(found, dict) else None


def _field_value(found: Mapping[str, object], name: str) -> ExtractedAnswer:
    value = found[name]
    return ExtractedAnswer(source=AnswerSource.FIELD, text=value if isinstance(value, str) else json.dumps(value), name=name)


def _taken(source: AnswerSource, text: str | None) -> ExtractedAnswer | None:
    return None if text is None else ExtractedAnswer(source=source, text=text)


def _boxed(reply: _Reply) -> ExtractedAnswer | None:
    """Find the content of the last box, whose braces may be nested."""
    *_, last = [None, *_BOX.finditer(reply.text)]
    if last is None:
        return None
    if last[1] != "{":
        return _taken(AnswerSource.BOXED, last[1])
    inside = _balanced(reply.text[last.start(1) :][:_REACH])
    return _taken(AnswerSource.BOXED, None if inside is None else inside[1:-1])


def _balanced(text: str) -> str | None:
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


def _whole(reply: _Reply) -> ExtractedAnswer | None:
    """Take a text that is a value by itself."""
    return _taken(AnswerSource.TEXT, reply.text) if is_value(reply.text) else None


def _marked(reply: _Reply) -> ExtractedAnswer | None:
    """Find the answer behind the last mark: a tag, a line such as `Answer: 42`, or `the answer is 42`."""
    tagged = [found[1] for found in _TAGGED.finditer(reply.text)]
    if tagged:
        return _taken(AnswerSource.ANSWER_LINE, tagged[-1])
    for pattern in (_LINE, _MARKED):
        for mark in reversed(list(pattern.finditer(reply.text))[-5:]):
            found = _behind(reply.text[mark.end() :][:_REACH])
            if found is not None:
                return _taken(AnswerSource.ANSWER_LINE, found)
    return None


def _behind(text: str) -> str | None:
    """Return the answer at the beginning of what follows a mark: a block, a formula, or the rest of a line."""
    rest = text.lstrip(" \t\r\n*_:#>")
    for pattern in (_FENCE, _DISPLAY):
        block = pattern.match(rest)
        if block is not None:
            return next(group for group in block.groups() if group is not None)
    marked = text.lstrip(" \t\r\n_:#>")
    line = (marked if _SPAN.match(marked) else rest).split("\n", 1)[0].strip()
    found = _value_at(line) if line.startswith("`") else _settled(_value_at(line))
    return None if not found or len(found) > _LONGEST or _EMPTY.match(found) else found


def _settled(text: str) -> str:
    """Return what an equation or a clause comes to, if that is a value; else the text itself."""
    if is_value(text) and ("=" not in text or text[0] in _OPENING):
        return text
    tails = [_right_side(text), *(_value_at(text[verb.end() :].strip()) for verb in reversed(list(_COMES_TO.finditer(text))[-4:]))]
    return next((tail for tail in tails if tail != text and is_value(tail)), text)


def _value_at(line: str) -> str:
    """Return the value that a line begins with, without words and marks that do not belong to it."""
    line = _LEADING.sub("", line, count=1) if _LEADING.match(line) else line
    literal = _balanced(line) if line[:1] and line[0] in _OPENING else None
    if literal is not None and is_value(literal) and (line == literal or not line[len(literal)].isalnum()):
        return literal
    plain = line.replace("**", "").strip(" \t_").removesuffix(".")
    if is_value(plain):
        return plain
    span = _SPAN.match(line)
    if span is not None:
        return next(group for group in span.groups() if group is not None)
    aside = _ASIDE.search(line)
    return (line if aside is None else line[: aside.start()]).replace("**", "").strip(" \t*_`").removesuffix(".").strip()


def _choice(reply: _Reply) -> ExtractedAnswer | None:
    """Find the letter of a choice that the prompt offers, or yes or no where it asks for it."""
    if not reply.choices:
        said = _FIRST_WORD.match(reply.text)
        truth = None if said is None else truth_of(said[1])
        return _taken(AnswerSource.CHOICE, truth) if _WANTS_TRUTH.search(reply.prompt[-_REACH:]) else None
    first = _LETTER.match(reply.text)
    if first is not None and first[1].isupper() and first[1] in reply.choices:
        return _taken(AnswerSource.CHOICE, first[1])
    for sentence in reply.sentences:
        letters = [found[1] or found[2] for found in _CHOSEN.finditer(sentence)]
        chosen = [letter for letter in letters if letter in reply.choices]
        if chosen:
            return _taken(AnswerSource.CHOICE, chosen[-1])
    return None


def _as_choice(text: str, choices: Mapping[str, str]) -> str:
    """Return the letter of the choice that an answer names or repeats; the answer itself if it is none."""
    if not choices:
        return text
    letter = _LETTER.match(text)
    if letter is not None and letter[1].upper() in choices:
        return letter[1].upper()
    plain = text.strip(" .;,*").casefold()
    return next((letter for letter, choice in choices.items() if choice == plain), text)


def _date(reply: _Reply) -> ExtractedAnswer | None:
    """Find the date or time in the closing sentences, where the prompt asks for one."""
    if not _WANTS_DATE.search(reply.prompt[-_REACH:]):
        return None
    for sentence in reply.sentences:
        found = [match[0] for match in _DATES.finditer(sentence) if date_of(match[0]) is not None]
        if found:
            return _taken(AnswerSource.DATE, found[-1])
    return None


def _code_block(reply: _Reply) -> ExtractedAnswer | None:
    """Find the value in a closing block of code, which may be the right side of an assertion."""
    *_, last = [None, *_FENCE.finditer(reply.end)]
    if last is None or len(reply.end) - last.end() > _AFTER_BLOCK:
        return None
    inside = last[1].strip()
    is_assertion = "assert" in inside and "==" in inside
    if not is_value(inside):
        inside = inside.rsplit("\n", 1)[-1].rpartition("==")[2].strip()
    closes = last.end() == len(reply.end) and "\n" not in last[1].strip() and _is_solution(reply)
    return _taken(AnswerSource.CODE_BLOCK, inside if closes or is_assertion or is_value(inside) else None)


def _emphasis(reply: _Reply) -> ExtractedAnswer | None:
    """Find a value set off from the text: on the last or the first line by itself, in bold, in code, or in a formula."""
    if len(_WORD.findall(reply.text[:_REACH])) < _LEAST_WORDS or not reply.sentences:
        return None
    is_solution = _is_solution(reply)
    return _taken(AnswerSource.EMPHASIS, _alone(reply, is_solution=is_solution) or _set_off(reply, is_solution=is_solution))


def _alone(reply: _Reply, *, is_solution: bool) -> str | None:
    lines = [line.strip() for line in reply.text.strip().split("\n")]
    if len(lines) == 1:
        return None
    first = lines[0].strip("*$ ")
    coded = _SPAN.fullmatch(first)
    if coded is not None and coded[2] is not None and is_solution:
        return coded[2]
    *_, display = [None, *_DISPLAY.finditer(reply.end)]
    if display is not None and len(reply.end) - display.end() <= _AFTER_FORMULA:
        return _right_side((display[1] or display[2]).strip())
    last = reply.sentences[0].strip("*`$ ").removesuffix(".")
    value = next((line for line in (last, first.strip("`")) if is_value(line)), None)
    leads_there = is_solution and lines[-2] == "" and lines[-3:-2] and lines[-3][-1:].isalpha() and lines[-1] != lines[0]
    return lines[-1] if value is None and leads_there and len(lines[-1]) <= _LONGEST else value


def _set_off(reply: _Reply, *, is_solution: bool) -> str | None:
    closing = reply.sentences[0]
    spans = list(_SPAN.finditer(closing))
    if not spans or not (is_solution or len(list(_SPAN.finditer(reply.end))) == 1):
        return None
    inside = _right_side(next(group for group in spans[-1].groups() if group is not None).strip())
    if is_value(inside):
        return inside
    is_short = spans[-1][2] is not None or (spans[-1][1] is not None and len(inside.split()) <= _FEW_WORDS)
    return inside if is_solution and is_short and not inside.endswith(":") else None


def _right_side(formula: str) -> str:
    """Return what a formula comes to: the right side of its last equality."""
    right = re.split(r"(?<![=<>!])={1,2}|\\approx", formula)[-1].strip()
    return right or formula


def _closing(reply: _Reply) -> ExtractedAnswer | None:
    """Find what the last sentence of a solution comes to, else the last number of one before."""
    if not _is_solution(reply):
        return None
    is_code = _CODE.search(reply.prompt[:_REACH]) is not None or _CODE.search(reply.prompt[-_REACH:]) is not None
    for sentence in reply.sentences[: 1 if is_code else 3]:
        *_, said = [None, *_SAYS.finditer(sentence)]
        if said is None and is_code and len(reply.sentences) == 1:
            return None
        value = _worth(sentence) if said is None or not is_code else _value_at(sentence[said.end() :].strip())
        if value:
            return _taken(AnswerSource.ENTITY if quantity_of(value) is None else AnswerSource.NUMBER, value)
    return None


def _worth(sentence: str) -> str | None:
    """Return the value that a sentence comes to, its last number, or the few words that a conclusion ends with."""
    tails = [sentence[verb.end() :].strip() for verb in reversed(list(_COMES_TO.finditer(sentence))[-4:])]
    value = next((found for tail in tails if (found := _leading_value(tail)) is not None), None)
    if value is None:
        value = next((found[0].strip() for found in reversed(list(_QUANTITIES.finditer(sentence)))), None)
    if value is None and tails and _CONCLUDES.match(sentence):
        words = _value_at(tails[0])
        value = words if len(words.split()) <= _FEW_WORDS else None
    return value


def _leading_value(text: str) -> str | None:
    """Return the value that a text is or begins with, the longest one of at most eight words."""
    whole = _value_at(text)
    if is_value(whole):
        return whole
    words = text.split(" ", _MOST_WORDS)[:_MOST_WORDS]
    run = list(takewhile(_is_formula_part, words))
    prefixes = (" ".join(run[:count]).strip("*_,;$ ").removesuffix(".") for count in range(len(run), 0, -1))
    return next((prefix for prefix in prefixes if is_value(prefix) and prefix.casefold() not in _SMALL_WORDS), None)


def _is_formula_part(word: str) -> bool:
    plain = word.strip("*_,;.$")
    return _FORMULA_PART.fullmatch(plain) is not None or (plain in UNITS and plain != "in")


def _entity(reply: _Reply) -> ExtractedAnswer | None:
    """Find the name in a single sentence that repeats the question before it: `The capital of France is Paris.`"""
    if len(reply.sentences) != 1 or len(reply.text) > _LONGEST:
        return None
    *_, verb = [None, *_COPULA.finditer(reply.sentences[0])]
    if verb is None:
        return None
    said = set(_WORD.findall(reply.sentences[0][: verb.start()].casefold()))
    name = _value_at(reply.sentences[0][verb.end() :].strip())
    repeats = bool(said) and len(said & set(_WORD.findall(reply.prompt.casefold()))) >= _ECHO * len(said)
    return _taken(AnswerSource.ENTITY, name if repeats and 0 < len(name.split()) <= _FEW_WORDS else None)


def _is_solution(reply: _Reply) -> bool:
    """Return True for prose that works towards a value, by the question and its closing sentences."""
    if len(_WORD.findall(reply.text[:_REACH])) < _LEAST_WORDS:
        return False
    if _WANTS_NUMBER.search(reply.prompt[:_REACH]) or _WANTS_NUMBER.search(reply.prompt[-_REACH:]):
        return True
    if _FORMAL.search(reply.prompt[:_REACH]) or _FORMAL.search(reply.prompt[-_REACH:]):
        return True
    is_exact = not reply.prompt or any(character.isdigit() for character in reply.prompt)
    return is_exact and _WORKED.search(" ".join(reply.sentences[:2])) is not None


_RULES: Final[tuple[Callable[[_Reply], ExtractedAnswer | None], ...]] = (
    _field,
    _boxed,
    _whole,
    _marked,
    _choice,
    _date,
    _code_block,
    _emphasis,
    _closing,
    _entity,
)
"""From the surest to the weakest."""
