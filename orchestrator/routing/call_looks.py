"""Looks at drafts that are tool calls: the kind of calls, whether they keep to their tools, and where their arguments come from."""

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from ...protocols import InvalidOutput, Message, ToolCall, ToolSpec
from ...protocols.validation import check_arguments
from .answers import Answer, stated_calls
from .looks import CONFIDENCE, DRAFT, GROUNDING, PROMPT, SCHEMA, Look, Signal, prompt_surface, second_opinion, token_confidence
from .quantities import LONGEST, date_of

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+(?:\.\d+)?")
_STEM: Final = 5
"""Letters of a word that are compared: "calculates" and "calculation" speak of the same."""
_SHORTEST: Final = 3
"""Letters of a word that says something."""
_FOREIGN: Final = re.compile(r"[^\W\d_\x00-\x7f]{2,40}")
"""Words in other letters than Latin ones."""
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Characters of scripts that have no spaces between words, or endings on them."""
_MOMENT: Final = re.compile(r"(\d{4}-\d{2}-\d{2})[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[-+]\d{2}:?\d{2})?")
_WHEN: Final = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|now|noon|midnight|morning|afternoon|evening|next|days?|weeks?|months?|years?|weekend"
    r"|heute|morgen|gestern|tag|woche|monat|demain|hier|mañana|hoy"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|(?:mon|diens|donners|frei|sams|sonn)tags?|mittwochs?"
    r"|jan|feb|mar|apr|may|mai|jun|jul|aug|sept?|oct|okt|nov|dec|dez|januar[y]?|februar[y]?|march|märz|april|june|july|juni|juli|august"
    r"|(?:septem|octo|okto|novem|decem|dezem)ber)\b|\d{1,2}\s?(?:[ap]\.?m\b|uhr|o.clock)|\d{1,2}[:./-]\d{1,2}",
    re.IGNORECASE,
)
"""Words from which a date or a time can be computed."""
_RUN: Final = 5
"""Letters and digits that count as mentioned wherever they stand, such as `PayPal` in `paypal` and an IBAN without its spaces."""
_SUBSCRIBER: Final = 8
"""Last digits of a telephone number, which it has with and without the code of its country."""
_NO_CALLS: Final = "[]"
_OF_CALLS: Final = "calls"
_OF_TEXTS: Final = "is empty"


def call_findings(
    calls: Sequence[ToolCall],
    tools: Sequence[ToolSpec],
    *,
    prompt: str,
    told: str,
    confidence: float | None,
    probabilities: Mapping[str, float] | None = None,
) -> dict[str, Signal]:
    """Return the findings of all free looks at tool calls that have not run yet.

    Args:
        calls: of one step; none: the draft says that no tool is needed.
        tools: that the agent may call.
        prompt: the task's last words.
        told: all that the agent was told, such as the results of tools (`told_in`).
        confidence: the lowest of the draft's steps; None: unknown.
        probabilities: that each agent gets the prompt right, as a learned head predicts it.

    Raises `InvalidRequest` for a tool whose schema is none.
    """
    return {
        PROMPT: prompt_surface(prompt, probabilities),
        DRAFT: call_form(calls, tools, told),
        SCHEMA: call_check(calls, tools),
        GROUNDING: Signal(),  # an answer is grounded in results; of calls, the form measures how much of them was mentioned
        CONFIDENCE: token_confidence([confidence]),
    }


def text_of_calls(calls: Sequence[ToolCall]) -> str:
    """Return tool calls as traces record them: a JSON list of objects with `name` and `arguments`."""
    return json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls], ensure_ascii=False)


def read_calls(answer: str | None) -> Sequence[ToolCall] | None:
    """Return the tool calls that a recorded answer states; None: it is a text, or there is none."""
    if answer is None:
        return None
    return () if answer.strip() == _NO_CALLS else stated_calls(answer)


def call_opinion(
    draft: Sequence[ToolCall], opinion: Sequence[ToolCall], tools: Sequence[ToolSpec], *, has_prose: bool | None = None
) -> Signal:
    """Compare the calls that another agent would make with the draft's, and check them. The arguments are those of `call_check`.

    Raises `InvalidRequest` for a tool whose schema is none.
    """
    check = call_check(opinion, tools, has_prose=has_prose)
    return second_opinion(Answer.of_calls(draft), Answer.of_calls(opinion), further=check.measures)


def call_form(calls: Sequence[ToolCall], tools: Sequence[ToolSpec], told: str) -> Signal:
    """Measure the kind of calls a draft makes: how many, of how many tools, and how much of them was mentioned in `told`."""
    given = list(_groundedness(calls, told))
    called = [tool for tool in tools if any(call.name == tool.name for call in calls)]
    spoken = _stems(told)
    measures = {
        "tools offered": math.log1p(len(tools)),
        _OF_CALLS: float(len(calls)),
        "no call": float(not calls),
        "one call": float(len(calls) == 1),
        "tools called": float(len({call.name for call in calls})),
        "repeats itself": float(len(set(Answer.of_calls(calls).parts)) < len(calls)),
        "values": math.log1p(len(given)),
        "values in the prompt": fmean(given) if given else 1.0,
        "least value in the prompt": min(given, default=1.0),
        "called tool in the prompt": max((_share(_described(tool), spoken) for tool in called or tools), default=0.0),
        "best tool in the prompt": max((_share(_described(tool), spoken) for tool in tools), default=0.0),
    }
    return Signal(measures, Answer.of_calls(calls))


def call_check(calls: Sequence[ToolCall], tools: Sequence[ToolSpec], *, has_prose: bool | None = None) -> Signal:
    """Check that each call names a declared tool and has all required arguments, of the right types, and no others.

    `has_prose`: the agent wrote words beside the calls; None: unknown. Raises `InvalidRequest` for a tool whose schema is none.
    """
    declared = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
    undeclared = any(set(call.arguments) - set(declared.get(call.name, ())) for call in calls)
    measures = {"is valid": float(all(_is_valid(call, tools) for call in calls)), "has further arguments": float(undeclared)}
    return Signal(measures if has_prose is None else measures | {"has prose": float(has_prose)})


def judges_calls(looks: Sequence[Look]) -> bool:
    """Return whether an escalation with these learned looks was trained on drafts that call tools."""
    return _measures_drafts(looks, _OF_CALLS)


def judges_texts(looks: Sequence[Look]) -> bool:
    """Return whether an escalation with these learned looks was trained on drafts that answer in text."""
    return _measures_drafts(looks, _OF_TEXTS)


def told_in(messages: Sequence[Message]) -> str:
    """Return all that a conversation tells the agent: the words of the user and the app, and the results of tools, but not its own."""
    texts = [message.text for message in messages if message.role in ("user", "system")]
    results = [message.tool_result.content for message in messages if message.tool_result is not None]
    return "\n".join([*texts, *results])


def unmentioned_arguments(call: ToolCall, tool: ToolSpec, told: str) -> list[str]:
    """Return the arguments with a text of which no word was mentioned, neither in `told` nor in the tool's description and schema.

    Numbers are left out, as they may be computed: among recorded calls, right ones hold such a number twice as often as such a text. So
    are dates and times, where anything was said of a time.
    """
    known = _Mentions(f"{told}\n{tool.description}\n{json.dumps(tool.parameters, ensure_ascii=False)}")
    return [
        name
        for name, value in call.arguments.items()
        if any(isinstance(part, str) and part not in known for part in _keys_and_leaves(value))
    ]


class _Mentions:
    """A text in which words are looked up without regard to case, accents, spaces and endings."""

    def __init__(self, text: str) -> None:
        self._text = _unaccented(text).casefold()
        self._run = _alphanumeric(self._text)
        self._stems = _singulars(text)
        self._tells_time = _WHEN.search(text) is not None
        self._foreign = frozenset(
            word[place : place + length] for word in _FOREIGN.findall(self._text) for length in (2, _SHORTEST) for place in range(len(word))
        )

    def __contains__(self, value: str) -> bool:
        """Return True if a word of a value was mentioned, or if it has none; of a date or a time, if any word of a time was."""
        stems, plain = _singulars(value), _unaccented(value).casefold()
        foreign = _FOREIGN.findall(plain)
        if not stems and not foreign:
            return True
        run = _alphanumeric(plain)
        is_code = len(value) == _SHORTEST and value.isupper() and f" {plain}" in self._text
        return (
            bool(stems & self._stems)
            or is_code
            or (_is_moment(value) and self._tells_time)
            or (len(run) >= _RUN and run in self._run)
            or (run.isdigit() and len(run) > _SUBSCRIBER and run[-_SUBSCRIBER:] in self._run)
            or any(part in self._foreign for word in foreign for part in _foreign_parts(word))
        )


def _foreign_parts(word: str) -> list[str]:
    """Return what is looked for of a word in other letters: its beginning, or where words stand without spaces any two characters."""
    if _UNSPACED.search(word):
        return [word[place : place + 2] for place in range(len(word) - 1)]
    return [word[:_SHORTEST]]


def _is_moment(text: str) -> bool:
    moment = _MOMENT.fullmatch(text)
    return len(text) <= LONGEST and date_of(text if moment is None else moment[1]) is not None


def _unaccented(text: str) -> str:
    return "".join(character for character in unicodedata.normalize("NFKD", text) if not unicodedata.combining(character))


def _alphanumeric(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _singulars(text: str) -> frozenset[str]:
    """Return the stems of a text's words, with compound names as a whole and in their parts: `GitHub` and `git`, `hub`."""
    plain = _unaccented(text)
    return frozenset(stem.removesuffix("s") for stem in _stems(plain) | _stems(plain.lower()))


