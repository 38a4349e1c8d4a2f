from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemoryTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_TIER_DEVICE: _ClassVar[MemoryTier]
    MEMORY_TIER_USER: _ClassVar[MemoryTier]
    MEMORY_TIER_SHARED: _ClassVar[MemoryTier]
MEMORY_TIER_DEVICE: MemoryTier
MEMORY_TIER_USER: MemoryTier
MEMORY_TIER_SHARED: MemoryTier

class MemoryAddress(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: _containers.RepeatedScalarFieldContainer[str]
    key: str
    def __init__(self, namespace: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ...) -> None: ...

class MemoryItem(_message.Message):
    __slots__ = ("address", "value", "version", "tier", "user", "agent", "source", "trust", "subject", "created_at", "updated_at", "conflicts", "score")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    address: MemoryAddress
    value: bytes
    version: str
    tier: MemoryTier
    user: str
    agent: str
    source: str
    trust: float
    subject: str
    created_at: float
    updated_at: float
    conflicts: int
    score: float
    def __init__(self, address: _Optional[_Union[MemoryAddress, _Mapping]] = ..., value: _Optional[bytes] = ..., version: _Optional[str] = ..., tier: _Optional[_Union[MemoryTier, str]] = ..., user: _Optional[str] = ..., agent: _Optional[str] = ..., source: _Optional[str] = ..., trust: _Optional[float] = ..., subject: _Optional[str] = ..., created_at: _Optional[float] = ..., updated_at: _Optional[float] = ..., conflicts: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("address", "value", "tier", "subject", "if_version", "ttl")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    address: MemoryAddress
    value: bytes
    tier: MemoryTier
    subject: str
    if_version: str
    ttl: float
    def __init__(self, address: _Optional[_Union[MemoryAddress, _Mapping]] = ..., value: _Optional[bytes] = ..., tier: _Optional[_Union[MemoryTier, str]] = ..., subject: _Optional[str] = ..., if_version: _Optional[str] = ..., ttl: _Optional[float] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: MemoryAddress
    def __init__(self, address: _Optional[_Union[MemoryAddress, _Mapping]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("item",)
    ITEM_FIELD_NUMBER: _ClassVar[int]
    item: MemoryItem
    def __init__(self, item: _Optional[_Union[MemoryItem, _Mapping]] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("namespace", "query", "filter", "limit", "offset")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    namespace: _containers.RepeatedScalarFieldContainer[str]
    query: str
    filter: bytes
    limit: int
    offset: int
    def __init__(self, namespace: _Optional[_Iterable[str]] = ..., query: _Optional[str] = ..., filter: _Optional[bytes] = ..., limit: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[MemoryItem]
    def __init__(self, items: _Optional[_Iterable[_Union[MemoryItem, _Mapping]]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("address", "if_version")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    address: MemoryAddress
    if_version: str
    def __init__(self, address: _Optional[_Union[MemoryAddress, _Mapping]] = ..., if_version: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("subject", "prefix")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    subject: str
    prefix: NamespacePrefix
    def __init__(self, subject: _Optional[str] = ..., prefix: _Optional[_Union[NamespacePrefix, _Mapping]] = ...) -> None: ...

class NamespacePrefix(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[_Iterable[str]] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: int
    def __init__(self, items: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("schema", "device", "now", "known", "facts", "log")
    class KnownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    schema: int
    device: str
    now: float
    known: _containers.ScalarMap[str, int]
    facts: bytes
    log: str
    def __init__(self, schema: _Optional[int] = ..., device: _Optional[str] = ..., now: _Optional[float] = ..., known: _Optional[_Mapping[str, int]] = ..., facts: _Optional[bytes] = ..., log: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("hello", "continuation")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    continuation: Continuation
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("known", "log", "position", "takes_all")
    class KnownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAKES_ALL_FIELD_NUMBER: _ClassVar[int]
    known: _containers.ScalarMap[str, int]
    log: str
    position: int
    takes_all: bool
    def __init__(self, known: _Optional[_Mapping[str, int]] = ..., log: _Optional[str] = ..., position: _Optional[int] = ..., takes_all: bool = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("log", "start", "end", "operations", "holes", "keys", "facts", "known")
    LOG_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    log: str
    start: int
    end: int
    operations: Operations
    holes: _containers.RepeatedCompositeFieldContainer[Hole]
    keys: _containers.RepeatedCompositeFieldContainer[SubjectKey]
    facts: bytes
    known: Knowledge
    def __init__(self, log: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., operations: _Optional[_Union[Operations, _Mapping]] = ..., holes: _Optional[_Iterable[_Union[Hole, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[SubjectKey, _Mapping]]] = ..., facts: _Optional[bytes] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ...) -> None: ...

class Operations(_message.Message):
    __slots__ = ("devices", "device", "sequence", "length", "payloads")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedScalarFieldContainer[str]
    device: _containers.RepeatedScalarFieldContainer[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    length: _containers.RepeatedScalarFieldContainer[int]
    payloads: bytes
    def __init__(self, devices: _Optional[_Iterable[str]] = ..., device: _Optional[_Iterable[int]] = ..., sequence: _Optional[_Iterable[int]] = ..., length: _Optional[_Iterable[int]] = ..., payloads: _Optional[bytes] = ...) -> None: ...

class Hole(_message.Message):
    __slots__ = ("device", "first", "last")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    device: str
    first: int
    last: int
    def __init__(self, device: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class SubjectKey(_message.Message):
    __slots__ = ("id", "tag", "key")
    ID_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    tag: str
    key: bytes
    def __init__(self, id: _Optional[bytes] = ..., tag: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class Knowledge(_message.Message):
    __slots__ = ("known",)
    class KnownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: _containers.ScalarMap[str, int]
    def __init__(self, known: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PushMessage(_message.Message):
    __slots__ = ("hello", "batch")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    batch: Batch
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("continuation", "received")
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    continuation: Continuation
    received: Received
    def __init__(self, continuation: _Optional[_Union[Continuation, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("operations", "holes", "refused", "conflicts")
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    operations: int
    holes: int
    refused: int
    conflicts: int
    def __init__(self, operations: _Optional[int] = ..., holes: _Optional[int] = ..., refused: _Optional[int] = ..., conflicts: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("hello",)
    HELLO_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ...) -> None: ...

class Changed(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...
