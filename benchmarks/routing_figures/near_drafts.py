"""Drafts of the shipped models: the signals that their tokens give, and the recording of them that is kept with the benchmarks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy

from nearfar.orchestrator.routing.looks import log_odds
from nearfar.protocols.confidence import LowestWindow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    States = NDArray[numpy.float32]

FILE: Final = Path(__file__).with_name("near_drafts.npz")
WORLDS: Final = ("search", "apps")
_WINDOW: Final = 4


class TokenSignals(NamedTuple):
    """Measurements of one generated token."""

    log_probability: float
    """Natural logarithm of the model's probability of the chosen token."""
    margin: float
    """Log-probability of the likeliest token less that of the second."""
    self_certainty: float
    """Divergence KL(uniform, predicted) over the vocabulary, in nats (arXiv 2502.18581)."""


Steps = Sequence[Sequence[TokenSignals]]
"""The tokens of each step of a draft; no step is empty."""


def _confidences(steps: Steps) -> list[float]:
    return [log_odds(_confidence([token.log_probability for token in step])) for step in steps]


def _confidence(log_probabilities: Sequence[float]) -> float:
    window = LowestWindow()
    for value in log_probabilities:
        window.add(value)
    assert window.value is not None, "log-probabilities of a model are valid, and a step has a token"
    return window.value


def _padded(steps: Steps) -> float:
    """Measure the confidence as if a step of fewer tokens than the window went on with certain ones."""
    certain = [0.0] * (_WINDOW - 1)
    return min(log_odds(_confidence([*(token.log_probability for token in step), *certain])) for step in steps)


def _fall(steps: Steps) -> float:
    """Measure the largest fall of the confidence from a step to the next, which reads a tool's result; 0 if there is none."""
    confidences = _confidences(steps)
    return min((later - earlier for earlier, later in zip(confidences, confidences[1:], strict=False)), default=0.0)


def _values(steps: Steps, name: str) -> "Floats":
    return numpy.array([getattr(token, name) for step in steps for token in step])


def _lowest_window(steps: Steps, name: str) -> float:
    return min(_lowest_mean([getattr(token, name) for token in step]) for step in steps)


def _lowest_mean(values: Sequence[float]) -> float:
    width = min(_WINDOW, len(values))
    return float(numpy.convolve(values, numpy.full(width, 1 / width), "valid").min())


CONFIDENCE: Final = "confidence"
SIGNALS: Final[Mapping[str, Callable[[Steps], float]]] = {
    CONFIDENCE: lambda steps: min(_confidences(steps)),
    "confidence_padded": _padded,
    "confidence_first_step": lambda steps: _confidences(steps)[0],
    "confidence_fall": _fall,
    "log_probability": lambda steps: -float(numpy.log1p(-_values(steps, "log_probability").sum())),
    "margin_lowest": lambda steps: float(_values(steps, "margin").min()),
    "margin_mean": lambda steps: float(_values(steps, "margin").mean()),
    "self_certainty_lowest": partial(_lowest_window, name="self_certainty"),
    "self_certainty_mean": lambda steps: float(_values(steps, "self_certainty").mean()),
    "self_certainty_answer": lambda steps: float(_values(steps[-1:], "self_certainty").mean()),
    "shortness": lambda steps: -float(numpy.log1p(len(_values(steps, "margin")))),
    "few_steps": lambda steps: -float(len(steps)),
}
"""Signals of a draft, each higher the surer the model is. `confidence` is what ships, as log odds."""
STATES: Final = ("first_prompt", "last_prompt")
"""Prompts whose last token's hidden state is kept: before the first step, and before the answer."""


def signals_of(steps: Steps) -> "Floats":
    """Return all signals of a draft, in the order of `SIGNALS`."""
    return numpy.array([measure(steps) for measure in SIGNALS.values()])


@dataclass(frozen=True, slots=True)
class RecordedDraft:
    """One task, carried out by each of the two models alone."""

    near_right: bool
    far_right: bool
    near: "Floats"
    """Signals of the near model's draft."""
    far: "Floats"
    states: "States"
    """Hidden states of the near model: prompts, width."""


@dataclass(frozen=True, slots=True)
class RecordedDrafts:
    """The drafts of one world: an array per field of `RecordedDraft`, with the tasks in the first dimension."""

    near_right: "Floats"
    far_right: "Floats"
    near: "Floats"
    far: "Floats"
    states: "Floats"

    @classmethod
    def of(cls, drafts: Sequence[RecordedDraft]) -> Self:
        """Put single drafts together."""
        columns = ([getattr(draft, name) for draft in drafts] for name in cls.__slots__)
        return cls(*(numpy.array(column, dtype=numpy.float64) for column in columns))

    def signal(self, name: str) -> "Floats":
        """Return a signal of the near model's drafts."""
        column: Floats = self.near[:, list(SIGNALS).index(name)]
        return column


def save_drafts(worlds: Mapping[str, RecordedDrafts], file: Path) -> None:
    """Write the drafts of each world: signals with 16 bits, hidden states with 8 and a scale for each of their dimensions."""
    arrays: dict[str, Any] = {}
    for world, drafts in worlds.items():
        scale = numpy.abs(drafts.states).max(axis=0) / 127 + 1e-12
        arrays |= {f"{world}/{name}": getattr(drafts, name).astype(numpy.float16) for name in ("near", "far")}
        arrays |= {f"{world}/{name}": getattr(drafts, name).astype(numpy.int8) for name in ("near_right", "far_right")}
        arrays |= {f"{world}/states": numpy.round(drafts.states / scale).astype(numpy.int8), f"{world}/scale": scale.astype(numpy.float32)}
    numpy.savez_compressed(file, **arrays)


def load_drafts(file: Path = FILE) -> dict[str, RecordedDrafts]:
    """Read what `save_drafts` has written."""
    with numpy.load(file) as arrays:
        return {world: _drafts(arrays, world) for world in WORLDS}


def _drafts(arrays: Mapping[str, Any], world: str) -> RecordedDrafts:
    columns = {name: arrays[f"{world}/{name}"].astype(numpy.float64) for name in RecordedDrafts.__slots__}
    return RecordedDrafts(**{**columns, "states": columns["states"] * arrays[f"{world}/scale"]})
