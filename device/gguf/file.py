"""A GGUF file's header as a whole: its keys and its tensors, with every count, length and offset checked."""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...protocols import ModelError, ModelNotFound
from .fields import DOWNLOAD_AGAIN, Array, Field, FieldReader, Kind
from .tensors import MOST_DIMENSIONS, Tensor, tensor_fault

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
    return GgufFile(path=path, size=reader.size, fields=fields, tensors=tensors)


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
