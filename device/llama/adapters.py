"""LoRA adapters in llama.cpp. It sets them for a whole context, and a change makes it plan its next pass again.

Only the worker process imports this module.
"""

import ctypes
from collections.abc import Mapping

import llama_cpp

from ...protocols import ModelError
from .log import explanation


class Adapters:
    """The adapters that were loaded on top of one model, numbered from 1.

    Raises `ModelError` with llama.cpp's reason if a file is no adapter of this model.
    """

    def __init__(self, model: llama_cpp.llama_model_p, paths: Mapping[str, str]) -> None:
        self.names = tuple(paths)
        # llama.cpp frees them together with the model.
        self._handles = [_loaded(model, path) for path in paths.values()]
        self._strength = (ctypes.c_float * 1)(1.0)

    def use(self, context: llama_cpp.llama_context_p, number: int) -> None:
        """Set one adapter, or none for 0, for the passes of a context. Raises `ModelError` if it does not suit the context."""
        handles = None if number == 0 else self._handles[number - 1]
        if llama_cpp.llama_set_adapters_lora(context, handles, 0 if handles is None else 1, self._strength):
            raise ModelError(f"llama.cpp cannot use the adapter: {explanation()}", hint="load the model without it")


def _loaded(model: llama_cpp.llama_model_p, path: str) -> "ctypes.Array[ctypes._Pointer[ctypes.c_void_p]]":
    """Load an adapter and return a list of one, the form that llama.cpp takes."""
    handle = llama_cpp.llama_adapter_lora_init(model, path.encode())
    if not handle:
        hint = "give an adapter that was trained on exactly this base, converted to GGUF"
        raise ModelError(f"llama.cpp cannot load the adapter {path}: {explanation()}", hint=hint)
    kind = llama_cpp.llama_adapter_lora_p_ctypes
    return (kind * 1)(ctypes.cast(handle, kind))
