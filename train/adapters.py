"""Adapters that let near plan for itself, in three forms that are compared: one, two that share the work by token, and two whole models.

On its own, near was shown the shortest tasks only. Here it learns to write a plan of any task of the two worlds into its first turn and
to follow it: planning and answering are one ability, writing calls another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .data import Batch, Batches, Share, Stage
from .episodes import TOOL_CALL
from .export import write_adapter, write_model
from .gguf_base import read_base
from .lora import Router, adapt, taken_out
from .model import TinyLlama

TEXT: Final = 0
CALL: Final = 1
"""The two abilities; as numbers they are the adapters of a router."""
NAMES: Final = ("text", "calls")

_TOKENS: Final = 2048
_WARMUP: Final = 20
_REPORT_EVERY: Final = 50
_CLIP: Final = 1.0
_MIX: Final = (Share("execute_own_plan", "search", 0.5), Share("execute_own_plan", "apps", 0.5))

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides how a variant is trained; of the rate, which falls linearly to zero, the peak."""

    steps: int = 480
    rank: int = 8
    adapter_rate: float = 5e-3
    model_rate: float = 1e-3


class Course:
    """One seed's training: all variants see the same batches, on the same base."""

    def __init__(self, base: Path, folder: Path, seed: int, recipe: Recipe, report: Report) -> None:
        self._base = base
        self._folder = folder
        self._seed = seed
        self._recipe = recipe
        self._report = report
        tokenizer = read_base(base)[1]
        self._opener, self._closer = tokenizer.encode("".join(TOOL_CALL)).ids
        self._batches = Batches(tokenizer, seed, _TOKENS, (Stage(recipe.steps, _MIX),))

    def run(self) -> None:
        """Train what is not yet in the folder, on one thread: on several, models this small take longer."""
        torch.set_num_threads(1)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._train_adapters(["shared"], rank=2 * self._recipe.rank)
        self._train_adapters(NAMES, rank=self._recipe.rank)
        for ability in (TEXT, CALL):
            self._train_model(ability)

    def _train_adapters(self, names: Sequence[str], rank: int) -> None:
        """One adapter for all tokens, or one for each ability."""
        targets = [self._folder / f"{name}.gguf" for name in names]
        if all(target.exists() for target in targets):
            return
        torch.manual_seed(self._seed)
        model, _ = read_base(self._base)
        router = Router(len(names), rank)
        learned = adapt(model, router)

        def loss(ids: Tensor, weights: Tensor, abilities: Tensor) -> Tensor:
            router.choose(abilities if len(names) > 1 else torch.zeros_like(abilities))
            return weighted_loss(model, ids, weights)

        self._train("+".join(names), learned, self._recipe.adapter_rate, loss)
        for adapter, target in zip(taken_out(model, router), targets, strict=True):
            write_adapter(adapter, model.shape, target, f"nearfar-near-{target.stem}")

    def _train_model(self, ability: int) -> None:
        """A whole copy of the model for one ability."""
        target = self._folder / f"{NAMES[ability]}-model.gguf"
        if target.exists():
            return
        model, _ = read_base(self._base)

        def loss(ids: Tensor, weights: Tensor, abilities: Tensor) -> Tensor:
            return weighted_loss(model, ids, weights * (abilities == ability))

        self._train(target.stem, list(model.parameters()), self._recipe.model_rate, loss)
        write_model(model, self._base, target)

    def _train(self, name: str, learned: list[torch.nn.Parameter], rate: float, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        def loss_at(step: int) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss(*self._tensors(self._batches.at(step)))

        descend(f"seed {self._seed} {name}", learned, loss_at, rate, self._recipe.steps, self._report)

    def _tensors(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, the weights of the predicted ones in the loss, and the ability that each predicting token belongs to."""
        abilities = inside_calls(batch.tokens, self._opener, self._closer)
        return torch.from_numpy(batch.tokens), torch.from_numpy(batch.weights)[:, 1:], torch.from_numpy(abilities.astype(np.int64))[:, :-1]


def inside_calls(tokens: NDArray[np.int64], opener: int, closer: int) -> NDArray[np.bool_]:
    """Where a token is part of a tool call, from its opener to its closer inclusive; both of shape (episodes, length)."""
    opened = np.cumsum(tokens == opener, axis=1)
    closed = np.cumsum(tokens == closer, axis=1)
    return np.asarray(opened - closed + (tokens == closer) > 0)


def weighted_loss(model: TinyLlama, ids: Tensor, weights: Tensor) -> Tensor:
    """The mean loss of the next tokens, by the weight of each."""
    learned = weights > 0
    logits = model(ids[:, :-1], learned)
    losses = functional.cross_entropy(logits.float(), ids[:, 1:][learned], reduction="none")
    return (losses * weights[learned]).sum() / weights.sum().clamp(min=1.0)


def descend(
    name: str, learned: list[torch.nn.Parameter], loss_at: Callable[[int], Tensor], rate: float, steps: int, report: Report
) -> None:
    """Train with AdamW at a rate that falls linearly to zero. `loss_at`: the loss of each step's batch."""
    optimizer = torch.optim.AdamW(learned, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    begin = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _WARMUP, (steps - step) / steps)
        value = loss_at(step)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learned, _CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(value.item())
        if (step + 1) % _REPORT_EVERY == 0:
            seconds = (time.monotonic() - begin) / (step + 1)
            report(f"{name}: step {step + 1}/{steps} loss {np.mean(losses):.4f} {seconds:.2f} s/step")
            losses.clear()
