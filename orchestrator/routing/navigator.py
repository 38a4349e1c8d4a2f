"""A navigator: a small net that chooses at each step of a supervised task what is asked of the supervisor, after RL of Thoughts
(arXiv 2505.14140). Here its state is evidence that exists without a further call, and it is trained by fitted Q iteration."""

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
_FARTHEST: Final = 4.0
"""Deviations from the mean of the recorded states beyond which a figure counts no more."""
LARGEST_FILE: Final = 1_000_000
Weight = Annotated[FiniteFloat, Field(ge=-1e4, le=1e4)]


class Layer(Value):
    """One layer of the net: a row of weights for each output, the last of which stands alone."""

    rows: tuple[tuple[Weight, ...], ...] = Field(min_length=1, max_length=MOST_WEIGHTS)


class NavigatorCard(Value):
    """A navigator as stored in its file."""

    version: str = Field(default="navigator/1", pattern="^navigator/1$")
    evidence: tuple[str, ...] = EVIDENCE
    moves: tuple[Move, ...] = tuple(Move)
    centre: tuple[Weight, ...]
    scale: tuple[Annotated[Weight, Field(gt=0)], ...]
    layers: tuple[Layer, ...] = Field(min_length=1)
    call_price: float = Field(ge=0, le=1)
    """Share of a perfect score that a far call had to bring when the net was trained."""
    runs: int = Field(gt=0)
    """It was learned from."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.evidence != EVIDENCE or self.moves != tuple(Move):
            raise ValueError("it knows other evidence or moves than this Nearfar")
        widths = [len(EVIDENCE), *(len(layer.rows) for layer in self.layers)]
        if any(len(row) != before + 1 for before, layer in zip(widths, self.layers, strict=False) for row in layer.rows):
            raise ValueError("its layers do not fit together")
        if widths[-1] != len(Move) or {len(self.centre), len(self.scale)} != {len(EVIDENCE)}:
            raise ValueError("its layers do not fit the evidence and the moves")
        if sum(len(row) for layer in self.layers for row in layer.rows) >= MOST_WEIGHTS:
            raise ValueError(f"it has {MOST_WEIGHTS:,} weights or more")
        return self


class Navigator:
    """Chooses moves with a card. Raises `ConfigError` where numpy is not installed."""

    def __init__(self, card: NavigatorCard) -> None:
        try:
            import numpy
        except ImportError as error:
            raise ConfigError("a navigator needs numpy", hint="pip install 'nearfar[router]'") from error
        self.card = card
        self._centre, self._scale = numpy.array(card.centre), numpy.array(card.scale)
        tables = [numpy.array(layer.rows) for layer in card.layers]
        self._layers = [(table[:, :-1], table[:, -1]) for table in tables]
        self._clip, self._maximum = numpy.clip, numpy.maximum

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a card. Raises `ConfigError` where the file is none."""
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
            if len(data) > LARGEST_FILE:
                raise ConfigError(f"{path} holds no navigator: it is too large", hint=_UNTRAINED)
            return cls(NavigatorCard.model_validate_json(data))
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path} holds no navigator: {error}"[:300], hint=_UNTRAINED) from error

    def worth(self, seen: Sequence[float]) -> "Floats":
        """Return the worth of each move: the expected score at the end, less the price of the far calls until then."""
        values: Floats = self._clip((seen - self._centre) / self._scale, -_FARTHEST, _FARTHEST)
        *hidden, (weights, bias) = self._layers
        for inner, offset in hidden:
            values = self._maximum(inner @ values + offset, 0.0)
        return weights @ values + bias


_UNTRAINED: Final = "train one with `nearfar policy train` on the runs of a sweep that explored"


def allowed_moves(seen: Sequence[float]) -> tuple[Move, ...]:
    """Return the moves that are possible: a task is planned once, before anything was changed. What comes later is for checks to mend."""
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
    shares = _shares(allowed, has_asked=seen[_ASKED] > 0)
    if navigator is not None:
        worth = dict(zip(Move, navigator.worth(seen), strict=True))
        best = max(allowed, key=lambda move: worth[move] - asked * (move is not Move.STEP))
        shares = {move: explore * share + (1 - explore) * (move is best) for move, share in shares.items()}
    (chosen,) = random.choices(list(shares), list(shares.values()))  # noqa: S311 - no secret
    return Navigated(seen=tuple(seen), move=chosen, probability=shares[chosen])


def _shares(allowed: Sequence[Move], *, has_asked: bool) -> Mapping[Move, float]:
    """Return the share of the choices left to chance that falls on each move."""
    each = _ASKING_AGAIN if has_asked else _ASKING
    asking = [move for move in allowed if move is not Move.STEP]
    return {Move.STEP: 1 - each * len(asking)} | dict.fromkeys(asking, each)


_ASKING: Final = 0.15
"""Share of each move that asks the far side."""
_ASKING_AGAIN: Final = 0.04
"""Its share once the far side was asked."""
_PLANNED, _ASKED, _CHANGED = (EVIDENCE.index(name) for name in ("has a plan", "far calls", "has changed something"))
