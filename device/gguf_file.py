"""The GGUF format: read a file's header, its keys and its tensors, with every count, length and offset checked.

The header consists of little-endian numbers, texts and arrays, one after the other; none is read past the end of the file.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

from ..protocols import ModelError, ModelNotFound

DOWNLOAD_AGAIN: Final = "download or copy the file again and compare its size or checksum with the source"
_MOST_TEXTS: Final = 1 << 22
"""Most texts in the arrays of a file. The largest vocabularies have a quarter of a million tokens, and about as many merges; each takes
a microsecond or two."""
_MOST_NUMBERS: Final = 1 << 12
"""Longer arrays are vocabularies and the like, of which only kind and length matter here."""


class Kind(IntEnum):
    """Types of values, by their numbers in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_CODES: Final = {
    Kind.UINT8: "B",
    Kind.INT8: "b",
    Kind.UINT16: "H",
    Kind.INT16: "h",
    Kind.UINT32: "I",
    Kind.INT32: "i",
    Kind.FLOAT32: "f",
    Kind.BOOL: "?",
    Kind.UINT64: "Q",
    Kind.INT64: "q",
    Kind.FLOAT64: "d",
}
"""Format characters of `struct` for the scalars."""

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the header."""

    kind: Kind
    count: int
    numbers: tuple[int | float | bool, ...] = ()
    """The elements; none of texts, or where there are very many."""
    distinct: int = 0
    """For the vocabulary: the number of texts that llama.cpp can tell apart. It reads them up to a NUL, and numbers those that are
    empty."""
    start: int = 0
    """The position of its texts in the file."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value with its type, which llama.cpp insists on and in places aborts over."""

    kind: Kind
    value: Scalar | Array


