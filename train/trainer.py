"""The training loop: Muon for the matrices, AdamW for the rest, resumable to the exact same result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from .data import Batches, Stage
from .model import Shape, TinyLlama

_WARMUP: Final = 50
_CLIP: Final = 1.0
_REPORT_EVERY: Final = 50


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what a run produces.

    Optimiser steps of about ``batch_tokens`` tokens; the learning rates warm up, stay, and fall linearly to
    zero over the last ``decay_steps``. The stages go from short tasks to all of them: copying a name from
    the context is learned several times faster where contexts are short.
    """

    name: str
    shape: Shape
    stages: tuple[Stage, ...]
    decay_steps: int
    seed: int
    batch_tokens: int = 2048
    matrix_rate: float = 0.003
    other_rate: float = 0.003

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def factor(self, step: int) -> float:
        """Return the learning-rate factor, between 0 and 1, of one step."""
        return min(1.0, (step + 1) / _WARMUP, (self.steps - step) / self.decay_steps)


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of the training curve; ``seconds`` and ``tokens`` count from the start of the run."""

    step: int
    steps: int
    loss: float
    tokens: int
    seconds: float
    tokens_per_second: float
    seconds_left: float


class Trainer:
    """Runs one recipe in one folder: ``last.pt`` to resume from, ``curve.jsonl`` to plot."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.folder = folder
        self.model = TinyLlama(recipe.shape)
        self.batches = Batches(tokenizer, recipe.seed, recipe.batch_tokens, recipe.stages)
        self.optimizers = _optimizers(self.model, recipe)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def resume(self, checkpoint: Path) -> None:
        """Continue from a checkpoint, of this run or of a longer or shorter one with the same shape."""
        state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]

    def run(self, until: int | None = None, every: int = 500, report: Callable[[Progress], None] | None = None) -> None:
        """Train up to step ``until`` (by default to the end), saving every ``every`` steps."""
        last = min(until or self.recipe.steps, self.recipe.steps)
        losses: list[Tensor] = []
        mark = (time.monotonic(), self.tokens)
        while self.step < last:
            losses.append(self._advance())
            if self.step % _REPORT_EVERY == 0 or self.step == last:
                mark = self._report(losses, mark, report)
                losses.clear()
            if self.step % every == 0:
                self.save(self.folder / f"step-{self.step}.pt")
        self.save(self.folder / "last.pt")

    def save(self, target: Path) -> None:
        """Write a checkpoint; a crash half-way leaves the previous one intact."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "shape": asdict(self.recipe.shape),
        }
        partial = target.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(target)

    def _advance(self) -> Tensor:
        batch = self.batches.at(self.step)
        ids = torch.from_numpy(batch.tokens)
        weights = torch.from_numpy(batch.weights)[:, 1:]
        learned = weights > 0
        factor = self.recipe.factor(self.step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(ids[:, :-1], learned)
        losses = functional.cross_entropy(logits.float(), ids[:, 1:][learned], reduction="none")
        loss = (losses * weights[learned]).sum() / weights.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += int((batch.tokens != self.batches.pad).sum())
        return loss.detach()

    def _report(self, losses: list[Tensor], mark: tuple[float, int], report: Callable[[Progress], None] | None) -> tuple[float, int]:
        now = time.monotonic()
        passed = now - mark[0]
        self.seconds += passed
        progress = Progress(
            step=self.step,
            steps=self.recipe.steps,
            loss=float(torch.stack(losses).mean()),
            tokens=self.tokens,
            seconds=round(self.seconds, 1),
            tokens_per_second=round((self.tokens - mark[1]) / passed, 1),
            seconds_left=round(passed / len(losses) * (self.recipe.steps - self.step), 1),
        )
        with (self.folder / "curve.jsonl").open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(asdict(progress)) + "\n")
        if report is not None:
            report(progress)
        return now, self.tokens


def _optimizers(model: TinyLlama, recipe: Recipe) -> list[torch.optim.Optimizer]:
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [
        torch.optim.Muon([{"params": matrices, "peak": recipe.matrix_rate}], lr=recipe.matrix_rate, weight_decay=0.01),
        torch.optim.AdamW([{"params": others, "peak": recipe.other_rate}], lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def load_model(checkpoint: Path) -> TinyLlama:
    """Read the model of a checkpoint, ready to export."""
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    model = TinyLlama(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model.eval()
