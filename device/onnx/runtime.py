"""onnxruntime-genai as this project uses it: silent, and on the execution provider that was asked for.

Only the worker process imports this module.
"""

import os
from typing import Any, Final

from ...protocols import ModelError
from ..compute import CPU, ProcessorKind, Provider

# From 1.29 on, onnxruntime reports to its maker, and onnxruntime-genai does so, too, unless they are told not to before they are loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime_genai

genai: Any = onnxruntime_genai
"""It carries no types."""

_PROVIDERS: Final = {
    "coreml": ("CoreML", "CoreMLExecutionProvider", ProcessorKind.NPU),
    "cuda": ("cuda", "CUDAExecutionProvider", ProcessorKind.GPU),
    "directml": ("dml", "DmlExecutionProvider", ProcessorKind.GPU),
    "openvino": ("OpenVINO", "OpenVINOExecutionProvider", ProcessorKind.INTEGRATED_GPU),
    "qnn": ("QNN", "QNNExecutionProvider", ProcessorKind.NPU),
    "tensorrt": ("NvTensorRtRtx", "NvTensorRTRTXExecutionProvider", ProcessorKind.GPU),
    "vitisai": ("VitisAI", "VitisAIExecutionProvider", ProcessorKind.NPU),
    "webgpu": ("WebGPU", "WebGpuExecutionProvider", ProcessorKind.GPU),
}
"""What runs language models beside the CPU: our name, that of onnxruntime-genai, that of onnxruntime, and what it mostly computes on."""


def providers() -> list[Provider]:
    """What this machine's onnxruntime was built with; whether it can be used shows when a model is loaded."""
    import onnxruntime

    present = set(onnxruntime.get_available_providers())
    others = [Provider(name=name, kind=kind) for name, (_, full, kind) in _PROVIDERS.items() if full in present]
    return [*others, Provider(name=CPU, kind=ProcessorKind.CPU)]


def short_name(full: str) -> str:
    """Our name of a provider of onnxruntime."""
    ours = next((name for name, (_, theirs, _) in _PROVIDERS.items() if theirs == full), None)
    return ours or full.removesuffix("ExecutionProvider").lower()


def open_model(path: str, provider: str, threads: int) -> Any:  # noqa: ANN401 - onnxruntime-genai carries no types
    """A `genai.Model` on a provider. Raises `ModelError` if it cannot be loaded there."""
    try:
        configuration = genai.Config(path)
        # The folder may name providers of its maker's machine.
        configuration.clear_providers()
        if provider != CPU:
            configuration.append_provider(_PROVIDERS[provider][0])
        options = f'{{"intra_op_num_threads": {threads}, "inter_op_num_threads": 1}}'
        configuration.overlay(f'{{"model": {{"decoder": {{"session_options": {options}}}}}}}')
        return genai.Model(configuration)
    except RuntimeError as error:
        hint = f"onnxruntime-genai {genai.__version__} may be too old for this model, or the folder is damaged: download it again"
        raise ModelError(f"onnxruntime-genai cannot load {path}: {first_line(error)}", hint=hint) from error


def first_line(error: Exception) -> str:
    """What onnxruntime says, without the stack that it adds."""
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else type(error).__name__
