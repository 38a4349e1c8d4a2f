"""Writes a random-weights multimodal projector of a few kilobytes, in the form of LLaVA's: it turns an image into 16 vectors."""

from pathlib import Path

import gguf
import numpy as np
from tiny_gguf import WIDTH as MODEL_WIDTH

_SIDE, _PATCH, _WIDTH = 32, 8, 32
IMAGE_CELLS = (_SIDE // _PATCH) ** 2


def write_tiny_projector(path: Path, *, seed: int = 0) -> Path:
    """Write a projector for the models of `write_tiny_gguf`, and return `path`."""
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    shape = {"image_size": _SIDE, "patch_size": _PATCH, "embedding_length": _WIDTH, "feed_forward_length": 2 * _WIDTH}
    for name, value in {**shape, "projection_dim": MODEL_WIDTH, "block_count": 2, "attention.head_count": 2}.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    _add_tensors(writer, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.3, shape).astype(np.float32))

    def add_biased(name: str, *shape: int) -> None:
        add(name, *shape)
        writer.add_tensor(f"{name}.bias", np.zeros(shape[0], dtype=np.float32))

    add("v.patch_embd", _WIDTH, 3, _PATCH, _PATCH)
    add("v.position_embd", IMAGE_CELLS, _WIDTH)
    for layer in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add_biased(f"v.blk.{layer}.{name}", _WIDTH, _WIDTH)
        for name in ("ln1", "ln2"):
            add_biased(f"v.blk.{layer}.{name}", _WIDTH)
        add_biased(f"v.blk.{layer}.ffn_up", 2 * _WIDTH, _WIDTH)
        add_biased(f"v.blk.{layer}.ffn_down", _WIDTH, 2 * _WIDTH)
    add_biased("v.pre_ln", _WIDTH)
    add_biased("v.post_ln", _WIDTH)
    add_biased("mm.0", MODEL_WIDTH, _WIDTH)
    add_biased("mm.2", MODEL_WIDTH, MODEL_WIDTH)
