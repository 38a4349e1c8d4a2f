"""What the two shipped models are: their sizes, their data mix and their length of training."""

from __future__ import annotations

from typing import Final

from .data import VOCABULARY
from .model import Shape
from .trainer import Recipe

NEAR: Final = Recipe(
    name="near",
    shape=Shape(width=64, layers=2, heads=2, head_width=32, hidden=192, vocabulary=VOCABULARY),
    # Mostly short questions; enough long ones to keep it asking, so that where it is lost it shows.
    weights={1: 0.61, 2: 0.35, 3: 0.025, 4: 0.015},
    steps=850,
    decay_steps=425,
    seed=1,
)
FAR: Final = Recipe(
    name="far",
    shape=Shape(width=192, layers=6, heads=4, head_width=64, hidden=512, vocabulary=VOCABULARY),
    weights={1: 0.2, 2: 0.25, 3: 0.25, 4: 0.3},
    steps=3700,
    decay_steps=1700,
    seed=2,
)
RECIPES: Final = {recipe.name: recipe for recipe in (NEAR, FAR)}
