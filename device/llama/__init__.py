"""Near agents on llama.cpp. llama_cpp itself is loaded only by the worker process, never by this package."""

from ..gguf import GgufHeader, read_header
from ..worker import WorkerStatistics
from .agent import LlamaAgent

__all__ = ["GgufHeader", "LlamaAgent", "WorkerStatistics", "read_header"]
