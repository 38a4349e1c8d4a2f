"""Near agents on llama.cpp. llama_cpp itself is loaded only by the worker process, never by this package."""

from ..worker import WorkerStatistics
from .agent import LlamaAgent
from .gguf_header import GgufHeader, read_header

__all__ = ["GgufHeader", "LlamaAgent", "WorkerStatistics", "read_header"]
