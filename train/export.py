"""Writes a trained model as one GGUF file that llama.cpp runs as it is: weights, tokenizer, template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from .data import PAD, SPECIALS
from .episodes import BOS, END, TOOL_CALL
from .gguf_fields import copy_fields
from .lora import Adapter
from .model import Shape, TinyLlama
from .trainer import load_model

CHAT_TEMPLATE: Final = (
    "{{ '<|bos|>' }}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    "{{ '<|assistant|>' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}"
    "{% set function = call.function %}"
    "{{ '<tool_call>{\"name\": ' }}{{ function.name | tojson }}{{ ', \"arguments\": ' }}"
    "{% if function.arguments is string %}{{ function.arguments }}{% else %}"
    "{{ '{' }}"
    "{% for key, value in function.arguments.items() %}"
    "{{ key | tojson }}{{ ': ' }}{{ value | tojson }}{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}"
    "{{ '}' }}"
    "{% endif %}"
    "{{ '}</tool_call>' }}"
    "{% endfor %}"
    "{% else %}"
    "{{ '<|' + message.role + '|>' + (message.content or '') }}"
    "{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Arguments are written key by key: Jinja's own ``tojson`` would sort the keys of a whole mapping,
and a model this small has only ever seen one order. Nothing is added to the result of ``tojson``,
because Jinja would then escape the rest as HTML. Tools are not rendered; they are in the weights."""

DESCRIPTION: Final = (
    "Trained from scratch on Nearfar's two generated worlds only, search and apps: it works in them with their tools, plans and checks "
    "such work, and knows nothing else."
)

_NAMES: Final = {
    "embedding.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "attention.query.weight": "attn_q.weight",
    "attention.key.weight": "attn_k.weight",
    "attention.value.weight": "attn_v.weight",
    "attention.output.weight": "attn_output.weight",
    "attention_norm.weight": "attn_norm.weight",
    "feed.gate.weight": "ffn_gate.weight",
    "feed.up.weight": "ffn_up.weight",
    "feed.down.weight": "ffn_down.weight",
    "feed_norm.weight": "ffn_norm.weight",
}


def export(checkpoint: Path, tokenizer: Path, target: Path, name: str) -> None:
    """Write ``checkpoint`` to ``target`` with 8-bit matrices; ``name`` is the name inside the file."""
    model = load_model(checkpoint)
    writer = gguf.GGUFWriter(str(target), "llama")
    _describe(writer, name)
    write_shape(writer, model.shape)
    write_tokenizer(writer, tokenizer)
    _write_weights(writer, model)


def write_model(model: TinyLlama, base: Path, target: Path) -> None:
    """Write other weights for the model in the file `base`; all else is taken from there."""
    writer = gguf.GGUFWriter(str(target), "llama")
    copy_fields(gguf.GGUFReader(base), writer, {})
    _write_weights(writer, model)


def _write_weights(writer: gguf.GGUFWriter, model: TinyLlama) -> None:
    for key, tensor in model.state_dict().items():
        add_tensor(writer, gguf_name(key), rotated_by_pairs(key, tensor.numpy(), model.shape))
    close(writer)


def write_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the sizes llama.cpp builds the graph from."""
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rotary_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)


def write_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write vocabulary, merges, special tokens and chat template."""
    described: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_token_type(token) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in described["merges"]])
    writer.add_bos_token_id(described["vocab"][BOS])
    writer.add_eos_token_id(described["vocab"][END])
    writer.add_pad_token_id(described["vocab"][PAD])
    # The template writes the first token itself, so the tokenizer must not add another one.
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32]) -> None:
    """Add a tensor: matrices as q8_0, vectors as f32."""
    if values.ndim < 2:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def write_adapter(adapter: Adapter, shape: Shape, target: Path, name: str) -> None:
    """Write a low-rank adapter in the form that llama.cpp loads on top of its base: 16-bit floats, at full strength."""
    writer = gguf.GGUFWriter(str(target), "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    for key, (down, up) in adapter.items():
        writer.add_tensor(f"{gguf_name(key)}.lora_a", down.astype(np.float16))
        writer.add_tensor(f"{gguf_name(key)}.lora_b", rotated_by_pairs(key, up, shape).astype(np.float16))
    # llama.cpp scales by alpha / rank.
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(len(next(iter(adapter.values()))[0])))
    close(writer)


def close(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added to the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, name: str) -> None:
    writer.add_name(name)
    writer.add_description(DESCRIPTION)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_string("nearfar.world", "search, apps")


def _token_type(token: str) -> int:
    if token in TOOL_CALL:
        # Shown as text, so that a parser of the output sees where a call begins and ends.
        return int(gguf.TokenType.USER_DEFINED)
    return int(gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL)


def gguf_name(key: str) -> str:
    """What llama.cpp calls a weight of the model."""
    if not key.startswith("blocks."):
        return _NAMES[key]
    _, number, inner = key.split(".", 2)
    return f"blk.{number}.{_NAMES[inner]}"


def rotated_by_pairs(key: str, values: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """A weight with its rows in the order of llama.cpp, which rotates neighbouring pairs where the training code rotates halves."""
    return _reordered(key, values, (shape.heads, 2, shape.head_width // 2, -1))


def rotated_by_halves(key: str, values: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """The inverse of `rotated_by_pairs`."""
    return _reordered(key, values, (shape.heads, shape.head_width // 2, 2, -1))


def _reordered(key: str, values: NDArray[np.float32], rows: tuple[int, int, int, int]) -> NDArray[np.float32]:
    if not key.endswith(("attention.query.weight", "attention.key.weight")):
        return values
    return np.ascontiguousarray(values.reshape(rows).swapaxes(1, 2).reshape(values.shape))
