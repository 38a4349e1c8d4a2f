"""Writes a model as a folder that onnxruntime-genai runs: graph, weights, genai_config.json, tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from tokenizers import Tokenizer

from nearfar.device.onnx.folder import CONFIGURATION, TOKENIZER, TOKENIZER_CONFIGURATION
from nearfar.device.onnx.from_gguf import configuration, lora_inputs, write_json

from .data import PAD
from .episodes import BOS, END, TOOL_CALL
from .export import CHAT_TEMPLATE, DESCRIPTION, gguf_name, rotated_by_pairs
from .lora import Adapter
from .model import Shape, TinyLlama
from .onnx_graph import Precision, build_graph, llama_shape

_LARGEST_INLINE: Final = 1 << 30
"""Bytes of weights beyond which they go into a file of their own: a protobuf message holds at most 2 GiB."""


def write_folder(model: TinyLlama, tokenizer: Tokenizer, target: Path, *, name: str, precision: Precision, lora: bool = False) -> None:
    """Write everything that a folder needs; with `lora`, the graph takes adapters. `name` is the name inside the model."""
    target.mkdir(parents=True, exist_ok=True)
    properties = {"nearfar.name": f"{name}-{precision}", "nearfar.description": DESCRIPTION, "nearfar.world": "search, apps"}
    graph = build_graph(model, precision, properties, lora=lora)
    large = sum(len(tensor.raw_data) for tensor in graph.graph.initializer) > _LARGEST_INLINE
    (target / "model.onnx.data").unlink(missing_ok=True)  # It would be appended to.
    onnx.save(graph, target / "model.onnx", save_as_external_data=large, location="model.onnx.data")
    ids = tokenizer.get_vocab()
    write_json(target / CONFIGURATION, configuration(llama_shape(model.shape), start=ids[BOS], end=ids[END], padding=ids[PAD]))
    write_json(target / TOKENIZER, _described(tokenizer))
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": END, "pad_token": PAD}
    write_json(target / TOKENIZER_CONFIGURATION, {**tokens, "chat_template": CHAT_TEMPLATE})


def write_adapter(adapter: Adapter, shape: Shape, target: Path) -> None:
    """Write a low-rank adapter in the form that onnxruntime loads on top of a graph that was exported with `lora`."""
    from nearfar.device.onnx.model import write_adapter as write

    matrices = {}
    for key, (down, up) in adapter.items():
        inputs = lora_inputs(gguf_name(key).removesuffix(".weight"))
        for name, matrix in zip(inputs, (down, rotated_by_pairs(key, up, shape)), strict=True):
            matrices[name] = np.ascontiguousarray(matrix.T)
    write(target, matrices)


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in described["added_tokens"]:
        # Shown as text, so that a parser of the output sees where a call begins and ends.
        token["special"] = token["content"] not in TOOL_CALL
    return described
