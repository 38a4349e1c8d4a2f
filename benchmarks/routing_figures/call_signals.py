"""Looks at drafts that are tool calls: what kind of calls they are, and whether they keep to their tools."""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.looks import Signal
from nearfar.protocols import InvalidOutput, ToolCall, ToolSpec
from nearfar.protocols.validation import check_arguments

_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+(?:\.\d+)?")
_STEM: Final = 5
"""Letters of a word that are compared: "calculates" and "calculation" speak of the same."""
_SHORTEST: Final = 3
"""Letters of a word that says something."""


def call_form(calls: Sequence[ToolCall], tools: Sequence[ToolSpec], prompt: str) -> Signal:
    """Measure the kind of calls a draft makes: how many, of how many tools, and how much of them the prompt mentions."""
    given = list(_groundedness(calls, prompt))
    called = [tool for tool in tools if any(call.name == tool.name for call in calls)]
    spoken = _stems(prompt)
    measures = {
        "tools offered": math.log1p(len(tools)),
        "calls": float(len(calls)),
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


def call_check(calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> Signal:
    """Check that each call names a declared tool and has all required arguments, of the right types, and no others.

    Raises `InvalidRequest` for a tool whose schema is none.
    """
    declared = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
    undeclared = any(set(call.arguments) - set(declared.get(call.name, ())) for call in calls)
    return Signal({"is valid": float(all(_is_valid(call, tools) for call in calls)), "has further arguments": float(undeclared)})


def _is_valid(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    try:
        check_arguments(call, tools)
    except InvalidOutput:
        return False
    return True


def _groundedness(calls: Sequence[ToolCall], prompt: str) -> Iterator[float]:
    """Yield for each value among the arguments the share of its words that the prompt mentions."""
    spoken = _stems(prompt)
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


def _described(tool: ToolSpec) -> frozenset[str]:
    return _stems(f"{tool.name} {tool.description}")


def _stems(text: str) -> frozenset[str]:
    """Return the beginnings of the longer words of a text, and its numbers."""
    words = (word.lower() for word in _WORD.findall(text.replace(",", "")))
    return frozenset(word[:_STEM] for word in words if len(word) >= _SHORTEST or word[0].isdigit())


def _share(part: frozenset[str], whole: frozenset[str]) -> float:
    return len(part & whole) / len(part) if part else 0.0
