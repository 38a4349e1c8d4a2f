from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sensitivity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SENSITIVITY_PRIVATE: _ClassVar[Sensitivity]
    SENSITIVITY_PUBLIC: _ClassVar[Sensitivity]

class Side(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIDE_FAR: _ClassVar[Side]
    SIDE_NEAR: _ClassVar[Side]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class ToolChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_CHOICE_AUTO: _ClassVar[ToolChoice]
    TOOL_CHOICE_NONE: _ClassVar[ToolChoice]
    TOOL_CHOICE_REQUIRED: _ClassVar[ToolChoice]

class Effort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFORT_UNSPECIFIED: _ClassVar[Effort]
    EFFORT_NONE: _ClassVar[Effort]
    EFFORT_MINIMAL: _ClassVar[Effort]
    EFFORT_LOW: _ClassVar[Effort]
    EFFORT_MEDIUM: _ClassVar[Effort]
    EFFORT_HIGH: _ClassVar[Effort]
    EFFORT_XHIGH: _ClassVar[Effort]
    EFFORT_MAX: _ClassVar[Effort]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class EnergySource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENERGY_SOURCE_UNAVAILABLE: _ClassVar[EnergySource]
    ENERGY_SOURCE_MEASURED: _ClassVar[EnergySource]
    ENERGY_SOURCE_ESTIMATED: _ClassVar[EnergySource]
SENSITIVITY_PRIVATE: Sensitivity
SENSITIVITY_PUBLIC: Sensitivity
SIDE_FAR: Side
SIDE_NEAR: Side
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
TOOL_CHOICE_AUTO: ToolChoice
TOOL_CHOICE_NONE: ToolChoice
TOOL_CHOICE_REQUIRED: ToolChoice
EFFORT_UNSPECIFIED: Effort
EFFORT_NONE: Effort
EFFORT_MINIMAL: Effort
EFFORT_LOW: Effort
EFFORT_MEDIUM: Effort
EFFORT_HIGH: Effort
EFFORT_XHIGH: Effort
EFFORT_MAX: Effort
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_LENGTH: FinishReason
ENERGY_SOURCE_UNAVAILABLE: EnergySource
ENERGY_SOURCE_MEASURED: EnergySource
ENERGY_SOURCE_ESTIMATED: EnergySource

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("agents",)
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[AgentCard]
    def __init__(self, agents: _Optional[_Iterable[_Union[AgentCard, _Mapping]]] = ...) -> None: ...

class StepCall(_message.Message):
    __slots__ = ("agent", "idempotency_key", "resume_from", "request", "reader")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    agent: str
    idempotency_key: str
    resume_from: int
    request: StepRequest
    reader: str
    def __init__(self, agent: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., resume_from: _Optional[int] = ..., request: _Optional[_Union[StepRequest, _Mapping]] = ..., reader: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("idempotency_key", "reader")
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    reader: str
    def __init__(self, idempotency_key: _Optional[str] = ..., reader: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("messages", "tools", "tool_choice", "output_schema_json", "max_output_tokens", "temperature", "seed", "stop", "sensitivity", "adapter", "call_adapter", "effort", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "top_logprobs", "max_reasoning_tokens")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CALL_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedCompositeFieldContainer[ToolSpec]
    tool_choice: ToolChoice
    output_schema_json: str
    max_output_tokens: int
    temperature: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    sensitivity: Sensitivity
    adapter: str
    call_adapter: str
    effort: Effort
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_reasoning_tokens: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ToolSpec, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, str]] = ..., output_schema_json: _Optional[str] = ..., max_output_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., sensitivity: _Optional[_Union[Sensitivity, str]] = ..., adapter: _Optional[str] = ..., call_adapter: _Optional[str] = ..., effort: _Optional[_Union[Effort, str]] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., top_logprobs: _Optional[int] = ..., max_reasoning_tokens: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "text", "tool_calls", "tool_result", "state", "attachments")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    role: Role
    text: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_result: ToolResult
    state: ProviderState
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., text: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_result: _Optional[_Union[ToolResult, _Mapping]] = ..., state: _Optional[_Union[ProviderState, _Mapping]] = ..., attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("media_type", "data", "name")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: bytes
    name: str
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class ProviderState(_message.Message):
    __slots__ = ("provider", "model", "parts_json")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARTS_JSON_FIELD_NUMBER: _ClassVar[int]
    provider: str
    model: str
    parts_json: str
    def __init__(self, provider: _Optional[str] = ..., model: _Optional[str] = ..., parts_json: _Optional[str] = ...) -> None: ...

class ToolSpec(_message.Message):
    __slots__ = ("name", "description", "parameters_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("call_id", "name", "content", "is_error")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    content: str
    is_error: bool
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., content: _Optional[str] = ..., is_error: bool = ...) -> None: ...

