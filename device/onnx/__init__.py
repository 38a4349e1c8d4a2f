"""Near agents on onnxruntime-genai, which itself is loaded only by the worker process, never by this package."""

from .agent import OnnxAgent
from .folder import OnnxFolder, read_folder

__all__ = ["OnnxAgent", "OnnxFolder", "read_folder"]
