"""A navigator: a small net that chooses, after each step of a supervised executor, whether its supervisor is asked, and for what.

After RL of Thoughts (arXiv 2505.14140), with evidence that exists without a further call in place of a model's opinion of its own step.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, FiniteFloat, ValidationError, model_validator

from ...protocols import ConfigError
from ...protocols.steps import Value
from ..task.events import EVIDENCE, Move, Navigated

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

MOST_WEIGHTS: Final = 3000
FARTHEST: Final = 4.0
"""Deviations from the mean of the recorded evidence beyond which a figure counts no more."""
LEAST_SCALE: Final = 1e-5
"""Least deviation: figures that differ less are taken for equal."""
_MOST_LAYERS: Final = 8
"""More could make numbers without bound of weights that are bounded."""
NAVIGATOR: Final = "navigator.json"
"""File in a sweep's folder."""
_LARGEST_FILE: Final = 1_000_000
_ASKING: Final = 0.15
"""Share of the choices left to chance that falls on each move which asks the far side."""
_ASKING_AGAIN: Final = 0.04
"""Its share once the far side was asked."""
_PLANNED, _ASKED, _CHANGED = (EVIDENCE.index(name) for name in ("has a plan", "far calls", "has changed something"))
_UNTRAINED: Final = "`nearfar sweep --run pevr:explore=1` trains one"

Weight = Annotated[FiniteFloat, Field(ge=-1e4, le=1e4)]
Layer = Annotated[tuple[tuple[Weight, ...], ...], Field(min_length=1)]
"""A row of weights for each output; the last weight of a row stands alone."""


class NavigatorCard(Value):
    """A navigator as stored in its file."""

    version: str = Field(default="navigator/1", pattern="^navigator/1$")
    evidence: tuple[str, ...] = EVIDENCE
    moves: tuple[Move, ...] = tuple(Move)
    centre: tuple[Weight, ...]
    """Mean of each figure in the recorded runs."""
    scale: tuple[Annotated[Weight, Field(ge=LEAST_SCALE)], ...]
    """Its deviation."""
    layers: tuple[Layer, ...] = Field(min_length=1, max_length=_MOST_LAYERS)
    call_price: float = Field(ge=0, le=1)
    """Share of a perfect score that a far call had to bring in training."""
    runs: int = Field(gt=0)
    """Recorded runs that it was trained on."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.evidence, self.moves) != (EVIDENCE, tuple(Move)):
            raise ValueError("this Nearfar has other evidence or moves")
        widths = [len(EVIDENCE), *map(len, self.layers)]
        rows = [(before, row) for before, layer in zip(widths, self.layers, strict=False) for row in layer]
        if widths[-1] != len(Move) or any(len(row) != before + 1 for before, row in rows):
            raise ValueError("its layers do not fit together")
        if {len(self.centre), len(self.scale)} != {len(EVIDENCE)}:
            raise ValueError("it scales other figures than it sees")
        if sum(len(row) for _, row in rows) >= MOST_WEIGHTS:
            raise ValueError(f"it has {MOST_WEIGHTS:,} weights or more")
        return self


class Navigator:
    """Tells what each move is worth by a card. Raises `ConfigError` where numpy is not installed."""

    def __init__(self, card: NavigatorCard) -> None:
        try:
            import numpy
        except ImportError as error:
            raise ConfigError("a navigator needs numpy", hint="pip install 'nearfar[router]'") from error
        self._centre, self._scale = numpy.array(card.centre), numpy.array(card.scale)
        self._layers = [(table[:, :-1], table[:, -1]) for table in map(numpy.array, card.layers)]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a card. Raises `ConfigError` where the file holds none."""
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            return cls(NavigatorCard.model_validate_json(data))
        except OSError as error:
            raise ConfigError(f"{path} holds no navigator: {error.strerror}", hint=_UNTRAINED) from error
        except ValidationError as error:
            raise ConfigError(f"{path} holds no navigator: {error.errors()[0]['msg']}", hint=_UNTRAINED) from error

    def worth(self, seen: Sequence[float]) -> Mapping[Move, float]:
        """Return for each move the score that is to be expected at the end, 1 at best, less the price of the far calls until then."""
        values: Floats = ((seen - self._centre) / self._scale).clip(-FARTHEST, FARTHEST)
        *hidden, (weights, alone) = self._layers
        for inner, offset in hidden:
            values = (inner @ values + offset).clip(0)
        return dict(zip(Move, (weights @ values + alone).tolist(), strict=True))


def allowed_moves(seen: Sequence[float]) -> tuple[Move, ...]:
    """Return the moves that are possible: a task is planned once, before anything was changed; later, a check may plan what remains."""
    may_plan = not seen[_PLANNED] and not seen[_CHANGED]
    return tuple(move for move in Move if move is not Move.PLAN or may_plan)


def navigated(navigator: Navigator | None, seen: Sequence[float], *, explore: float, asked: float = 0.0) -> Navigated:
    """Choose a move, and tell how likely it was.

    Args:
        navigator: None: every move is left to chance.
        seen: the evidence.
        explore: share of the choices that are left to chance, 0 to 1.
        asked: share of a perfect score by which a move that asks the far side has to be ahead.
    """
    allowed = allowed_moves(seen)
    shares = _chances(allowed, has_asked=seen[_ASKED] > 0)
    if navigator is not None:
        worth = navigator.worth(seen)
        best = max(allowed, key=lambda move: worth[move] - asked * (move is not Move.STEP))
        shares = {move: explore * share + (1 - explore) * (move is best) for move, share in shares.items()}
    (chosen,) = random.choices(list(shares), list(shares.values()))
    return Navigated(seen=tuple(seen), move=chosen, probability=shares[chosen])


def _chances(allowed: Sequence[Move], *, has_asked: bool) -> dict[Move, float]:
    """Return the probabilities of the moves where they are left to chance."""
    each = _ASKING_AGAIN if has_asked else _ASKING
    return {move: each if move is not Move.STEP else 1 - each * (len(allowed) - 1) for move in allowed}
