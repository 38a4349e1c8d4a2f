from . import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PowerSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POWER_SOURCE_UNKNOWN: _ClassVar[PowerSource]
    POWER_SOURCE_MAINS: _ClassVar[PowerSource]
    POWER_SOURCE_BATTERY: _ClassVar[PowerSource]

class Thermal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THERMAL_UNKNOWN: _ClassVar[Thermal]
    THERMAL_NOMINAL: _ClassVar[Thermal]
    THERMAL_FAIR: _ClassVar[Thermal]
    THERMAL_SERIOUS: _ClassVar[Thermal]
    THERMAL_CRITICAL: _ClassVar[Thermal]
POWER_SOURCE_UNKNOWN: PowerSource
POWER_SOURCE_MAINS: PowerSource
POWER_SOURCE_BATTERY: PowerSource
THERMAL_UNKNOWN: Thermal
THERMAL_NOMINAL: Thermal
THERMAL_FAIR: Thermal
THERMAL_SERIOUS: Thermal
THERMAL_CRITICAL: Thermal

class WorkerMessage(_message.Message):
    __slots__ = ("register", "heartbeat", "output", "draining")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: WorkerHeartbeat
    output: StepOutput
    draining: Draining
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[WorkerHeartbeat, _Mapping]] = ..., output: _Optional[_Union[StepOutput, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class HubMessage(_message.Message):
    __slots__ = ("registered", "heartbeat", "start", "cancel")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    heartbeat: HubHeartbeat
    start: StartStep
    cancel: CancelStep
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., heartbeat: _Optional[_Union[HubHeartbeat, _Mapping]] = ..., start: _Optional[_Union[StartStep, _Mapping]] = ..., cancel: _Optional[_Union[CancelStep, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[KnownWorker]
    def __init__(self, workers: _Optional[_Iterable[_Union[KnownWorker, _Mapping]]] = ...) -> None: ...

class KnownWorker(_message.Message):
    __slots__ = ("name", "is_attached", "is_draining", "agents", "state", "live_steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIVE_STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_attached: bool
    is_draining: bool
    agents: _containers.RepeatedCompositeFieldContainer[_agent_pb2.AgentCard]
    state: DeviceState
    live_steps: int
    def __init__(self, name: _Optional[str] = ..., is_attached: bool = ..., is_draining: bool = ..., agents: _Optional[_Iterable[_Union[_agent_pb2.AgentCard, _Mapping]]] = ..., state: _Optional[_Union[DeviceState, _Mapping]] = ..., live_steps: _Optional[int] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("instance", "agents", "state")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    agents: _containers.RepeatedCompositeFieldContainer[_agent_pb2.AgentCard]
    state: DeviceState
    def __init__(self, instance: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[_agent_pb2.AgentCard, _Mapping]]] = ..., state: _Optional[_Union[DeviceState, _Mapping]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("worker", "heartbeat_interval", "silence_limit")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    SILENCE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    heartbeat_interval: float
    silence_limit: float
    def __init__(self, worker: _Optional[str] = ..., heartbeat_interval: _Optional[float] = ..., silence_limit: _Optional[float] = ...) -> None: ...

class WorkerHeartbeat(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: DeviceState
    def __init__(self, state: _Optional[_Union[DeviceState, _Mapping]] = ...) -> None: ...

class HubHeartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartStep(_message.Message):
    __slots__ = ("step", "agent", "idempotency_key", "timeout", "request", "traceparent")
    STEP_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    step: int
    agent: str
    idempotency_key: str
    timeout: float
    request: _agent_pb2.StepRequest
    traceparent: str
    def __init__(self, step: _Optional[int] = ..., agent: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., timeout: _Optional[float] = ..., request: _Optional[_Union[_agent_pb2.StepRequest, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class CancelStep(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class StepOutput(_message.Message):
    __slots__ = ("step", "event", "failure")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    step: int
    event: _agent_pb2.StepEvent
    failure: StepFailure
    def __init__(self, step: _Optional[int] = ..., event: _Optional[_Union[_agent_pb2.StepEvent, _Mapping]] = ..., failure: _Optional[_Union[StepFailure, _Mapping]] = ...) -> None: ...

class StepFailure(_message.Message):
    __slots__ = ("reason", "message", "hint", "retry_after")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    hint: str
    retry_after: float
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., retry_after: _Optional[float] = ...) -> None: ...

class DeviceState(_message.Message):
    __slots__ = ("battery", "power_source", "thermal", "free_memory_bytes")
    BATTERY_FIELD_NUMBER: _ClassVar[int]
    POWER_SOURCE_FIELD_NUMBER: _ClassVar[int]
    THERMAL_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    battery: float
    power_source: PowerSource
    thermal: Thermal
    free_memory_bytes: int
    def __init__(self, battery: _Optional[float] = ..., power_source: _Optional[_Union[PowerSource, str]] = ..., thermal: _Optional[_Union[Thermal, str]] = ..., free_memory_bytes: _Optional[int] = ...) -> None: ...
