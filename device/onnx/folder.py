"""A look at a folder of onnxruntime-genai before anything loads it.

Such a folder is JSON and ONNX from a stranger, and both name further files: weights may be said to lie in `/etc/passwd`, and session
options may name a library to run. So everything that is loaded must be a plain file inside the folder, reached through no link.
"""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from ...protocols import ModelError, ModelNotFound
from ..gguf import read_header
from ..gguf_file import TENSOR_TYPES, VOCABULARY, GgufFile, read_gguf
from .graph import Damaged, Graph, StoredTensor, element_bytes

CONFIGURATION: Final = "genai_config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIGURATION: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"

_LONGEST_JSON: Final = {CONFIGURATION: 1 << 20, TOKENIZER: 1 << 26, TOKENIZER_CONFIGURATION: 1 << 24, TEMPLATE: 1 << 20}
_MOST: Final = 1 << 24
"""More than any count in a configuration: tokens of context or vocabulary, layers, widths."""
_ADAPTER_TYPES: Final = {1: "float32", 10: "float16"}
"""By `TensorProto.DataType`."""
_FORBIDDEN: Final = ("custom_ops_library", "enable_profiling", "optimized_model_filepath")
"""Session options that run a library, or write files."""
_DOWNLOAD_AGAIN: Final = "download or copy the folder again and compare its files with the source"
_UNSAFE: Final = "use a model from a source that you trust"


@dataclass(frozen=True, slots=True)
class AdapterInput:
    """A matrix that is empty unless an adapter gives one."""

    type: str
    """Its numpy name."""
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFolder:
    """A folder's description of its model."""

    name: str | None
    description: str | None
    world: str | None
    """`nearfar.world`: the only subject that the model knows; None: general."""
    context_tokens: int
    """Context length that the model was made for."""
    vocabulary: int
    ends: tuple[int, ...]
    """Tokens that end an output."""
    layers: int
    parameters: int
    kv_bytes_per_token: int | None
    """None where its caches are not of one kind of number."""
    size: int
    """Bytes of the model's files."""
    adapter_inputs: Mapping[str, AdapterInput]
    """Inputs that an adapter may give, by name; none if the model takes no adapters."""


def read_folder(path: Path) -> OnnxFolder:
    """Read and check the folder at `path`.

    Raises `ModelNotFound` if there is no such folder, `ModelError` if it is no complete model for onnxruntime-genai, or names a file that
    is none of its own.
    """
    if not path.exists():
        raise ModelNotFound(f"there is no folder {path}", hint="check the path, or download the model first")
    if not path.is_dir():
        raise ModelError(f"{path} is not a folder", hint=f"give the folder that holds {CONFIGURATION}")
    try:
        return _Reader(path).folder()
    except OSError as error:
        raise ModelError(f"cannot read {error.filename or path}: {error.strerror}", hint="check that the files are complete") from error
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {str(error) or type(error).__name__}", hint=_DOWNLOAD_AGAIN) from error


_FLOAT_BYTES: Final = 4
_CONVERTIBLE_TYPES: Final = ("F32", "F16", "BF16", "Q8_0")
_LONGEST_CONTEXT: Final = 1 << 16
"""The angles of all positions are written into the graph."""
_SAME_IN_ALL: Final = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"}


def describe_gguf(path: Path) -> OnnxFolder:
    """Describe the folder that `from_gguf` makes of a GGUF file.

    Raises `ModelNotFound` if there is no such file, `ModelError` if it is no model of the kind that ships with nearfar.
    """
    header, file = read_header(path), read_gguf(path)
    fault = convertible_fault(file)
    if fault is not None or header.layers is None or header.context_tokens is None:
        raise unconvertible(path, fault or "it does not state its size")
    tokens = file.array(VOCABULARY)
    return OnnxFolder(
        name=header.name,
        description=header.description,
        world=header.world,
        context_tokens=header.context_tokens,
        vocabulary=tokens.count if tokens is not None else 0,
        ends=(),
        layers=header.layers,
        parameters=header.parameters or 0,
        kv_bytes_per_token=header.kv_elements_per_token and header.kv_elements_per_token * _FLOAT_BYTES,
        size=file.size,
        adapter_inputs={},
    )


def unconvertible(path: Path, fault: str) -> ModelError:
    """Return the error for a GGUF file that cannot be converted."""
    return ModelError(f"{path} cannot be converted for onnxruntime: {fault}", hint="run it with llama.cpp: pip install 'nearfar[llama]'")


