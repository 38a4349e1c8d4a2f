"""Makes a model bigger without changing what it computes, to measure a realistic cost per token.

Works on the stored 8-bit blocks, so nothing is rounded twice and it takes only as long as writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import gguf
import numpy as np
from numpy.typing import NDArray

from .gguf_fields import copy_fields

_WIDER: Final = 16
"""How many times wider the feed-forward layers become; the rest of the budget goes into layers."""
_BLOCK: Final = 32
_BLOCK_BYTES: Final = 34
_SILENT: Final = ("attn_output.weight", "ffn_down.weight")
"""The matrices through which a layer speaks: with zeros in both, it adds nothing."""

Tensors = dict[str, NDArray[np.generic]]


def enlarge(source: Path, target: Path, parameters: int = 115_000_000) -> None:
    """Write to ``target`` a q8_0 model of about ``parameters`` weights with the outputs of ``source``.

    The feed-forward layers are padded with zeros and layers that add nothing are appended. Raises
    ``ValueError`` if ``source`` is not stored as q8_0 or is too big for ``parameters``.
    """
    reader = gguf.GGUFReader(source)
    layers, hidden = (_number(reader, key) for key in ("llama.block_count", "llama.feed_forward_length"))
    tensors = _stored(reader)
    fixed = [name for name in tensors if not name.startswith("blk.")]
    first = {name: _widened(name, tensors[name], hidden) for name in tensors if name.startswith("blk.0.")}
    per_layer = sum(_weights(values) for values in first.values())
    wanted = (parameters - sum(_weights(tensors[name]) for name in fixed)) // per_layer
    if wanted < layers:
        raise ValueError(f"{parameters} weights are too few to enlarge a model of {layers} layers")
    writer = gguf.GGUFWriter(str(target), "llama")
    copy_fields(reader, writer, {"llama.block_count": wanted, "llama.feed_forward_length": hidden * _WIDER})
    for name in fixed:
        _add(writer, name, tensors[name])
    for number in range(wanted):
        for name, values in _layer(tensors, number, layers, hidden).items():
            _add(writer, name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored(reader: gguf.GGUFReader) -> Tensors:
    allowed = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32)
    if any(tensor.tensor_type not in allowed for tensor in reader.tensors):
        raise ValueError("only q8_0 models can be enlarged")
    return {tensor.name: tensor.data for tensor in reader.tensors}


def _layer(tensors: Tensors, number: int, layers: int, hidden: int) -> Tensors:
    # An appended layer repeats a real one, so that it costs as much to run; only its voice is cut.
    origin = f"blk.{number % layers}."
    layer = {}
    for name, values in tensors.items():
        if name.startswith(origin):
            part = name.removeprefix(origin)
            widened = _widened(name, values, hidden)
            layer[f"blk.{number}.{part}"] = np.zeros_like(widened) if number >= layers and part in _SILENT else widened
    return layer


def _widened(name: str, values: NDArray[np.generic], hidden: int) -> NDArray[np.generic]:
    more = hidden * (_WIDER - 1)
    if name.endswith(("ffn_gate.weight", "ffn_up.weight")):
        return np.pad(values, ((0, more), (0, 0)))
    if name.endswith("ffn_down.weight"):
        return np.pad(values, ((0, 0), (0, more // _BLOCK * _BLOCK_BYTES)))
    return values


def _weights(values: NDArray[np.generic]) -> int:
    return values.size if values.dtype == np.float32 else values.size // _BLOCK_BYTES * _BLOCK


def _number(reader: gguf.GGUFReader, key: str) -> int:
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the model has no {key}")
    return int(field.contents())


def _add(writer: gguf.GGUFWriter, name: str, values: NDArray[np.generic]) -> None:
    kind = gguf.GGMLQuantizationType.F32 if values.dtype == np.float32 else gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, values, raw_dtype=kind)
