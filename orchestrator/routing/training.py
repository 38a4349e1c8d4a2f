"""Learning from traces: the examples that a head is trained on, and the classes of tasks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...protocols import ConfigError
from .costs import lineage
from .traces import Trace

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float32]
    Rows = NDArray[numpy.int64]


LEAST_PROMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Examples:
    """Prompts, and the outcome of each agent on them.

    `outcomes` has shape (prompts, agents), from 0 (wrong) to 1 (right); NaN where an agent was not tried or the outcome is unknown.
    `embeddings` has
    shape (prompts, 768), from `Embedder.early`, or is None. `classes` names the class of each prompt, from coarse to fine
    (`search/hops`),
    or nothing; without any, it is empty.
    """

    prompts: Sequence[str]
    agents: Sequence[str]
    outcomes: "Floats"
    embeddings: "Floats | None" = None
    classes: Sequence[str] = ()

    def part(self, rows: "Rows") -> "Examples":
        """Return the examples of some rows."""
        embeddings = None if self.embeddings is None else self.embeddings[rows]
        classes = [self.classes[row] for row in rows] if self.classes else ()
        return Examples([self.prompts[row] for row in rows], self.agents, self.outcomes[rows], embeddings, classes)

    def check(self) -> None:
        """Raise `ConfigError` for fewer than 20 prompts, or an agent whose outcomes are all missing or all the same."""
        import numpy

        if len(self.prompts) < LEAST_PROMPTS:
            raise ConfigError(
                f"{len(self.prompts)} prompts are too few to train a head on", hint=f"it takes {LEAST_PROMPTS}, and better 1,000"
            )
        for place, agent in enumerate(self.agents):
            known = self.outcomes[:, place][~numpy.isnan(self.outcomes[:, place])]
            if not len(known):
                raise ConfigError(f"no trace says how {agent!r} did", hint="leave the agent out, or run it on some of the tasks")
            if known.min() == known.max():
                raise ConfigError(
                    f"the {len(known)} known outcomes of {agent!r} are all the same", hint="a head learns from successes and failures"
                )


def examples_of(traces: Sequence[Trace], agents: Sequence[str]) -> Examples:
    """Convert traces to one example per prompt, in the order in which they are first met.

    Traces of the same prompt become one, with the mean of an agent's known scores: were they apart, a prompt that is held out would have
    been seen. It has the class of the first of them. Raises `ConfigError` for an agent that no trace tells of.
    """
    import numpy

    met = {agent for trace in traces for agent in trace.outcomes}
    unknown = [agent for agent in agents if agent not in met]
    if unknown or not agents:
        raise ConfigError(f"no trace tells of {', '.join(unknown) or 'any agent'}", hint=f"the traces tell of {', '.join(sorted(met))}")
    together: dict[str, list[Trace]] = {}
    for trace in traces:
        together.setdefault(trace.prompt, []).append(trace)
    outcomes = numpy.array([[_mean_score(group, agent) for agent in agents] for group in together.values()], dtype=numpy.float32)
    return Examples(list(together), tuple(agents), outcomes, classes=[group[0].task_class for group in together.values()])


def folds_of(prompts: Sequence[str], folds: int, seed: int) -> "Rows":
    """Assign each prompt to a fold, at random and of equal size but for one; the same prompt is always in the same fold."""
    import numpy

    places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    drawn = numpy.random.default_rng(seed).permutation(len(places)) % folds
    return numpy.array([drawn[places[prompt]] for prompt in prompts], dtype=numpy.int64)


def _mean_score(traces: Sequence[Trace], agent: str) -> float:
    scores = [outcome.score for trace in traces if (outcome := trace.outcomes.get(agent)) is not None and outcome.score is not None]
    return sum(scores) / len(scores) if scores else float("nan")


PRIOR: Final = 10.0
"""Outcomes that the class above counts for."""
SURE: Final = 0.98
"""The most that a mean may be, and 1 minus the least."""
ALL: Final = ""
"""The class above all."""

ClassLogits = Mapping[str, tuple[float, ...]]
"""Log-odds of each agent, by class."""


def fit_classes(classes: Sequence[str], outcomes: "Floats") -> "tuple[ClassLogits, Floats]":
    """Return the agents' log-odds by class, and for each prompt the log-odds as if its outcomes had not been seen.

    `outcomes` has shape (prompts, agents), NaN where unknown. A class has the mean of its outcomes and of ten more, which are those of
    the
    class above it.
    """
    import numpy

    right, tried = numpy.nan_to_num(outcomes), (~numpy.isnan(outcomes)).astype(numpy.float32)
    sums: defaultdict[str, Floats] = defaultdict(lambda: numpy.zeros((2, outcomes.shape[1]), dtype=numpy.float32))
    for name, row in zip(classes, numpy.stack([right, tried], axis=1), strict=True):
        for level in (ALL, *lineage(name)):
            sums[level] += row
    nothing = numpy.zeros((2, outcomes.shape[1]), dtype=numpy.float32)
    known = {name: tuple(_logits(_mean(sums, name, nothing)).tolist()) for name in sums}
    unseen = [_mean(sums, name, row) for name, row in zip(classes, numpy.stack([right, tried], axis=1), strict=True)]
    return known, _logits(numpy.stack(unseen))


def _mean(sums: "Mapping[str, Floats]", name: str, without: "Floats") -> "Floats":
    """Return the mean outcomes in a class, without those of one prompt."""
    right, tried = sums[ALL] - without
    mean: Floats = (right + 0.5) / (tried + 1)
    for level in lineage(name):
        right, tried = sums[level] - without
        mean = (right + PRIOR * mean) / (tried + PRIOR)
    return mean


def _logits(means: "Floats") -> "Floats":
    import numpy

    clipped = numpy.clip(means, 1 - SURE, SURE)
    logits: Floats = numpy.log(clipped / (1 - clipped)).astype(numpy.float32)
    return logits
