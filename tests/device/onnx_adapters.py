"""The near model as a folder that takes adapters, and two adapters that change what it says, at random."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from near_model import NEAR

from train.export_onnx import write_adapter, write_folder
from train.gguf_base import read_base
from train.lora import MATRICES, Adapter
from train.onnx_graph import Precision

_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class Adapted:
    """A folder, and its adapters by name: `text` gives every matrix that the folder takes, `calls` only some."""

    folder: Path
    adapters: dict[str, Path]
    foreign: Path
    """An adapter of a wider model."""


def write_adapted(target: Path) -> Adapted:
    """The folder and the adapters, below `target`."""
    model, tokenizer = read_base(NEAR)
    write_folder(model, tokenizer, target / "near", name="nearfar-near", precision=Precision.INT8, lora=True)
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key.removesuffix(".weight").endswith(MATRICES)}
    attention = {key: shape for key, shape in shapes.items() if "attention" in key}
    files = {}
    for number, (name, adapted) in enumerate({"text": shapes, "calls": attention}.items()):
        files[name] = target / f"{name}.onnx_adapter"
        write_adapter(_random_adapter(adapted, number), model.shape, files[name])
    foreign = target / "foreign.onnx_adapter"
    write_adapter(_random_adapter({key: (outputs, 2 * inputs) for key, (outputs, inputs) in shapes.items()}, 2), model.shape, foreign)
    return Adapted(target / "near", files, foreign)


def _random_adapter(shapes: dict[str, tuple[int, ...]], seed: int) -> Adapter:
    random = np.random.default_rng(seed)
    return {
        key: (random.normal(0, _SPREAD, (4, inputs)).astype(np.float32), random.normal(0, _SPREAD, (outputs, 4)).astype(np.float32))
        for key, (outputs, inputs) in shapes.items()
    }