class StepEvent(_message.Message):
    __slots__ = ("text", "tool_call", "finished")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    text: str
    tool_call: ToolCall
    finished: Finished
    def __init__(self, text: _Optional[str] = ..., tool_call: _Optional[_Union[ToolCall, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "usage", "model", "confidence", "performance", "saved", "state", "logprobs", "stop")
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    usage: Usage
    model: str
    confidence: float
    performance: Performance
    saved: Usage
    state: ProviderState
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    stop: str
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., model: _Optional[str] = ..., confidence: _Optional[float] = ..., performance: _Optional[_Union[Performance, _Mapping]] = ..., saved: _Optional[_Union[Usage, _Mapping]] = ..., state: _Optional[_Union[ProviderState, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., stop: _Optional[str] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[LikelyToken]
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[LikelyToken, _Mapping]]] = ...) -> None: ...

class LikelyToken(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ...) -> None: ...

class Performance(_message.Message):
    __slots__ = ("first_token_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "joules", "joules_source", "kv_bytes")
    FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    JOULES_FIELD_NUMBER: _ClassVar[int]
    JOULES_SOURCE_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    first_token_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    joules: float
    joules_source: EnergySource
    kv_bytes: int
    def __init__(self, first_token_seconds: _Optional[float] = ..., prefill_tokens_per_second: _Optional[float] = ..., decode_tokens_per_second: _Optional[float] = ..., joules: _Optional[float] = ..., joules_source: _Optional[_Union[EnergySource, str]] = ..., kv_bytes: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., cache_write_tokens: _Optional[int] = ...) -> None: ...

class AgentCard(_message.Message):
    __slots__ = ("name", "side", "model", "description", "world", "capabilities", "limits", "prices", "parameters", "kv_bytes_per_token", "adapters", "execution", "provider")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PRICES_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    side: Side
    model: str
    description: str
    world: str
    capabilities: Capabilities
    limits: Limits
    prices: Prices
    parameters: int
    kv_bytes_per_token: int
    adapters: _containers.RepeatedScalarFieldContainer[str]
    execution: Execution
    provider: str
    def __init__(self, name: _Optional[str] = ..., side: _Optional[_Union[Side, str]] = ..., model: _Optional[str] = ..., description: _Optional[str] = ..., world: _Optional[str] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., prices: _Optional[_Union[Prices, _Mapping]] = ..., parameters: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., adapters: _Optional[_Iterable[str]] = ..., execution: _Optional[_Union[Execution, _Mapping]] = ..., provider: _Optional[str] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("engine", "provider", "device", "layers", "offloaded_layers", "threads", "extra_buffers_off")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    OFFLOADED_LAYERS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_BUFFERS_OFF_FIELD_NUMBER: _ClassVar[int]
    engine: str
    provider: str
    device: str
    layers: int
    offloaded_layers: int
    threads: int
    extra_buffers_off: str
    def __init__(self, engine: _Optional[str] = ..., provider: _Optional[str] = ..., device: _Optional[str] = ..., layers: _Optional[int] = ..., offloaded_layers: _Optional[int] = ..., threads: _Optional[int] = ..., extra_buffers_off: _Optional[str] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("tools", "json_schema", "confidence", "seed", "cancellation", "logprobs", "images", "files", "reasoning_limit")
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CANCELLATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    REASONING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    tools: bool
    json_schema: bool
    confidence: bool
    seed: bool
    cancellation: bool
    logprobs: bool
    images: bool
    files: bool
    reasoning_limit: bool
    def __init__(self, tools: bool = ..., json_schema: bool = ..., confidence: bool = ..., seed: bool = ..., cancellation: bool = ..., logprobs: bool = ..., images: bool = ..., files: bool = ..., reasoning_limit: bool = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("context_tokens", "max_output_tokens", "concurrency")
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    context_tokens: int
    max_output_tokens: int
    concurrency: int
    def __init__(self, context_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., concurrency: _Optional[int] = ...) -> None: ...

class Prices(_message.Message):
    __slots__ = ("input", "output", "cached_input", "source", "as_of", "cache_write", "long_prompts")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_FIELD_NUMBER: _ClassVar[int]
    LONG_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    input: str
    output: str
    cached_input: str
    source: str
    as_of: str
    cache_write: str
    long_prompts: _containers.RepeatedCompositeFieldContainer[LongPrompt]
    def __init__(self, input: _Optional[str] = ..., output: _Optional[str] = ..., cached_input: _Optional[str] = ..., source: _Optional[str] = ..., as_of: _Optional[str] = ..., cache_write: _Optional[str] = ..., long_prompts: _Optional[_Iterable[_Union[LongPrompt, _Mapping]]] = ...) -> None: ...

class LongPrompt(_message.Message):
    __slots__ = ("above", "input", "output", "cached_input", "cache_write")
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_FIELD_NUMBER: _ClassVar[int]
    above: int
    input: str
    output: str
    cached_input: str
    cache_write: str
    def __init__(self, above: _Optional[int] = ..., input: _Optional[str] = ..., output: _Optional[str] = ..., cached_input: _Optional[str] = ..., cache_write: _Optional[str] = ...) -> None: ...
