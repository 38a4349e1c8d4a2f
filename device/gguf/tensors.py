"""Tensors: which types there are, how many bytes they take, and whether a file's tensors lie where they may."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

MOST_DIMENSIONS: Final = 4
_MOST_ELEMENTS: Final = (1 << 63) - 1
"""ggml counts elements in signed 64 bits."""


class TensorType(NamedTuple):
    """A storage format of ggml: blocks of `block` weights, each of `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


TENSOR_TYPES: Final = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}
"""ggml's types by their numbers, as of llama.cpp's gguf-py 0.19; the numbers that are missing were withdrawn."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the header describes it."""

    name: str
    dimensions: tuple[int, ...]
    """Weights along each dimension, those of a row first."""
    kind: int
    """A key of `TENSOR_TYPES`."""
    offset: int
    """Its first byte, counted from where the data begin."""

    @property
    def elements(self) -> int:
        return prod(self.dimensions)

    @property
    def bytes(self) -> int:
        known = TENSOR_TYPES[self.kind]
        return self.elements // known.block * known.block_bytes


def tensor_fault(tensors: Sequence[Tensor], *, alignment: int, data_bytes: int) -> str | None:
    """Return the fault of the tensors of a file that has `data_bytes` of data after its header; None: they are sound."""
    names: set[str] = set()
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.name in names:
            return f"two tensors are called {tensor.name!r}"
        names.add(tensor.name)
        fault = _fault(tensor, alignment)
        if fault is not None:
            return f"tensor {tensor.name!r} {fault}"
        if tensor.offset < end:
            return f"tensor {tensor.name!r} overlaps the previous one"
        end = tensor.offset + tensor.bytes
        if end > data_bytes:
            return f"tensor {tensor.name!r} ends {end - data_bytes} bytes after the end of the file"
    return None


def _fault(tensor: Tensor, alignment: int) -> str | None:
    known = TENSOR_TYPES.get(tensor.kind)
    if known is None:
        return f"is of unknown type {tensor.kind}"
    if max(tensor.dimensions, default=0) > _MOST_ELEMENTS or tensor.elements > _MOST_ELEMENTS // max(known.block_bytes, 1):
        return f"claims {tensor.elements} weights"
    if tensor.dimensions and tensor.dimensions[0] % known.block:
        return f"has rows of {tensor.dimensions[0]} weights, which {known.name} cannot store"
    if tensor.offset % alignment:
        return f"is not aligned to {alignment} bytes"
    return None
