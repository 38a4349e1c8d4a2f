"""Writes a model as a folder that onnxruntime-genai runs: graph, weights, genai_config.json, tokenizer and chat template."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from tokenizers import Tokenizer

from .data import PAD
from .episodes import BOS, END, TOOL_CALL
from .export import CHAT_TEMPLATE, DESCRIPTION
from .lora import Adapter
from .model import Shape, TinyLlama
from .onnx_graph import Graph, Precision, lora_names

_LARGEST_INLINE: Final = 1 << 30
"""Bytes of weights beyond which they go into a file of their own: a protobuf message holds at most 2 GiB."""


def write_folder(model: TinyLlama, tokenizer: Tokenizer, target: Path, *, name: str, precision: Precision, lora: bool = False) -> None:
    """Write everything that a folder needs; with `lora`, the graph takes adapters. `name` is the name inside the model."""
    target.mkdir(parents=True, exist_ok=True)
    graph = Graph(model, precision, lora=lora).build()
    properties = {"nearfar.name": f"{name}-{precision}", "nearfar.description": DESCRIPTION, "nearfar.world": "search, apps"}
    onnx.helper.set_model_props(graph, properties)
    large = sum(len(tensor.raw_data) for tensor in graph.graph.initializer) > _LARGEST_INLINE
    (target / "model.onnx.data").unlink(missing_ok=True)  # It would be appended to.
    onnx.save(graph, target / "model.onnx", save_as_external_data=large, location="model.onnx.data")
    _write_json(target / "genai_config.json", _configuration(model.shape, tokenizer))
    _write_json(target / "tokenizer.json", _described(tokenizer))
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": END, "pad_token": PAD}
    _write_json(target / "tokenizer_config.json", {**tokens, "chat_template": CHAT_TEMPLATE})


def write_adapter(adapter: Adapter, target: Path) -> None:
    """Write a low-rank adapter in the form that onnxruntime loads on top of a graph that was exported with `lora`."""
    # It reports to its maker unless it is told not to before it is imported.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    parameters = {}
    for key, (down, up) in adapter.items():
        for name, matrix in zip(lora_names(key.removesuffix(".weight")), (down, up), strict=True):
            parameters[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(matrix.T))
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters(parameters)
    file.export_adapter(str(target))


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in described["added_tokens"]:
        # Shown as text, so that a parser of the output sees where a call begins and ends.
        token["special"] = token["content"] not in TOOL_CALL
    return described


def _configuration(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "model": {
            "type": "llama",
            "bos_token_id": tokenizer.token_to_id(BOS),
            "eos_token_id": tokenizer.token_to_id(END),
            "pad_token_id": tokenizer.token_to_id(PAD),
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


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
