"""OpenTelemetry's semantic conventions for generative AI, as models that spans and contents are checked against."""

import json
from typing import Annotated, Any, Literal

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

FinishReason = Literal["stop", "length", "content_filter", "tool_call", "error"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(Strict):
    type: Literal["text"]
    content: str


class ToolCallPart(Strict):
    type: Literal["tool_call"]
    id: str | None = None
    name: str
    arguments: Any = None


class ToolResponsePart(Strict):
    type: Literal["tool_call_response"]
    id: str | None = None
    response: Any


class FilePart(Strict):
    type: Literal["file"]
    mime_type: str | None = None
    modality: Literal["image", "video", "audio", "document"]
    file_id: str


Part = Annotated[TextPart | ToolCallPart | ToolResponsePart | FilePart, Field(discriminator="type")]


class ChatMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    parts: list[Part]


class OutputMessage(ChatMessage):
    finish_reason: FinishReason


class FunctionTool(Strict):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


CONTENTS: dict[str, TypeAdapter[Any]] = {
    "gen_ai.input.messages": TypeAdapter(list[ChatMessage]),
    "gen_ai.output.messages": TypeAdapter(list[OutputMessage]),
    "gen_ai.system_instructions": TypeAdapter(list[TextPart]),
    "gen_ai.tool.definitions": TypeAdapter(list[FunctionTool]),
    "gen_ai.tool.call.arguments": TypeAdapter(dict[str, Any]),
}


class Operation(BaseModel):
    """Attributes of every span; others of the conventions must be named by a subclass, and nearfar's own are free."""

    model_config = ConfigDict(extra="allow", strict=True)
    error_type: str | None = Field(default=None, alias="error.type")
    conversation: str | None = Field(default=None, alias="gen_ai.conversation.id")


class Workflow(Operation):
    operation: Literal["invoke_workflow"] = Field(alias="gen_ai.operation.name")
    workflow: str = Field(alias="gen_ai.workflow.name")
    asked: str | None = Field(default=None, alias="gen_ai.input.messages")
    answered: str | None = Field(default=None, alias="gen_ai.output.messages")


class InvokeAgent(Operation):
    operation: Literal["invoke_agent"] = Field(alias="gen_ai.operation.name")
    agent: str = Field(alias="gen_ai.agent.name")
    model: str = Field(alias="gen_ai.request.model")
    read: int | None = Field(default=None, alias="gen_ai.usage.input_tokens")
    written: int | None = Field(default=None, alias="gen_ai.usage.output_tokens")


class Plan(Operation):
    operation: Literal["plan"] = Field(alias="gen_ai.operation.name")
    agent: str = Field(alias="gen_ai.agent.name")


class Chat(Operation):
    operation: Literal["chat"] = Field(alias="gen_ai.operation.name")
    provider: str = Field(alias="gen_ai.provider.name", min_length=1)
    agent: str = Field(alias="gen_ai.agent.name")
    model: str = Field(alias="gen_ai.request.model")
    answered_by: str | None = Field(default=None, alias="gen_ai.response.model")
    finished: tuple[FinishReason, ...] = Field(alias="gen_ai.response.finish_reasons", min_length=1)
    first_chunk: float | None = Field(default=None, alias="gen_ai.response.time_to_first_chunk")
    output_type: Literal["text", "json"] = Field(alias="gen_ai.output.type")
    stream: Literal[True] = Field(alias="gen_ai.request.stream")
    temperature: float | None = Field(default=None, alias="gen_ai.request.temperature")
    top_p: float | None = Field(default=None, alias="gen_ai.request.top_p")
    top_k: int | None = Field(default=None, alias="gen_ai.request.top_k")
    presence_penalty: float | None = Field(default=None, alias="gen_ai.request.presence_penalty")
    frequency_penalty: float | None = Field(default=None, alias="gen_ai.request.frequency_penalty")
    max_tokens: int | None = Field(default=None, alias="gen_ai.request.max_tokens")
    seed: int | None = Field(default=None, alias="gen_ai.request.seed")
    stops: tuple[str, ...] | None = Field(default=None, alias="gen_ai.request.stop_sequences")
    read: int | None = Field(default=None, alias="gen_ai.usage.input_tokens")
    written: int | None = Field(default=None, alias="gen_ai.usage.output_tokens")
    cache_read: int | None = Field(default=None, alias="gen_ai.usage.cache_read.input_tokens")
    cache_write: int | None = Field(default=None, alias="gen_ai.usage.cache_write.input_tokens")
    reasoned: int | None = Field(default=None, alias="gen_ai.usage.reasoning.output_tokens")
    address: str | None = Field(default=None, alias="server.address")
    port: int | None = Field(default=None, alias="server.port")
    asked: str | None = Field(default=None, alias="gen_ai.input.messages")
    answered: str | None = Field(default=None, alias="gen_ai.output.messages")
    instructions: str | None = Field(default=None, alias="gen_ai.system_instructions")
    tools: str | None = Field(default=None, alias="gen_ai.tool.definitions")


class ExecuteTool(Operation):
    operation: Literal["execute_tool"] = Field(alias="gen_ai.operation.name")
    tool: str = Field(alias="gen_ai.tool.name")
    call: str = Field(alias="gen_ai.tool.call.id")
    type: Literal["function"] = Field(alias="gen_ai.tool.type")
    arguments: str | None = Field(default=None, alias="gen_ai.tool.call.arguments")
    result: str | None = Field(default=None, alias="gen_ai.tool.call.result")


class SearchMemory(Operation):
    operation: Literal["search_memory"] = Field(alias="gen_ai.operation.name")
    records: int = Field(alias="gen_ai.memory.record.count")


OPERATIONS: TypeAdapter[Operation] = TypeAdapter(
    Annotated[
        Annotated[Workflow, Tag("invoke_workflow")]
        | Annotated[InvokeAgent, Tag("invoke_agent")]
        | Annotated[Plan, Tag("plan")]
        | Annotated[Chat, Tag("chat")]
        | Annotated[ExecuteTool, Tag("execute_tool")]
        | Annotated[SearchMemory, Tag("search_memory")],
        Discriminator(lambda attributes: attributes["gen_ai.operation.name"]),
    ]
)
_TARGET = {
    "invoke_workflow": "gen_ai.workflow.name",
    "invoke_agent": "gen_ai.agent.name",
    "plan": "gen_ai.agent.name",
    "chat": "gen_ai.request.model",
    "execute_tool": "gen_ai.tool.name",
    "search_memory": "",
}
_OWN = ("nearfar.", "openinference.", "langfuse.", "llm.", "session.")


def check_span(span: ReadableSpan) -> None:
    """Raise where a span breaks the conventions."""
    attributes = dict(span.attributes or {})
    operation = OPERATIONS.validate_python(attributes)
    foreign = [name for name in operation.model_extra or {} if not name.startswith(_OWN)]
    assert foreign == [], f"{span.name}: {foreign} are no attributes of the conventions"
    kind = str(attributes["gen_ai.operation.name"])
    assert span.name == f"{kind} {attributes.get(_TARGET[kind], '')}".strip()
    assert span.kind is SpanKind.INTERNAL or kind == "chat"
    assert ("server.address" in attributes) == ("server.port" in attributes)
    assert ("error.type" in attributes) == (not span.status.is_ok and not span.status.is_unset)
    for name, content in CONTENTS.items():
        if name in attributes:
            content.validate_python(json.loads(str(attributes[name])))
