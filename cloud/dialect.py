"""The interface between a provider's API and the agent, and what each family of models takes.

A dialect writes a step as a request and reads its stream.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final, Protocol
from urllib.parse import urlsplit

from pydantic import JsonValue

from ..protocols import Capabilities, Effort, FinishReason, InvalidOutput, Message, StepRequest, Usage
from ..protocols.limits import CALLS_OF_A_MESSAGE
from ..protocols.validation import parse_json

JsonObject = dict[str, JsonValue]

_LONGEST_NAME = 1024
SHOWN_BELOW: Final = "[shown below]"
"""Stands in the text of a tool's result for an image, where an API reads results as texts."""
"""Characters: some servers name a model by the path of its file."""
_MOST_COUNTED = 10**9
"""Upper bound of the tokens of one step, a thousand times the longest context: a wrong count must not use up a budget at once."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A tool call as the provider sent it, before its arguments are checked."""

    name: str
    arguments: str | JsonObject
    """JSON text where the API streams it in pieces, an object where it sends it whole."""
    id: str | None = None
    """None: the provider gave none."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The result of a stream that has ended properly."""

    reason: FinishReason
    calls: tuple[RawCall, ...] = ()
    usage: Usage | None = None
    """None: the provider did not report it."""
    model: str | None = None
    """The model that answered, if the provider named it."""
    confidence: float | None = None
    logprobs: tuple[JsonObject, ...] = ()
    """The text's tokens in the form of OpenAI's chat completions, if the provider reports them."""
    stop: str | None = None
    """The stop sequence that ended the text, if the provider names it."""
    parts: tuple[JsonObject, ...] = ()
    """The turn in the provider's own form, which it expects back unchanged; empty if text and calls say everything."""


class EndedEarly(InvalidOutput):
    """The stream ended before the provider said why it stopped."""

    def __init__(self) -> None:
        super().__init__("the stream ended before the provider reported a reason", hint="try again")


class Decoder(Protocol):
    """Reads one stream. A `NearfarError` that it raises ends the step."""

    @property
    def has_written(self) -> bool:
        """True if a part of the answer has come: text, thoughts, a piece of a call or a count of output tokens.

        Until then the provider has only accepted the request.
        """
        ...

    def feed(self, chunk: JsonObject) -> str:
        """Add the next JSON object of the stream; return the new text in it, or ""."""
        ...

    def end(self) -> Ending:
        """Finish the stream and return its result. Raise `EndedEarly` if the provider had not finished."""
        ...


