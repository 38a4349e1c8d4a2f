"""What the two shipped models are: their sizes, their data mix and their length of training."""

from __future__ import annotations

from typing import Final

from .data import VOCABULARY
from .model import Shape
from .trainer import Recipe

NEAR: Final = Recipe(
    name="near",
    shape=Shape(width=128, layers=3, heads=2, head_width=64, hidden=384, vocabulary=VOCABULARY),
    weights={1: 0.45, 2: 0.35, 3: 0.12, 4: 0.08},
    steps=1600,
    decay_steps=640,
    seed=1,
)
FAR: Final = Recipe(
    name="far",
    shape=Shape(width=192, layers=6, heads=4, head_width=64, hidden=512, vocabulary=VOCABULARY),
    weights={1: 0.2, 2: 0.25, 3: 0.25, 4: 0.3},
    steps=2400,
    decay_steps=900,
    seed=2,
)
RECIPES: Final = {recipe.name: recipe for recipe in (NEAR, FAR)}
