"""Read an ONNX file without loading it: its weights and where they lie, its own metadata, its caches.

The messages and their field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
Protocol buffers' wire format, of which only the fields are read: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Final

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10

Buffer = bytes | memoryview


class Damaged(ValueError):
    """These bytes are no protocol buffer, or not the one that was expected."""


@dataclass(frozen=True, slots=True)
class WireField:
    """One field of a message."""

    number: int
    value: int | memoryview
    """A whole number, as it was written, or the bytes of a text or of a message."""

    @property
    def integer(self) -> int:
        """The number as an int64."""
        if not isinstance(self.value, int):
            raise Damaged(f"field {self.number} is not a number")
        return self.value - (1 << 64) if self.value >> 63 else self.value

    @property
    def message(self) -> memoryview:
        if isinstance(self.value, int):
            raise Damaged(f"field {self.number} is not a message")
        return self.value

    @property
    def text(self) -> str:
        """Raises `UnicodeDecodeError`, a `ValueError`, if it is none."""
        return str(self.message, "utf-8")


def fields(message: Buffer) -> Iterator[WireField]:
    """Yield the fields of a message, in the order in which they are written. Raises `Damaged`."""
    data, at = memoryview(message), 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _LENGTH:
            length, at = _varint(data, at)
            value, at = _take(data, at, length), at + length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value, at = int.from_bytes(_take(data, at, length), "little"), at + length
        else:
            raise Damaged(f"byte {at} begins a field of the unknown kind {kind}")
        yield WireField(number, value)


def integers(field: WireField) -> list[int]:
    """Return a repeated int64, which may be packed into one field."""
    if isinstance(field.value, int):
        return [field.integer]
    data, at, found = field.value, 0, []
    while at < len(data):
        value, at = _varint(data, at)
        found.append(WireField(field.number, value).integer)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise Damaged("a number does not end")


def _take(data: memoryview, at: int, length: int) -> memoryview:
    if length > len(data) - at:
        raise Damaged(f"a field of {length} bytes begins {len(data) - at} bytes before the end")
    return data[at : at + length]


_MOST_TENSORS: Final = 1 << 18
_MOST_DEPTH: Final = 8
_EXTERNAL: Final = 1
_RAW_DATA: Final = 9
_BITS: Final = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
}
"""Bits of an element, by `TensorProto.DataType`; texts have none."""
_FLOATS: Final = (1, 10, 11, 16)
_QUANTISED: Final = ("MatMulNBits", "GatherBlockQuantized")
_TABLES: Final = ("GroupQueryAttention", "RotaryEmbedding")
"""Operators whose stored inputs are sines and cosines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Stored weights, or other constants."""

    name: str
    kind: int
    """`TensorProto.DataType`."""
    sizes: tuple[int, ...]
    location: str | None
    """The file that holds them, relative to the model's folder; None: they are in the model itself."""
    offset: int
    length: int
    """Bytes from `offset` on."""

    @property
    def elements(self) -> int:
        return prod(self.sizes)


@dataclass(slots=True)
class _Nodes:
    """Facts about a graph's operators that decide what counts as a weight."""

    bits: dict[str, int] = field(default_factory=dict)
    """Bits of a weight, by the name of the quantised tensor."""
    ignored: set[str] = field(default_factory=set)
    """Tensors that are no weights: scales, zero points, sines and cosines."""


