"""Write the models that ship with nearfar, which are GGUF files, in the form that onnxruntime-genai runs.

They run so where llama.cpp is not installed. The worker process writes a folder when it starts and removes it once the model is loaded:
it takes about a tenth of a second, and nothing can get out of step with the GGUF file. Matrices are stored in 32 bits, so that the model
computes what its 8-bit weights say.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ..gguf_file import TENSOR_TYPES, VOCABULARY, GgufFile, read_gguf
from .folder import CONFIGURATION, TOKENIZER, TOKENIZER_CONFIGURATION, convertible_fault, unconvertible

Weights = NDArray[np.float32]

_CONTROL: Final = 3
"""The type of a token that is never shown as text."""
_MARKER: Final = 4
"""The type of a token with a meaning of its own that is shown as text."""


def write_folder(model: Path, target: Path, *, lora: bool = False) -> None:
    """Write the model in the GGUF file `model` as a folder; with `lora`, its graph takes adapters.

    Raises `ModelError` if it is no model of the kind that ships.
    """
    file = read_gguf(model)
    if fault := convertible_fault(file):
        raise unconvertible(model, fault)
    shape = _shape(file)
    named = (("nearfar.name", "general.name"), ("nearfar.description", "general.description"), ("nearfar.world", "nearfar.world"))
    properties = {ours: file.text(theirs) or "" for ours, theirs in named}
    (target / "model.onnx").write_bytes(LlamaGraph(read_weights(file), shape, lora=lora).build(properties))
    tokens = file.texts(VOCABULARY)
    start, end, padding = (_number(file, f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding"))
    if max(start, end, padding) >= len(tokens):
        raise file.damaged("a control token is not in its vocabulary")
    write_json(target / CONFIGURATION, configuration(shape, start=start, end=end, padding=padding))
    write_json(target / TOKENIZER, _tokenizer(file, tokens))
    texts = {"bos_token": tokens[start], "eos_token": tokens[end], "pad_token": tokens[padding]}
    template = file.text("tokenizer.chat_template")
    write_json(target / TOKENIZER_CONFIGURATION, {"tokenizer_class": "PreTrainedTokenizerFast", **texts, "chat_template": template})


def adapter_matrices(path: Path) -> dict[str, Weights]:
    """Read a LoRA adapter in GGUF; return its matrices by the names of the inputs that a graph with `lora` has for them."""
    file = read_gguf(path)
    found = read_weights(file)
    strength = file.fields.get("adapter.lora.alpha")
    matrices: dict[str, Weights] = {}
    for name, down in found.items():
        if not name.endswith(".weight.lora_a"):
            continue
        linear = name.removesuffix(".weight.lora_a")
        up = found[f"{linear}.weight.lora_b"]
        # As llama.cpp does: the strength is alpha / rank, and an alpha of 0 leaves the matrices as they are.
        scale = float(strength.value) / len(down) if strength is not None and isinstance(strength.value, float) and strength.value else 1.0
        inputs = lora_inputs(linear)
        matrices[inputs[0]], matrices[inputs[1]] = np.ascontiguousarray(down.T), np.ascontiguousarray(up.T * np.float32(scale))
    return matrices


def read_weights(file: GgufFile) -> dict[str, Weights]:
    """Return the tensors of a file by name, as 32-bit floats, each of shape (outputs, inputs) or (width,)."""
    data = np.fromfile(file.path, dtype=np.uint8, offset=file.data_start)
    return {
        tensor.name: _floats(data[tensor.offset : tensor.offset + tensor.bytes], TENSOR_TYPES[tensor.kind].name).reshape(
            tensor.dimensions[::-1]
        )
        for tensor in file.tensors
    }


def _floats(data: NDArray[np.uint8], kind: str) -> Weights:
    if kind == "F32":
        return data.view("<f4").astype(np.float32)
    if kind == "F16":
        return data.view("<f2").astype(np.float32)
    if kind == "BF16":  # the upper half of a 32-bit float
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = data.view([("scale", "<f2"), ("numbers", "i1", 32)])  # q8_0
    scaled: Weights = blocks["scale"].astype(np.float32)[:, None] * blocks["numbers"].astype(np.float32)
    return scaled.reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The sizes of a model of the Llama architecture."""

    width: int
    layers: int
    heads: int
    head_width: int
    vocabulary: int
    context: int
    rotary_base: float
    epsilon: float


