"""GGUF files, read and checked in Python alone, before llama.cpp sees them."""

from .adapter import check_adapters
from .file import GgufFile, read_gguf
from .header import GgufHeader, check_part, read_header
from .tensors import Tensor

__all__ = ["GgufFile", "GgufHeader", "Tensor", "check_adapters", "check_part", "read_gguf", "read_header"]
