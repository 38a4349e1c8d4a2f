"""How a llama.cpp worker loads its model."""

from dataclasses import dataclass

from ..worker.protocol import WorkerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions(WorkerOptions):
    """What the agent tells its worker process."""

    gpu_layers: int
