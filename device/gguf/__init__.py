"""GGUF files, read and checked in Python alone, before llama.cpp sees them."""

from .adapter import check_adapters
from .file import GgufFile, read_gguf
from .header import GgufHeader, check_part, read_header
from .parts import PART, model_parts
from .tensors import Tensor

__all__ = ["PART", "GgufFile", "GgufHeader", "Tensor", "check_adapters", "check_part", "model_parts", "read_gguf", "read_header"]
