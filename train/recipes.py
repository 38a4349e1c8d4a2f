"""What the two shipped models are: their sizes, their data mix and their length of training."""

from __future__ import annotations

from typing import Final

from .data import VOCABULARY, Share, Stage
from .model import Shape
from .trainer import Recipe

_SHORTEST_QUESTIONS: Final = {"1 hop": 0.7, "2 hops": 0.3}
_SHORTEST_ERRANDS: Final = {"1 errand": 1.0}
_FIRST: Final = (
    Share("execute", "search", 0.3, _SHORTEST_QUESTIONS),
    Share("execute", "apps", 0.25, _SHORTEST_ERRANDS),
    Share("execute_plan", "apps", 0.1, _SHORTEST_ERRANDS),
    Share("execute_plan", "search", 0.1, _SHORTEST_QUESTIONS),
    Share("plan", "search", 0.15, _SHORTEST_QUESTIONS),
    Share("plan", "apps", 0.1, {"1 errand": 0.5, "2 errands": 0.5}),
)
"""Of both models: the shortest tasks, on which copying from the context is learned."""

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
_NEAR_LAST: Final = (
    # On its own it is taught mostly short tasks; from a plan or advice all of them. As a supervisor it has seen little.
    Share("execute", "search", 0.2, _SHORT_QUESTIONS),
    Share("execute", "apps", 0.16, _SHORT_ERRANDS),
    Share("execute_plan", "search", 0.16),
    Share("execute_plan", "apps", 0.16),
    Share("execute_advice", "search", 0.11),
    Share("execute_advice", "apps", 0.11),
    Share("combine", "search", 0.04, {"comparison": 0.5, "fan-out": 0.5}),
    *(Share(role, world, 0.01) for role in ("plan", "check_plan", "check_progress") for world in ("search", "apps")),
)
_FAR_LAST: Final = (
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
)
_MIDDLE_ERRANDS: Final = {"1 errand": 0.5, "2 errands": 0.3, "round of 2": 0.2}
_FAR_MIDDLE: Final = (
    Share("execute", "search", 0.2, _SHORT_QUESTIONS),
    Share("execute", "apps", 0.15, _MIDDLE_ERRANDS),
    Share("plan", "search", 0.12),
    Share("plan", "apps", 0.08),
    *(Share(role, "search", 0.12, _SHORT_QUESTIONS) for role in ("check_plan", "check_progress")),
    *(Share(role, "apps", 0.10, _MIDDLE_ERRANDS) for role in ("check_plan", "check_progress")),
)

NEAR: Final = Recipe(
    name="near",
    shape=Shape(width=128, layers=4, heads=4, head_width=64, hidden=384, vocabulary=VOCABULARY, context=2048),
    stages=(Stage(608, _FIRST), Stage(3200, _NEAR_LAST)),
    decay_steps=1900,
    seed=3,
)
FAR: Final = Recipe(
    name="far",
    shape=Shape(width=192, layers=6, heads=4, head_width=64, hidden=512, vocabulary=VOCABULARY, context=2048),
    stages=(Stage(608, _FIRST), Stage(1008, _FAR_MIDDLE), Stage(3200, _FAR_LAST)),
    decay_steps=2400,
    seed=3,
)
RECIPES: Final = {recipe.name: recipe for recipe in (NEAR, FAR)}


def tokenizer_mix() -> tuple[Share, ...]:
    """What the tokenizer is learned from: the last stages, in which everything occurs."""
    return tuple(share for recipe in RECIPES.values() for share in recipe.stages[-1].mix)
