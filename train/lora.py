"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) over a frozen model, and the choice between them token by token.

To each adapted matrix, an adapter adds `up(down(x))`. Where there are several, a token goes through one of them only, so that each
learns from its own tokens, as DART does for reasoning and tool calls (Li et al. 2026, arXiv 2602.00994).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .model import TinyLlama

MATRICES: Final = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "feed.gate",
    "feed.up",
    "feed.down",
)
"""The matrices of a layer, all of which are adapted."""

Adapter = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
"""For each adapted weight: `down` of shape (rank, inputs) and `up` of shape (outputs, rank)."""


@dataclass(slots=True)
class Router:
    """Which adapter each token of the batch in hand goes through, for all matrices of a model."""

    adapters: int
    rank: int
    gates: Tensor = field(init=False)
    """1 where a token may use an inner dimension, else 0; of shape (episodes, length, adapters * rank)."""

    def choose(self, adapters: Tensor) -> None:
        """Set the adapter of each token, integers of shape (episodes, length)."""
        owners = torch.arange(self.adapters).repeat_interleave(self.rank)
        self.gates = (adapters.unsqueeze(-1) == owners).float()


class AdaptedLinear(nn.Module):
    """A frozen matrix with one or several adapters, which begin by adding nothing."""

    def __init__(self, frozen: nn.Linear, router: Router) -> None:
        super().__init__()
        self.frozen = frozen
        self.router = router
        inner = router.adapters * router.rank
        self.down = nn.Parameter(torch.randn(inner, frozen.in_features) / math.sqrt(frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, inner))

    def forward(self, hidden: Tensor) -> Tensor:
        inner = functional.linear(hidden, self.down) * self.router.gates
        summed: Tensor = self.frozen(hidden) + functional.linear(inner, self.up)
        return summed


def adapt(model: TinyLlama, router: Router) -> list[nn.Parameter]:
    """Freeze a model and put adapters into it; returns what is left to train."""
    model.requires_grad_(requires_grad=False)
    learned = []
    for block in model.blocks:
        for name in MATRICES:
            parent, _, last = name.rpartition(".")
            holder = block.get_submodule(parent)
            adapted = AdaptedLinear(holder.get_submodule(last), router)
            setattr(holder, last, adapted)
            learned += [adapted.down, adapted.up]
    return learned


def taken_out(model: TinyLlama, router: Router) -> list[Adapter]:
    """The adapters of an adapted model, by the name of the weight that they belong to."""
    found: list[Adapter] = [{} for _ in range(router.adapters)]
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            for number, adapter in enumerate(found):
                inner = slice(number * router.rank, (number + 1) * router.rank)
                adapter[f"{name}.weight"] = (module.down.detach()[inner].numpy(), module.up.detach()[:, inner].numpy())
    return found
