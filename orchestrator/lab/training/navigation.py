"""Fitted Q iteration (Ernst et al. 2005) of a navigator from the runs of a sweep, with a double estimator (van Hasselt et al. 2016)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy

from ....protocols import ConfigError
from ...routing.navigator import Layer, NavigatorCard, allowed_moves
from ...routing.run_records import RunRecord
from ...task.events import EVIDENCE, Move

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

LEAST_RUNS: Final = 100
HIDDEN: Final = (32, 32)
_BATCH: Final = 256
_RATE: Final = 2e-3
_DECAY: Final = 1e-4
_FARTHEST: Final = 4.0
_LEAST_DEVIATION: Final = 1e-6
_MOVES: Final = tuple(Move)
_ASKED: Final = EVIDENCE.index("far calls")


@dataclass(frozen=True, slots=True)
class Transitions:
    """Moves of many runs, with what they led to."""

    seen: "Floats"
    moves: "NDArray[numpy.int64]"
    reward: "Floats"
    """The score, where the run ended, less the price of the far calls until the next move."""
    following: "Floats"
    """The evidence at the next move; that of the move itself where the run ended."""
    goes_on: "Floats"
    is_allowed: "NDArray[numpy.bool_]"
    """Moves that are possible at the next one."""
    runs: int


def transitions_of(records: Iterable[RunRecord], *, call_price: float) -> Transitions:
    """Return the moves of runs that took any. Raises `ConfigError` for too few of them."""
    told = [record for record in records if record.moves]
    if len(told) < LEAST_RUNS:
        raise ConfigError(f"{len(told)} runs with moves are too few to learn from", hint="sweep with `pevr:explore=1`")
    rows = [row for record in told for row in _rows(record, call_price)]
    seen, moves, reward, following, goes_on = zip(*rows, strict=True)
    allowed = numpy.array([[move in moves_at for move in _MOVES] for moves_at in map(allowed_moves, following)])
    return Transitions(
        numpy.array(seen), numpy.array(moves), numpy.array(reward), numpy.array(following), numpy.array(goes_on), allowed, len(told)
    )


Row = tuple[Sequence[float], int, float, Sequence[float], float]


def _rows(record: RunRecord, call_price: float) -> list[Row]:
    asked = [numpy.expm1(move.seen[_ASKED]) for move in record.moves]
    rows: list[Row] = []
    for place, move in enumerate(record.moves):
        is_last = place + 1 == len(record.moves)
        calls = (record.far_calls if is_last else asked[place + 1]) - asked[place]
        following = move.seen if is_last else record.moves[place + 1].seen
        reward = (record.score if is_last else 0.0) - call_price * calls
        rows.append((move.seen, _MOVES.index(move.move), reward, following, float(not is_last)))
    return rows


def train_navigator(records: Iterable[RunRecord], *, call_price: float, seed: int = 0, steps: int = 12_000) -> NavigatorCard:
    """Train a navigator. Raises `ConfigError` for too few runs.

    Args:
        records: runs whose moves were left to chance, all or in part.
        call_price: share of a perfect score that a far call has to bring.
        seed: for the first weights and the order of the batches.
        steps: gradient steps.
    """
    data = transitions_of(records, call_price=call_price)
    centre = data.seen.mean(0)
    deviation = data.seen.std(0)
    scale = numpy.where(deviation > _LEAST_DEVIATION, deviation, 1.0)
    chance = numpy.random.default_rng(seed)
    net = _Net(len(EVIDENCE), chance)
    _fit(net, data, _standard(data.seen, centre, scale), _standard(data.following, centre, scale), chance, steps)
    return NavigatorCard(
        centre=tuple(centre),
        scale=tuple(scale),
        layers=tuple(Layer(rows=tuple(map(tuple, layer.round(5).tolist()))) for layer in net.layers),
        call_price=call_price,
        runs=data.runs,
    )


def _standard(table: "Floats", centre: "Floats", scale: "Floats") -> "Floats":
    return numpy.clip((table - centre) / scale, -_FARTHEST, _FARTHEST)


_TARGET_EVERY: Final = 200


def _fit(net: "_Net", data: Transitions, seen: "Floats", following: "Floats", chance: numpy.random.Generator, steps: int) -> None:
    target = net.copy()
    averaged = net.copy()
    for step in range(steps):
        if step % _TARGET_EVERY == 0:
            target = net.copy()
        rows = chance.integers(len(seen), size=_BATCH)
        best = numpy.where(data.is_allowed[rows], net.worth(following[rows]), -numpy.inf).argmax(1)
        then = target.worth(following[rows])[numpy.arange(_BATCH), best]
        wanted = data.reward[rows] + data.goes_on[rows] * numpy.minimum(then, 1.0)
        net.learn(seen[rows], data.moves[rows], wanted, rate=_RATE * (1 - step / steps) + 1e-5)
        averaged.approach(net, 0.002 if step > steps / 2 else 1.0)
    net.layers = averaged.layers


class _Net:
    """A perceptron that is trained by Adam (Kingma and Ba 2015)."""

    def __init__(self, inputs: int, chance: numpy.random.Generator) -> None:
        widths = (inputs, *HIDDEN, len(_MOVES))
        self.layers = [
            numpy.column_stack([chance.normal(0, (2 / before) ** 0.5, (after, before)), numpy.zeros(after)])
            for before, after in zip(widths, widths[1:], strict=False)
        ]
        self.layers[-1] *= 0.1
        self._first = [numpy.zeros_like(layer) for layer in self.layers]
        self._second = [numpy.zeros_like(layer) for layer in self.layers]
        self._steps = 0

    def copy(self) -> "_Net":
        made = object.__new__(_Net)
        made.layers = [layer.copy() for layer in self.layers]
        return made

    def approach(self, other: "_Net", share: float) -> None:
        self.layers = [own + share * (theirs - own) for own, theirs in zip(self.layers, other.layers, strict=True)]

    def worth(self, seen: "Floats") -> "Floats":
        return self._forward(seen)[-1]

    def _forward(self, seen: "Floats") -> list["Floats"]:
        values = [seen]
        for number, layer in enumerate(self.layers):
            linear = values[-1] @ layer[:, :-1].T + layer[:, -1]
            values.append(linear if number == len(self.layers) - 1 else numpy.maximum(linear, 0))
        return values

    def learn(self, seen: "Floats", moves: "NDArray[numpy.int64]", wanted: "Floats", *, rate: float) -> None:
        """Take one step towards the wanted worth of the moves that were taken."""
        values = self._forward(seen)
        rows = numpy.arange(len(moves))
        slope = numpy.zeros_like(values[-1])
        slope[rows, moves] = numpy.clip(values[-1][rows, moves] - wanted, -1, 1) / len(moves)
        slopes = []
        for number in range(len(self.layers) - 1, -1, -1):
            slopes.append(numpy.column_stack([slope.T @ values[number], slope.sum(0)]))
            slope = (slope @ self.layers[number][:, :-1]) * (values[number] > 0)
        self._steps += 1
        for number, gradient in enumerate(reversed(slopes)):
            self._first[number] += 0.1 * (gradient - self._first[number])
            self._second[number] += 0.001 * (gradient**2 - self._second[number])
            first = self._first[number] / (1 - 0.9**self._steps)
            second = self._second[number] / (1 - 0.999**self._steps)
            self.layers[number] -= rate * (first / (numpy.sqrt(second) + 1e-8) + _DECAY * self.layers[number])
