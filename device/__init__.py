"""Near agents: models that run on the user's own device.

The names below are loaded when they are first used, so that a phone can import its worker without what the agents need.
"""

from typing import TYPE_CHECKING

from ..protocols.lazy import lazy_names

if TYPE_CHECKING:
    from .llama import LlamaAgent
    from .onnx import OnnxAgent

__all__ = ["LlamaAgent", "OnnxAgent"]

__getattr__ = lazy_names(__name__, {"LlamaAgent": "llama", "OnnxAgent": "onnx"})