class FieldReader:
    """Reads one field after the other. Every method raises `ModelError` where the file ends too early or is no GGUF."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.size = len(data)
        self.position = 0
        self._texts = 0
        """Number of texts in the arrays read so far."""

    def bytes(self, length: int) -> bytes:
        at = self._take(length)
        return self._data[at : at + length]

    def count(self) -> int:
        """Read an unsigned 64-bit number."""
        return int.from_bytes(self.bytes(8), "little")

    def number(self) -> int:
        """Read an unsigned 32-bit number."""
        return int.from_bytes(self.bytes(4), "little")

    def text(self, longest: int) -> str:
        length = self.count()
        if length > longest:
            raise self.damaged(f"it claims a text of {length} bytes")
        return self.bytes(length).decode("utf-8", "replace")

    def field(self, *, is_vocabulary: bool) -> Field:
        """Read a type and a value of that type. For a vocabulary, count its distinct texts."""
        kind = self._kind()
        if kind is Kind.STRING:
            return Field(kind, self.text(self.size))
        return Field(kind, self._array(is_vocabulary=is_vocabulary) if kind is Kind.ARRAY else self._scalars(kind, 1)[0])

    def truncated(self) -> ModelError:
        return ModelError(f"{self._path} ends too early: it has {self.size} bytes", hint=DOWNLOAD_AGAIN)

    def damaged(self, how: str) -> ModelError:
        return ModelError(f"{self._path} is damaged: {how}", hint=DOWNLOAD_AGAIN)

    def _kind(self) -> Kind:
        number = self.number()
        try:
            return Kind(number)
        except ValueError:
            raise self.damaged(f"it holds a value of unknown type {number}") from None

    def _array(self, *, is_vocabulary: bool) -> Array:
        kind, count = self._kind(), self.count()
        if kind is Kind.ARRAY:
            raise self.damaged("it holds an array of arrays")
        if kind is Kind.STRING:
            start = self.position
            self._skip_texts(count)
            return Array(kind, count, distinct=self._distinct_texts(start, count) if is_vocabulary else 0, start=start)
        if count <= _MOST_NUMBERS:
            return Array(kind, count, self._scalars(kind, count))
        self._take(count * struct.calcsize("<" + _CODES[kind]))
        return Array(kind, count)

    def _scalars(self, kind: Kind, count: int) -> tuple[int | float | bool, ...]:
        layout = f"<{count}{_CODES[kind]}"
        return struct.unpack_from(layout, self._data, self._take(struct.calcsize(layout)))

    def _skip_texts(self, count: int) -> None:
        self._texts += count
        if count > self.size // 8 or self._texts > _MOST_TEXTS:
            raise self.damaged(f"it claims an array of {count} texts")
        unpack = struct.Struct("<Q").unpack_from
        at, last = self.position, self.size - 8
        for _ in range(count):
            if at > last:
                raise self.truncated()
            at += 8 + unpack(self._data, at)[0]
        self.position = at
        self._take(0)

    def _distinct_texts(self, start: int, count: int) -> int:
        data, at = self._data[start : self.position], 0
        texts = []
        for _ in range(count):
            end = at + 8 + int.from_bytes(data[at : at + 8], "little")
            texts.append(data[at + 8 : end].partition(b"\0")[0])
            at = end
        empty = texts.count(b"")
        return len(set(texts)) + max(empty - 1, 0)

    def _take(self, length: int) -> int:
        """Move past the next `length` bytes and return the position of the first."""
        at = self.position
        if at + length > self.size:
            raise self.truncated()
        self.position = at + length
        return at


MOST_DIMENSIONS: Final = 4
_MOST_ELEMENTS: Final = (1 << 63) - 1
"""ggml counts elements in signed 64 bits."""


class TensorType(NamedTuple):
    """A storage format of ggml: blocks of `block` weights, each of `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


TENSOR_TYPES: Final = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}
"""ggml's types by their numbers, as of llama.cpp's gguf-py 0.19; the numbers that are missing were withdrawn."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the header describes it."""

    name: str
    dimensions: tuple[int, ...]
    """Weights along each dimension, those of a row first."""
    kind: int
    """A key of `TENSOR_TYPES`."""
    offset: int
    """Its first byte, counted from where the data begin."""

    @property
    def elements(self) -> int:
        return prod(self.dimensions)

    @property
    def bytes(self) -> int:
        known = TENSOR_TYPES[self.kind]
        return self.elements // known.block * known.block_bytes


def tensor_fault(tensors: Sequence[Tensor], *, alignment: int, data_bytes: int) -> str | None:
    """Return the fault of the tensors of a file that has `data_bytes` of data after its header; None: they are sound."""
    names: set[str] = set()
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.name in names:
            return f"two tensors are called {tensor.name!r}"
        names.add(tensor.name)
        fault = _fault(tensor, alignment)
        if fault is not None:
            return f"tensor {tensor.name!r} {fault}"
        if tensor.offset < end:
            return f"tensor {tensor.name!r} overlaps the previous one"
        end = tensor.offset + tensor.bytes
        if end > data_bytes:
            return f"tensor {tensor.name!r} ends {end - data_bytes} bytes after the end of the file"
    return None


def _fault(tensor: Tensor, alignment: int) -> str | None:
    known = TENSOR_TYPES.get(tensor.kind)
    if known is None:
        return f"is of unknown type {tensor.kind}"
    if max(tensor.dimensions, default=0) > _MOST_ELEMENTS or tensor.elements > _MOST_ELEMENTS // max(known.block_bytes, 1):
        return f"claims {tensor.elements} weights"
    if tensor.dimensions and tensor.dimensions[0] % known.block:
        return f"has rows of {tensor.dimensions[0]} weights, which {known.name} cannot store"
    if tensor.offset % alignment:
        return f"is not aligned to {alignment} bytes"
    return None


_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_KEYS: Final = 1 << 16
_MOST_TENSORS: Final = 1 << 20
VOCABULARY: Final = "tokenizer.ggml.tokens"
_LONGEST_KEY: Final = 1 << 16
_LONGEST_TENSOR_NAME: Final = 63
"""ggml keeps names in 64 bytes."""
_DEFAULT_ALIGNMENT: Final = Field(Kind.UINT32, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The header of a GGUF file: everything in front of the weights."""

    path: Path
    size: int
    """Bytes of the file."""
    fields: Mapping[str, Field]
    tensors: tuple[Tensor, ...]
    data_start: int
    """The position of the weights in the file."""

    def text(self, key: str) -> str | None:
        """Return the text under `key`; None if there is none, or an empty one."""
        field = self.fields.get(key)
        return field.value if field is not None and isinstance(field.value, str) and field.value else None

    def count(self, key: str) -> int | None:
        """Return the positive whole number under `key`; None if there is none."""
        field = self.fields.get(key)
        return field.value if field is not None and type(field.value) is int and field.value > 0 else None

    def array(self, key: str) -> Array | None:
        field = self.fields.get(key)
        return field.value if field is not None and isinstance(field.value, Array) else None

    def texts(self, key: str) -> list[str]:
        """Read the texts of the array under `key` from the file; none if there is no such array."""
        array = self.array(key)
        if array is None or array.kind is not Kind.STRING:
            return []
        with self.path.open("rb") as file:
            file.seek(array.start)
            return [file.read(int.from_bytes(file.read(8), "little")).decode("utf-8", "replace") for _ in range(array.count)]

    def damaged(self, how: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {how}", hint=DOWNLOAD_AGAIN)


def read_gguf(path: Path) -> GgufFile:
    """Read the header of the file at `path`, and check that the file is complete.

    Raises `ModelNotFound` if there is no such file, `ModelError` if it is no complete GGUF file.
    """
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder, not a model file", hint="give the path of a .gguf file inside it")
        if path.exists() and not path.is_file():
            # Opening a pipe would wait until another process writes to it.
            raise ModelError(f"{path} is a device or a pipe, not a file", hint="give the path of a .gguf file")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(FieldReader(data, path), path)
    except FileNotFoundError as error:
        raise ModelNotFound(f"there is no model file {path}", hint="check the path; `nearfar models list` shows the known names") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", hint="check the file's permissions") from error
    except ValueError as error:
        # mmap refuses to map an empty file.
        raise ModelError(f"{path} is empty", hint=DOWNLOAD_AGAIN) from error


def _read(reader: FieldReader, path: Path) -> GgufFile:
    tensor_count, key_count = _preamble(reader, path)
    fields: dict[str, Field] = {}
    for _ in range(key_count):
        key = reader.text(_LONGEST_KEY)
        if key in fields:
            raise reader.damaged(f"it has the key {key!r} twice")
        fields[key] = reader.field(is_vocabulary=key == VOCABULARY)
    alignment = _alignment(fields, reader)
    tensors = tuple(_tensor(reader) for _ in range(tensor_count))
    start = -(-reader.position // alignment) * alignment
    if tensors and start > reader.size:
        raise reader.truncated()
    fault = tensor_fault(tensors, alignment=alignment, data_bytes=reader.size - start)
    if fault is not None:
        raise reader.damaged(fault)
    return GgufFile(path=path, size=reader.size, fields=fields, tensors=tensors, data_start=start)


def _preamble(reader: FieldReader, path: Path) -> tuple[int, int]:
    """Read magic bytes and version, and return the counts of tensors and of keys."""
    if reader.size < len(_MAGIC) or reader.bytes(len(_MAGIC)) != _MAGIC:
        raise ModelError(f"{path} is not a GGUF file", hint="give a .gguf model, or convert the model to GGUF")
    version = reader.number()
    if version not in _VERSIONS:
        raise ModelError(f"{path} has GGUF version {version}, known are {_VERSIONS}", hint="convert the model again")
    tensors, keys = reader.count(), reader.count()
    if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
        raise reader.damaged(f"it claims {tensors} tensors and {keys} keys")
    return tensors, keys


def _alignment(fields: Mapping[str, Field], reader: FieldReader) -> int:
    field = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
    # llama.cpp aborts if the number has another type, and requires a power of two.
    if field.kind is not Kind.UINT32 or not isinstance(field.value, int) or field.value.bit_count() != 1:
        raise reader.damaged(f"its alignment is {field.value}")
    return field.value


def _tensor(reader: FieldReader) -> Tensor:
    name = reader.text(_LONGEST_TENSOR_NAME)
    dimensions = reader.number()
    if dimensions > MOST_DIMENSIONS:
        raise reader.damaged(f"it holds a tensor of {dimensions} dimensions")
    return Tensor(name, tuple(reader.count() for _ in range(dimensions)), reader.number(), reader.count())
