"""Reads a model that ships back into torch, so that what is trained on top of it fits exactly what runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .data import SPECIALS
from .export import gguf_name, rotated_by_halves
from .model import Shape, TinyLlama


def read_base(path: Path) -> tuple[TinyLlama, Tokenizer]:
    """The model of a GGUF that `export` wrote, with its 8-bit weights as llama.cpp reads them, and its tokenizer."""
    reader = gguf.GGUFReader(path)
    model = TinyLlama(_shape(reader))
    stored = {tensor.name: np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type)) for tensor in reader.tensors}
    model.load_state_dict({key: _weights(key, stored[gguf_name(key)], model.shape) for key in model.state_dict()})
    return model, _tokenizer(reader)


def _shape(reader: gguf.GGUFReader) -> Shape:
    return Shape(
        width=int(_value(reader, "llama.embedding_length")),
        layers=int(_value(reader, "llama.block_count")),
        heads=int(_value(reader, "llama.attention.head_count")),
        head_width=int(_value(reader, "llama.attention.key_length")),
        hidden=int(_value(reader, "llama.feed_forward_length")),
        vocabulary=int(_value(reader, "llama.vocab_size")),
        context=int(_value(reader, "llama.context_length")),
        rotary_base=float(_value(reader, "llama.rope.freq_base")),
        epsilon=float(_value(reader, "llama.attention.layer_norm_rms_epsilon")),
    )


def _weights(key: str, stored: NDArray[np.float32], shape: Shape) -> torch.Tensor:
    return torch.from_numpy(rotated_by_halves(key, stored, shape).astype(np.float32))


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    tokens = _value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in _value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


def _value(reader: gguf.GGUFReader, key: str) -> Any:  # noqa: ANN401 - a number, a text or a list, as the key has it
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the model has no {key}")
    return field.contents()