def _is_valid(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    try:
        check_arguments(call, tools)
    except InvalidOutput:
        return False
    return True


def _measures_drafts(looks: Sequence[Look], measure: str) -> bool:
    return any(look.name == DRAFT and measure in getattr(look, "measures", ()) for look in looks)


def _groundedness(calls: Sequence[ToolCall], told: str) -> Iterator[float]:
    """Yield for each value among the arguments the share of its words that were mentioned."""
    spoken = _stems(told)
    for value in _leaves([call.arguments for call in calls]):
        stems = _stems(f"{value:g}" if isinstance(value, float) else str(value))
        if stems and value is not None and not isinstance(value, bool):
            yield _share(stems, spoken)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _keys_and_leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _keys_and_leaves(inner)
    else:
        yield value


def _described(tool: ToolSpec) -> frozenset[str]:
    return _stems(f"{tool.name} {tool.description}")


def _stems(text: str) -> frozenset[str]:
    """Return the beginnings of the longer words of a text, and its numbers."""
    words = (word.lower() for word in _WORD.findall(text.replace(",", "")))
    return frozenset(word[:_STEM] for word in words if len(word) >= _SHORTEST or word[0].isdigit())


def _share(part: frozenset[str], whole: frozenset[str]) -> float:
    return len(part & whole) / len(part) if part else 0.0
