"""A look at a model's GGUF header before llama.cpp sees it.

llama.cpp aborts its process on some damaged headers, and GGUF has no checksum. What passes here can still be refused by the worker, but it
is complete, its tensors lie inside the file, and the keys on which llama.cpp relies without a look have the types that it relies on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .fields import Array, Kind
from .file import VOCABULARY, GgufFile, read_gguf

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