def _shape(file: GgufFile) -> LlamaShape:
    return LlamaShape(
        width=_number(file, "llama.embedding_length"),
        layers=_number(file, "llama.block_count"),
        heads=_number(file, "llama.attention.head_count"),
        head_width=_number(file, "llama.attention.key_length"),
        vocabulary=len(file.texts(VOCABULARY)),
        context=_number(file, "llama.context_length"),
        rotary_base=_fraction(file, "llama.rope.freq_base"),
        epsilon=_fraction(file, "llama.attention.layer_norm_rms_epsilon"),
    )


def _number(file: GgufFile, key: str) -> int:
    value = file.fields[key].value if key in file.fields else None
    if type(value) is not int:
        raise file.damaged(f"it does not state {key}")
    return value


def _fraction(file: GgufFile, key: str) -> float:
    value = file.fields[key].value if key in file.fields else None
    if not isinstance(value, float):
        raise file.damaged(f"it does not state {key}")
    return value


def _tokenizer(file: GgufFile, tokens: Sequence[str]) -> dict[str, Any]:
    """Return the description of the tokenizer as the tokenizers package writes it."""
    kinds = file.array("tokenizer.ggml.token_type")
    special = [(token, kind) for token, kind in zip(tokens, kinds.numbers if kinds else (), strict=True) if kind in (_CONTROL, _MARKER)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    for pair in file.texts("tokenizer.ggml.merges"):
        left, _, right = pair.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise file.damaged(f"the merge {pair!r} is not of its vocabulary")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, _ in special])
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    shown = {token for token, kind in special if kind == _MARKER}
    for token in described["added_tokens"]:
        # Shown as text, so that a parser of the output sees where a call begins and ends.
        token["special"] = token["content"] not in shown
    return described


def configuration(shape: LlamaShape, *, start: int, end: int, padding: int) -> dict[str, Any]:
    """Return the contents of genai_config.json. `start`, `end`, `padding`: token ids."""
    return {
        "model": {
            "type": "llama",
            "bos_token_id": start,
            "eos_token_id": end,
            "pad_token_id": padding,
            "vocab_size": shape.vocabulary,
            "context_length": shape.context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": shape.head_width,
                "hidden_size": shape.width,
                "num_attention_heads": shape.heads,
                "num_key_value_heads": shape.heads,
                "num_hidden_layers": shape.layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            },
        },
        "search": {"do_sample": False, "max_length": shape.context, "past_present_share_buffer": True},
    }


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as readable JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


_OPSET: Final = 18
_IR_VERSION: Final = 10
MICROSOFT: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
_FLOAT, _INT32, _INT64 = 1, 6, 7
"""`TensorProto.DataType`."""
_DATA_TYPES: Final = {np.dtype(np.float32): _FLOAT, np.dtype(np.uint8): 2, np.dtype(np.int64): _INT64}

Attribute = int | float | Sequence[int]


