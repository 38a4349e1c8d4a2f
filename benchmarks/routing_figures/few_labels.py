"""Routing by the prompt alone from few labels: what a head, with its ridge regression and prompt length, recovers after 100, 200 and 400.

Each draw takes that many prompts of a set at random; the others are routed by the head that was trained on them. APGR is the mean over the
draws and over all pairs of agents whose accuracies on the set differ by 10 points or more; the figure is the mean over the five recorded
sets. Prompts carry no class. The figures of the parts alone are measured with the same heads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import routing_curve
from nearfar.orchestrator.lab.training import train_head
from nearfar.orchestrator.lab.training.report import Remembered, load_head
from nearfar.orchestrator.routing.success import length_gain
from nearfar.orchestrator.routing.traces import agents_of
from nearfar.orchestrator.routing.training import Examples, examples_of
from nearfar.orchestrator.util.embedding import MiniLmEmbedder

from . import data
from .transfer import drawn, recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Rows = NDArray[numpy.int64]

LABELS: Final = (100, 200, 400)
DRAWS: Final = 5
MOST: Final = 1500
"""Prompts of a set that are drawn from."""
QUICK: Final = 300
QUICK_DRAWS: Final = 1
QUICK_LABELS: Final = (100,)
QUICK_SETS: Final = ("bfcl",)


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """APGR by the number of labels, blended and by the parts alone. A quick run draws the fewest labels once, from one set."""
    embedder = MiniLmEmbedder()
    found: dict[str, dict[int, dict[str, float]]] = {}
    for name, traces in recorded(folder).items():
        if quick and name not in QUICK_SETS:
            continue
        part = drawn(traces, most=QUICK if quick else MOST)
        examples = examples_of(part, agents_of(part))
        asked = LabelledSet.of(examples, embedder.early_all(examples.prompts))
        for labels in QUICK_LABELS if quick else LABELS:
            for way, value in asked.recovered(labels, draws=QUICK_DRAWS if quick else DRAWS).items():
                found.setdefault(way, {}).setdefault(labels, {})[name] = value
    means = {way: {str(labels): round(fmean(sets.values()), 4) for labels, sets in by.items()} for way, by in found.items()}
    by_set = {str(labels): {name: round(value, 4) for name, value in sets.items()} for labels, sets in found["blended"].items()}
    return {"few_labels": means.pop("blended"), "few_labels_by_part": means, "few_labels_by_set": by_set}


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A recorded set, and its pairs of a near and a far agent."""

    examples: Examples
    lengths: "Floats"
    """Gain of each prompt by its length."""
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, examples: Examples, embeddings: "NDArray[numpy.float32]") -> "LabelledSet":
        """Leave out the classes, and choose the pairs by all outcomes."""
        plain = Examples(examples.prompts, examples.agents, examples.outcomes, embeddings)
        means = examples.outcomes.mean(0)
        pairs = [(near, far) for near, far in permutations(range(len(means)), 2) if means[far] - means[near] >= data.LEAST_GAP]
        return cls(plain, numpy.array([length_gain(prompt) for prompt in examples.prompts]), tuple(pairs))

    def recovered(self, labels: int, *, draws: int) -> dict[str, float]:
        """APGR by way: `blended` as the router has it, and its parts alone."""
        found = [dict(self._of_draw(labels, draw)) for draw in range(draws)]
        return {way: fmean(each[way] for each in found) for way in found[0]}

    def _of_draw(self, labels: int, draw: int) -> Iterator[tuple[str, float]]:
        order = numpy.random.default_rng(2000 + draw).permutation(len(self.examples.prompts))
        held = order[labels:]
        for way, gains in self._gains(order[:labels], held).items():
            recovered = []
            for place, (near, far) in enumerate(self.pairs):
                one, other = self.examples.outcomes[held][:, [near, far]].astype(numpy.float64).T
                recovered.append(routing_curve(gains[:, place], one, other).recovered)
            yield way, fmean(recovered)

    def _gains(self, known: "Rows", held: "Rows") -> Mapping[str, "Floats"]:
        """What each held-out prompt is expected to gain, of shape (prompts, pairs), by way."""
        asked = self.examples.part(held)
        assert asked.embeddings is not None, "they are embedded as a whole"
        with load_head(train_head(self.examples.part(known)), Remembered(asked.prompts, asked.embeddings)) as head:
            seen = [head.look(prompt) for prompt in asked.prompts]
            trust = head.card.trust
        parts, ridge, blended = (
            self._differences(rows)
            for rows in (
                [sight.blend.calibrated(sight.raw) for sight in seen],
                [sight.relative for sight in seen],
                [sight.probabilities() for sight in seen],
            )
        )
        lengths = numpy.repeat(self.lengths[held][:, None], len(self.pairs), axis=1)
        return {"blended": trust * blended + (1 - trust) * lengths, "head": parts, "ridge": ridge, "length": lengths}

    def _differences(self, rows: Any) -> "Floats":  # noqa: ANN401 - whatever numpy makes an array of
        table = numpy.array(rows, dtype=numpy.float64)
        return numpy.stack([table[:, far] - table[:, near] for near, far in self.pairs], axis=1)
