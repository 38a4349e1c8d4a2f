"""onnxruntime-genai as this project uses it: silent, and on the execution provider that was asked for.

Only the worker process imports this module.
"""

import os
from typing import Any

from ...protocols import ModelError
from ..compute import CPU, ProcessorKind, Provider
from .agent import PROVIDERS

# From 1.29 on, onnxruntime and onnxruntime-genai send telemetry unless this is set before they are loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime_genai

genai: Any = onnxruntime_genai
"""It carries no types."""


def providers() -> list[Provider]:
    """Return the providers that this machine's onnxruntime was built with; loading a model shows whether one can be used."""
    import onnxruntime

    present = set(onnxruntime.get_available_providers())
    others = [Provider(name=name, kind=kind) for name, (_, full, kind) in PROVIDERS.items() if full in present]
    return [*others, Provider(name=CPU, kind=ProcessorKind.CPU)]


def open_model(path: str, provider: str, threads: int) -> Any:  # noqa: ANN401 - onnxruntime-genai carries no types
    """Load a `genai.Model` on a provider. Raises `ModelError` if it cannot be loaded there."""
    try:
        configuration = genai.Config(path)
        # The folder may name providers of the machine on which it was made.
        configuration.clear_providers()
        if provider != CPU:
            configuration.append_provider(PROVIDERS[provider].genai)
        options = f'{{"intra_op_num_threads": {threads}, "inter_op_num_threads": 1}}'
        configuration.overlay(f'{{"model": {{"decoder": {{"session_options": {options}}}}}}}')
        return genai.Model(configuration)
    except RuntimeError as error:
        hint = f"onnxruntime-genai {genai.__version__} may be too old for this model, or the folder is damaged: download it again"
        raise ModelError(f"onnxruntime-genai cannot load {path}: {first_line(error)}", hint=hint) from error


def first_line(error: Exception) -> str:
    """Return onnxruntime's message without the stack that it adds."""
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else type(error).__name__
