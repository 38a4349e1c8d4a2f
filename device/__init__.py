"""Near agents: models that run on the user's own device."""

from .llama import LlamaAgent

__all__ = ["LlamaAgent"]
