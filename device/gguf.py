"""Check a model or a LoRA adapter in GGUF before llama.cpp sees it, and describe the model by its header.

llama.cpp aborts its process on some damaged headers, and GGUF has no checksum. A file that passes here can still be refused by the worker,
but it is complete, its tensors lie inside the file, and the keys that llama.cpp does not check have the types that it relies on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..protocols import ModelError, ModelNotFound
from .gguf_file import TENSOR_TYPES, VOCABULARY, Array, GgufFile, Kind, Tensor, read_gguf

_MODEL_KINDS: Final = (None, "model")
"""Values of `general.type`; others are adapters, image encoders and the like, which have no layers of their own."""
_REQUIRED: Final = ("block_count", "embedding_length", "context_length")
"""Keys that every architecture of llama.cpp states."""
_NO_VOCABULARY: Final = (None, "none", "no_vocab")
_VOCABULARY_KINDS: Final = {"token_type": Kind.INT32, "scores": Kind.FLOAT32}
"""Arrays with one number per token, which llama.cpp reads without a look at their type or length."""
_MOST_LAYERS: Final = 512
"""llama.cpp's LLAMA_MAX_LAYERS, beyond which it aborts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The header's description of a model."""

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
    file = read_gguf(path)
    architecture = _checked_architecture(file)
    _check_vocabulary(file)
    parts = file.count("split.count") or 1
    return GgufHeader(
        architecture=architecture,
        name=file.text("general.name"),
        description=file.text("general.description"),
        context_tokens=file.count(f"{architecture}.context_length"),
        chat_template=file.text("tokenizer.chat_template"),
        world=file.text("nearfar.world"),
        parameters=sum(tensor.elements for tensor in file.tensors) or None if parts == 1 else None,
        layers=file.count(f"{architecture}.block_count"),
        kv_elements_per_token=_kv_elements(file, architecture),
    )


def check_part(path: Path) -> None:
    """Check a further part of a split model, which holds tensors and no description of the model. Raises as `read_header` does."""
    file = read_gguf(path)
    if file.fields.get("split.no") is None or not file.tensors:
        raise file.damaged("it is not a part of a split model")


def _checked_architecture(file: GgufFile) -> str:
    architecture = file.text("general.architecture")
    if architecture is None:
        raise file.damaged("it does not name its architecture")
    if file.text("general.type") in _MODEL_KINDS:
        for key in _REQUIRED:
            if file.count(f"{architecture}.{key}") is None:
                raise file.damaged(f"it does not state {architecture}.{key}")
    if (layers := file.count(f"{architecture}.block_count") or 0) > _MOST_LAYERS:
        raise file.damaged(f"it claims {layers} layers")
    return architecture


def _check_vocabulary(file: GgufFile) -> None:
    tokens = file.array(VOCABULARY)
    if tokens is None:
        if file.text("tokenizer.ggml.model") not in _NO_VOCABULARY:
            raise file.damaged("it names a tokenizer but has no vocabulary")
        return
    if tokens.kind is not Kind.STRING or not tokens.count:
        raise file.damaged("its vocabulary is not a list of texts")
    if tokens.distinct < tokens.count:
        # llama.cpp aborts over this.
        raise file.damaged(f"{tokens.count - tokens.distinct} of its {tokens.count} tokens occur twice")
    for name, kind in _VOCABULARY_KINDS.items():
        field = file.fields.get(f"tokenizer.ggml.{name}")
        if field is not None and not (isinstance(field.value, Array) and (field.value.kind, field.value.count) == (kind, tokens.count)):
            raise file.damaged(f"tokenizer.ggml.{name} does not fit its {tokens.count} tokens")
    merges = file.fields.get("tokenizer.ggml.merges")
    if merges is not None and not (isinstance(merges.value, Array) and merges.value.kind is Kind.STRING):
        raise file.damaged("tokenizer.ggml.merges is not a list of texts")


def _kv_elements(file: GgufFile, architecture: str) -> int | None:
    def count(key: str, default: int | None = None) -> int | None:
        return file.count(f"{architecture}.{key}") if f"{architecture}.{key}" in file.fields else default

    layers, width, heads = count("block_count"), count("embedding_length"), count("attention.head_count")
    kv_heads = count("attention.head_count_kv", heads)
    head_width = width // heads if width and heads else None
    key_length, value_length = count("attention.key_length", head_width), count("attention.value_length", head_width)
    if layers is None or kv_heads is None or key_length is None or value_length is None:
        return None
    return layers * kv_heads * (key_length + value_length)


PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>(?!00000)\d{5})\.gguf", re.IGNORECASE)
"""The name of one part."""


def model_parts(path: Path) -> list[Path]:
    """Return all files of the model at `path`, which is the only one or the first of several. Raises `ModelNotFound` if one is missing."""
    part = PART.fullmatch(path.name)
    numbers = range(1, int(part["count"]) + 1) if part else ()
    files = [path.with_name(f"{part['stem']}-{number:05}-of-{part['count']}.gguf") for number in numbers] if part else [path]
    for file in files:
        if not file.is_file():
            raise ModelNotFound(f"there is no model file {file}", hint="check the path; a split model needs all its parts in one folder")
    return files


_DOWN: Final = ".lora_a"
_UP: Final = ".lora_b"
_TYPES: Final = ("F32", "F16", "BF16", "Q8_0")
"""The types that llama.cpp's own converter writes; others would end the worker in the middle of a pass."""

