"""Training a head on the user's own runs, with a report of what it is worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....protocols import ConfigError
from ...routing.traces import Trace
from ...routing.training import examples_of
from ...util.embedding.embedder import Embedder
from .report import HeldOutReport, held_out_report
from .training import Parts, train_head


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head, and what it is worth."""

    parts: Parts
    """For `write_head`."""
    report: HeldOutReport


def train_on_traces(
    traces: Sequence[Trace],
    agents: Sequence[str],
    *,
    embedder: Embedder | None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> TrainedHead:
    """Train a head for some of the agents that the traces tell of.

    Args:
        traces: those of the same prompt count as one, with the mean scores.
        agents: whose success it shall predict.
        embedder: None: the head looks at words and classes alone.
        seed: of the folds, and of the prompts that are remembered.
        progress: is told what happens next.

    Raises `ConfigError` where torch is not installed, an agent is in no trace or its outcomes are all missing or all the same, or there are
    fewer than 20 prompts.
    """
    try:
        import torch  # noqa: F401 - asked for here, before anything takes long
    except ImportError as error:
        raise ConfigError("training a head needs torch", hint="pip install 'nearfar[train]'") from error
    examples = examples_of(traces, agents)
    examples.check()
    if embedder is not None:
        progress(f"embedding {len(examples.prompts)} prompts")
        examples = replace(examples, embeddings=embedder.early_all(examples.prompts))
    report = held_out_report(examples, seed=seed, progress=progress)
    progress("training on all prompts")
    return TrainedHead(train_head(examples, seed=seed), report)
