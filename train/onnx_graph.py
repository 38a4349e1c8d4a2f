"""Builds the ONNX graph of a `TinyLlama`, in the form that onnxruntime-genai runs: a cache of keys and values in, one out.

Attention and the blockwise quantised matrices are ONNX Runtime's own operators (domain com.microsoft).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .model import Shape, TinyLlama

BLOCK: Final = 32
"""Weights that share a scale, as in q8_0."""
_OPSET: Final = 18
_MICROSOFT: Final = "com.microsoft"
_INT8_ACCURACY: Final = 4
"""Activations are rounded to 8 bits, too, as llama.cpp does for its quantised matrices."""

Weights = NDArray[np.float32]


class Precision(StrEnum):
    """How the matrices are stored."""

    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"


class Graph:
    """The nodes and weights of one model, added from its input to its output."""

    def __init__(self, model: TinyLlama, precision: Precision, *, lora: bool) -> None:
        """`lora`: with inputs for an adapter of each linear layer."""
        self._shape = model.shape
        self._state: Mapping[str, Weights] = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
        self._precision = precision
        self._lora = lora
        self._nodes: list[onnx.NodeProto] = []
        self._stored: list[TensorProto] = []
        self._inputs = _inputs(model.shape)
        self._add_rotation(model)

    def build(self) -> onnx.ModelProto:
        """The whole model."""
        self._add_lengths()
        hidden = self._embedded()
        for number in range(self._shape.layers):
            hidden = self._block(hidden, number)
        self._head(self._normalised(hidden, "norm.weight"))
        graph = helper.make_graph(self._nodes, "tiny_llama", self._inputs, _outputs(self._shape), self._stored)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="nearfar")

    def _add_rotation(self, model: TinyLlama) -> None:
        half = self._shape.head_width // 2
        self._store("cosine", model.cosine[:, :half].numpy())
        self._store("sine", model.sine[:, :half].numpy())

    def _add_lengths(self) -> None:
        """What the attention wants to know of the mask: the last position of each row, and the length of all."""
        self._store("one", np.array([1], dtype=np.int64))
        self._node("ReduceSum", ["attention_mask", "one"], "tokens", keepdims=0)
        self._node("Sub", ["tokens", "one"], "last")
        self._node("Cast", ["last"], "last_position", to=TensorProto.INT32)
        self._node("Shape", ["attention_mask"], "mask_length", start=1)
        self._node("Squeeze", ["mask_length"], "mask_scalar")
        self._node("Cast", ["mask_scalar"], "total_length", to=TensorProto.INT32)

    def _embedded(self) -> str:
        table = self._state["embedding.weight"]
        if self._precision is Precision.FP32:
            # Stored as the head wants it, since both use the same weights.
            self._store("embedding.weight", np.ascontiguousarray(table.T))
            self._node("Transpose", ["embedding.weight"], "embedding.table", perm=[1, 0])
            return self._node("Gather", ["embedding.table", "input_ids"], "embedded")
        quantised, scales = quantise(table, _bits(self._precision))
        self._store("embedding.quantised", quantised)
        self._store("embedding.scales", scales)
        self._store("embedding.rows", np.array([len(table), -1], dtype=np.int64))
        rows = self._node("Reshape", ["embedding.quantised", "embedding.rows"], "embedding.table")
        inputs = [rows, "input_ids", "embedding.scales"]
        form = {"bits": _bits(self._precision), "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        return self._node("GatherBlockQuantized", inputs, "embedded", domain=_MICROSOFT, **form)

    def _head(self, hidden: str) -> None:
        if self._precision is Precision.FP32:
            self._node("MatMul", [hidden, "embedding.weight"], "logits")
        else:
            self._quantised(hidden, "embedding", self._state["embedding.weight"].shape, "logits")

    def _block(self, hidden: str, number: int) -> str:
        prefix = f"blocks.{number}"
        mixed = self._attention(self._normalised(hidden, f"{prefix}.attention_norm.weight"), number)
        hidden = self._node("Add", [hidden, mixed], f"{prefix}.attended")
        fed = self._feed(self._normalised(hidden, f"{prefix}.feed_norm.weight"), f"{prefix}.feed")
        return self._node("Add", [hidden, fed], f"{prefix}.output")

    def _attention(self, hidden: str, number: int) -> str:
        prefix = f"blocks.{number}.attention"
        projected = [self._linear(hidden, f"{prefix}.{part}") for part in ("query", "key", "value")]
        past = [f"past_key_values.{number}.key", f"past_key_values.{number}.value"]
        outputs = [f"{prefix}.mixed", f"present.{number}.key", f"present.{number}.value"]
        inputs = [*projected, *past, "last_position", "total_length", "cosine", "sine"]
        heads = {"num_heads": self._shape.heads, "kv_num_heads": self._shape.heads, "do_rotary": 1}
        self._nodes.append(helper.make_node("GroupQueryAttention", inputs, outputs, name=prefix, domain=_MICROSOFT, **heads))
        return self._linear(outputs[0], f"{prefix}.output")

    def _feed(self, hidden: str, prefix: str) -> str:
        gate = self._linear(hidden, f"{prefix}.gate")
        sigmoid = self._node("Sigmoid", [gate], f"{prefix}.sigmoid")
        opened = self._node("Mul", [gate, sigmoid], f"{prefix}.opened")
        product = self._node("Mul", [opened, self._linear(hidden, f"{prefix}.up")], f"{prefix}.product")
        return self._linear(product, f"{prefix}.down")

    def _normalised(self, hidden: str, key: str) -> str:
        self._store(key, self._state[key])
        output = f"{key}.normalised"
        return self._node("SimplifiedLayerNormalization", [hidden, key], output, axis=-1, epsilon=self._shape.epsilon, stash_type=1)

    def _linear(self, hidden: str, name: str) -> str:
        weight = self._state[f"{name}.weight"]
        output = f"{name}.projected"
        if self._precision is Precision.FP32:
            self._store(f"{name}.weight", np.ascontiguousarray(weight.T))
            self._node("MatMul", [hidden, f"{name}.weight"], output)
        else:
            quantised, scales = quantise(weight, _bits(self._precision))
            self._store(f"{name}.quantised", quantised)
            self._store(f"{name}.scales", scales)
            self._quantised(hidden, name, weight.shape, output)
        return self._adapted(hidden, name, weight.shape, output) if self._lora else output

    def _quantised(self, hidden: str, name: str, shape: Sequence[int], output: str) -> None:
        size = {"N": shape[0], "K": shape[1], "bits": _bits(self._precision), "block_size": BLOCK, "accuracy_level": _INT8_ACCURACY}
        self._node("MatMulNBits", [hidden, f"{name}.quantised", f"{name}.scales"], output, domain=_MICROSOFT, **size)

    def _adapted(self, hidden: str, name: str, shape: Sequence[int], output: str) -> str:
        """Add what an adapter says. Its matrices are inputs that are empty, of rank 0, unless an adapter is active."""
        down, up = lora_names(name)
        rank = f"{name}.rank"
        for key, sizes, empty in ((down, [shape[1], rank], (shape[1], 0)), (up, [rank, shape[0]], (0, shape[0]))):
            self._inputs.append(helper.make_tensor_value_info(key, TensorProto.FLOAT, sizes))
            self._store(key, np.zeros(empty, dtype=np.float32))
        narrow = self._node("MatMul", [hidden, down], f"{name}.narrow")
        wide = self._node("MatMul", [narrow, up], f"{name}.wide")
        return self._node("Add", [output, wide], f"{name}.adapted")

    def _node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:  # noqa: ANN401 - as helper.make_node takes them
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _store(self, name: str, values: NDArray[Any]) -> None:
        self._stored.append(numpy_helper.from_array(values, name))


def lora_names(linear: str) -> tuple[str, str]:
    """The inputs for a linear layer's adapter: to the rank, shape (inputs, rank), and from it, shape (rank, outputs)."""
    return f"{linear}.lora_A.weight", f"{linear}.lora_B.weight"


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


def _bits(precision: Precision) -> int:
    return 8 if precision is Precision.INT8 else 4


def _inputs(shape: Shape) -> list[onnx.ValueInfoProto]:
    tokens = [("input_ids", ["batch", "length"]), ("attention_mask", ["batch", "total"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name, sizes in tokens]
    return inputs + _caches("past_key_values", "past", shape)


def _outputs(shape: Shape) -> list[onnx.ValueInfoProto]:
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", shape.vocabulary])
    return [logits, *_caches("present", "total", shape)]


def _caches(name: str, length: str, shape: Shape) -> list[onnx.ValueInfoProto]:
    sizes = ["batch", shape.heads, length, shape.head_width]
    return [
        helper.make_tensor_value_info(f"{name}.{number}.{part}", TensorProto.FLOAT, sizes)
        for number in range(shape.layers)
        for part in ("key", "value")
    ]
