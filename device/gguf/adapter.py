"""A look at a LoRA adapter before llama.cpp sees it: whether it is one, and whether it was made for this base."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...protocols import ModelError
from .file import GgufFile, read_gguf
from .tensors import TENSOR_TYPES, Tensor

_DOWN: Final = ".lora_a"
_UP: Final = ".lora_b"
_TYPES: Final = ("F32", "F16", "BF16", "Q8_0")
"""The types that llama.cpp's own converter writes; others would end the worker in the middle of a pass."""

_HINT: Final = "give an adapter that was trained on exactly this base"

_Tensors = Mapping[str, Tensor]


def check_adapters(paths: Mapping[str, Path], base: Path) -> None:
    """Raise `ModelNotFound` if one is not there, `ModelError` if one is no adapter of the base."""
    model = read_gguf(base) if paths else None
    for name, path in paths.items():
        assert model is not None, "there are adapters"
        fault = _fault(read_gguf(path), model)
        if fault:
            raise ModelError(f"{path} cannot be the adapter {name!r}: {fault}", hint=_HINT)


def _fault(adapter: GgufFile, base: GgufFile) -> str | None:
    if adapter.text("general.type") != "adapter":
        return "it is a whole model"
    if (kind := adapter.text("adapter.type")) != "lora":
        return f"its type is {kind}, not lora"
    architecture, needed = adapter.text("general.architecture"), base.text("general.architecture")
    if architecture != needed:
        return f"its base is a {architecture} model, and this is a {needed} model"
    if not adapter.tensors:
        return "it holds no tensors"
    own, adapted = ({tensor.name: tensor for tensor in file.tensors} for file in (adapter, base))
    return next(filter(None, (_tensor_fault(tensor, own, adapted) for tensor in adapter.tensors)), None)


def _tensor_fault(tensor: Tensor, own: _Tensors, adapted: _Tensors) -> str | None:
    """Return the fault of one tensor, or None: its type, its name, its missing other half, or its shape."""
    stem = tensor.name.removesuffix(_DOWN).removesuffix(_UP)
    if stem == tensor.name:
        return f"{stem} is not part of a low-rank adapter"
    if (kind := TENSOR_TYPES[tensor.kind].name) not in _TYPES:
        return f"{tensor.name} is stored as {kind}"
    if stem not in adapted:
        return f"the model has no tensor {stem}"
    if stem + _DOWN not in own or stem + _UP not in own:
        return f"one of the two matrices for {stem} is missing"
    return _shape_fault(own[stem + _DOWN].dimensions, own[stem + _UP].dimensions, adapted[stem])


def _shape_fault(down: tuple[int, ...], up: tuple[int, ...], adapted: Tensor) -> str | None:
    if len(down) != 2 or len(up) != 2:
        return f"its tensors for {adapted.name} are not matrices"
    # An embedding is looked up, not multiplied: the matrices for it lie the other way round.
    inputs, outputs = (up[1], down[1]) if adapted.name.startswith("token_embd.") else (down[0], up[1])
    if (inputs, outputs) != adapted.dimensions:
        return f"it changes {adapted.name} as {inputs}x{outputs}, where the model has {_product(adapted.dimensions)}"
    return None


def _product(lengths: tuple[int, ...]) -> str:
    return "x".join(map(str, lengths))
