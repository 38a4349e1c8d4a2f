"""Options with which a worker of onnxruntime-genai loads its model."""

from collections.abc import Mapping
from dataclasses import dataclass

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
