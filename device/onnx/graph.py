"""What an ONNX file holds, read without loading it: its weights and where they lie, its own metadata, its caches.

The messages and their field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Final

from .wire import Buffer, Damaged, Field, fields, integers

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
"""Of their inputs, those that are stored are sines and cosines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
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
    """What is of interest about a graph's operators."""

    bits: dict[str, int] = field(default_factory=dict)
    """Of the quantised tensors, the width of a weight."""
    ignored: set[str] = field(default_factory=set)
    """Tensors that are no weights: scales, zero points, sines and cosines."""


class Graph:
    """The contents of a model file. Raises `Damaged`, or another `ValueError`, if they make no sense."""

    def __init__(self, data: Buffer) -> None:
        self.properties: dict[str, str] = {}
        self.tensors: list[Tensor] = []
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
        """Weights of the model; quantised ones count as if they were not."""
        return sum(self._weights(tensor) for tensor in self.tensors)

    @property
    def optional_inputs(self) -> list[Tensor]:
        """Inputs that have a value of their own where none is given, as those for adapters do."""
        return [tensor for tensor in self.tensors if tensor.name in self.input_kinds]

    def _weights(self, tensor: Tensor) -> int:
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
        """Its name and value, where that is a number or a text; what it holds of tensors and graphs is read, too."""
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

    def _read_sparse(self, sparse: Field) -> None:
        for part in fields(sparse.message):
            if part.number in (1, 2):
                self._add(part)

    def _read_value(self, value: Field) -> None:
        """An input or output: `ValueInfoProto`, whose type is a tensor's."""
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

    def _add(self, tensor: Field) -> None:
        if len(self.tensors) >= _MOST_TENSORS:
            raise Damaged(f"it holds more than {_MOST_TENSORS} tensors")
        self.tensors.append(_tensor(tensor.message))


def _tensor(data: Buffer) -> Tensor:
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
        if outside:  # joined with a part of it that stands elsewhere in the file, it could lie there all the same
            raise Damaged(f"tensor {name!r} names a file and does not lie there")
        if raw not in (None, needed):
            raise Damaged(f"tensor {name!r} has {raw} bytes and needs {needed}")
        return Tensor(name=name, kind=kind, sizes=tuple(sizes), location=None, offset=0, length=raw or 0)
    length, offset = int(outside.get("length", needed)), int(outside.get("offset", 0))
    if length < needed or "location" not in outside:
        raise Damaged(f"tensor {name!r} lies outside, in {length} bytes, and needs {needed}")
    return Tensor(name=name, kind=kind, sizes=tuple(sizes), location=outside["location"], offset=offset, length=length)


def _tensor_type(value: Field) -> tuple[int, list[int]]:
    """`TypeProto`: the kind of element and the sizes of a tensor, 0 for those that are not fixed."""
    kind, sizes = 0, list[int]()
    for tensor in fields(value.message):
        for part in fields(tensor.message) if tensor.number == 1 else ():
            if part.number == 1:
                kind = part.integer
            elif part.number == 2:
                sizes = [_size(dimension) for dimension in fields(part.message)]
    return kind, sizes


def _size(dimension: Field) -> int:
    return next((part.integer for part in fields(dimension.message) if part.number == 1), 0)


def _pair(entry: Field) -> tuple[str, str]:
    """`StringStringEntryProto`."""
    parts = {part.number: part.text for part in fields(entry.message)}
    return parts.get(1, ""), parts.get(2, "")


def element_bytes(kind: int) -> float | None:
    """Bytes of one element of a `TensorProto.DataType`; None where that is not fixed."""
    bits = _BITS.get(kind)
    return None if bits is None else bits / 8
