"""GGUF files, read and checked in Python alone, before llama.cpp sees them."""

from .file import GgufFile, Tensor, read_gguf
from .model import PART, GgufHeader, check_adapters, check_part, model_parts, read_header

__all__ = ["PART", "GgufFile", "GgufHeader", "Tensor", "check_adapters", "check_part", "model_parts", "read_gguf", "read_header"]
