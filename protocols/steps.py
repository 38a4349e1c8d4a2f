"""One turn of an agent: the messages that it continues, the request that starts it and the events that it streams."""

from collections.abc import Callable
from enum import StrEnum
from secrets import token_hex
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from .attachments import ATTACHMENT_MARK, Attachment
from .attachments import Value as Value

JsonSchema = dict[str, Any]
"""A JSON Schema document (draft 2020-12), as a parsed object."""

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""A tool's name, limited to the form that every provider accepts."""


class Sensitivity(StrEnum):
    """The sides that may see the text of a request. The default is private, the safe value."""

    PRIVATE = "private"
    """Stays on this device; far agents refuse it."""
    PUBLIC = "public"
    """May be sent to any configured agent."""


class ToolSpec(Value):
    """A tool that an agent may call."""

    name: ToolName
    """Name that the model calls it by."""
    description: str = ""
    """Tells the model what it does, and when to use it."""
    parameters: JsonSchema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments; its top level is an object."""

    @model_validator(mode="after")
    def _parameters_describe_an_object(self) -> "ToolSpec":
        if self.parameters.get("type") != "object":
            raise ValueError(f'parameters of tool {self.name!r} must be a JSON Schema of "type": "object"')
        return self


class ToolCall(Value):
    """An agent's request to run a tool."""

    id: str = Field(min_length=1)
    """Unique within the conversation; its `ToolResult` refers to it."""
    name: str = Field(min_length=1)
    """Name of the tool."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments by name, as the model wrote them."""


class ApprovalRequest(Value):
    """A tool call that waits for approval."""

    id: str = ""
    """Id of the answer: the effect's id in a durable run, else one of its own. Ids of calls are not unique."""
    call: ToolCall
    """The call."""
    reason: str
    """The reason why approval is needed."""


class ToolResult(Value):
    """The result of a tool call, as text for the model."""

    call_id: str = Field(min_length=1)
    """Id of the call."""
    name: str = Field(min_length=1)
    """Name of the tool."""
    content: str
    """The text that the model reads."""
    is_error: bool = False
    """The tool failed; `content` says how, so that the model can react."""


class ProviderState(Value):
    """A turn as its provider sent it, encrypted reasoning and signatures included.

    It is sent back to the same provider and model only. It is far content: text from it is as sensitive as the turn's own text.
    """

    provider: str = Field(min_length=1, max_length=300)
    """API and address that the turn came from."""
    model: str = Field(min_length=1)
    """The model that was asked."""
    parts: tuple[dict[str, JsonValue], ...] = Field(min_length=1)
    """The turn's items, blocks or parts in the provider's own form and order."""