class Graph:
    """The contents of a model file. Raises `Damaged`, or another `ValueError`, if they make no sense."""

    def __init__(self, data: Buffer) -> None:
        self.properties: dict[str, str] = {}
        self.tensors: list[StoredTensor] = []
        self.paths: list[str] = []
        """Further files that the graph names."""
        self.input_kinds: dict[str, int] = {}
        """`TensorProto.DataType` of each input."""
        self.output_sizes: dict[str, list[int]] = {}
        """Sizes of each output; 0 where it is not fixed."""
        self._nodes = _Nodes()
        self._read_model(data)

    @property
    def parameters(self) -> int:
        """Number of weights of the model, quantised or not."""
        return sum(self._weights(tensor) for tensor in self.tensors)

    @property
    def optional_inputs(self) -> list[StoredTensor]:
        """Inputs with a default value, as those for adapters have."""
        return [tensor for tensor in self.tensors if tensor.name in self.input_kinds]

    def _weights(self, tensor: StoredTensor) -> int:
        if (bits := self._nodes.bits.get(tensor.name)) is not None:
            return tensor.length * 8 // bits
        return tensor.elements if tensor.kind in _FLOATS and tensor.name not in self._nodes.ignored else 0

    def _read_model(self, data: Buffer) -> None:
        graphs = 0
        for part in fields(data):
            if part.number == 7:
                graphs += 1
                self._read_graph(part.message, 0)
            elif part.number == 14:
                key, value = _pair(part)
                self.properties[key] = value
            elif part.number == 25:
                self._read_function(part.message)
        if graphs != 1:
            raise Damaged(f"it holds {graphs} graphs")

    def _read_graph(self, data: Buffer, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise Damaged("its graphs are nested too deeply")
        for part in fields(data):
            if part.number == 1:
                self._read_node(part.message, depth)
            elif part.number == 5:
                self._add(part)
            elif part.number == 15:
                self._read_sparse(part)
            elif depth == 0 and part.number in (11, 12):
                self._read_value(part)

    def _read_function(self, data: Buffer) -> None:
        for part in fields(data):
            if part.number == 7:
                self._read_node(part.message, 1)

    def _read_node(self, data: Buffer, depth: int) -> None:
        inputs: list[str] = []
        attributes: dict[str, int | str] = {}
        kind = ""
        for part in fields(data):
            if part.number == 1:
                inputs.append(part.text)
            elif part.number == 4:
                kind = part.text
            elif part.number == 5:
                attributes.update(self._read_attribute(part.message, depth))
        if kind in _QUANTISED:
            table, bits = inputs[1 if kind == "MatMulNBits" else 0], attributes.get("bits", 4)
            if bits not in (2, 4, 8):
                raise Damaged(f"it has weights of {bits} bits")
            self._nodes.bits[table] = int(bits)
            self._nodes.ignored.update(inputs[2:])
        elif kind in _TABLES:
            self._nodes.ignored.update(inputs[1:])
        elif kind == "EPContext" and not attributes.get("embed_mode", 1):
            self.paths.append(str(attributes.get("ep_cache_context", "")))

    def _read_attribute(self, data: Buffer, depth: int) -> Iterator[tuple[str, int | str]]:
        """Yield the attribute's name and value if that is a number or a text; read the tensors and graphs in it."""
        name = ""
        for part in fields(data):
            if part.number == 1:
                name = part.text
            elif part.number == 3:
                yield name, part.integer
            elif part.number == 4:
                yield name, str(part.message, "utf-8", "replace")
            elif part.number in (5, 10):
                self._add(part)
            elif part.number in (6, 11):
                self._read_graph(part.message, depth + 1)
            elif part.number in (22, 23):
                self._read_sparse(part)

    def _read_sparse(self, sparse: WireField) -> None:
        for part in fields(sparse.message):
            if part.number in (1, 2):
                self._add(part)

    def _read_value(self, value: WireField) -> None:
        """Read an input or output: `ValueInfoProto`, whose type is a tensor's."""
        name, kind, sizes = "", 0, list[int]()
        for part in fields(value.message):
            if part.number == 1:
                name = part.text
            elif part.number == 2:
                kind, sizes = _tensor_type(part)
        if value.number == 11:
            self.input_kinds[name] = kind
        else:
            self.output_sizes[name] = sizes

    def _add(self, tensor: WireField) -> None:
        if len(self.tensors) >= _MOST_TENSORS:
            raise Damaged(f"it holds more than {_MOST_TENSORS} tensors")
        self.tensors.append(_tensor(tensor.message))


def _tensor(data: Buffer) -> StoredTensor:
    sizes: list[int] = []
    outside: dict[str, str] = {}
    name, kind, where, raw = "", 0, 0, None
    for part in fields(data):
        if part.number == 1:
            sizes += integers(part)
        elif part.number == 2:
            kind = part.integer
        elif part.number == 8:
            name = part.text
        elif part.number == _RAW_DATA:
            raw = len(part.message)
        elif part.number == 13:
            outside.update([_pair(part)])
        elif part.number == 14:
            where = part.integer
    if min(sizes, default=0) < 0:
        raise Damaged(f"tensor {name!r} has the sizes {sizes}")
    needed = (prod(sizes) * _BITS.get(kind, 0) + 7) // 8
    if where != _EXTERNAL:
        if outside:  # merged with another part of the message, elsewhere in the file, it could still be read from there
            raise Damaged(f"tensor {name!r} names a file but is not stored there")
        if raw not in (None, needed):
            raise Damaged(f"tensor {name!r} has {raw} bytes and needs {needed}")
        return StoredTensor(name=name, kind=kind, sizes=tuple(sizes), location=None, offset=0, length=raw or 0)
    length, offset = int(outside.get("length", needed)), int(outside.get("offset", 0))
    if length < needed or "location" not in outside:
        raise Damaged(f"tensor {name!r} has {length} bytes in another file and needs {needed}")
    return StoredTensor(name=name, kind=kind, sizes=tuple(sizes), location=outside["location"], offset=offset, length=length)


def _tensor_type(value: WireField) -> tuple[int, list[int]]:
    """Read a `TypeProto`: return the kind of element and the sizes of a tensor, 0 for those that are not fixed."""
    kind, sizes = 0, list[int]()
    for tensor in fields(value.message):
        for part in fields(tensor.message) if tensor.number == 1 else ():
            if part.number == 1:
                kind = part.integer
            elif part.number == 2:
                sizes = [_size(dimension) for dimension in fields(part.message)]
    return kind, sizes


def _size(dimension: WireField) -> int:
    return next((part.integer for part in fields(dimension.message) if part.number == 1), 0)


def _pair(entry: WireField) -> tuple[str, str]:
    """Read a `StringStringEntryProto`: return its key and value."""
    parts = {part.number: part.text for part in fields(entry.message)}
    return parts.get(1, ""), parts.get(2, "")


def element_bytes(kind: int) -> float | None:
    """Return the bytes of one element of a `TensorProto.DataType`; None if that is not fixed."""
    bits = _BITS.get(kind)
    return None if bits is None else bits / 8
