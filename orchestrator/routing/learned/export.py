"""Writing a trained head as two ONNX models and a card."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .embedder import NAME, WIDTH
from .features import SURFACE
from .head import CARD, MEANING, WORDS, HeadCard
from .training import PRIOR, TEMPERATURE, Examples, Parts, neighbours_of

if TYPE_CHECKING:
    import onnx

_OPERATORS: Final = 18
_NEAREST: Final = 5
"""Whose mean similarity says whether a prompt is familiar."""


def write_head(parts: Parts, examples: Examples, folder: Path) -> None:
    """Write a head that `Head` loads. Raises `OSError` where the folder cannot be written."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_words(parts), folder / WORDS)
    has_meaning = examples.embeddings is not None
    if has_meaning:
        onnx.save(_meaning(parts, examples), folder / MEANING)
    card = HeadCard(
        embedder=NAME if has_meaning else None,
        agents=tuple(examples.agents),
        prompts=len(examples.prompts),
        familiar=max(parts.familiar, 0.0),
    )
    (folder / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        from onnx import helper

        names = [name or f"{operator}.{len(self.nodes)}.{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, name: str, values: Any) -> str:
        import numpy
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(numpy.ascontiguousarray(values), name))
        return name

    def model(self, name: str, inputs: list[Any], outputs: list[Any]) -> "onnx.ModelProto":
        from onnx import checker, helper

        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPERATORS)], ir_version=9)
        checker.check_model(model)
        return model


def _words(parts: Parts) -> "onnx.ModelProto":
    """N-grams and surface to logits, and to probabilities by themselves."""
    import numpy
    from onnx import TensorProto, helper

    graph = _Graph()
    rows = graph.constant("rows", numpy.array([0], dtype=numpy.int64))
    weighted = graph.add("Mul", "values", graph.add("Gather", graph.constant("rarity", parts.rarity), "buckets"))
    length = graph.add("Max", graph.add("ReduceL2", weighted, rows, keepdims=1), graph.constant("least", numpy.float32([1e-6])))
    scaled = graph.add("Unsqueeze", graph.add("Div", weighted, length), graph.constant("columns", numpy.array([1], dtype=numpy.int64)))
    grams = graph.add("Gather", graph.constant("words", parts.words), "buckets")
    from_words = graph.add("ReduceSum", graph.add("Mul", grams, scaled), rows, keepdims=0)
    centred = graph.add("Div", graph.add("Sub", "surface", graph.constant("centre", parts.centre)), graph.constant("scale", parts.scale))
    from_surface = graph.add("MatMul", centred, graph.constant("slopes", parts.surface))
    both = graph.add("Add", from_words, from_surface)
    graph.add("Add", both, graph.constant("bias", parts.bias), name="logits")
    alone = graph.add("Mul", "logits", graph.constant("alone", parts.alone[0]))
    graph.add("Sigmoid", graph.add("Add", alone, graph.constant("alone_bias", parts.alone[1])), name="probabilities")
    agents = len(parts.bias)
    inputs = [
        helper.make_tensor_value_info("buckets", TensorProto.INT64, ["grams"]),
        helper.make_tensor_value_info("values", TensorProto.FLOAT, ["grams"]),
        helper.make_tensor_value_info("surface", TensorProto.FLOAT, [len(SURFACE)]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [agents]) for name in ("logits", "probabilities")]
    return graph.model("words", inputs, outputs)


def _meaning(parts: Parts, examples: Examples) -> "onnx.ModelProto":
    """An embedding and the words' logits to probabilities, and the similarity to the nearest prompts."""
    import numpy
    from onnx import TensorProto, helper

    assert examples.embeddings is not None, "the caller has looked"
    tried, right = ~numpy.isnan(examples.outcomes), numpy.nan_to_num(examples.outcomes)
    mean = right.sum(0) / numpy.maximum(tried.sum(0), 1)
    graph = _Graph()
    first = graph.constant("first", numpy.array([0], dtype=numpy.int64))
    memory = graph.add("Cast", graph.constant("memory", examples.embeddings.astype(numpy.float16)), to=TensorProto.FLOAT)
    similar = graph.add("MatMul", memory, "embedding")
    count = graph.constant("count", numpy.array([neighbours_of(len(examples.prompts))], dtype=numpy.int64))
    values, nearest = graph.add("TopK", similar, count, outputs=2, axis=0)
    weights = graph.add("Softmax", graph.add("Div", values, graph.constant("temperature", numpy.float32(TEMPERATURE))), axis=0)

    def average(name: str, of: Any) -> Any:
        return graph.add("MatMul", weights, graph.add("Gather", graph.constant(name, of.astype(numpy.float32)), nearest))

    sums = graph.add("Add", average("right", right), graph.constant("prior", (PRIOR * mean).astype(numpy.float32)))
    chances = graph.add("Div", sums, graph.add("Add", average("tried", tried), graph.constant("weight", numpy.float32(PRIOR))))
    chances = graph.add("Clip", chances, graph.constant("low", numpy.float32(1e-4)), graph.constant("high", numpy.float32(1 - 1e-4)))
    odds = graph.add("Log", graph.add("Div", chances, graph.add("Sub", graph.constant("one", numpy.float32(1.0)), chances)))
    words = graph.add("Mul", "logits", graph.constant("of_words", parts.blend[0]))
    blended = graph.add("Add", words, graph.add("Mul", odds, graph.constant("of_meaning", parts.blend[1])))
    graph.add("Sigmoid", graph.add("Add", blended, graph.constant("bias", parts.blend[2])), name="probabilities")
    few = graph.add("Slice", values, first, graph.constant("nearest", numpy.array([_NEAREST], dtype=numpy.int64)), first)
    graph.add("ReduceMean", few, first, keepdims=0, name="similarity")
    agents = len(parts.bias)
    inputs = [
        helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [WIDTH]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [agents]),
    ]
    outputs = [
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [agents]),
        helper.make_tensor_value_info("similarity", TensorProto.FLOAT, []),
    ]
    return graph.model("meaning", inputs, outputs)
