"""What the two shipped models are: their sizes, their data mix and their length of training."""

from __future__ import annotations

from typing import Final

from .data import VOCABULARY, Share, Stage
from .model import Shape
from .trainer import Recipe

_SHORTEST_QUESTIONS: Final = {"1 hop": 0.7, "2 hops": 0.3}
_SHORTEST_ERRANDS: Final = {"1 errand": 1.0}
_FEW_HOPS: Final = {"1 hop": 0.4, "2 hops": 0.4, "comparison": 0.1, "list": 0.1}
_FEW_ERRANDS: Final = {"1 errand": 0.5, "2 errands": 0.3, "round of 2": 0.2}
_FIRST: Final = (
    Share("execute", "search", 0.3, _SHORTEST_QUESTIONS),
    Share("execute", "apps", 0.25, _SHORTEST_ERRANDS),
    Share("execute_plan", "apps", 0.1, _SHORTEST_ERRANDS),
    Share("execute_plan", "search", 0.1, _SHORTEST_QUESTIONS),
    Share("plan", "search", 0.15, _SHORTEST_QUESTIONS),
    Share("plan", "apps", 0.1, {"1 errand": 0.5, "2 errands": 0.5}),
)
"""Of both models: the shortest tasks, on which copying from the context is learned."""

_NEAR_LAST: Final = (
    # On its own it is shown short tasks only; from a plan or advice, and from what its subtasks found, all of them.
    Share("execute", "search", 0.12, {"1 hop": 0.5, "2 hops": 0.4, "unanswerable": 0.1}),
    Share("execute", "apps", 0.10, _SHORTEST_ERRANDS),
    Share("execute_plan", "search", 0.20),
    Share("execute_plan", "apps", 0.24),
    Share("execute_advice", "search", 0.12),
    Share("execute_advice", "apps", 0.12),
    Share("combine", "search", 0.04, {"comparison": 0.5, "fan-out": 0.5}),
    # As a supervisor it has seen little.
    *(Share(role, world, 0.01) for role in ("plan", "check_plan", "check_progress") for world in ("search", "apps")),
)
_FAR_LAST: Final = (
    Share("execute", "search", 0.14),
    Share("execute", "apps", 0.13),
    *(Share("execute_plan", world, 0.01) for world in ("search", "apps")),
    *(Share("execute_advice", world, 0.01) for world in ("search", "apps")),
    Share("combine", "search", 0.02, {"comparison": 0.5, "fan-out": 0.5}),
    Share("plan", "search", 0.06),
    Share("plan", "apps", 0.08),
    *(Share("check_plan", world, 0.13) for world in ("search", "apps")),
    *(Share("check_progress", world, 0.13) for world in ("search", "apps")),
    *(Share("cut", world, 0.02) for world in ("search", "apps")),
    Share("aggregate", "apps", 0.01),
)
_EVERY_ROLE: Final = (
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

NEAR: Final = Recipe(
    name="near",
    shape=Shape(width=128, layers=4, heads=4, head_width=64, hidden=384, vocabulary=VOCABULARY, context=2048),
    stages=(Stage(304, _FIRST), Stage(4000, _NEAR_LAST)),
    decay_steps=2000,
    seed=3,
)
_FAR_MIDDLE: Final = (
    Share("execute", "search", 0.14, {"1 hop": 0.3, "2 hops": 0.3, "3 hops": 0.2, "comparison": 0.1, "unanswerable": 0.1}),
    Share("execute", "apps", 0.12, _FEW_ERRANDS),
    Share("plan", "search", 0.10),
    Share("plan", "apps", 0.08, _FEW_ERRANDS),
    *(Share(role, "search", 0.14, _FEW_HOPS) for role in ("check_plan", "check_progress")),
    *(Share(role, "apps", 0.14, _FEW_ERRANDS) for role in ("check_plan", "check_progress")),
)
"""Of far, before the whole mix: judging work is learned on short work first."""
FAR: Final = Recipe(
    name="far",
    shape=Shape(width=192, layers=6, heads=4, head_width=64, hidden=512, vocabulary=VOCABULARY, context=2048),
    stages=(Stage(304, _FIRST), Stage(1504, _FAR_MIDDLE), Stage(4400, _FAR_LAST)),
    decay_steps=2600,
    seed=3,
)
RECIPES: Final = {recipe.name: recipe for recipe in (NEAR, FAR)}

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
TOKENIZER_MIX: Final = (
    Share("execute", "search", 0.15, _SHORT_QUESTIONS),
    Share("execute", "apps", 0.15, _SHORT_ERRANDS),
    Share("execute_plan", "search", 0.19),
    Share("execute_plan", "apps", 0.19),
    Share("execute_advice", "search", 0.11),
    Share("execute_advice", "apps", 0.11),
    Share("combine", "search", 0.04, {"comparison": 0.5, "fan-out": 0.5}),
    *(Share(role, world, 0.01) for role in ("plan", "check_plan", "check_progress") for world in ("search", "apps")),
    *_EVERY_ROLE,
)
"""What the tokenizer of both is learned from: everything that either of them reads or writes."""
