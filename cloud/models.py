"""The parameters that a model takes, by its name: makers refuse a request with any other parameter.

Sources: the makers' guides on reasoning and thinking, and the answers of their APIs, as of November 2026.
"""

import re
from dataclasses import dataclass

from ..protocols import Effort
from .dialect import JsonObject

_NONE, _MINIMAL, _LOW, _MEDIUM, _HIGH, _XHIGH, _MAX = Effort
_ORDER = tuple(Effort)


@dataclass(frozen=True, slots=True)
class Traits:
    """The parameters that a model takes."""

    efforts: tuple[Effort, ...] = ()
    """The effort levels that it knows; none: it has no such choice."""
    temperature: bool = True
    """True if it takes a temperature."""
    stops: bool = True
    """True if it takes stop sequences and `max_tokens`. OpenAI's reasoning models refuse both."""

    def nearest(self, effort: Effort | None) -> Effort | None:
        """Return the level nearest to `effort`, the lower one of two; None if the model has no choice or `effort` is None."""
        if effort is None or not self.efforts:
            return None
        wanted = _ORDER.index(effort)
        return min(self.efforts, key=lambda level: (abs(_ORDER.index(level) - wanted), _ORDER.index(level)))


PLAIN = Traits()
"""A model that does not reason, or whose server hides it."""
REASONING = Traits((_NONE, _LOW, _MEDIUM, _HIGH, _XHIGH, _MAX), temperature=False, stops=False)
"""OpenAI's models from GPT-5.6 on."""


def _reasoning(*efforts: Effort) -> Traits:
    return Traits(efforts, temperature=False, stops=False)


_OPENAI: tuple[tuple[str, Traits], ...] = (
    (r"gpt-3\.5|gpt-4|chatgpt-4o|davinci|babbage", PLAIN),
    (r"gpt-oss", Traits((_LOW, _MEDIUM, _HIGH))),
    (r"gpt-\d.*-chat(-|$)", _reasoning()),
    (r"o[1-9](-|$)|codex-mini|gpt-5-codex", _reasoning(_LOW, _MEDIUM, _HIGH)),
    (r"gpt-5-pro", _reasoning(_HIGH)),
    (r"gpt-5\.\d+-pro", _reasoning(_MEDIUM, _HIGH, _XHIGH)),
    (r"gpt-5(-|$)", _reasoning(_MINIMAL, _LOW, _MEDIUM, _HIGH)),
    (r"gpt-5\.1-codex-max|gpt-5\.[2-5]-codex", _reasoning(_LOW, _MEDIUM, _HIGH, _XHIGH)),
    (r"gpt-5\.1-codex", _reasoning(_LOW, _MEDIUM, _HIGH)),
    (r"gpt-5\.1(-|$)", _reasoning(_NONE, _LOW, _MEDIUM, _HIGH)),
    (r"gpt-5\.[2-5](-|$)", _reasoning(_NONE, _LOW, _MEDIUM, _HIGH, _XHIGH)),
    (r"gpt-[5-9]", REASONING),
)
_REFUSES_EFFORT_WITH_TOOLS = re.compile(r"gpt-5\.(?:[4-9]|\d\d)|gpt-[6-9]")
_CLAUDE_NAME = re.compile(r"(?:[a-z-]+\.)?(?:anthropic\.)?(claude-.+?)(?:-v\d+|@default)?")
_BEFORE_EFFORT = re.compile(r"claude-(?:[123]|instant|(?:opus|sonnet|haiku)-4)")
_CLAUDE: tuple[tuple[str, Traits], ...] = (
    (r"claude-opus-4-5", Traits((_LOW, _MEDIUM, _HIGH))),
    (r"claude-(?:opus|sonnet)-4-6", Traits((_LOW, _MEDIUM, _HIGH, _MAX))),
    (r"claude-opus-4-[78]", Traits((_LOW, _MEDIUM, _HIGH, _XHIGH, _MAX), temperature=False)),
    (r"claude-(?:[123]|instant|(?:opus|sonnet|haiku)-4(?:-[0-6])?(?:-\d{8}|-latest)?$)", PLAIN),
)
_NEW_CLAUDE = Traits((_LOW, _MEDIUM, _HIGH, _XHIGH, _MAX), temperature=False)
_THINKS_WHEN_TOLD = re.compile(r"claude-(?:opus|sonnet)-4-[5-8]")
_ADAPTS_WHEN_TOLD = re.compile(r"claude-(?:opus|sonnet)-4-[6-8]")
_RESTS_WHEN_TOLD = re.compile(r"claude-(?:opus|sonnet)-5(?:-\d{8})?$")
_GEMINI_WITH_BUDGET = re.compile(r"gemini-2\.5")
_GEMINI_WITHOUT = re.compile(r"gemini-(?:1|2\.0)")
_BUDGETS = {_NONE: 0, _MINIMAL: 512, _LOW: 1024, _MEDIUM: 8192, _HIGH: 24576, _XHIGH: 24576, _MAX: 24576}
_PRO_BUDGETS = _BUDGETS | {_NONE: 128, _XHIGH: 32768, _MAX: 32768}
_GEMINI: tuple[tuple[str, Traits], ...] = (
    (r"gemini-3-pro", Traits((_LOW, _HIGH))),
    (r"gemini-3(?:\.[0-6])?-flash", Traits((_MINIMAL, _LOW, _MEDIUM, _HIGH))),
)
_NEW_GEMINI = Traits((_LOW, _MEDIUM, _HIGH))


