"""Protocol buffers' wire format, as far as it takes to look into a model without loading it: fields, one after the other.

The format: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from dataclasses import dataclass

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10

Buffer = bytes | memoryview


class Damaged(ValueError):
    """These bytes are no protocol buffer, or not the one that was expected."""


@dataclass(frozen=True, slots=True)
class Field:
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


def fields(message: Buffer) -> Iterator[Field]:
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
            value, at = _taken(data, at, length), at + length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value, at = int.from_bytes(_taken(data, at, length), "little"), at + length
        else:
            raise Damaged(f"byte {at} begins a field of the unknown kind {kind}")
        yield Field(number, value)


def integers(field: Field) -> list[int]:
    """Return a repeated int64, which may be packed into one field."""
    if isinstance(field.value, int):
        return [field.integer]
    data, at, found = field.value, 0, []
    while at < len(data):
        value, at = _varint(data, at)
        found.append(Field(field.number, value).integer)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise Damaged("a number does not end")


def _taken(data: memoryview, at: int, length: int) -> memoryview:
    if length > len(data) - at:
        raise Damaged(f"a field of {length} bytes begins {len(data) - at} bytes before the end")
    return data[at : at + length]
