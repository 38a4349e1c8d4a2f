"""Writes a random-weights llama model of a few kilobytes, for faults and edge cases that need no sense in the text."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|system|>", "<tool_call>", "</tool_call>")
WIDTH = 64
_ROWS_AND_COLUMNS = "qwen2vl"
"""An architecture that knows rows and columns of images."""
HEADS = 2


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """What to write; the defaults make a model that llama.cpp loads."""

    seed: int = 0
    architecture: str = "llama"
    context_length: int = 512
    layers: int = 2
    template: str | None = CHAT_TEMPLATE
    end_bias: float = 1.0
    """Scale of the end token's output row; 0 makes it as unlikely as any other, so that text runs on."""
    world: str | None = None
    sentencepiece: bool = False
    """A SentencePiece vocabulary, with a blank in front of the first word and single bytes for rare characters, instead of BPE."""
    add_start: bool = True
    window: int | None = None
    """Tokens that every second layer attends to, as in Gemma 2, which it then is; None: all."""
    tool_tokens: bool = True
    """Whether the tool-call markers are single tokens, as they are in Qwen and in our own models, or ordinary text."""


def write_tiny_gguf(path: Path, model: TinyModel | None = None) -> Path:
    """Write the model and return `path`."""
    model = model or TinyModel()
    writer = gguf.GGUFWriter(str(path), "gemma2" if model.window else model.architecture)
    tokens = _add_sentencepiece(writer) if model.sentencepiece else _add_vocabulary(writer, model)
    _add_tokenizer_options(writer, model)
    _add_shape(writer, model, len(tokens))
    _add_tensors(writer, model, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _add_vocabulary(writer: gguf.GGUFWriter, model: TinyModel) -> list[str]:
    alphabet = _byte_alphabet()
    merges = [f"{first} {second}" for first in "aeiou" for second in "lmnrst"]
    specials = SPECIALS if model.tool_tokens else tuple(special for special in SPECIALS if "tool_call" not in special)
    tokens = [*specials, *alphabet, *(merge.replace(" ", "") for merge in merges)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(specials) + [1] * (len(tokens) - len(specials)))
    writer.add_token_merges(merges)
    return tokens


def _add_sentencepiece(writer: gguf.GGUFWriter) -> list[str]:
    specials = ("<s>", "</s>", "<unk>", "<|im_end|>")
    characters = [chr(code) for code in range(33, 127)]
    words = ["\u2581", "\u2581<", "\u2581a", "th", "\u2581th", "\u2581{", "lo", "ok"]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *characters, *words]
    types = [3, 3, 2, 3] + [6] * 256 + [1] * (len(characters) + len(words))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_token_types(types)
    writer.add_unk_token_id(2)
    writer.add_add_space_prefix(True)
    return tokens


def _add_tokenizer_options(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(model.add_start)
    if model.template is not None:
        writer.add_chat_template(model.template)
    if model.world is not None:
        writer.add_string("nearfar.world", model.world)


def _add_shape(writer: gguf.GGUFWriter, model: TinyModel, vocabulary: int) -> None:
    writer.add_name("tiny")
    writer.add_context_length(model.context_length)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(vocabulary)
    if model.architecture == _ROWS_AND_COLUMNS:
        writer.add_rope_dimension_sections([4, 6, 6, 0])
    if model.window:
        writer.add_sliding_window(model.window)
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)


def _add_tensors(writer: gguf.GGUFWriter, model: TinyModel, vocabulary: int) -> None:
    random = np.random.default_rng(model.seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.3, (rows, columns)).astype(np.float32)

    output = matrix(vocabulary, WIDTH)
    output[1] *= model.end_bias
    writer.add_tensor("token_embd.weight", matrix(vocabulary, WIDTH))
    if not model.window:
        writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    for layer in range(model.layers):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", matrix(WIDTH, WIDTH))
        writer.add_tensor(f"{block}.ffn_gate.weight", matrix(2 * WIDTH, WIDTH))
        writer.add_tensor(f"{block}.ffn_up.weight", matrix(2 * WIDTH, WIDTH))
        writer.add_tensor(f"{block}.ffn_down.weight", matrix(WIDTH, 2 * WIDTH))
        for name in ("attn_q", "attn_k", "attn_v") if model.architecture == _ROWS_AND_COLUMNS else ():
            writer.add_tensor(f"{block}.{name}.bias", np.zeros(WIDTH, dtype=np.float32))
        for name in ("attn_norm", "ffn_norm", *(("post_attention_norm", "post_ffw_norm") if model.window else ())):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(WIDTH, dtype=np.float32))