class Dialect(Protocol):
    """One provider API. Stateless: one object serves many agents."""

    @property
    def name(self) -> str: ...

    @property
    def default_base_url(self) -> str: ...

    @property
    def default_key_variable(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def path(self, model: str) -> str:
        """Return the path after the base URL."""
        ...

    def headers(self, key: str | None, idempotency_key: str) -> dict[str, str]: ...

    def unsent_stops(self, stops: Sequence[str], model: str) -> Sequence[str]:
        """Return the stops that the API does not take; the caller ends the text at them."""
        ...

    def body(self, request: StepRequest, model: str, *, max_output_tokens: int | None) -> JsonObject:
        """Return the request's body. Provider states in the messages are this provider's own."""
        ...

    def decoder(self) -> Decoder: ...


def check_number_of_calls(number: int) -> None:
    """Raise `InvalidOutput` if an answer calls more tools than any model does."""
    if number > CALLS_OF_A_MESSAGE:
        raise InvalidOutput(f"the provider called more than {CALLS_OF_A_MESSAGE} tools at once", hint="try again")


def counted(*, read: int, written: int, cached: int = 0, stored: int = 0, thought: int = 0) -> Usage | None:
    """Return a usage whose parts are no larger than their totals, or None if the provider counted nothing."""
    if not (read or written):
        return None
    cached = min(cached, read)
    return Usage(
        input_tokens=read,
        output_tokens=written,
        cached_tokens=cached,
        cache_write_tokens=min(stored, read - cached),
        reasoning_tokens=min(thought, written),
    )


def chosen(request: StepRequest, names: Mapping[str, str]) -> JsonObject:
    """Return the samplers that a request sets, under the names that an API has for them."""
    return {name: value for sampler, name in names.items() if (value := getattr(request, sampler)) is not None}


def has_output(usage: Usage | None) -> bool:
    """Return whether the provider counted output tokens; they may be thoughts that are not shown."""
    return usage is not None and usage.output_tokens > 0


Said = tuple[str, list[tuple[str, str, JsonObject]]]
"""Text of a turn, and id, name and arguments of its calls."""


def said_in(message: Message) -> Said:
    """Return text and calls of an assistant message, to compare them with the provider's own form."""
    return message.text, [(call.id, call.name, call.arguments) for call in message.tool_calls]


def arguments_of(call: RawCall) -> JsonObject:
    """Return the arguments of a call, or {} if they are not a JSON object."""
    if not isinstance(call.arguments, str):
        return call.arguments
    try:
        return as_object(parse_json(call.arguments.strip() or "{}"))
    except ValueError:
        return {}


def own_parts(message: Message) -> list[JsonObject]:
    """Return the turn in the provider's own form, or [] if it is not known."""
    return [] if message.state is None else list(message.state.parts)


class CallIds:
    """The ids under which the calls of one conversation are sent to an API, so that each result finds its call.

    A turn in the provider's own form keeps its ids: a proxy may have hidden data in them. Other ids may come from another agent and are
    replaced if the API does not take them.
    """

    def __init__(self, taken: re.Pattern[str]) -> None:
        """Use `taken` as the pattern of ids that the API takes."""
        self._taken = taken
        self._sent: dict[str, str] = {}

    def keep(self, message: Message) -> None:
        """Note that the calls of a message go back under their own ids."""
        self._sent |= {call.id: call.id for call in message.tool_calls}

    def of_call(self, call_id: str) -> str:
        """Return the id to send for a call."""
        fits = self._taken.fullmatch(call_id) is not None
        self._sent[call_id] = call_id if fits else f"call_{sha256(call_id.encode()).hexdigest()[:32]}"
        return self._sent[call_id]

    def of_result(self, call_id: str) -> str:
        """Return the id that was sent for the call of a result."""
        return self._sent[call_id] if call_id in self._sent else self.of_call(call_id)


def as_object(value: JsonValue) -> JsonObject:
    """Return `value` if it is an object, else {}: providers leave out fields."""
    return value if isinstance(value, dict) else {}


def as_objects(value: JsonValue) -> list[JsonObject]:
    """Return the objects in `value` if it is an array, else []."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: JsonValue) -> str:
    """Return `value` if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def as_name(value: JsonValue) -> str:
    """Return `value` if it may be a model's name, else "": a longer text, or one with characters that a terminal obeys, is none."""
    name = as_text(value)
    return name if len(name) <= _LONGEST_NAME and name.isprintable() else ""


def as_count(value: JsonValue) -> int:
    """Return `value` if it is a possible count of one step, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_COUNTED else 0


_NONE, _MINIMAL, _LOW, _MEDIUM, _HIGH, _XHIGH, _MAX = Effort
_ORDER = tuple(Effort)


# Makers refuse a request with parameters that the model does not take. Sources: the makers' guides on reasoning and thinking, and the
# answers of their APIs, as of November 2026.
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
_READS_TEXT_ALONE = re.compile(r"gpt-3\.5|gpt-4(-\d{4}|-32k|$)|gpt-oss|davinci|babbage|o1-mini|o1-preview|o3-mini|claude-(?:[12]|instant)")
_READS_IMAGES = re.compile(r"gpt-4|gpt-[5-9]|chatgpt-4o|o[1-9](-|$)|claude-|gemini-")
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


_PROVIDERS = {"openai": "openai", "responses": "openai", "anthropic": "anthropic", "gemini": "gcp.gemini"}
_HOSTED = {
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}


def provider_name(dialect: str, base_url: str) -> str:
    """Return the name that OpenTelemetry's conventions give a provider: that of its host, else that of the API it speaks."""
    host, _ = server_of(base_url)
    if host.endswith(".openai.azure.com"):
        return "azure.ai.openai"
    return _HOSTED.get(host, _PROVIDERS[dialect])


def server_of(base_url: str) -> tuple[str, int]:
    """Return host and port of an address; no host where it cannot be used, which its first step says."""
    try:
        parts = urlsplit(base_url)
        return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return "", 0


def bare_name(model: str) -> str:
    """Return a model's name as its makers write it, without the prefixes and suffixes of routers.

    `openrouter/openai/gpt-5.5:nitro` and `ft:gpt-5.5:team::id` are `gpt-5.5`; `anthropic/claude-opus-4.7`, `claude-opus-4-7@default` and
    Bedrock's `us.anthropic.claude-opus-4-7-v1:0` are `claude-opus-4-7`.
    """
    name = model.lower().rsplit("/", 1)[-1].removeprefix("ft:").partition(":")[0]
    claude = _CLAUDE_NAME.fullmatch(name)
    return name if claude is None else re.sub(r"[.@]", "-", claude[1])


@lru_cache(maxsize=64)
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


def reads_images(model: str, *, hosted: bool) -> bool:
    """Return whether a model reads images, by its name.

    Args:
        model: its name at the server.
        hosted: True at its maker's own address, where an unknown name is a newer model.
    """
    name = bare_name(model)
    return _READS_TEXT_ALONE.match(name) is None and (hosted or _READS_IMAGES.match(name) is not None)


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


def takes_budget(model: str) -> bool:
    """Return whether a model takes a budget of thoughts in tokens: Gemini 2.5."""
    return _GEMINI_WITH_BUDGET.match(bare_name(model)) is not None


def gemini_thinking(model: str, effort: Effort | None, most: int | None = None) -> JsonObject:
    """Return the `thinkingConfig` for `effort`: a budget in tokens for Gemini 2.5, a level from Gemini 3 on, else {}.

    `most`: tokens to think at most; stands above `effort` where the model takes a budget.
    """
    name = bare_name(model)
    if takes_budget(model) and (effort or most) is not None:
        budgets = _PRO_BUDGETS if "-pro" in name else _BUDGETS
        return {"thinkingBudget": budgets[effort or _MAX] if most is None else min(max(most, budgets[_NONE]), budgets[_MAX])}
    if effort is None or not name.startswith("gemini-") or _GEMINI_WITHOUT.match(name):
        return {}
    level = (_look_up(_GEMINI, name) or _NEW_GEMINI).nearest(effort)
    return {} if level is None else {"thinkingLevel": level.value.upper()}


def _look_up(table: tuple[tuple[str, Traits], ...], name: str) -> Traits | None:
    return next((traits for pattern, traits in table if re.match(pattern, name)), None)
