"""Writes random-weights multimodal projectors of a few kilobytes, which turn an image into vectors."""

from pathlib import Path

import gguf
import numpy as np
from tiny_gguf import WIDTH as MODEL_WIDTH

_WIDTH = 32
_SIDE, _PATCH, _LARGE_PATCH = 32, 8, 14
IMAGE_CELLS = (_SIDE // _PATCH) ** 2
"""Vectors of each image, whatever its size, by the projector in LLaVA's form."""


def write_tiny_projector(path: Path, *, rows_and_columns: bool = False) -> Path:
    """Write a projector for the models of `write_tiny_gguf`, in LLaVA's form or, with rows and columns, in Qwen2-VL's; return `path`."""
    writer = gguf.GGUFWriter(str(path), "clip")
    side, patch = (40 * _LARGE_PATCH, _LARGE_PATCH) if rows_and_columns else (_SIDE, _PATCH)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen2vl_merger" if rows_and_columns else "mlp")
    writer.add_bool("clip.use_gelu", not rows_and_columns)
    shape = {"image_size": side, "patch_size": patch, "embedding_length": _WIDTH, "feed_forward_length": 2 * _WIDTH}
    for name, value in {**shape, "projection_dim": MODEL_WIDTH, "block_count": 2, "attention.head_count": 2}.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    _add_tensors(writer, patch, rows_and_columns=rows_and_columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, patch: int, *, rows_and_columns: bool) -> None:
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float32))

    def add_biased(name: str, *shape: int) -> None:
        add(f"{name}.weight", *shape)
        writer.add_tensor(f"{name}.bias", np.zeros(shape[0], dtype=np.float32))

    add("v.patch_embd.weight", _WIDTH, 3, patch, patch)
    for layer in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add_biased(f"v.blk.{layer}.{name}", _WIDTH, _WIDTH)
        for name in ("ln1", "ln2"):
            add_biased(f"v.blk.{layer}.{name}", _WIDTH)
        add_biased(f"v.blk.{layer}.ffn_up", 2 * _WIDTH, _WIDTH)
        add_biased(f"v.blk.{layer}.ffn_down", _WIDTH, 2 * _WIDTH)
    add_biased("v.post_ln", _WIDTH)
    if rows_and_columns:  # four patches are merged into one vector
        add("v.patch_embd.weight.1", _WIDTH, 3, patch, patch)
        add_biased("mm.0", 4 * _WIDTH, 4 * _WIDTH)
        add_biased("mm.2", MODEL_WIDTH, 4 * _WIDTH)
    else:
        add("v.position_embd.weight", IMAGE_CELLS, _WIDTH)
        add_biased("v.pre_ln", _WIDTH)
        add_biased("mm.0", MODEL_WIDTH, _WIDTH)
        add_biased("mm.2", MODEL_WIDTH, MODEL_WIDTH)
