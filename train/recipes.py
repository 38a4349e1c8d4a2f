"""What the two shipped models are: their sizes, their data mix and their length of training."""

from __future__ import annotations

from typing import Final

from .data import VOCABULARY, Share
from .model import Shape
from .trainer import Recipe

_SHORT_QUESTIONS: Final = {
    "1 hop": 0.4,
    "2 hops": 0.3,
    "3 hops": 0.06,
    "4 hops": 0.02,
    "comparison": 0.06,
    "fan-out": 0.06,
    "list": 0.04,
    "unanswerable": 0.06,
}
_SHORT_ERRANDS: Final = {"1 errand": 0.55, "2 errands": 0.3, "3 errands": 0.05, "4 errands": 0.02, "round of 2": 0.05, "round of 3": 0.03}

NEAR: Final = Recipe(
    name="near",
    shape=Shape(width=96, layers=4, heads=3, head_width=32, hidden=256, vocabulary=VOCABULARY, context=2048),
    # On its own it is taught mostly short tasks; from a plan or advice all of them. As a supervisor it has seen little.
    mix=(
        Share("execute", "search", 0.2, _SHORT_QUESTIONS),
        Share("execute", "apps", 0.16, _SHORT_ERRANDS),
        Share("execute_plan", "search", 0.16),
        Share("execute_plan", "apps", 0.16),
        Share("execute_advice", "search", 0.11),
        Share("execute_advice", "apps", 0.11),
        Share("combine", "search", 0.04, {"comparison": 0.5, "fan-out": 0.5}),
        *(Share(role, world, 0.01) for role in ("plan", "check_plan", "check_progress") for world in ("search", "apps")),
    ),
    steps=3500,
    decay_steps=1500,
    seed=1,
)
FAR: Final = Recipe(
    name="far",
    shape=Shape(width=192, layers=6, heads=4, head_width=64, hidden=512, vocabulary=VOCABULARY, context=2048),
    mix=(
        Share("execute", "search", 0.17),
        Share("execute", "apps", 0.12),
        *(Share("execute_plan", world, 0.02) for world in ("search", "apps")),
        *(Share("execute_advice", world, 0.02) for world in ("search", "apps")),
        Share("combine", "search", 0.02, {"comparison": 0.5, "fan-out": 0.5}),
        Share("plan", "search", 0.10),
        Share("plan", "apps", 0.05),
        *(Share("check_plan", world, 0.10) for world in ("search", "apps")),
        *(Share("check_progress", world, 0.10) for world in ("search", "apps")),
        *(Share("cut", world, 0.03) for world in ("search", "apps")),
        Share("aggregate", "apps", 0.01),
    ),
    steps=7000,
    decay_steps=2800,
    seed=2,
)
RECIPES: Final = {recipe.name: recipe for recipe in (NEAR, FAR)}
