"""Options with which a llama.cpp worker loads its model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..compute import FASTEST
from ..worker.protocol import WorkerOptions

_MOST_DEFAULT_CELLS: Final = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions(WorkerOptions):
    """Options that the agent gives to its worker process."""

    compute: str = FASTEST
    """`fastest`, `lowest_power`, or a provider's name."""
    allow_fallback: bool = False
    """Take another provider where that one is absent."""
    gpu_layers: int | None = None
    """Layers that go to it where it is no CPU; None: as many as fit its memory."""
    kv_bytes_per_token: int | None = None
    """By the file's header; None: unknown."""
    tokens_per_second: Mapping[str, float] = field(default_factory=dict)
    """Measured output speeds of this model, by provider."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Paths of LoRA adapters by name."""


def cache_cells(tokens: int, parallel: int) -> int:
    """Return the tokens that the cache is made for: parallel steps share the room of a few full contexts."""
    return max(tokens, min(tokens * parallel, _MOST_DEFAULT_CELLS))
