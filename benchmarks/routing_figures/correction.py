"""What online correction gains where a head serves tasks of classes that it was not trained on.

Each task is predicted first and learned from afterwards. The classes are cut into parts; a head trained on the others serves each part.
The default `deviation` of the correction was chosen by looking at the streams of dcrouter, and none of its settings at those of MMLU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval, with_interval
from nearfar.orchestrator.routing.budget import FarShareController
from nearfar.orchestrator.routing.success import Correction, CorrectionPolicy
from nearfar.orchestrator.routing.traces import Trace, agents_of

from . import data
from .budget import LinearHead, inputs_of, outcomes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

FAR_SHARE: Final = 0.3
"""Of the traffic whose outcomes are known only for the agent that served."""
_PARTS: Final = 3
_RESAMPLES: Final = 1000


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Brier score of both agents and APGR on MMLU, uncorrected, corrected by every outcome, and by those of the agent that served; and
    Brier score of nine agents on dcrouter."""
    mmlu = _Measured.on(data.mmlu(folder), quick=quick)
    others = _Measured.on(data.dcrouter(folder), quick=quick)
    after, served_only = mmlu.after(served_only=False), mmlu.after(served_only=True)
    found = {"before": mmlu.before, "after": after, "served_only": served_only}
    return {
        "correction_brier_gain": mmlu.brier_gain(after),
        "correction_brier_gain_served_only": mmlu.brier_gain(served_only),
        "correction_apgr": {name: _apgr(predicted, mmlu.outcomes) for name, predicted in found.items()},
        "correction_brier_gain_dcrouter": others.brier_gain(others.after(served_only=False)),
    }


@dataclass(frozen=True, slots=True)
class Stream:
    """Tasks in the order in which they come, with what a head that knows other classes says of them."""

    classes: Sequence[str]
    agents: Sequence[str]
    predicted: "Floats"
    """(tasks, agents)."""
    outcomes: "Floats"
    """(tasks, agents)."""


def streams(traces: Sequence[Trace], *, most: int) -> Iterator[Stream]:
    """One for each part of the classes, in random order; the head of each is trained on at most so many tasks of the other parts."""
    random = numpy.random.default_rng(2)
    agents = agents_of(traces)
    classes = sorted({trace.task_class for trace in traces})
    part_of = dict(zip(classes, random.permutation(len(classes)) % _PARTS, strict=True))
    shuffled = [traces[row] for row in random.permutation(len(traces))]
    for part in range(_PARTS):
        own = [trace for trace in shuffled if part_of[trace.task_class] == part]
        others = [trace for trace in shuffled if part_of[trace.task_class] != part][:most]
        head = LinearHead(inputs_of([trace.prompt for trace in others]), outcomes_of(others))
        predicted = head.predict(inputs_of([trace.prompt for trace in own]))
        yield Stream([trace.task_class for trace in own], agents, predicted, outcomes_of(own))


def corrected(stream: Stream, policy: CorrectionPolicy, *, served_only: bool) -> "Floats":
    """The corrected predictions, each from the outcomes before it, of shape (tasks, agents)."""
    correction, controller = Correction(policy), FarShareController(FAR_SHARE)
    found = numpy.zeros_like(stream.predicted)
    for row, name in enumerate(stream.classes):
        predicted, outcomes = stream.predicted[row], stream.outcomes[row]
        for place, agent in enumerate(stream.agents):
            found[row, place] = correction.corrected(agent, name, predicted[place]).probability
        advantage = float(found[row, 1] - found[row, 0])
        goes_far = advantage > controller.threshold
        controller.observe(advantage, went_far=goes_far)
        for place, agent in enumerate(stream.agents):
            is_known = not served_only or place == goes_far
            correction.learn(agent, name, predicted[place], outcomes[place] if is_known else None)
    return found


@dataclass(frozen=True, slots=True)
class _Measured:
    """The streams of one set of tasks."""

    streams: Sequence[Stream]

    @classmethod
    def on(cls, traces: Sequence[Trace], *, quick: bool) -> "_Measured":
        """Of all tasks, or a part of them."""
        return cls(list(streams(traces[:: 8 if quick else 1], most=1500 if quick else 6000)))

    @property
    def before(self) -> "Floats":
        return numpy.concatenate([stream.predicted for stream in self.streams])

    @property
    def outcomes(self) -> "Floats":
        return numpy.concatenate([stream.outcomes for stream in self.streams])

    def after(self, *, served_only: bool) -> "Floats":
        return numpy.concatenate([corrected(stream, CorrectionPolicy(), served_only=served_only) for stream in self.streams])

    def brier_gain(self, corrected: "Floats") -> dict[str, float]:
        """Mean squared error before less that of the corrected predictions, with its 95 % bootstrap interval over tasks."""
        before, after = ((found - self.outcomes) ** 2 for found in (self.before, corrected))
        gains = (before - after).mean(1)
        random = numpy.random.default_rng(3)
        found = percentile_interval(gains.mean(), [random.choice(gains, len(gains)).mean() for _ in range(_RESAMPLES)])
        named = {**found.model_dump(), "before": before.mean(), "after": after.mean()}
        return {name: round(float(value), 5) for name, value in named.items()}


def _apgr(found: "Floats", outcomes: "Floats") -> dict[str, float]:
    _, interval = with_interval(list(found[:, 1] - found[:, 0]), list(outcomes[:, 0]), list(outcomes[:, 1]))
    return {name: round(value, 4) for name, value in interval.model_dump().items()}
