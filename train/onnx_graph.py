"""The ONNX graph of a `TinyLlama`: in 32 bits as the worker of onnxruntime-genai makes it of a GGUF file, or with fewer.

The blockwise quantised matrices are ONNX Runtime's own operators (domain com.microsoft).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray

from nearfar.device.onnx.from_gguf import MICROSOFT, LlamaGraph, LlamaShape, Weights

from .export import gguf_name, rotated_by_pairs
from .model import Shape, TinyLlama

BLOCK: Final = 32
"""Weights that share a scale, as in q8_0."""
_INT8_ACCURACY: Final = 4
"""Activations are rounded to 8 bits, too, as llama.cpp does for its quantised matrices."""


class Precision(StrEnum):
    """How the matrices are stored."""

    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"


def build_graph(model: TinyLlama, precision: Precision, properties: Mapping[str, str], *, lora: bool) -> onnx.ModelProto:
    """Build the whole model, with its own metadata; with `lora`, it has inputs for an adapter of each matrix."""
    weights = {gguf_name(key): rotated_by_pairs(key, tensor.numpy(), model.shape) for key, tensor in model.state_dict().items()}
    shape = llama_shape(model.shape)
    if precision is Precision.FP32:
        graph = LlamaGraph(weights, shape, lora=lora)
    else:
        graph = _QuantisedGraph(weights, shape, bits=8 if precision is Precision.INT8 else 4, lora=lora)
    return onnx.load_model_from_string(graph.build(properties))


def llama_shape(shape: Shape) -> LlamaShape:
    """The sizes, as the installed package names them."""
    return LlamaShape(
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        head_width=shape.head_width,
        vocabulary=shape.vocabulary,
        context=shape.context,
        rotary_base=shape.rotary_base,
        epsilon=shape.epsilon,
    )


class _QuantisedGraph(LlamaGraph):
    """A graph whose matrices are stored in few bits."""

    def __init__(self, weights: Mapping[str, Weights], shape: LlamaShape, *, bits: int, lora: bool) -> None:
        super().__init__(weights, shape, lora=lora)
        self._form = {"bits": bits, "block_size": BLOCK}

    def embed(self, table: Weights) -> str:
        self._store_quantised("token_embd", table)
        self.store("token_embd.sizes", np.array([len(table), -1], dtype=np.int64))
        rows = self.node("Reshape", ["token_embd.quantised", "token_embd.sizes"], "token_embd.table")
        axes = {"gather_axis": 0, "quantize_axis": 1}
        inputs = [rows, "input_ids", "token_embd.scales"]
        return self.node("GatherBlockQuantized", inputs, "token_embd.rows", domain=MICROSOFT, **self._form, **axes)

    def unembed(self, hidden: str, table: Weights) -> str:
        return self._multiply(hidden, "token_embd", table, "logits")

    def multiply(self, hidden: str, name: str, matrix: Weights) -> str:
        self._store_quantised(name, matrix)
        return self._multiply(hidden, name, matrix, f"{name}.product")

    def _store_quantised(self, name: str, matrix: Weights) -> None:
        quantised, scales = quantise(matrix, self._form["bits"])
        self.store(f"{name}.quantised", quantised)
        self.store(f"{name}.scales", scales)

    def _multiply(self, hidden: str, name: str, matrix: Weights, output: str) -> str:
        size = {"N": matrix.shape[0], "K": matrix.shape[1], "accuracy_level": _INT8_ACCURACY}
        inputs = [hidden, f"{name}.quantised", f"{name}.scales"]
        return self.node("MatMulNBits", inputs, output, domain=MICROSOFT, **self._form, **size)


def quantise(weight: Weights, bits: int) -> tuple[NDArray[np.uint8], Weights]:
    """A matrix of shape (outputs, inputs) as MatMulNBits wants it: whole blocks of unsigned numbers, and each block's scale.

    A weight is (number - 2 ** (bits - 1)) * scale. The block's largest weight, not its largest magnitude, decides the scale where that
    uses the one number more that there is on the negative side.
    """
    blocks = weight.reshape(len(weight), -1, BLOCK)
    middle = 1 << (bits - 1)
    scales = _scales(blocks, bits)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    numbers = np.clip(np.rint(steps) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        numbers = numbers[..., ::2] | (numbers[..., 1::2] << 4)
    return numbers, np.ascontiguousarray(scales[..., 0])


def _scales(blocks: Weights, bits: int) -> Weights:
    if bits == 8:
        return np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    return largest / np.float32(-8)
