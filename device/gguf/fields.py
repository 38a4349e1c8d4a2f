"""The fields that GGUF is made of: little-endian numbers, texts and arrays, one after the other, never read past the end.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from ...protocols import ModelError

DOWNLOAD_AGAIN: Final = "download or copy the file again and compare its size or checksum with the source"
_MOST_TEXTS: Final = 1 << 22
"""Of a file. The largest vocabularies have a quarter of a million tokens, and about as many merges; each takes a microsecond or two."""
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
"""How `struct` calls the scalars."""

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the header."""

    kind: Kind
    count: int
    numbers: tuple[int | float | bool, ...] = ()
    """The elements; none of texts, or where there are very many."""
    distinct: int = 0
    """Of the vocabulary, how many texts llama.cpp can tell apart: it reads them up to a NUL, and numbers those that are empty."""


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
        """Those in arrays up to here."""

    def bytes(self, length: int) -> bytes:
        at = self._take(length)
        return self._data[at : at + length]

    def count(self) -> int:
        """An unsigned 64-bit number."""
        return int.from_bytes(self.bytes(8), "little")

    def number(self) -> int:
        """An unsigned 32-bit number."""
        return int.from_bytes(self.bytes(4), "little")

    def text(self, longest: int) -> str:
        length = self.count()
        if length > longest:
            raise self.damaged(f"it claims a text of {length} bytes")
        return self.bytes(length).decode("utf-8", "replace")

    def field(self, *, is_vocabulary: bool) -> Field:
        """A value behind its type; of a vocabulary, the distinct texts are counted."""
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
            return Array(kind, count, distinct=self._distinct_texts(start, count) if is_vocabulary else 0)
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
        """Position of the next `length` bytes, which are then behind."""
        at = self.position
        if at + length > self.size:
            raise self.truncated()
        self.position = at + length
        return at