def bare_name(model: str) -> str:
    """Return a model's name as its makers write it, without the prefixes and suffixes of routers.

    `openrouter/openai/gpt-5.5:nitro` and `ft:gpt-5.5:team::id` are `gpt-5.5`; `anthropic/claude-opus-4.7`, `claude-opus-4-7@default` and
    Bedrock's `us.anthropic.claude-opus-4-7-v1:0` are `claude-opus-4-7`.
    """
    name = model.lower().rsplit("/", 1)[-1].removeprefix("ft:").partition(":")[0]
    claude = _CLAUDE_NAME.fullmatch(name)
    return name if claude is None else re.sub(r"[.@]", "-", claude[1])


def openai_traits(model: str, *, hosted: bool, reasoning: bool | None) -> Traits:
    """Return the traits of a model over OpenAI's APIs.

    Args:
        model: its name there.
        hosted: True at OpenAI itself, where an unknown name is a newer model.
        reasoning: True for a reasoning model of OpenAI's, if its name does not tell.
    """
    name = bare_name(model)
    known = claude_traits(name) if name.startswith("claude-") else _look_up(_OPENAI, name)
    if reasoning is None:
        return known or (REASONING if hosted else PLAIN)
    if not reasoning:
        return PLAIN
    return known if known is not None and not known.stops else REASONING


def refuses_effort_with_tools(model: str) -> bool:
    """Return whether chat completions refuse any effort but "none" together with tools, as for GPT-5.4 and later."""
    return _REFUSES_EFFORT_WITH_TOOLS.match(bare_name(model)) is not None


def claude_traits(model: str) -> Traits:
    """Return the traits of a Claude model."""
    name = bare_name(model)
    return _look_up(_CLAUDE, name) or (PLAIN if _BEFORE_EFFORT.match(name) else _NEW_CLAUDE)


def claude_thinking(model: str, effort: Effort | None, *, is_forced: bool) -> JsonObject:
    """Return the fields of a request for `effort`: `thinking`, `output_config`; {} keeps the model's default.

    `is_forced`: a tool has to be called, which the API refuses together with thinking.
    """
    name, level = bare_name(model), claude_traits(model).nearest(effort)
    if level is None:
        return {}
    if effort is Effort.NONE and _THINKS_WHEN_TOLD.match(name):
        return {}
    if effort is Effort.NONE and _RESTS_WHEN_TOLD.match(name):
        return {"thinking": {"type": "disabled"}}
    thinking: JsonObject = {"thinking": {"type": "adaptive"}} if _ADAPTS_WHEN_TOLD.match(name) and not is_forced else {}
    return thinking | {"output_config": {"effort": level.value}}


def gemini_thinking(model: str, effort: Effort | None) -> JsonObject:
    """Return the `thinkingConfig` for `effort`: a budget in tokens for Gemini 2.5, a level from Gemini 3 on, else {}."""
    name = bare_name(model)
    if effort is None or not name.startswith("gemini-") or _GEMINI_WITHOUT.match(name):
        return {}
    if _GEMINI_WITH_BUDGET.match(name):
        return {"thinkingBudget": (_PRO_BUDGETS if "-pro" in name else _BUDGETS)[effort]}
    level = (_look_up(_GEMINI, name) or _NEW_GEMINI).nearest(effort)
    return {} if level is None else {"thinkingLevel": level.value.upper()}


def _look_up(table: tuple[tuple[str, Traits], ...], name: str) -> Traits | None:
    return next((traits for pattern, traits in table if re.match(pattern, name)), None)
