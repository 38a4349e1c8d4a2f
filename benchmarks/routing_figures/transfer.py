"""Routing prompts of a kind that nothing was trained on.

"Every ordered pair" is read as: each recorded set is left out in turn, a prior is fitted to the others, and every prompt of the set is
scored from its text alone. APGR is the mean over all pairs of agents whose accuracies on the set differ by 10 points or more; the figure is
the mean over the five sets. No label of a tested set is used. The outcomes of BFCL may serve evaluation only: it is tested on, and never
trained on. Online, the score of each prompt is also corrected by what earlier prompts of the same stream came to: after each prompt the
outcome of one side is revealed, chosen by a fair coin, as only that of the side that served is known in practice.

Chosen by looking at these sets: the measures; that gains are regressed on them, rather than difficulty; that the most deviating measure of
most prompts decides whether traffic is familiar; and that a weight of an agent has a standard deviation of 0.1 before any outcome (0.06 and
0.18 come to the same within 0.003). Not chosen so: 2 % of the training prompts count as unfamiliar, as in the learned head.

``python -m benchmarks.routing_figures.transfer --data ../shared/data/routing`` fits the prior that ships, to all sets but BFCL.
"""

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval, routing_curve
from nearfar.orchestrator.lab.training.prior_training import LEAST_GAP, fit_prior
from nearfar.orchestrator.routing.learned import prior
from nearfar.orchestrator.routing.learned.prior import AdaptivePrior, Prior, PriorNumbers
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace, agents_of
from nearfar.orchestrator.task.route_decision import Impression
from nearfar.protocols import Side

from . import data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

TEST_ONLY: Final = "bfcl"
QUICK: Final = 1200
"""Prompts of each set that a quick run draws."""
ORDERS: Final = 3
"""Of the stream, that the online figure is the mean over."""
RESAMPLES: Final = 200
FOLDS: Final = 5
RIDGE: Final = 0.2

Sets = Mapping[str, Sequence[Trace]]


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """APGR on each set that was left out, by the prior alone and corrected online, against that of prompt length. A quick run looks at some
    prompts of each set in a single order, and leaves out the intervals, single training sets and what training on the set itself gives."""
    sets = {name: drawn(traces, most=QUICK if quick else len(traces)) for name, traces in recorded(folder).items()}
    results = [Tested.of(name, sets, orders=1 if quick else ORDERS) for name in sets]
    found = {
        "transfer_apgr": _mean(results, "prior", quick=quick),
        "transfer_online_apgr": _mean(results, "online", quick=quick),
        "transfer_length_apgr": _mean(results, "length", quick=quick),
        "transfer_apgr_over_pairs": _over_pairs(results, "prior"),
        "transfer_online_apgr_over_pairs": _over_pairs(results, "online"),
        "transfer_never_below_length": all(result.lead("prior") >= 0 for result in results),
        "transfer_pairs_below_length": sum(int((result.leads("prior") < 0).sum()) for result in results),
        "transfer_pairs": sum(len(result.pairs) for result in results),
        "transfer_worst_pair": min((result.worst() for result in results), key=lambda worst: float(worst["lead"])),
        "transfer_sets": {result.name: result.row(quick=quick) for result in results},
    }
    return found if quick else found | {"transfer_single_sets": _single(sets), "transfer_apgr_trained_on_itself": _ceiling(results)}


def recorded(folder: Path) -> dict[str, list[Trace]]:
    """The five sets by name."""
    others = {"mmlu": data.mmlu, "dcrouter": data.dcrouter, "cruxeval": data.cruxeval, "math_l5": data.math_l5}
    return {name: read(folder) for name, read in others.items()} | {TEST_ONLY: _tool_calls(folder)}


def drawn(traces: Sequence[Trace], *, most: int) -> list[Trace]:
    """As many of the traces in random order."""
    return [traces[place] for place in numpy.random.default_rng(0).permutation(len(traces))[:most]]


def fitted_without(name: str, sets: Sets) -> PriorNumbers:
    """The prior that a set is tested with."""
    return fit_prior([traces for other, traces in sets.items() if other not in (name, TEST_ONLY)])