_HINT: Final = "give an adapter that was trained on exactly this base"

_Tensors = Mapping[str, Tensor]


def check_adapters(paths: Mapping[str, Path], base: Path) -> None:
    """Raise `ModelNotFound` if one is not there, `ModelError` if one is no adapter of the base."""
    model = read_gguf(base) if paths else None
    for name, path in paths.items():
        assert model is not None, "there are adapters"
        fault = _fault(read_gguf(path), model)
        if fault:
            raise ModelError(f"{path} cannot be the adapter {name!r}: {fault}", hint=_HINT)


def check_projector(path: Path) -> None:
    """Raise `ModelNotFound` if it is not there, `ModelError` if it is no multimodal projector that reads images."""
    file = read_gguf(path)
    if file.text("general.architecture") != "clip":
        raise ModelError(f"{path} is no multimodal projector", hint="take the file mmproj-MODEL.gguf from the model's repository")


def _fault(adapter: GgufFile, base: GgufFile) -> str | None:
    if adapter.text("general.type") != "adapter":
        return "it is a whole model"
    if (kind := adapter.text("adapter.type")) != "lora":
        return f"its type is {kind}, not lora"
    architecture, needed = adapter.text("general.architecture"), base.text("general.architecture")
    if architecture != needed:
        return f"its base is a {architecture} model, and this is a {needed} model"
    if not adapter.tensors:
        return "it holds no tensors"
    own, adapted = ({tensor.name: tensor for tensor in file.tensors} for file in (adapter, base))
    return next(filter(None, (_tensor_fault(tensor, own, adapted) for tensor in adapter.tensors)), None)


def _tensor_fault(tensor: Tensor, own: _Tensors, adapted: _Tensors) -> str | None:
    """Return the fault of one tensor, or None: its type, its name, its missing other half, or its shape."""
    stem = tensor.name.removesuffix(_DOWN).removesuffix(_UP)
    if stem == tensor.name:
        return f"{stem} is not part of a low-rank adapter"
    if (kind := TENSOR_TYPES[tensor.kind].name) not in _TYPES:
        return f"{tensor.name} is stored as {kind}"
    if stem not in adapted:
        return f"the model has no tensor {stem}"
    if stem + _DOWN not in own or stem + _UP not in own:
        return f"one of the two matrices for {stem} is missing"
    return _shape_fault(own[stem + _DOWN].dimensions, own[stem + _UP].dimensions, adapted[stem])


def _shape_fault(down: tuple[int, ...], up: tuple[int, ...], adapted: Tensor) -> str | None:
    if len(down) != 2 or len(up) != 2:
        return f"its tensors for {adapted.name} are not matrices"
    # An embedding is looked up, not multiplied: the matrices for it lie the other way round.
    inputs, outputs = (up[1], down[1]) if adapted.name.startswith("token_embd.") else (down[0], up[1])
    if (inputs, outputs) != adapted.dimensions:
        return f"it changes {adapted.name} as {inputs}x{outputs}, where the model has {_product(adapted.dimensions)}"
    return None


def _product(lengths: tuple[int, ...]) -> str:
    return "x".join(map(str, lengths))
