"""Training of a navigator on the moves of recorded runs, by fitted Q iteration (Ernst et al. 2005).

The estimator is double (van Hasselt et al. 2016): one net picks the next move, an earlier copy of it tells the worth. Moves that were left
to chance show what each leads to; as far calls are few and scores noisy, what sets the moves of one state apart is shrunk towards nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy

from ....protocols import ConfigError
from ...routing.navigator import FARTHEST, LEAST_SCALE, NavigatorCard, allowed_moves
from ...routing.outcome_records import RunRecord
from ...task.events import EVIDENCE, Move

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Numbers = NDArray[numpy.int64]

LEAST_RUNS: Final = 100
CALL_PRICE: Final = 0.06
"""Share of a perfect score that a far call has to bring. Below a twentieth, chance was taken for skill in 7,852 runs."""
_HIDDEN: Final = (32, 32)
_BATCH: Final = 256
_RATE: Final = 2e-3
_LEAST_RATE: Final = 1e-5
_DECAY: Final = 0.1
_SHRINKAGE: Final = 1.0
"""Decay of what sets the moves of one state apart."""
_COPY_EVERY: Final = 200
_AVERAGED: Final = 0.002
"""Share of each step in the average over the second half of the training."""
_MOVES: Final = tuple(Move)
_ASKED: Final = EVIDENCE.index("far calls")


@dataclass(frozen=True, slots=True)
class Transitions:
    """Moves of many runs, and what they led to."""

    seen: "Floats"
    moves: "Numbers"
    reward: "Floats"
    """The score where the run ended, less the price of the far calls before the next move."""
    following: "Floats"
    """The evidence at the next move."""
    goes_on: "Floats"
    """1 where there is a next move, else 0."""
    allowed: "NDArray[numpy.bool_]"
    """Moves that are possible then."""


def train_navigator(records: Iterable[RunRecord], *, call_price: float = CALL_PRICE, seed: int = 0, steps: int = 10_000) -> NavigatorCard:
    """Train a navigator. Raises `ConfigError` for fewer than 100 runs with moves.

    Args:
        records: runs whose moves were left to chance, all or in part.
        call_price: share of a perfect score that a far call has to bring.
        seed: of the first weights and the batches.
        steps: of gradient descent.
    """
    told = [record for record in records if record.moves]
    if len(told) < LEAST_RUNS:
        raise ConfigError(f"{len(told)} runs with moves are too few to learn from", hint=f"sweep {LEAST_RUNS} or more, better 3000")
    data = _transitions(told, call_price)
    centre, deviation = data.seen.mean(0), data.seen.std(0)
    scale = numpy.where(deviation > LEAST_SCALE, deviation, 1.0)
    seen, following = (((table - centre) / scale).clip(-FARTHEST, FARTHEST) for table in (data.seen, data.following))
    layers = _fitted(data, seen, following, numpy.random.default_rng(seed), steps)
    return NavigatorCard(
        centre=tuple(centre.round(5).tolist()),
        scale=tuple(scale.round(5).tolist()),
        layers=tuple(tuple(map(tuple, layer.round(4).tolist())) for layer in layers),
        call_price=call_price,
        runs=len(told),
    )


def _transitions(records: Sequence[RunRecord], call_price: float) -> Transitions:
    rows = [row for record in records for row in _rows(record, call_price)]
    seen, moves, reward, following, goes_on = zip(*rows, strict=True)
    allowed = [[move in possible for move in _MOVES] for possible in map(allowed_moves, following)]
    return Transitions(*map(numpy.array, (seen, moves, reward, following, goes_on, allowed)))


def _rows(record: RunRecord, call_price: float) -> Iterable[tuple[Sequence[float], int, float, Sequence[float], float]]:
    asked = [round(float(numpy.expm1(move.seen[_ASKED]))) for move in record.moves] + [record.far_calls]
    for place, move in enumerate(record.moves):
        goes_on = place + 1 < len(record.moves)
        reward = (0.0 if goes_on else record.score) - call_price * (asked[place + 1] - asked[place])
        following = record.moves[place + 1].seen if goes_on else move.seen
        yield move.seen, _MOVES.index(move.move), reward, following, float(goes_on)


def _fitted(data: Transitions, seen: "Floats", following: "Floats", chance: numpy.random.Generator, steps: int) -> "list[Floats]":
    """Return the layers of a net that was fitted to the rewards and to its own earlier copy's worth of what followed."""
    net = _Net(chance)
    earlier, averaged = net, net.layers
    for step in range(steps):
        if step % _COPY_EVERY == 0:
            earlier = net.copy()
        rows = chance.integers(len(seen), size=_BATCH)
        best = numpy.where(data.allowed[rows], net.worth(following[rows]), -numpy.inf).argmax(1)
        then = earlier.worth(following[rows])[numpy.arange(_BATCH), best].clip(max=1)
        net.learn(seen[rows], data.moves[rows], data.reward[rows] + data.goes_on[rows] * then, max(_RATE * (1 - step / steps), _LEAST_RATE))
        share = _AVERAGED if step > steps / 2 else 1.0
        averaged = [mean + share * (layer - mean) for mean, layer in zip(averaged, net.layers, strict=True)]
    return averaged


