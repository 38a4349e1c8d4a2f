"""Answers in a canonical form, so that answers that say the same compare equal; and where they are found in a text.

Rules that find an answer are tried from the surest to the weakest.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...protocols import JsonSchema, ToolCall
from ..task.decisions import AnswerSource, ExtractedAnswer
from .forms import is_value, text_form, value_form
from .passages import (
    DISPLAY,
    FENCE,
    LONGEST_ANSWER,
    REACH,
    SPAN,
    Reply,
    balanced,
    closing,
    code_block,
    emphasis,
    entity,
    settled,
    taken,
    value_at,
)
from .quantities import date_of, truth_of

_NO_CALL: Final = "no call"
_LONGEST_FIELD: Final = 100_000
_MARKS_REACH: Final = 16_000
"""Characters at the end of a text in which an answer is looked for that is marked as one."""
_ANSWERS: Final = ("answer", "final_answer", "result", "value", "solution")
"""Names of a field that say no more than that it is the answer."""
_REMARKS: Final = frozenset(
    """
    reasoning reason explanation thought thoughts steps rationale analysis work working why justification evidence confidence comment
    comments note notes sources citations
    """.split()  # noqa: SIM905 - a word a line would be twenty lines
)
"""Fields that only say something about the answer."""
_ANSWER_WORDS: Final = r"(?:answer|antwort|réponse|respuesta|risposta|resposta|antwoord)"
_RESULT_WORDS: Final = r"(?:result|solution|output|total|conclusion|ergebnis|lösung|ausgabe|résultat|resultado|solución|risultato)"
_VERBS: Final = r"(?:is|are|was|=|:|ist|lautet|sind|est|sont|es|son|è)"
_MARKED: Final = re.compile(
    rf"\b{_ANSWER_WORDS}\b(?:[ \t]{{1,3}}(?!{_VERBS}\s)[\w'-]{{1,20}}){{0,6}}?[ \t*_]{{0,6}}{_VERBS}(?![\w=])", re.IGNORECASE
)
"""`Answer:`, `the final answer to the question is`, `die Antwort lautet`."""
_LINE: Final = re.compile(
    rf"^[ \t>#*_\-]{{0,12}}(?:(?:the|my|our|die|das|la|le|el)[ \t])?(?:(?:final|correct)[ \t])?"
    rf"(?:{_ANSWER_WORDS}|{_RESULT_WORDS}|ans\.?|value|final)"
    r"(?:[ \t]\([^)\n]{1,40}\))?(?:[ \t](?:finale?|definitiva|is|ist|lautet|est|es))?[ \t*_]{0,6}(?:[:=]|$)|^####[ \t](?=[-$\d])",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that begins with `Result:`, or a heading that says `Final answer`."""
