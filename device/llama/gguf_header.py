"""A look at a GGUF file before llama.cpp sees it.

llama.cpp aborts its process on some damaged headers, and GGUF has no checksum, so every count, length and offset is checked here in
Python integers first. What passes can still be refused by the worker, but it names a known layout and is complete.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from ...protocols import ModelError, ModelNotFound

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_KEYS: Final = 1 << 16
_MOST_TENSORS: Final = 1 << 20
_LONGEST_NAME: Final = 1 << 16
_MOST_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32
_MOST_ELEMENTS_PER_BYTE: Final = 8
"""No known quantisation takes less than a bit per weight."""

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9

_DOWNLOAD_AGAIN: Final = "download or copy the file again and compare its size or checksum with the source"

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What the header says about the model."""

    architecture: str
    name: str | None
    description: str | None
    context_tokens: int | None
    """Context length that the model was trained for."""
    chat_template: str | None
    world: str | None
    """`nearfar.world`: the only subject that the model knows; None: general."""
    parameters: int | None
    """Elements of all tensors; None where the file is one part of a split model."""
    layers: int | None
    kv_elements_per_token: int | None
    """Numbers that one token takes in the key-value cache: layers x key-value heads x (key length + value length).

    None where the layers differ in their heads, or the model has no such cache.
    """


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of the model at `path`.

    Raises `ModelNotFound` if there is no such file, `ModelError` if it is no complete GGUF file.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a folder, not a model file", hint="give the path of a .gguf file inside it")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(data, path).header()
    except FileNotFoundError as error:
        raise ModelNotFound(f"there is no model file {path}", hint="check the path, or download the model first") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", hint="check the file's permissions") from error
    except ValueError as error:
        # mmap refuses to map nothing.
        raise ModelError(f"{path} is empty", hint=_DOWNLOAD_AGAIN) from error


class _Parser:
    """Reads little-endian fields one after the other and never past the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._size = len(data)
        self._path = path
        self._at = 0

    def header(self) -> GgufHeader:
        tensors, keys = self._preamble()
        values = dict(self._key_value() for _ in range(keys))
        parameters = self._check_tensors(tensors, values.get("general.alignment", _DEFAULT_ALIGNMENT))
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise self._damaged("it does not name its architecture")
        context = values.get(f"{architecture}.context_length")
        return GgufHeader(
            architecture=architecture,
            name=_text(values.get("general.name")),
            description=_text(values.get("general.description")),
            context_tokens=context if type(context) is int and context > 0 else None,
            chat_template=_text(values.get("tokenizer.chat_template")),
            world=_text(values.get("nearfar.world")),
            parameters=parameters if parameters and values.get("split.count", 1) in (0, 1) else None,
            layers=layers if type(layers := values.get(f"{architecture}.block_count")) is int else None,
            kv_elements_per_token=_kv_elements(values, architecture),
        )

    def _preamble(self) -> tuple[int, int]:
        """Counts of tensors and of keys."""
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file", hint="give a .gguf model, or convert the model to GGUF")
        self._at = len(_MAGIC)
        version = self._integer("I")
        if version not in _VERSIONS:
            raise ModelError(f"{self._path} has GGUF version {version}, known are {_VERSIONS}", hint="convert the model again")
        tensors, keys = self._integer("Q"), self._integer("Q")
        if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
            raise self._damaged(f"it claims {tensors} tensors and {keys} keys")
        return tensors, keys

    def _key_value(self) -> tuple[str, Scalar | None]:
        key = self._string(_LONGEST_NAME)
        return key, self._value(self._integer("I"))

    def _value(self, kind: int) -> Scalar | None:
        """A scalar or string; arrays are checked and skipped."""
        if kind == _STRING:
            return self._string(self._size)
        if kind == _ARRAY:
            self._skip_array()
            return None
        return self._scalar(self._format(kind))

    def _skip_array(self) -> None:
        kind, count = self._integer("I"), self._integer("Q")
        if kind == _STRING:
            self._skip_strings(count)
        elif kind == _ARRAY:
            raise self._damaged("it holds an array of arrays")
        else:
            self._take(count * struct.calcsize("<" + self._format(kind)))

    def _skip_strings(self, count: int) -> None:
        if count > self._size // 8:
            raise self._damaged(f"it claims an array of {count} strings")
        unpack = struct.Struct("<Q").unpack_from
        at, last = self._at, self._size - 8
        for _ in range(count):
            if at > last:
                raise self._truncated()
            at += 8 + unpack(self._data, at)[0]
        self._at = at
        self._take(0)

    def _check_tensors(self, count: int, alignment: Scalar | None) -> int:
        """Number of elements of all tensors."""
        if type(alignment) is not int or alignment <= 0 or alignment % 8:
            raise self._damaged(f"its alignment is {alignment}")
        tensors = [self._tensor() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        if tensors and start + max(offset for _, offset in tensors) >= self._size:
            raise self._truncated()
        elements = sum(elements for elements, _ in tensors)
        if elements > _MOST_ELEMENTS_PER_BYTE * self._size:
            raise self._damaged(f"it claims {elements} weights in {self._size} bytes")
        return elements

    def _tensor(self) -> tuple[int, int]:
        """Its number of elements and its offset."""
        self._string(_LONGEST_NAME)
        dimensions = self._integer("I")
        if dimensions > _MOST_DIMENSIONS:
            raise self._damaged(f"it holds a tensor of {dimensions} dimensions")
        elements = prod(self._integer("Q") for _ in range(dimensions))
        self._integer("I")
        return elements, self._integer("Q")

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._damaged(f"it holds a value of unknown type {kind}")
        return _SCALARS[kind]

    def _scalar(self, code: str) -> Scalar:
        at = self._take(struct.calcsize("<" + code))
        value: Scalar = struct.unpack_from("<" + code, self._data, at)[0]
        return value

    def _integer(self, code: str) -> int:
        return int(self._scalar(code))

    def _string(self, longest: int) -> str:
        length = self._integer("Q")
        if length > longest:
            raise self._damaged(f"it claims a text of {length} bytes")
        at = self._take(length)
        return self._data[at : at + length].decode("utf-8", "replace")

    def _take(self, length: int) -> int:
        """Position of the next `length` bytes, which are then behind."""
        at = self._at
        if at + length > self._size:
            raise self._truncated()
        self._at = at + length
        return at

    def _truncated(self) -> ModelError:
        return ModelError(f"{self._path} ends too early: it has {self._size} bytes", hint=_DOWNLOAD_AGAIN)

    def _damaged(self, how: str) -> ModelError:
        return ModelError(f"{self._path} is damaged: {how}", hint=_DOWNLOAD_AGAIN)


def _text(value: Scalar | None) -> str | None:
    return value if isinstance(value, str) and value else None


def _kv_elements(values: Mapping[str, Scalar | None], architecture: str) -> int | None:
    def count(key: str, default: int | None = None) -> int | None:
        value = values.get(f"{architecture}.{key}", default)
        return value if type(value) is int and value > 0 else None

    layers, width, heads = count("block_count"), count("embedding_length"), count("attention.head_count")
    kv_heads = count("attention.head_count_kv", heads)
    head_width = width // heads if width and heads else None
    key_length, value_length = count("attention.key_length", head_width), count("attention.value_length", head_width)
    if layers is None or kv_heads is None or key_length is None or value_length is None:
        return None
    return layers * kv_heads * (key_length + value_length)
