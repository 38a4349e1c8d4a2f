"""What is found out about an ONNX folder before anything loads it."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="making ONNX files needs onnx: pip install 'nearfar[train]'")
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from nearfar.device.gguf import read_header
from nearfar.device.onnx.folder import read_folder
from nearfar.device.onnx.graph import Graph
from nearfar.protocols import ModelError, ModelNotFound

Change = Callable[[Path], object]


@pytest.fixture
def folder(near_folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(near_folder, tmp_path / "near")


def configured(change: Callable[[dict[str, Any]], None]) -> Change:
    """Changes genai_config.json."""

    def apply(folder: Path) -> None:
        path = folder / "genai_config.json"
        value = json.loads(path.read_text(encoding="utf-8"))
        change(value)
        path.write_text(json.dumps(value), encoding="utf-8")

    return apply


def decoder(**values: object) -> Change:
    return configured(lambda value: value["model"]["decoder"].update(values))


def model(**values: object) -> Change:
    return configured(lambda value: value["model"].update(values))


def written(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def regraphed(change: Callable[[Any], None]) -> Change:
    """Changes the model itself."""

    def apply(folder: Path) -> None:
        graph = onnx.load(folder / "model.onnx")
        change(graph)
        (folder / "model.onnx").write_bytes(graph.SerializeToString())

    return apply


def outside(tensor: Any, location: str, **values: int) -> None:  # noqa: ANN401 - a protobuf message
    """Says that a tensor's bytes lie in another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **values}.items():
        tensor.external_data.add(key=key, value=str(value))


def linked(name: str) -> Change:
    def apply(folder: Path) -> None:
        target = folder.parent / name
        (folder / name).rename(target)
        (folder / name).symlink_to(target)

    return apply


def hidden_tensor(location: str) -> Any:  # noqa: ANN401 - a protobuf message
    tensor = numpy_helper.from_array(onnx.numpy_helper.np.zeros(4, dtype="float32"), "hidden")
    outside(tensor, location)
    return tensor


def in_attribute(graph: Any) -> None:  # noqa: ANN401 - a protobuf message
    graph.graph.node.append(helper.make_node("Constant", [], ["hidden"], value=hidden_tensor("../../etc/passwd")))


def in_branch(graph: Any) -> None:  # noqa: ANN401 - a protobuf message
    branch = helper.make_graph([], "branch", [], [], [hidden_tensor("/etc/passwd")])
    graph.graph.node.append(helper.make_node("If", ["condition"], [], then_branch=branch, else_branch=branch))


def in_function(graph: Any) -> None:  # noqa: ANN401 - a protobuf message
    node = helper.make_node("Constant", [], ["hidden"], value=hidden_tensor("../secret"))
    graph.functions.append(helper.make_function("nearfar", "f", [], ["hidden"], [node], []))


def as_compiled_context(graph: Any) -> None:  # noqa: ANN401 - a protobuf message
    graph.graph.node.append(helper.make_node("EPContext", [], [], embed_mode=0, ep_cache_context="../engine.bin"))


def further_graph(folder: Path) -> None:
    graph = onnx.load(folder / "model.onnx")
    in_attribute(graph)
    (folder / "embedding.bin").write_bytes(graph.SerializeToString())
    model(embedding={"filename": "embedding.bin"})(folder)


def twice(folder: Path) -> None:
    """Python reads the second object alone, and onnxruntime-genai both."""
    path = folder / "genai_config.json"
    text = path.read_text(encoding="utf-8")
    library = '"session_options": {"custom_ops_library": "evil"}, "session_options"'
    path.write_text(text.replace('"session_options"', library, 1), encoding="utf-8")


def in_memory(folder: Path) -> None:
    """Names what onnxruntime takes for an address, and is a file of the folder, too."""
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(1 << 20))
    regraphed(lambda graph: outside(graph.graph.initializer[0], "*/_ORT_MEM_ADDR_/*"))(folder)


def named_only(graph: Any) -> None:  # noqa: ANN401 - a protobuf message
    graph.graph.initializer[0].external_data.add(key="location", value="../weights")