class LlamaGraph:
    """The operators and weights of one model, added from its input to its output.

    onnxruntime-genai gives it a cache of keys and values, and gets one back.
    """

    def __init__(self, weights: Mapping[str, Weights], shape: LlamaShape, *, lora: bool = False) -> None:
        """`weights`: by their names in a GGUF file, and in its order. `lora`: with inputs for an adapter of each matrix."""
        self._weights = weights
        self._shape = shape
        self._lora = lora
        self._nodes: list[bytes] = []
        self._stored: list[bytes] = []
        self._inputs = _inputs(shape)

    def build(self, properties: Mapping[str, str]) -> bytes:
        """Return the whole model as an ONNX file, with its own metadata."""
        self._add_rotation()
        self._add_lengths()
        hidden = self.embed(self._weights["token_embd.weight"])
        for number in range(self._shape.layers):
            hidden = self._block(hidden, f"blk.{number}", number)
        self.unembed(self._normalise(hidden, "output_norm.weight"), self._weights["token_embd.weight"])
        graph = _message(
            *((1, node) for node in self._nodes),
            (2, "tiny_llama"),
            *((5, tensor) for tensor in self._stored),
            *((11, value) for value in self._inputs),
            *((12, value) for value in _outputs(self._shape)),
        )
        opsets = [_message((1, ""), (2, _OPSET)), _message((1, MICROSOFT), (2, 1))]
        metadata = [_message((1, key), (2, value)) for key, value in properties.items()]
        return _message(
            (1, _IR_VERSION),
            (2, "nearfar"),
            (7, graph),
            *((8, opset) for opset in opsets),
            *((14, pair) for pair in metadata),
        )

    def embed(self, table: Weights) -> str:
        """Look the tokens up; return the name of the result, as every method that adds operators does."""
        # Stored as the head wants it, since both use the same weights.
        self.store("token_embd", np.ascontiguousarray(table.T))
        self.node("Transpose", ["token_embd"], "token_embd.table", perm=[1, 0])
        return self.node("Gather", ["token_embd.table", "input_ids"], "token_embd.rows")

    def unembed(self, hidden: str, table: Weights) -> str:
        """Compute the logits, of which `table` is the matrix."""
        del table  # stored already
        return self.node("MatMul", [hidden, "token_embd"], "logits")

    def multiply(self, hidden: str, name: str, matrix: Weights) -> str:
        """Multiply by one matrix, of shape (outputs, inputs)."""
        self.store(name, np.ascontiguousarray(matrix.T))
        return self.node("MatMul", [hidden, name], f"{name}.product")

    def node(self, kind: str, inputs: Sequence[str], output: str | Sequence[str], *, domain: str = "", **attributes: Attribute) -> str:
        """Add an operator; return its first output."""
        outputs = [output] if isinstance(output, str) else output
        written = [_attribute(key, value) for key, value in attributes.items()]
        self._nodes.append(
            _message(
                *((1, name) for name in inputs),
                *((2, name) for name in outputs),
                (3, outputs[0]),
                (4, kind),
                *((5, attribute) for attribute in written),
                (7, domain),
            )
        )
        return outputs[0]

    def store(self, name: str, values: NDArray[Any]) -> None:
        """Add a constant."""
        sizes = [(1, size) for size in values.shape]
        self._stored.append(_message(*sizes, (2, _DATA_TYPES[values.dtype]), (8, name), (9, values.tobytes())))

    def _add_rotation(self) -> None:
        frequencies = self._shape.rotary_base ** -(np.arange(0, self._shape.head_width, 2) / self._shape.head_width)
        angles = np.outer(np.arange(self._shape.context), frequencies)
        self.store("cosine", np.cos(angles).astype(np.float32))
        self.store("sine", np.sin(angles).astype(np.float32))

    def _add_lengths(self) -> None:
        """Compute what the attention wants to know of the mask: the last position of each row, and the length of all."""
        self.store("one", np.array([1], dtype=np.int64))
        self.node("ReduceSum", ["attention_mask", "one"], "tokens", keepdims=0)
        self.node("Sub", ["tokens", "one"], "last")
        self.node("Cast", ["last"], "last_position", to=_INT32)
        self.node("Shape", ["attention_mask"], "mask_length", start=1)
        self.node("Squeeze", ["mask_length"], "mask_scalar")
        self.node("Cast", ["mask_scalar"], "total_length", to=_INT32)

    def _block(self, hidden: str, prefix: str, number: int) -> str:
        mixed = self._attend(self._normalise(hidden, f"{prefix}.attn_norm.weight"), prefix, number)
        hidden = self.node("Add", [hidden, mixed], f"{prefix}.attended")
        fed = self._feed(self._normalise(hidden, f"{prefix}.ffn_norm.weight"), prefix)
        return self.node("Add", [hidden, fed], f"{prefix}.output")

    def _attend(self, hidden: str, prefix: str, number: int) -> str:
        projected = [self._linear(hidden, f"{prefix}.attn_{part}") for part in ("q", "k", "v")]
        past = [f"past_key_values.{number}.key", f"past_key_values.{number}.value"]
        outputs = [f"{prefix}.mixed", f"present.{number}.key", f"present.{number}.value"]
        inputs = [*projected, *past, "last_position", "total_length", "cosine", "sine"]
        # llama.cpp rotates neighbouring pairs, and the rows of the matrices have its order.
        heads = {"num_heads": self._shape.heads, "kv_num_heads": self._shape.heads, "do_rotary": 1, "rotary_interleaved": 1}
        return self._linear(self.node("GroupQueryAttention", inputs, outputs, domain=MICROSOFT, **heads), f"{prefix}.attn_output")

    def _feed(self, hidden: str, prefix: str) -> str:
        gate = self._linear(hidden, f"{prefix}.ffn_gate")
        sigmoid = self.node("Sigmoid", [gate], f"{prefix}.sigmoid")
        opened = self.node("Mul", [gate, sigmoid], f"{prefix}.opened")
        widened = self.node("Mul", [opened, self._linear(hidden, f"{prefix}.ffn_up")], f"{prefix}.widened")
        return self._linear(widened, f"{prefix}.ffn_down")

    def _normalise(self, hidden: str, key: str) -> str:
        self.store(key, self._weights[key])
        output = f"{key}.normalised"
        return self.node("SimplifiedLayerNormalization", [hidden, key], output, axis=-1, epsilon=self._shape.epsilon, stash_type=1)

    def _linear(self, hidden: str, name: str) -> str:
        matrix = self._weights[f"{name}.weight"]
        product = self.multiply(hidden, name, matrix)
        if not self._lora:
            return product
        # An adapter's matrices are inputs that are empty, of rank 0, unless an adapter is active.
        down, up = lora_inputs(name)
        rank = f"{name}.rank"
        outputs, inputs = matrix.shape
        self._inputs += [_value(down, _FLOAT, [inputs, rank]), _value(up, _FLOAT, [rank, outputs])]
        self.store(down, np.zeros((inputs, 0), dtype=np.float32))
        self.store(up, np.zeros((0, outputs), dtype=np.float32))
        narrow = self.node("MatMul", [hidden, down], f"{name}.narrow")
        wide = self.node("MatMul", [narrow, up], f"{name}.wide")
        return self.node("Add", [product, wide], f"{name}.adapted")


