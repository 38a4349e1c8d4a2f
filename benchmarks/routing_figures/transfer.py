"""Routing prompts of a kind that nothing was trained on, by their length alone: what a router without a head goes by.

APGR of a set is the mean over all pairs of agents whose accuracies on it differ by 10 points or more; the figure is the mean over the five
recorded sets. No label of any set is used.

`worst_set` is for routers that have a head all the same: one that was trained on a set of the same agents and meets another, of which
it has no outcome. It is by how much APGR differs from that of prompt length alone, on the set where that is least; where no recorded
head knows the agents, the router goes by length and the difference is 0.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import routing_curve
from nearfar.orchestrator.lab.training import train_head
from nearfar.orchestrator.lab.training.report import Remembered, load_head
from nearfar.orchestrator.routing.success import UNFAMILIAR, length_gain
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace, agents_of
from nearfar.orchestrator.routing.training import examples_of
from nearfar.orchestrator.util.embedding import MiniLmEmbedder

from . import data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

QUICK: Final = 1200
"""Prompts of each set that a quick run draws."""
QUICK_HEAD: Final = 250
"""Prompts of each set that a quick run trains a head on, and asks it about."""
RESAMPLES: Final = 200


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """APGR by prompt length, the mean over the five sets. A quick run looks at some prompts of each set, and leaves out the interval."""
    sets = [drawn(traces, most=QUICK if quick else len(traces)) for traces in recorded(folder).values()]
    values = [_recovered(traces) for traces in sets]
    found = {"value": fmean(values)}
    if not quick:
        samples = numpy.mean([_resampled(traces) for traces in sets], axis=0)
        found["low"], found["high"] = map(float, numpy.quantile(samples, (0.025, 0.975)))
    return {"transfer_length_apgr": found} | _worst(folder, quick=quick)


def _worst(folder: Path, *, quick: bool) -> dict[str, Any]:
    """APGR by a head of another set less that by length, by set, and the least."""
    sets = {name: drawn(traces, most=QUICK_HEAD if quick else len(traces)) for name, traces in recorded(folder).items()}
    found = dict.fromkeys(sets, 0.0)
    pairs = [(name, other) for name, other in permutations(sets, 2) if set(agents_of(sets[name])) <= set(agents_of(sets[other]))]
    prompts = [trace.prompt for name in sorted({name for pair in pairs for name in pair}) for trace in sets[name]]
    embedded = Remembered(prompts, MiniLmEmbedder().early_all(prompts))
    for name, other in pairs:
        found[name] = min(found[name], _by_strange_head(sets[name], sets[other], embedded))
    return {"worst_set": round(min(found.values()), 4), "worst_set_by_set": {name: round(value, 4) for name, value in found.items()}}


def _by_strange_head(traces: Sequence[Trace], known: Sequence[Trace], embedded: Remembered) -> float:
    """APGR on traces by a head that was trained on others, as the router blends it with length, less that by length alone."""
    agents = agents_of(traces)
    examples = examples_of(known, agents)
    lengths, outcomes, pairs = _scored(traces)
    vectors = numpy.stack([embedded.early(prompt) for prompt in examples.prompts])
    with load_head(train_head(replace(examples, classes=(), embeddings=vectors)), embedded) as head:
        seen = [head.predict(trace.prompt) for trace in traces]
        card = head.card
    share = numpy.array([card.trust * (1.0 if each.is_familiar else UNFAMILIAR) for each in seen])
    chances = numpy.array([[each.probabilities[agent] for agent in agents] for each in seen])
    base = numpy.array([card.base[card.agents.index(agent)] for agent in agents])
    values = []
    for near, far in pairs:
        by_head, by_length = chances[:, far] - chances[:, near], base[far] - base[near] + lengths
        gains = share * by_head + (1 - share) * by_length
        both = (routing_curve(each, outcomes[:, near], outcomes[:, far]).recovered for each in (gains, lengths))
        values.append(next(both) - next(both))
    return fmean(values)


def recorded(folder: Path) -> dict[str, Sequence[Trace]]:
    """The five sets by name."""
    others = {"mmlu": data.mmlu, "dcrouter": data.dcrouter, "cruxeval": data.cruxeval, "math_l5": data.math_l5}
    return {name: read(folder) for name, read in others.items()} | {"bfcl": _tool_calls(folder)}


def drawn(traces: Sequence[Trace], *, most: int) -> list[Trace]:
    """As many of the traces in random order."""
    return [traces[place] for place in numpy.random.default_rng(0).permutation(len(traces))[:most]]


def _recovered(traces: Sequence[Trace]) -> float:
    """APGR of one set, the mean over its pairs of agents."""
    return _mean_over_pairs(*_scored(traces), numpy.arange(len(traces)))


def _resampled(traces: Sequence[Trace]) -> list[float]:
    """The same on prompts drawn with replacement, many times."""
    gains, outcomes, pairs = _scored(traces)
    random = numpy.random.default_rng(0)
    return [_mean_over_pairs(gains, outcomes, pairs, random.integers(0, len(gains), len(gains))) for _ in range(RESAMPLES)]


def _scored(traces: Sequence[Trace]) -> tuple["Floats", "Floats", list[tuple[int, int]]]:
    """The gain of each prompt, the outcomes (prompts, agents), and the pairs of a near and a far agent."""
    agents = agents_of(traces)
    outcomes = numpy.array([[trace.outcomes[agent].score for agent in agents] for trace in traces], dtype=numpy.float64)
    means = outcomes.mean(0)
    pairs = [(near, far) for near, far in permutations(range(len(agents)), 2) if means[far] - means[near] >= data.LEAST_GAP]
    return numpy.array([length_gain(trace.prompt) for trace in traces]), outcomes, pairs


def _mean_over_pairs(gains: "Floats", outcomes: "Floats", pairs: Sequence[tuple[int, int]], rows: "NDArray[numpy.int64]") -> float:
    return fmean(routing_curve(gains[rows], outcomes[rows, near], outcomes[rows, far]).recovered for near, far in pairs)


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