def stream(traces: Sequence[Trace], numbers: PriorNumbers) -> list[Impression]:
    """What the prior sees in each prompt when it comes in."""
    watching, found = Prior(numbers), []
    for trace in traces:
        seen = watching.look(trace.prompt)
        watching.observe(seen)
        found.append(seen)
    return found


@dataclass(frozen=True, slots=True)
class Tested:
    """The scores of one set that was left out."""

    name: str
    agents: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    """Near and far, as places among the agents."""
    outcomes: "Floats"
    """Of shape (prompts, agents)."""
    measured: "Floats"
    """Deviations of the prompts' measures, of shape (prompts, measures)."""
    scores: Mapping[str, Sequence[Sequence["Floats"]]]
    """By the way of scoring: for each order of the stream, and there for each pair, one score for each prompt."""
    unfamiliar: float
    """Share of the prompts."""

    @classmethod
    def of(cls, name: str, sets: Sets, *, orders: int) -> "Tested":
        traces = sets[name]
        agents = agents_of(traces)
        outcomes = numpy.array([[trace.outcomes[agent].score for agent in agents] for trace in traces], dtype=numpy.float64)
        means = outcomes.mean(0)
        pairs = tuple((near, far) for near, far in permutations(range(len(agents)), 2) if means[far] - means[near] >= LEAST_GAP)
        seen = stream(traces, fitted_without(name, sets))
        gains, lengths = numpy.array([each.gain for each in seen]), numpy.array([float(len(trace.prompt)) for trace in traces])
        online = [_online(seen, outcomes, pairs, seed) for seed in range(orders)]
        scores = {"prior": [len(pairs) * [gains]], "length": [len(pairs) * [lengths]], "online": online}
        unfamiliar = fmean(not each.is_familiar for each in seen)
        return cls(name, agents, pairs, outcomes, numpy.array([each.deviations for each in seen]), scores, unfamiliar)

    def apgrs(self, way: str, rows: "NDArray[numpy.int64] | None" = None) -> "Floats":
        """Of each pair, the mean over the orders of the stream; of some of the prompts, or all."""
        chosen = numpy.arange(len(self.outcomes)) if rows is None else rows
        near, far = (self.outcomes[chosen][:, list(side)].T for side in zip(*self.pairs, strict=True))
        every = [[_apgr(*each) for each in zip((scores[chosen] for scores in order), near, far, strict=True)] for order in self.scores[way]]
        means: Floats = numpy.mean(every, axis=0)
        return means

    def lead(self, way: str) -> float:
        """Over prompt length, the mean over all pairs."""
        return float(self.leads(way).mean())

    def leads(self, way: str) -> "Floats":
        """Over prompt length, of each pair."""
        return self.apgrs(way) - self.apgrs("length")

    def resampled(self, way: str) -> "Floats":
        """The mean over the pairs, on prompts drawn with replacement, many times."""
        random = numpy.random.default_rng(0)
        size = len(self.outcomes)
        return numpy.array([self.apgrs(way, random.integers(0, size, size)).mean() for _ in range(RESAMPLES)])

    def worst(self) -> dict[str, str | float]:
        """The pair on which the prior lies furthest behind prompt length."""
        leads = self.leads("prior")
        near, far = self.pairs[int(leads.argmin())]
        return {"set": self.name, "near": self.agents[near], "far": self.agents[far], "lead": float(leads.min())}

    def row(self, *, quick: bool) -> dict[str, Any]:
        """The set's line of the table."""
        found: dict[str, Any] = {"prompts": len(self.outcomes), "pairs": len(self.pairs), "unfamiliar": self.unfamiliar}
        for way in self.scores:
            found[way] = _interval(self.apgrs(way).mean(), () if quick else self.resampled(way))
        behind = {f"{way}_pairs_below_length": int((self.leads(way) < 0).sum()) for way in ("prior", "online")}
        return found | behind | {"worst_pair": self.worst()}