def lora_inputs(linear: str) -> tuple[str, str]:
    """Return the inputs for a matrix's adapter: to the rank, shape (inputs, rank), and from it, shape (rank, outputs)."""
    return f"{linear}.lora_A.weight", f"{linear}.lora_B.weight"


def _inputs(shape: LlamaShape) -> list[bytes]:
    tokens = [_value("input_ids", _INT64, ["batch", "length"]), _value("attention_mask", _INT64, ["batch", "total"])]
    return tokens + _caches("past_key_values", "past", shape)


def _outputs(shape: LlamaShape) -> list[bytes]:
    return [_value("logits", _FLOAT, ["batch", "length", shape.vocabulary]), *_caches("present", "total", shape)]


def _caches(name: str, length: str, shape: LlamaShape) -> list[bytes]:
    sizes = ("batch", shape.heads, length, shape.head_width)
    return [_value(f"{name}.{number}.{part}", _FLOAT, sizes) for number in range(shape.layers) for part in ("key", "value")]


def _value(name: str, kind: int, sizes: Sequence[int | str]) -> bytes:
    """Return a `ValueInfoProto`: an input or output; a size that is not fixed has a name."""
    dimensions = _message(*((1, _message((1 if isinstance(size, int) else 2, size))) for size in sizes))
    return _message((1, name), (2, _message((1, _message((1, kind), (2, dimensions))))))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _message((1, name), (2, value), (20, 1))
    if isinstance(value, int):
        return _message((1, name), (3, value), (20, 2))
    return _message((1, name), *((8, each) for each in value), (20, 7))


def _message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    """Return a message of protocol buffers, of (number, value) pairs; `graph` names the fields of an ONNX file and their numbers."""
    parts: list[bytes] = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value & 0xFFFF_FFFF_FFFF_FFFF)]
        elif isinstance(value, float):
            parts += [_varint(number << 3 | 5), struct.pack("<f", value)]
        else:
            data = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | 2), _varint(len(data)), data]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