def convertible_fault(file: GgufFile) -> str | None:
    """Return what keeps a GGUF file from being converted; None: it is built like those that ship."""
    for key, expected in _SAME_IN_ALL.items():
        if file.text(key) != expected:
            return f"its {key} is {file.text(key)}, not {expected}"
    widths = {file.count(f"llama.{key}") for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")}
    heads = {file.count(f"llama.attention.{key}") for key in ("head_count", "head_count_kv")}
    if len(heads) > 1 or len(widths) > 1 or any(".rope.scaling." in key for key in file.fields):
        return "its attention is of another kind"
    if (file.count("llama.context_length") or 0) > _LONGEST_CONTEXT:
        return f"its context is longer than {_LONGEST_CONTEXT} tokens"
    if {tensor.name: tensor.dimensions for tensor in file.tensors} != _expected_tensors(file):
        return "it has other tensors"
    kinds = {TENSOR_TYPES[tensor.kind].name for tensor in file.tensors}
    return f"it has weights of type {min(kinds.difference(_CONVERTIBLE_TYPES))}" if kinds.difference(_CONVERTIBLE_TYPES) else None


def _expected_tensors(file: GgufFile) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of each tensor of a model with the sizes that the file states."""
    keys = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.key_length")
    layers, width, hidden, heads, head_width = (file.count(f"llama.{key}") or 0 for key in keys)
    tokens = file.array(VOCABULARY)
    inner = heads * head_width
    parts = {
        **dict.fromkeys(("attn_norm", "ffn_norm"), (width,)),
        **dict.fromkeys(("attn_q", "attn_k", "attn_v"), (width, inner)),
        "attn_output": (inner, width),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (width, hidden)),
        "ffn_down": (hidden, width),
    }
    blocks = {f"blk.{layer}.{part}.weight": sizes for layer in range(layers) for part, sizes in parts.items()}
    return {"token_embd.weight": (width, tokens.count if tokens is not None else 0), "output_norm.weight": (width,), **blocks}


class _Reader:
    """Reads one folder; what is wrong with it is raised as a `ModelError`, a `ValueError` or an `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def folder(self) -> OnnxFolder:
        model = _section(_section(self._json(CONFIGURATION)), "model")
        decoder = _section(model, "decoder")
        _check_options(model)
        files = [(key, self._check_path(name)) for key, name in _files(model)]
        if not isinstance(decoder.get("filename"), str):
            raise Damaged(f"{CONFIGURATION} names no model file")
        _section(self._json(TOKENIZER), "model")
        if (self._path / TOKENIZER_CONFIGURATION).exists():
            _section(self._json(TOKENIZER_CONFIGURATION))
        if (self._path / TEMPLATE).exists():
            self._text(TEMPLATE)
        # Other keys, such as `config_filename`, name files that are not graphs.
        graphs = {file: self._graph(file) for key, file in files if key == "filename"}
        return self._describe(model, decoder, graphs[self._path / str(decoder["filename"])], self._size(graphs))

    def _describe(self, model: Mapping[str, JsonValue], decoder: Mapping[str, JsonValue], graph: Graph, size: int) -> OnnxFolder:
        vocabulary, layers = _count(model, "vocab_size"), _count(decoder, "num_hidden_layers")
        names = decoder.get("outputs")
        logits = graph.output_sizes.get(str(names.get("logits", "logits")) if isinstance(names, dict) else "logits", [0])
        if logits[-1:] not in ([0], [vocabulary]):
            raise Damaged(f"its vocabulary is {vocabulary} tokens, but its graph computes {logits[-1]}")
        element = element_bytes(_cache_kind(graph))
        width = _count(decoder, "num_key_value_heads") * _count(decoder, "head_size")
        return OnnxFolder(
            name=graph.properties.get("nearfar.name") or None,
            description=graph.properties.get("nearfar.description") or None,
            world=graph.properties.get("nearfar.world") or None,
            context_tokens=_count(model, "context_length"),
            vocabulary=vocabulary,
            ends=_ends(model, vocabulary),
            layers=layers,
            parameters=graph.parameters,
            kv_bytes_per_token=None if element is None else int(2 * layers * width * element),
            size=size,
            adapter_inputs={
                tensor.name: AdapterInput(_ADAPTER_TYPES[tensor.kind], tensor.sizes)
                for tensor in graph.optional_inputs
                if tensor.kind in _ADAPTER_TYPES and not tensor.elements
            },
        )

    def _json(self, name: str) -> JsonValue:
        # onnxruntime-genai merges objects under one key; Python would keep only the last.
        value: JsonValue = json.loads(self._text(name), object_pairs_hook=_object if name == CONFIGURATION else None)
        return value

    def _text(self, name: str) -> str:
        file = self._check_path(name)
        size, most = file.stat().st_size, _LONGEST_JSON[name]
        if size > most:
            raise Damaged(f"{name} has {size} bytes, more than {most}")
        return file.read_text(encoding="utf-8")

    def _graph(self, file: Path) -> Graph:
        with file.open("rb") as opened:
            # Not closed here: an exception's traceback may hold views of it, and it is closed with the last of them.
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            graph = Graph(memoryview(data))
        except (ValueError, IndexError) as error:
            raise ModelError(f"{file} is damaged: {error}", hint=_DOWNLOAD_AGAIN) from error
        for tensor in graph.tensors:
            if tensor.location is not None:
                self._check_part(tensor, tensor.location)
        for path in graph.paths:
            self._check_path(path)
        return graph

    def _check_part(self, tensor: StoredTensor, location: str) -> None:
        size = self._check_path(location).stat().st_size
        if tensor.offset < 0 or tensor.offset + tensor.length > size:
            raise Damaged(f"tensor {tensor.name!r} ends at byte {tensor.offset + tensor.length} of {location}, which has {size}")

    def _size(self, graphs: Mapping[Path, Graph]) -> int:
        parts = {self._path / tensor.location for graph in graphs.values() for tensor in graph.tensors if tensor.location is not None}
        return sum(file.stat().st_size for file in {*graphs, *parts})

    def _check_path(self, name: str) -> Path:
        """Return the path of a file that the folder names. Raises `ModelError` if it is not in the folder."""
        # onnxruntime takes "*/_ORT_MEM_ADDR_/*" for an address in its memory, not for a file.
        if "\0" in name or "*" in name or not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelError(f"{self._path} names the file {name!r}, which is not inside it", hint=_UNSAFE)
        file = self._path / name
        if file.resolve() != self._path.resolve() / name:
            raise ModelError(f"{file} is a link", hint="put the file itself there")
        if not file.is_file():
            raise ModelError(f"{self._path} has no file {name}", hint=_DOWNLOAD_AGAIN)
        return file


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """Return a JSON object. Raises `Damaged` for a key that stands twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Damaged(f"{CONFIGURATION} has one key twice in one object")
    return value


def _section(value: JsonValue, key: str | None = None) -> dict[str, JsonValue]:
    """Return a JSON object, or the one below `key` in it. Raises `Damaged` for anything else."""
    if isinstance(value, dict) and key is not None:
        value = value.get(key)
    if not isinstance(value, dict):
        raise Damaged(f"{key or 'a file of the folder'} is not a JSON object")
    return value


def _count(section: Mapping[str, JsonValue], key: str) -> int:
    value = section.get(key)
    if type(value) is not int or not 0 < value <= _MOST:
        raise Damaged(f"its {key} is {value!r}")
    return value


def _ends(model: Mapping[str, JsonValue], vocabulary: int) -> tuple[int, ...]:
    value = model.get("eos_token_id")
    ends = value if isinstance(value, list) else [value]
    whole = tuple(end for end in ends if type(end) is int and 0 <= end < vocabulary)
    if len(whole) != len(ends) or not whole:
        raise Damaged(f"its eos_token_id is {value!r}")
    return whole


def _cache_kind(graph: Graph) -> int:
    """Return the kind of number in the caches; 0 if there are several kinds, or no caches."""
    kinds = {kind for name, kind in graph.input_kinds.items() if name.startswith("past")}
    return kinds.pop() if len(kinds) == 1 else 0


def _files(value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield every key that names a file, and the name."""
    for key, inner in _items(value):
        if isinstance(inner, str) and key.endswith("filename"):
            yield key, inner
        else:
            yield from _files(inner)


def _check_options(value: JsonValue, *, inside: bool = False) -> None:
    """Raise `ModelError` for options of a session or a provider that name a library or a path."""
    for key, inner in _items(value):
        options = inside or key.endswith("session_options")
        path = isinstance(inner, str) and ("/" in inner or "\\" in inner or inner == ".." or inner.endswith((".so", ".dll", ".dylib")))
        if options and (path or (key in _FORBIDDEN and inner)):
            raise ModelError(f"{CONFIGURATION} sets {key} to {inner!r}, which may run or write files", hint=_UNSAFE)
        _check_options(inner, inside=options)


def _items(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - JSON
    """Yield keys and values of an object, or the elements of a list with empty keys."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from (("", inner) for inner in value)
