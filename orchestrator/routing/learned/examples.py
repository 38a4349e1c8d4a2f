"""Training examples of a head: prompts, and how well each agent did on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ....protocols import ConfigError
from ..traces import Trace

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