def _online(seen: Sequence[Impression], outcomes: "Floats", pairs: Sequence[tuple[int, int]], seed: int) -> list["Floats"]:
    """The scores of each pair when outcomes are learned from, in one order of the stream."""
    random = numpy.random.default_rng(seed)
    roles = {Side.NEAR: sorted({near for near, _ in pairs}), Side.FAR: sorted({far for _, far in pairs})}
    # An agent that is near in one pair and far in another learns twice, so that each pair comes to what it would come to alone.
    adaptive = {side: AdaptivePrior() for side in roles}
    scores = {side: numpy.zeros(outcomes.shape) for side in roles}
    for row in random.permutation(len(seen)):
        for side, places in roles.items():
            for place in places:
                scores[side][row, place] = adaptive[side].score(str(place), side, seen[row])
        served = Side.FAR if random.random() < 1 / 2 else Side.NEAR
        for place in roles[served]:
            adaptive[served].learn(str(place), served, seen[row], outcomes[row, place])
    return [scores[Side.FAR][:, far] - scores[Side.NEAR][:, near] for near, far in pairs]


def _single(sets: Sets) -> dict[str, float]:
    """APGR of priors that were fitted to one set alone, less that of prompt length, the mean over the pairs of agents."""
    found = {}
    for training, name in permutations(sets, 2):
        if training != TEST_ONLY:
            result = Tested.of(name, {training: sets[training], name: sets[name]}, orders=1)
            found[f"{training} -> {name}"] = result.lead("prior")
    return found


def _ceiling(results: Sequence[Tested]) -> dict[str, float]:
    """APGR of ridge regressions of each agent's outcomes on the same measures, trained on four fifths of the tested set itself."""
    found = {}
    for result in results:
        folds = numpy.random.default_rng(0).permutation(len(result.outcomes)) % FOLDS
        expected = numpy.zeros(result.outcomes.shape)
        for fold in range(FOLDS):
            expected[folds == fold] = _ridge(result.measured[folds != fold], result.outcomes[folds != fold], result.measured[folds == fold])
        near, far = (expected[:, list(side)].T for side in zip(*result.pairs, strict=True))
        found[result.name] = fmean(
            _apgr(ahead - behind, result.outcomes[:, pair[0]], result.outcomes[:, pair[1]])
            for behind, ahead, pair in zip(near, far, result.pairs, strict=True)
        )
    return found


def _ridge(known: "Floats", outcomes: "Floats", unknown: "Floats") -> "Floats":
    """Outcomes that are expected of unknown prompts."""
    centre, scale = known.mean(0), known.std(0) + 1e-6
    inputs, wanted = (known - centre) / scale, outcomes - outcomes.mean(0)
    weights = numpy.linalg.solve(inputs.T @ inputs / len(inputs) + RIDGE * numpy.eye(inputs.shape[1]), inputs.T @ wanted / len(inputs))
    found: Floats = (unknown - centre) / scale @ weights + outcomes.mean(0)
    return found


def _apgr(scores: "Floats", near: "Floats", far: "Floats") -> float:
    return routing_curve(scores, near, far).recovered


def _mean(results: Sequence[Tested], way: str, *, quick: bool) -> dict[str, float]:
    """Of the sets, each of which counts the same, with a 95 % interval."""
    samples = () if quick else numpy.mean([result.resampled(way) for result in results], axis=0)
    return _interval(fmean(result.apgrs(way).mean() for result in results), samples)


def _interval(value: float, samples: "Floats | tuple[()]") -> dict[str, float]:
    return percentile_interval(value, samples).model_dump() if len(samples) else {"value": float(value)}


def _over_pairs(results: Sequence[Tested], way: str) -> float:
    """The mean over all pairs of agents of all sets."""
    return float(numpy.concatenate([result.apgrs(way) for result in results]).mean())


def _tool_calls(folder: Path) -> list[Trace]:
    """728 requests that a tool call answers, as the user worded them."""
    with gzip.open(folder / "bfcl.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = list(map(json.loads, file))
    return [
        Trace(
            id=row["id"],
            prompt=row["question"][0][-1]["content"],
            outcomes={agent: AgentOutcome(score=float(outcome["correct"])) for agent, outcome in row["outcomes"].items()},
        )
        for row in rows
    ]


def main() -> None:
    """Write the prior that ships."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recorded sets")
    numbers = fitted_without("", recorded(parser.parse_args().data))
    (Path(prior.__file__).parent / prior.NUMBERS).write_text(numbers.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