class _Net:
    """A perceptron that is trained by Adam (Kingma and Ba 2015)."""

    def __init__(self, chance: numpy.random.Generator) -> None:
        widths = (len(EVIDENCE), *_HIDDEN, len(_MOVES))
        self.layers: list[Floats] = [
            numpy.column_stack([chance.normal(0, (2 / before) ** 0.5, (after, before)), numpy.zeros(after)])
            for before, after in zip(widths, widths[1:], strict=False)
        ]
        self.layers[-1] *= 0.1
        self._first = [numpy.zeros_like(layer) for layer in self.layers]
        self._second = [numpy.zeros_like(layer) for layer in self.layers]
        self._steps = 0

    def copy(self) -> "_Net":
        """Return a net of the same weights, which is not trained."""
        made = object.__new__(_Net)
        made.layers = list(self.layers)
        return made

    def worth(self, seen: "Floats") -> "Floats":
        """Return the worth of each move, a row for each state."""
        return self._values(seen)[-1]

    def learn(self, seen: "Floats", moves: "Numbers", wanted: "Floats", rate: float) -> None:
        """Take one step towards the wanted worth of the moves that were made."""
        values, rows = self._values(seen), numpy.arange(len(moves))
        slope = numpy.zeros_like(values[-1])
        slope[rows, moves] = (values[-1][rows, moves] - wanted).clip(-1, 1) / len(moves)
        self._steps += 1
        for number in reversed(range(len(self.layers))):
            gradient = numpy.column_stack([slope.T @ values[number], slope.sum(0)])
            slope = (slope @ self.layers[number][:, :-1]) * (values[number] > 0)
            self._descend(number, gradient, rate)
        last = self.layers[-1]
        self.layers[-1] = last - rate * _SHRINKAGE * (last - last.mean(0))

    def _values(self, seen: "Floats") -> "list[Floats]":
        values = [seen]
        for layer in self.layers[:-1]:
            values.append((values[-1] @ layer[:, :-1].T + layer[:, -1]).clip(0))
        last = self.layers[-1]
        return [*values, values[-1] @ last[:, :-1].T + last[:, -1]]

    def _descend(self, number: int, gradient: "Floats", rate: float) -> None:
        self._first[number] += 0.1 * (gradient - self._first[number])
        self._second[number] += 0.001 * (gradient**2 - self._second[number])
        first = self._first[number] / (1 - 0.9**self._steps)
        second = self._second[number] / (1 - 0.999**self._steps)
        layer = self.layers[number]
        self.layers[number] = layer - rate * (first / (numpy.sqrt(second) + 1e-8) + _DECAY * layer)
