"""How well budget control holds the far share when traffic shifts abruptly, and what that costs in quality."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.budget import FarShareController
from nearfar.orchestrator.routing.head import hashed, surface
from nearfar.orchestrator.routing.traces import Trace, agents_of

from . import data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Flags = NDArray[numpy.bool_]

TARGETS: Final = (0.1, 0.2, 0.3, 0.4, 0.5)
WINDOW: Final = 500
SETTLING: Final = 300
"""Requests after a shift before the first window begins."""
_BEFORE: Final = 1000
_AFTER: Final = 1500
_BUCKETS: Final = 1024
_RIDGE: Final = 3.0


class LinearHead:
    """A cheap prompt score: ridge regression of outcomes on few hashed n-grams and the surface of a prompt."""

    def __init__(self, inputs: "Floats", outcomes: "Floats") -> None:
        """`inputs` are those of `inputs_of`; `outcomes` has shape (prompts, agents)."""
        self._centre, self._mean = inputs.mean(0), outcomes.mean(0)
        self._scale = inputs.std(0) + 1e-6
        columns = (inputs - self._centre) / self._scale
        precision = columns.T @ columns + _RIDGE * len(inputs) * numpy.eye(columns.shape[1])
        self._slopes = numpy.linalg.solve(precision, columns.T @ (outcomes - self._mean))

    def predict(self, inputs: "Floats") -> "Floats":
        """Probabilities, of shape (prompts, agents)."""
        found: Floats = (inputs - self._centre) / self._scale @ self._slopes + self._mean
        return numpy.clip(found, 0.02, 0.98)


def outcomes_of(traces: Sequence[Trace]) -> "Floats":
    """Scores, of shape (traces, agents)."""
    agents = agents_of(traces)
    return numpy.array([[trace.outcomes[agent].score for agent in agents] for trace in traces], dtype=numpy.float64)


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The error of the share in points, its spread, that of a threshold calibrated offline, and what control costs in quality."""
    traffic = _Traffic.of(folder, quick=quick)
    random = numpy.random.default_rng(0)
    online, anywhere, offline = [], [], []
    for before, after in traffic.shifts(random, orders=1 if quick else 4, pairs=6 if quick else 20):
        for target in TARGETS:
            far = _controlled(numpy.concatenate([before, after]), target)
            online.append(_worst_error(far[_BEFORE + SETTLING :], target))
            anywhere.append(_worst_error(far, target))
            offline.append(_worst_error((after > numpy.quantile(before, 1 - target))[SETTLING:], target))
    return {
        "budget_error_points": round(max(online), 6),
        "budget_error_points_over_streams": {**_spread(online), "streams": len(online)},
        "budget_error_points_of_any_window": round(max(anywhere), 6),
        "budget_error_points_of_offline_threshold": _spread(offline),
        "budget_on_stationary_traffic": [_cost(traffic, target) for target in TARGETS],
    }


@dataclass(frozen=True, slots=True)
class _Traffic:
    """What the head expects to gain from the far side, on prompts that it was not trained on."""

    kinds: dict[str, "Floats"]
    """By the name of a subject, or of another set of tasks."""
    mixed: "Floats"
    """Of all subjects, in random order."""
    gains: "Floats"
    """What the far side really gained on these."""

    @classmethod
    def of(cls, folder: Path, *, quick: bool) -> "_Traffic":
        """Trained on one half of MMLU, or less of it; measured on the other and on the other sets."""
        random = numpy.random.default_rng(1)
        mmlu = data.mmlu(folder)
        order = random.permutation(len(mmlu))
        half = len(mmlu) // 2
        known, new = ([mmlu[row] for row in rows] for rows in (order[: 1500 if quick else half], order[half:]))
        head = LinearHead(inputs_of([trace.prompt for trace in known]), outcomes_of(known))
        mixed, outcomes = _advantages(head, new), outcomes_of(new)
        subjects = numpy.array([trace.task_class for trace in new])
        kinds = {str(name): mixed[subjects == name] for name in numpy.unique(subjects) if (subjects == name).sum() >= 40}
        for other in (data.math_l5(folder), data.cruxeval(folder), data.dcrouter(folder)):
            kinds[other[0].task_class.partition("/")[0]] = _advantages(head, other[:: 8 if quick else 1])
        return cls(kinds, mixed, outcomes[:, 1] - outcomes[:, 0])

    def shifts(self, random: numpy.random.Generator, *, orders: int, pairs: int) -> Iterator[tuple["Floats", "Floats"]]:
        """The advantages before a shift and after it: some shifts by name, and random ones between two kinds."""
        kinds = {"mmlu": self.mixed, **self.kinds}
        law, marketing = "mmlu/professional_law", "mmlu/marketing"
        named = [(law, marketing), (marketing, law)]
        named += [pair for other in ("math_l5", "cruxeval", "dcrouter") for pair in (("mmlu", other), (other, "mmlu"))]
        drawn = [tuple(random.choice(sorted(self.kinds), 2, replace=False)) for _ in range(pairs)]
        for before, after in (*named, *drawn):
            for _ in range(orders):
                yield random.choice(kinds[before], _BEFORE), random.choice(kinds[after], _AFTER)


def inputs_of(prompts: Sequence[str]) -> "Floats":
    """Hashed n-grams and the surface of each prompt, of shape (prompts, inputs)."""
    inputs = numpy.zeros((len(prompts), _BUCKETS))
    for row, prompt in enumerate(prompts):
        numpy.add.at(inputs[row], hashed(prompt) % _BUCKETS, 1.0)
    inputs /= numpy.sqrt((inputs**2).sum(1, keepdims=True)) + 1e-6
    return numpy.concatenate([inputs, numpy.array([surface(prompt) for prompt in prompts])], axis=1)


def _advantages(head: LinearHead, traces: Sequence[Trace]) -> "Floats":
    found = head.predict(inputs_of([trace.prompt for trace in traces]))
    return found[:, 1] - found[:, 0]


def _controlled(advantages: "Floats", target: float) -> "Flags":
    """Which tasks went far."""
    controller = FarShareController(target, WINDOW)
    far = []
    for advantage in map(float, advantages):
        far.append(advantage > controller.threshold)
        controller.observe(advantage, went_far=far[-1])
    return numpy.array(far)


def _worst_error(far: "Flags", target: float) -> float:
    """The largest distance of the share from its target over all windows, in points."""
    sums = numpy.concatenate([[0], numpy.cumsum(far)])
    return float(100 * numpy.abs((sums[WINDOW:] - sums[:-WINDOW]) / WINDOW - target).max())


def _spread(errors: Sequence[float]) -> dict[str, float]:
    mean = percentile_interval(float(numpy.mean(errors)), errors)
    return {"worst": round(max(errors), 3), "mean": round(mean.value, 3), "low": round(mean.low, 3), "high": round(mean.high, 3)}


def _cost(traffic: _Traffic, target: float) -> dict[str, float]:
    """Control against the one threshold that is best for the whole stream, both over routing at random."""
    far, fixed = _controlled(traffic.mixed, target), traffic.mixed > numpy.quantile(traffic.mixed, 1 - target)
    kept = numpy.cov(traffic.mixed, far)[0, 1] / numpy.cov(traffic.mixed, fixed)[0, 1]
    return {
        "target": target,
        "share": round(float(far.mean()), 4),
        "predicted_gain_kept": round(float(kept), 4),
        "quality_points_over_fixed": round(float(100 * (traffic.gains[far].sum() - traffic.gains[fixed].sum()) / len(far)), 3),
    }
