"""The defaults of `auto` before anything was measured: the literature's finding for each shape of task (arXiv 2605.30102, lessons 2, 6,
7)."""

from collections.abc import Mapping
from typing import Final

from ...task.arm import Arm
from ...task.modes import Strategy
from ...task.profile import Shape

DEFAULTS: Final[Mapping[Shape, Strategy]] = {
    Shape.STATEFUL_TOOLS: Strategy.PEVR,
    Shape.READING_TOOLS: Strategy.EVA,
    Shape.LONG_CONTEXT: Strategy.MINIONS,
    Shape.PROMPT: Strategy.CASCADE,
}
"""Plans matter where wrong actions cannot be undone; searches want light advice; a long text is best read where it lies."""

FALLBACKS: Final = (Strategy.DEVICE, Strategy.CLOUD)
"""Strategies that remain where privacy, mode or a missing side rule the default out."""

DEFAULT_SCORE: Final = 0.6
"""Expected of the default before any outcome; other configurations are expected to score `estimates.PRIOR_SCORE`."""


def starting_points(shape: Shape) -> tuple[Arm, ...]:
    """Return the configurations that are candidates without any outcome, the default first."""
    return tuple(Arm(strategy=strategy) for strategy in dict.fromkeys((DEFAULTS[shape], *DEFAULTS.values(), *FALLBACKS)))
