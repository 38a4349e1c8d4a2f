"""Options with which a worker of onnxruntime-genai loads its model, and the execution providers that they name.

onnxruntime calls a provider *available* if it was built in. Loading a model shows whether the provider's hardware and driver are present,
unless the provider stands in onnxruntime's list of devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..compute import ProcessorKind
from ..worker.protocol import WorkerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions(WorkerOptions):
    """Options that the agent gives to its worker process."""

    compute: str
    """`fastest`, `lowest_power`, or a provider's name."""
    allow_fallback: bool
    """Take another provider where that one is absent."""
    adapters: Mapping[str, str]
    """Paths of LoRA adapters by name."""


class ExecutionProvider(NamedTuple):
    """One of them."""

    genai: str
    """Its name in onnxruntime-genai."""
    full: str
    """Its name in onnxruntime."""
    kind: ProcessorKind
    """The kind of processor that it mostly computes on."""


PROVIDERS: Final = {
    "coreml": ExecutionProvider("CoreML", "CoreMLExecutionProvider", ProcessorKind.NPU),
    "cuda": ExecutionProvider("cuda", "CUDAExecutionProvider", ProcessorKind.GPU),
    "directml": ExecutionProvider("dml", "DmlExecutionProvider", ProcessorKind.GPU),
    "openvino": ExecutionProvider("OpenVINO", "OpenVINOExecutionProvider", ProcessorKind.INTEGRATED_GPU),
    "qnn": ExecutionProvider("QNN", "QNNExecutionProvider", ProcessorKind.NPU),
    "tensorrt": ExecutionProvider("NvTensorRtRtx", "NvTensorRTRTXExecutionProvider", ProcessorKind.GPU),
    "vitisai": ExecutionProvider("VitisAI", "VitisAIExecutionProvider", ProcessorKind.NPU),
    "webgpu": ExecutionProvider("WebGPU", "WebGpuExecutionProvider", ProcessorKind.GPU),
}


def short_name(full: str) -> str:
    """Return our name of a provider of onnxruntime."""
    ours = next((name for name, provider in PROVIDERS.items() if provider.full == full), None)
    return ours or full.removesuffix("ExecutionProvider").lower()