REFUSED: dict[str, tuple[Change, str]] = {
    "no configuration": (lambda folder: (folder / "genai_config.json").unlink(), "no file genai_config.json"),
    "no JSON": (written("genai_config.json", "{"), "damaged"),
    "no object": (written("genai_config.json", "[]"), "not a JSON object"),
    "JSON without end": (written("genai_config.json", "[" * 100_000), "damaged"),
    "a long configuration": (written("genai_config.json", " " * (2 << 20)), "more than"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no file tokenizer.json"),
    "no graph": (lambda folder: (folder / "model.onnx").unlink(), "no file model.onnx"),
    "an empty graph": (written("model.onnx", ""), "damaged"),
    "a graph above": (decoder(filename="../model.onnx"), "not inside"),
    "a graph anywhere": (decoder(filename="/tmp/model.onnx"), "not inside"),
    "a name with a zero": (decoder(filename="model.onnx\0"), "not inside"),
    "a graph that is a folder": (decoder(filename="."), "no file"),
    "a linked graph": (linked("model.onnx"), "is a link"),
    "a linked tokenizer": (linked("tokenizer.json"), "is a link"),
    "a further graph above": (model(embedding={"filename": "../embedding.onnx"}), "not inside"),
    "a further graph under another name": (further_graph, "not inside"),
    "a library": (decoder(session_options={"custom_ops_library": "evil"}), "run or write"),
    "a library of a provider": (decoder(session_options={"provider_options": [{"qnn": {"backend_path": "lib/evil.so"}}]}), "run or write"),
    "a library under a key that stands twice": (twice, "one key twice"),
    "a folder above": (
        decoder(session_options={"config_entries": {"session.model_external_initializers_file_folder_path": ".."}}),
        "run or write",
    ),
    "a profile": (decoder(session_options={"enable_profiling": "profile"}), "run or write"),
    "layers without end": (decoder(num_hidden_layers=10**9), "num_hidden_layers"),
    "no layers": (decoder(num_hidden_layers=0), "num_hidden_layers"),
    "a context that is a text": (model(context_length="2048"), "context_length"),
    "an end beyond the vocabulary": (model(eos_token_id=[1, 99999]), "eos_token_id"),
    "another vocabulary": (model(vocab_size=2049), "2049"),
    "weights above": (regraphed(lambda graph: outside(graph.graph.initializer[0], "../weights")), "not inside"),
    "weights anywhere": (regraphed(lambda graph: outside(graph.graph.initializer[0], "/etc/passwd")), "not inside"),
    "weights in memory": (in_memory, "not inside"),
    "weights in a place that is not said to be one": (regraphed(named_only), "is not stored there"),
    "weights in an attribute": (regraphed(in_attribute), "not inside"),
    "weights in a branch": (regraphed(in_branch), "not inside"),
    "weights in a function": (regraphed(in_function), "not inside"),
    "a compiled context": (regraphed(as_compiled_context), "not inside"),
    "weights beyond a file's end": (
        regraphed(lambda graph: outside(graph.graph.initializer[0], "tokenizer.json", offset=1 << 40)),
        "ends at byte",
    ),
    "weights before a file": (
        regraphed(lambda graph: outside(graph.graph.initializer[0], "tokenizer.json", offset=-8)),
        "ends at byte",
    ),
    "too few weights": (regraphed(lambda graph: outside(graph.graph.initializer[0], "tokenizer.json", length=1)), "and needs"),
    "sizes below zero": (regraphed(lambda graph: graph.graph.initializer[0].dims.append(-1)), "sizes"),
    "more sizes than weights": (regraphed(lambda graph: graph.graph.initializer[0].dims.append(1 << 40)), "and needs"),
    "two graphs": (lambda folder: (folder / "model.onnx").write_bytes(2 * (folder / "model.onnx").read_bytes()), "2 graphs"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_with_a_folder_is_said(change: Change, message: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(ModelError, match=message):
        read_folder(folder)


def test_a_folder_that_is_none() -> None:
    with pytest.raises(ModelNotFound):
        read_folder(Path("no/such/folder"))
    with pytest.raises(ModelError, match="not a folder"):
        read_folder(Path(__file__))


def test_it_says_what_the_gguf_says(near_folder: Path) -> None:
    ours, theirs = read_folder(near_folder), read_header(Path(__file__).parents[2] / "device" / "models" / "near.gguf")
    assert (ours.parameters, ours.layers, ours.context_tokens) == (theirs.parameters, theirs.layers, theirs.context_tokens)
    assert (ours.description, ours.world) == (theirs.description, theirs.world)
    assert theirs.kv_elements_per_token is not None
    assert ours.kv_bytes_per_token == 4 * theirs.kv_elements_per_token  # onnxruntime keeps 32 bits on a CPU, llama.cpp 16.


def test_weights_may_lie_in_a_file_of_the_folder(folder: Path) -> None:
    size = read_folder(folder).size
    (folder / "weights").write_bytes(bytes(1 << 20))
    regraphed(lambda graph: outside(graph.graph.initializer[0], "weights"))(folder)
    assert read_folder(folder).size > size


@given(st.binary(max_size=400))
def test_bytes_that_are_no_graph_are_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        Graph(data)


def test_graphs_nested_without_end_are_refused() -> None:
    inner = helper.make_graph([], "inner", [], [])
    for _ in range(20):
        inner = helper.make_graph([helper.make_node("Loop", [], [], body=inner)], "outer", [], [])
    with pytest.raises(ValueError, match="nested"):
        Graph(helper.make_model(inner).SerializeToString())
