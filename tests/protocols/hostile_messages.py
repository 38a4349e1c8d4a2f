"""Messages that no honest peer sends: random bytes, and valid protobuf with extreme fields."""

from collections.abc import Callable
from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import strategies as st

from nearfar.protocols.access import REQUIRED
from nearfar.protocols.v1 import agent_pb2, hub_pb2, memory_pb2

_SERVICES = [
    service
    for file in (agent_pb2, hub_pb2, memory_pb2, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
INPUTS: dict[str, Descriptor] = {
    f"/{service.full_name}/{method.name}": method.input_type for service in _SERVICES for method in service.methods
}
"""What each RPC of every server takes, by its method."""
assert {method for method in REQUIRED if method.startswith("/nearfar.")} <= set(INPUTS)

_DEEP = '{"a":' * 3000 + "1" + "}" * 3000
_JSON = st.sampled_from(
    [
        "",
        "{}",
        "[",
        "null",
        "NaN",
        "1e999",
        "1" * 5000,
        _DEEP,
        "[" * 100_000,
        '{"type":"object"}',
        '{"$ref":"#"}',
        '{"a":"\\ud800"}',
        '{"$ref":"http://x/"}',
    ]
)
_TEXTS = st.one_of(
    st.sampled_from(
        ["", "\0", "x" * 100_000, "\x1b[2J", "../../etc/passwd", "%s%n", "\u202e", "phone", "far", "hub", "sha256:" + "0" * 64]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    _JSON,
)
_BYTES = st.one_of(st.binary(max_size=200), _JSON.map(str.encode))
_FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")])


def _between(least: int, most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, 2, least, most, most // 2])


_SCALARS: dict[int, st.SearchStrategy[object]] = {
    FieldDescriptor.CPPTYPE_INT32: _between(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _between(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: _between(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: _between(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: _FLOATS,
    FieldDescriptor.CPPTYPE_FLOAT: _FLOATS,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: _between(-(2**31), 2**31 - 1),
}


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[object]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _TEXTS if field.type == FieldDescriptor.TYPE_STRING else _BYTES
    return _SCALARS[field.cpp_type]


def _fields(descriptor: object) -> list[FieldDescriptor]:
    return cast("list[FieldDescriptor]", list(descriptor.fields))  # type: ignore[attr-defined]  # upb has classes of its own for them


def _fill(draw: Callable[[st.SearchStrategy[object]], object], message: Message, depth: int) -> None:
    for field in _fields(message.DESCRIPTOR):
        if not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[draw(_TEXTS)] = draw(_scalar(_fields(field.message_type)[1]))
        elif field.message_type is not None and depth:
            part = getattr(message, field.name)
            _fill(draw, part.add() if field.is_repeated else part, depth - 1)
        elif field.message_type is None and field.is_repeated:
            getattr(message, field.name).extend([draw(_scalar(field))] * int(str(draw(st.sampled_from([1, 3, 3000])))))
        elif field.message_type is None:
            setattr(message, field.name, draw(_scalar(field)))


@st.composite
def _extreme(draw: Callable[[st.SearchStrategy[object]], object], descriptor: Descriptor) -> bytes:
    message: Message = GetMessageClass(descriptor)()
    _fill(draw, message, 4)
    return message.SerializeToString()


def messages(method: str) -> st.SearchStrategy[bytes]:
    """What somebody might send to this method: what it takes, what another one takes, and what none does."""
    other = st.sampled_from(sorted(INPUTS)).flatmap(lambda name: _extreme(INPUTS[name]))
    return st.one_of(_extreme(INPUTS[method]), _extreme(INPUTS[method]), other, st.binary(max_size=300))
