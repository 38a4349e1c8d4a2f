"""The parts of a conversation: messages, tools, tool calls and their results."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

JsonSchema = dict[str, Any]
"""A JSON Schema document (draft 2020-12), as a parsed object."""

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""A tool's name, limited to the form that every provider accepts."""


class Value(BaseModel):
    """Base of all contract types: immutable, closed to unknown fields, and silent about its content in validation errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


class Sensitivity(StrEnum):
    """The sides that may see the text of a request. The default is private, the safe value."""

    PRIVATE = "private"
    """Stays on this device; far agents refuse it."""
    PUBLIC = "public"
    """May be sent to any configured agent."""


class ToolSpec(Value):
    """A tool that an agent may call."""

    name: ToolName
    description: str = ""
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
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class ApprovalRequest(Value):
    """A tool call that waits for approval."""

    id: str = ""
    """Id of the answer: the call's own id, or the effect's id in a durable run, where call ids are not unique."""
    call: ToolCall
    reason: str
    """The reason why approval is needed."""


class ToolResult(Value):
    """The result of a tool call, as text for the model."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    content: str
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
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only on assistant messages."""
    tool_result: ToolResult | None = None
    """Exactly on tool messages."""
    state: ProviderState | None = None
    """Only on assistant messages. It is sent to its provider if it still matches `text` and `tool_calls`; near agents ignore it."""

    @model_validator(mode="after")
    def _parts_fit_the_role(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot carry tool_calls")
        if self.state is not None and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot carry a provider's state")
        if (self.tool_result is not None) != (self.role == "tool"):
            raise ValueError("a tool message carries exactly one tool_result, and no other message does")
        return self

    @classmethod
    def system(cls, text: str) -> "Message":
        return cls(role="system", text=text)

    @classmethod
    def user(cls, text: str) -> "Message":
        return cls(role="user", text=text)

    @classmethod
    def assistant(cls, text: str = "", tool_calls: tuple[ToolCall, ...] = (), state: ProviderState | None = None) -> "Message":
        return cls(role="assistant", text=text, tool_calls=tool_calls, state=state)

    @classmethod
    def tool(cls, result: ToolResult) -> "Message":
        return cls(role="tool", tool_result=result)

    @property
    def without_state(self) -> "Message":
        """Return the message without the provider's state, for every reader but the provider."""
        return self if self.state is None else self.model_copy(update={"state": None})