class Message(Value):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    """The speaker."""
    text: str = ""
    """The text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only on assistant messages."""
    tool_result: ToolResult | None = None
    """Exactly on tool messages."""
    state: ProviderState | None = None
    """Only on assistant messages. It is sent to its provider if it still matches `text` and `tool_calls`; near agents ignore it."""
    attachments: tuple[Attachment, ...] = ()
    """Images and documents, only on messages of users and tools. The n-th one stands where `text`, or the content of the tool's result, has
    its n-th U+FFFC, the object replacement character; those without one stand behind the text."""

    @model_validator(mode="after")
    def _parts_fit_the_role(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot carry tool_calls")
        if self.state is not None and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot carry a provider's state")
        if (self.tool_result is not None) != (self.role == "tool"):
            raise ValueError("a tool message carries exactly one tool_result, and no other message does")
        if self.attachments and self.role not in ("user", "tool"):
            raise ValueError("only messages of users and tools carry attachments")
        return self

    @classmethod
    def system(cls, text: str) -> "Message":
        return cls(role="system", text=text)

    @classmethod
    def user(cls, text: str, attachments: tuple[Attachment, ...] = ()) -> "Message":
        return cls(role="user", text=text, attachments=attachments)

    @classmethod
    def assistant(cls, text: str = "", tool_calls: tuple[ToolCall, ...] = (), state: ProviderState | None = None) -> "Message":
        return cls(role="assistant", text=text, tool_calls=tool_calls, state=state)

    @classmethod
    def tool(cls, result: ToolResult, attachments: tuple[Attachment, ...] = ()) -> "Message":
        """Return a message with the `result` of a tool call, and what it shows."""
        return cls(role="tool", tool_result=result, attachments=attachments)

    @property
    def parts(self) -> tuple[str | Attachment, ...]:
        """Return the pieces of the text, or of the tool's result, and the attachments in their order; no empty text, and no mark."""
        left = list(self.attachments)
        text = self.text if self.tool_result is None else self.tool_result.content
        parts: list[str | Attachment] = []
        for piece in text.split(ATTACHMENT_MARK, len(left)) if left else [text]:
            parts += [piece, *left[:1]]
            left = left[1:]
        return tuple(part for part in (*parts, *left) if part != "")

    def with_text(self, text: str) -> "Message":
        """Return the message with another `text`, and without the provider's state."""
        return self.model_copy(update={"text": text, "state": None})

    def with_attachments_as(self, show: Callable[[Attachment], str]) -> "Message":
        """Return the message with a text in the place of each attachment, which `show` makes."""
        if not self.attachments:
            return self
        text = "".join(part if isinstance(part, str) else show(part) for part in self.parts)
        result = self.tool_result
        said = {"text": text} if result is None else {"tool_result": result.model_copy(update={"content": text})}
        return self.model_copy(update={**said, "attachments": ()})

    @property
    def without_attachments(self) -> "Message":
        """Return the message with format, size and digest in the place of each attachment, for records."""
        return self.with_attachments_as(lambda attachment: attachment.shown)

    @property
    def without_state(self) -> "Message":
        """Return the message without the provider's state, for every reader but the provider."""
        return self if self.state is None else self.model_copy(update={"state": None})


class ToolChoice(StrEnum):
    """Permission, prohibition or duty to call a tool in this step."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class Effort(StrEnum):
    """The time that a model may think before it answers, from none to as long as it can.

    Each dialect uses the nearest level that its model knows; models without such a choice ignore it.
    """

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


class FinishReason(StrEnum):
    """The reason why a step ended without an error."""

    STOP = "stop"
    """The agent said all it wanted, or met a stop sequence."""
    TOOL_CALLS = "tool_calls"
    """The agent waits for the results of the calls it made."""
    LENGTH = "length"
    """`max_output_tokens` or the context window was reached."""


_MOST_ALTERNATIVES: Final = 20
"""OpenAI's limit of `top_logprobs`."""
MOST_TOKENS: Final = 10**12
"""Upper bound of the tokens of one step; sums of such counts fit the integers of databases and of the wire."""
MOST_MEASURED: Final = 1e12
"""Upper bound of the seconds, joules or tokens per second of one step; sums of such values stay finite."""


class Usage(Value):
    """Tokens of one or more steps."""

    input_tokens: int = Field(default=0, ge=0)
    """Prompt tokens, cached ones included."""
    output_tokens: int = Field(default=0, ge=0)
    """Tokens written, reasoning included."""
    cached_tokens: int = Field(default=0, ge=0)
    """Part of `input_tokens` that was read from a prefix cache."""
    cache_write_tokens: int = Field(default=0, ge=0)
    """Part of `input_tokens` that was written to a prefix cache, and not read from it; 0 if the provider does not report it."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """Part of `output_tokens` that the model used for reasoning and did not say; 0 if the provider does not report it."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def largest(self) -> int:
        """Return the largest of the counts."""
        counts: dict[str, int] = vars(self)
        return max(counts.values())


class EnergySource(StrEnum):
    """The origin of a figure of energy."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    UNAVAILABLE = "unavailable"


class Performance(Value):
    """Time, energy and memory of one step on the machine that computed it. None means not measured."""

    first_token_seconds: float | None = Field(default=None, ge=0, le=MOST_MEASURED, allow_inf_nan=False)
    """Seconds from the step's first pass through the model to its first generated token, without time in the queue."""
    prefill_tokens_per_second: float | None = Field(default=None, ge=0, le=MOST_MEASURED, allow_inf_nan=False)
    """Tokens per second over the prompt tokens that were not found in the prefix cache."""
    decode_tokens_per_second: float | None = Field(default=None, ge=0, le=MOST_MEASURED, allow_inf_nan=False)
    """Output tokens per second; None: not measured."""
    joules: float | None = Field(default=None, ge=0, le=MOST_MEASURED, allow_inf_nan=False)
    """The step's share of the device's energy in joules; None if `joules_source` is `unavailable`."""
    joules_source: EnergySource = EnergySource.UNAVAILABLE
    """Measured, estimated, or unavailable."""
    kv_bytes: int | None = Field(default=None, ge=0)
    """Peak memory that the step's own tokens took in the key-value cache, prefix included."""

    @model_validator(mode="after")
    def _joules_have_a_source(self) -> "Performance":
        if (self.joules is None) != (self.joules_source is EnergySource.UNAVAILABLE):
            raise ValueError("joules are given exactly where their source is not 'unavailable'")
        return self


class StepRequest(Value):
    """Everything an agent needs for one turn; steps are stateless, so this holds the whole conversation."""

    messages: tuple[Message, ...] = Field(min_length=1)
    """The conversation so far."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that may be called."""
    tool_choice: ToolChoice = ToolChoice.AUTO
    """Leave calls to the model, forbid them, or demand one."""
    output_schema: JsonSchema | None = None
    """The final text must be JSON valid against this schema."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """None: as many as the agent's limits allow."""
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    """None: the agent's own default, which is 0 (the likeliest token every time) near and the provider's far."""
    effort: Effort | None = None
    """None: the agent's own default."""
    max_reasoning_tokens: int | None = Field(default=None, gt=0)
    """Tokens of reasoning after which the agent has to answer, where its card says `reasoning_limit`; None: no limit of its own."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Makes sampling repeatable, where the agent can; None: random."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Sample only from the likeliest tokens that have this probability together. This and the samplers below are hints, which agents
    without them ignore; None: the agent's own default."""
    top_k: int | None = Field(default=None, gt=0, lt=2**31)
    """Sample only from this many of the likeliest tokens."""
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    """Sample only from tokens at least this many times as likely as the likeliest one."""
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    """Subtract this from the logit of each token that the output holds already."""
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    """Subtract this from a token's logit for each time that the output holds it."""
    top_logprobs: int | None = Field(default=None, ge=0, le=_MOST_ALTERNATIVES)
    """Likeliest tokens to report at each place of the text in `Finished.logprobs`; None: no log-probabilities."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), max_length=8)
    """Texts that end the output, and are left out of it."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds the whole step may take; None: no limit of its own."""
    adapter: str | None = Field(default=None, min_length=1)
    """Name of the LoRA adapter (Hu et al. 2021, arXiv 2106.09685) that the model wears for the prompt and for text; None: none."""
    call_adapter: str | None = Field(default=None, min_length=1)
    """The adapter for the tokens inside a tool call; None: the same as `adapter`."""
    sensitivity: Sensitivity = Sensitivity.PRIVATE
    """Private text is refused by far agents."""
    idempotency_key: str = Field(default_factory=lambda: token_hex(16), min_length=1, max_length=128)
    """Identifies this step: a repeated request with the same key and content is answered from the first one, and paid once."""

    @model_validator(mode="after")
    def _tools_are_distinct_and_present(self) -> "StepRequest":
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise ValueError(f"two tools share one name: {sorted(names)}")
        if self.tool_choice is ToolChoice.REQUIRED and not names:
            raise ValueError("tool_choice is 'required' but no tools are given")
        return self


class TextDelta(Value):
    """A further piece of the agent's text."""

    type: Literal["text"] = "text"
    text: str = Field(min_length=1)
    """A piece of text."""


class ToolCalled(Value):
    """A complete tool call: its name is known and its arguments are valid against the tool's schema."""

    type: Literal["tool_call"] = "tool_call"
    call: ToolCall
    """The call, complete."""


class LikelyToken(Value):
    """A token and how likely it was."""

    token: str
    """Its text; bytes that are no whole character become U+FFFD."""
    logprob: float = Field(le=0.0, allow_inf_nan=False)
    """Natural logarithm of the model's own probability, before any sampler."""


class TokenLogprob(LikelyToken):
    """A token of the text, and those that were likeliest in its place."""

    top: tuple[LikelyToken, ...] = Field(default=(), max_length=_MOST_ALTERNATIVES)
    """The likeliest tokens, in order."""


class Finished(Value):
    """The last event of every step that did not fail."""

    type: Literal["finished"] = "finished"
    reason: FinishReason
    """Why the step ended."""
    usage: Usage
    """Tokens of the step."""
    model: str
    """The model that really answered."""
    confidence: float | None = Field(default=None, ge=0.0, le=1.0)
    """exp of the lowest mean token log-probability over any 4 consecutive generated tokens (DeepConf's
    lowest-group confidence, arXiv 2508.15260, on a short window); None where log-probabilities are not known."""
    performance: Performance | None = None
    """None if the agent does not measure, as for a provider's model."""
    saved: Usage | None = None
    """Usage of the original step, if the answer was read from a cache of answers and `usage` is zero; None: it was computed."""
    state: ProviderState | None = None
    """State that belongs to the message of the step's text and calls; None if the agent needs nothing back."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """The text's tokens, if the request set `top_logprobs`."""
    stop: str | None = None
    """The sequence of `StepRequest.stop` that ended the text; None: none did, or the agent does not tell."""

    @model_validator(mode="after")
    def _counts_are_of_one_step(self) -> Self:
        most = max(self.usage.largest, 0 if self.saved is None else self.saved.largest)
        if most > MOST_TOKENS:
            raise ValueError(f"a step takes no {most} tokens")
        return self


StepEvent = Annotated[TextDelta | ToolCalled | Finished, Field(discriminator="type")]
"""An event of a step: any number of `TextDelta` and `ToolCalled`, then exactly one `Finished`, or one error."""


class StepReply(Value):
    """A finished step, collected."""

    text: str
    """All text of the step."""
    tool_calls: tuple[ToolCall, ...]
    """Its tool calls, in order."""
    finished: Finished
    """Its end."""

    @property
    def message(self) -> Message:
        """Return the assistant message that continues the conversation."""
        return Message.assistant(self.text, self.tool_calls, self.finished.state)