_TAGGED: Final = re.compile(r"[<\[](?:final[_ ])?answer[>\]](.{1,400}?)[<\[]/(?:final[_ ])?answer[>\]]", re.IGNORECASE | re.DOTALL)
_BOX: Final = re.compile(r"\\f?boxed\s{0,3}(\{|\w)")
_CHOSEN: Final = re.compile(
    r"(?:\b(?:option|choice|letter)(?:\sis|:)?\s{1,3}|\()\*{0,2}([A-J])\b\*{0,2}\)?|(?:^|\s)\*{0,2}([A-J])\)", re.MULTILINE
)
_LETTER: Final = re.compile(r"[\s(*\[]{0,4}(?:(?:option|choice)\s)?\(?([A-J])(?:[).:\]*]{1,4}|$)", re.IGNORECASE)
_WANTS_DATE: Final = re.compile(
    r"\b(?:when|what (?:date|day|time)|which (?:date|day)|on what|wann|quand|cuándo|at what time)\b", re.IGNORECASE
)
_WANTS_TRUTH: Final = re.compile(
    r"(?:^|[.\n]\s{0,3})(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have|had|may|must)\b[^?\n]{1,400}\?", re.IGNORECASE
)
_DATES: Final = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}(?:st|nd|rd|th|\.)?\s(?:of\s)?[A-Za-zäé]{3,10}\.?,?\s\d{4}|[A-Z][a-zäé]{2,9}\.?\s\d{1,2}(?:st|nd|rd|th)?,?\s\d{4}"
    r"|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}:\d{2}(?:\s?[ap]\.?m\.?)?|\d{1,2}\s?[ap]\.?m\.?\b",
    re.IGNORECASE,
)
_EMPTY: Final = re.compile(r"(?:right|wrong|correct|incorrect|as follows|below|above|that|given)\b(?!\s{0,3}$)", re.IGNORECASE)
"""Words behind `the answer is` after which no answer follows."""
_FIRST_WORD: Final = re.compile(
    r"[\s*_\"']{0,6}([^\W\d_]{2,10})\b[*_\"']{0,3}(?!,?\s(?:but|only|unless|if|provided)\b)"
    r"(?=[ ]?[,.:;!\n–—-]|\s{0,3}$|\s(?:it|he|she|they|we|you|i|there|this|that|these|those|the)\b)",
    re.IGNORECASE,
)
"""The first word, unless it belongs to the next one, `No doubt`, or holds under a condition: `Yes, but only if`."""
_RETRACTED: Final = re.compile(
    r"\b(?:wait|hmm|actually|correction|scratch that|on second thoughts?|i was wrong|my mistake|i made an? \w{2,12})\b|\n\s{0,3}no[,.!]",
    re.IGNORECASE,
)
"""Words behind an answer that take it back."""
_EXCLUDES: Final = re.compile(r"\b(?:not|except|neither|nor|cannot|wrong|incorrect|eliminated?|rule[sd]? out)\b|n['’]t\b", re.IGNORECASE)
_BETWEEN_BOXES: Final = re.compile(
    r"(?:[\s$,;&{}.]|\\(?:text|quad|mathrm|[,;() \[\]])|\b(?:and|or|und|oder|et|ou|y|o)\b){0,20}", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's answer in a canonical form: equal answers compare equal."""

    parts: tuple[str, ...]
    """One for each tool call, in no order; one for a text, or for calling none; empty where it says nothing."""
    tools: tuple[str, ...] = ()
    """It calls, once for each call, sorted."""
    bare: str | None = None
    """Its form without what others may leave out: `12` of `12 km` and of `x = 12`, a text without its quotation marks."""
    found: ExtractedAnswer | None = field(default=None, compare=False)
    """The part of the text that was taken as the answer; None for tool calls."""

    @classmethod
    def of_text(cls, text: str | None, *, prompt: str = "", schema: JsonSchema | None = None) -> "Answer":
        """Find and return the answer in a text. A JSON list of objects with `name` and `arguments` counts as the tool calls that it states.

        Args:
            prompt: the question; it tells which choices there are, and what kind of answer is asked for.
            schema: of the task's output; its field for the answer is taken.
        """

        if text is None or not text.strip():
            return cls(())
        stated = stated_calls(text)
        return cls.of_found(extract(text, prompt=prompt, schema=schema)) if stated is None else cls.of_calls(stated)

    @classmethod
    def of_found(cls, found: ExtractedAnswer) -> "Answer":
        """Return the answer of what was found in a text."""
        form, bare = text_form(found.text)
        return cls((form,), bare=bare, found=found)

    @classmethod
    def of_whole(cls, text: str | None) -> "Answer":
        """Return a whole text as the answer, whatever stands in it."""
        if text is None or not text.strip():
            return cls(())
        stated = stated_calls(text)
        return cls.of_calls(stated) if stated is not None else cls.of_found(ExtractedAnswer(source=AnswerSource.TEXT, text=text))

    @classmethod
    def of_calls(cls, calls: Sequence[ToolCall]) -> "Answer":
        """Return the answer of tool calls. An empty list says that no tool is needed."""
        if not calls:
            return cls((_NO_CALL,))
        return cls(tuple(sorted(_call_form(call) for call in calls)), tuple(sorted(call.name for call in calls)))

    def agrees(self, other: "Answer") -> bool:
        """Return True if both say the same. An empty answer agrees with none, not even with another empty one."""
        if not self.parts or not other.parts:
            return False
        return self.parts == other.parts or (self.bare,) == other.parts or self.parts == (other.bare,)

    def overlap(self, other: "Answer") -> float:
        """Return the share of the parts of both that they have in common (Jaccard); 1 if both are empty."""
        if self.agrees(other):
            return 1.0
        mine, theirs = Counter(self.parts), Counter(other.parts)
        either = (mine | theirs).total()
        return (mine & theirs).total() / either if either else 1.0


def agree(first: str | Sequence[ToolCall] | None, second: str | Sequence[ToolCall] | None) -> bool:
    """Return True if two answers say the same as a whole: nothing is looked for in a text.

    Texts are compared without regard to case, spacing, articles and decoration, numbers by their value (1,000 = 1000.0, 50 % = 1/2),
    quantities in the same unit (1.5 km = 1500 m), dates by the day, Python and JSON literals by their value. Tool calls are the same in
    any order where name and arguments are; in arguments, case makes no difference, nor does whether a number is written as an integer.
    """
    return _answer(first).agrees(_answer(second))


def _answer(given: str | Sequence[ToolCall] | None) -> Answer:
    return Answer.of_whole(given) if given is None or isinstance(given, str) else Answer.of_calls(given)


def stated_calls(text: str) -> list[ToolCall] | None:
    """Return the tool calls that a JSON text states, or None where it is something else."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
        keys = [entry.keys() >= {"name", "arguments"} for entry in found]
        return [ToolCall(id="call", name=entry["name"], arguments=entry["arguments"]) for entry in found] if keys and all(keys) else None
    except (ValueError, AttributeError, RecursionError):  # it is no JSON, or JSON of another kind
        return None


def _call_form(call: ToolCall) -> str:
    try:
        return f"{call.name}({value_form(call.arguments, is_exact=False)})"
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or nested too deeply
        return f"{call.name}(?)"


def extract(text: str, *, prompt: str = "", schema: JsonSchema | None = None) -> ExtractedAnswer:
    """Return the answer that stands in a text; the whole text where none can be told from the rest.

    Args:
        prompt: the question. It tells which choices there are, and what kind of answer is asked for.
        schema: of the task's output.
    """
    reply = Reply(text, prompt, schema)
    for rule in _RULES:
        found = rule(reply)
        if found is not None and found.text.strip():
            return found.model_copy(update={"text": _as_choice(found.text.strip(), reply.choices)})
    repeated = _as_choice(text.strip(), reply.choices)
    is_choice = repeated in reply.choices
    return ExtractedAnswer(source=AnswerSource.CHOICE, text=repeated) if is_choice else ExtractedAnswer(source=AnswerSource.TEXT, text=text)


def answer_field(schema: JsonSchema) -> str | None:
    """Return the name of the field that holds the answer: the only one beside remarks such as `reasoning` and `confidence`."""
    properties = schema.get("properties")
    names = list(_without_remarks(properties)) if isinstance(properties, dict) else []
    return names[0] if len(names) == 1 else None


def _without_remarks(found: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in found.items() if name.casefold() not in _REMARKS}


def _field(reply: Reply) -> ExtractedAnswer | None:
    """Find the schema's field, or all that are no remarks. Without a schema: those of an object with remarks, or with nothing else."""
    found = _object(reply.text)
    if found is None:
        return None
    said = _without_remarks(found)
    is_data = len(said) == len(found) and not (len(found) == 1 and next(iter(found)).casefold() in _ANSWERS)
    if reply.schema is None and is_data:
        return None
    name = next(iter(said), "") if reply.schema is None else answer_field(reply.schema)
    return _field_value(said, name) if len(said) == 1 and name in said else taken(AnswerSource.FIELD, json.dumps(said or found))


def _object(text: str) -> Mapping[str, object] | None:
    fenced = FENCE.fullmatch(text.strip())
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


def _boxed(reply: Reply) -> ExtractedAnswer | None:
    """Find the content of the last box, whose braces may be nested; with the one before, where only an `and` or `or` stands between."""
    *_, before, last = [None, None, *_BOX.finditer(reply.text)]
    if last is None:
        return None
    inside = _in_box(reply.text, last)
    if before is not None and inside is not None:
        first = _in_box(reply.text, before)
        end = before.start(1) + len(first or "")
        if first is not None and end <= last.start() and _BETWEEN_BOXES.fullmatch(reply.text[end : last.start()][:REACH]):
            return taken(AnswerSource.BOXED, reply.text[before.start() : last.start(1) + len(inside)])
    return taken(AnswerSource.BOXED, inside if inside is None or last[1] != "{" else inside[1:-1])


def _in_box(text: str, box: "re.Match[str]") -> str | None:
    return box[1] if box[1] != "{" else balanced(text[box.start(1) :][:REACH])


def _whole(reply: Reply) -> ExtractedAnswer | None:
    """Take a text that is a value by itself."""
    return taken(AnswerSource.TEXT, reply.text) if is_value(reply.text) else None


def _marked(reply: Reply) -> ExtractedAnswer | None:
    """Find the answer behind the last mark: a tag, a line such as `Answer: 42`, or `the answer is 42`."""
    text = reply.text[-_MARKS_REACH:]
    tagged = [found[1] for found in _TAGGED.finditer(text)]
    if tagged:
        return taken(AnswerSource.ANSWER_LINE, tagged[-1])
    for pattern in (_LINE, _MARKED):
        for mark in reversed(list(pattern.finditer(text))[-5:]):
            found = _behind(text[mark.end() :][:REACH])
            if found is not None:
                is_kept = _RETRACTED.search(text[mark.end() :][:REACH].partition(found)[2]) is None
                return taken(AnswerSource.ANSWER_LINE, found) if is_kept else None
    return None


def _behind(text: str) -> str | None:
    """Return the answer at the beginning of what follows a mark: a block, a formula, or the rest of a line."""
    rest = text.lstrip(" \t\r\n*_:#>")
    for pattern in (FENCE, DISPLAY):
        block = pattern.match(rest)
        if block is not None:
            return next(group for group in block.groups() if group is not None)
    marked = text.lstrip(" \t\r\n_:#>")
    line = (marked if SPAN.match(marked) else rest).split("\n", 1)[0].strip()
    found = value_at(line) if line.startswith("`") else settled(value_at(line))
    return None if not found or len(found) > LONGEST_ANSWER or _EMPTY.match(found) else found


def _choice(reply: Reply) -> ExtractedAnswer | None:
    """Find the letter of a choice that the prompt offers, or yes or no where it asks for it."""
    if not reply.choices:
        said = _FIRST_WORD.match(reply.text)
        truth = None if said is None else truth_of(said[1])
        return taken(AnswerSource.CHOICE, truth) if _WANTS_TRUTH.search(reply.prompt[-REACH:]) else None
    first = _LETTER.match(reply.text)
    if first is not None and first[1].isupper() and first[1] in reply.choices and len(_chosen(reply.first_line, reply.choices)) <= 1:
        return taken(AnswerSource.CHOICE, first[1])
    chosen = next(((found, sentence) for sentence in reply.sentences if (found := _chosen(sentence, reply.choices))), None)
    if chosen is None or len(chosen[0]) > 1 or _EXCLUDES.search(chosen[1]):
        return None
    return taken(AnswerSource.CHOICE, chosen[0].pop())


def _chosen(sentence: str, choices: Mapping[str, str]) -> set[str]:
    """Return the letters of the choices that a sentence names."""
    return {found[1] or found[2] for found in _CHOSEN.finditer(sentence)} & choices.keys()


def _as_choice(text: str, choices: Mapping[str, str]) -> str:
    """Return the letter of the choice that an answer names or repeats; the answer itself if it is none."""
    if not choices:
        return text
    letter = _LETTER.match(text)
    if letter is not None and letter[1].upper() in choices and len(_chosen(text, choices)) <= 1:
        return letter[1].upper()
    plain = text.strip(" .;,*").casefold()
    return next((letter for letter, choice in choices.items() if choice == plain), text)


def _date(reply: Reply) -> ExtractedAnswer | None:
    """Find the date or time in the closing sentences, where the prompt asks for one; all of a sentence, from the first to the last."""
    if not _WANTS_DATE.search(reply.prompt[-REACH:]):
        return None
    for sentence in reply.sentences:
        found = [match for match in _DATES.finditer(sentence) if date_of(match[0]) is not None]
        if found:
            is_one = len({date_of(match[0]) for match in found}) == 1
            return taken(AnswerSource.DATE, found[-1][0] if is_one else sentence[found[0].start() : found[-1].end()])
    return None


_RULES: Final[tuple[Callable[[Reply], ExtractedAnswer | None], ...]] = (
    _field,
    _boxed,
    _whole,
    _marked,
    _choice,
    _date,
    code_block,
    emphasis,
    closing,
    entity,
)
"""From the surest to the weakest."""
