"""Parts of a recording, each with a head that has not seen it: nothing is judged on what it learned from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ....protocols import ConfigError
from ...routing.training import Examples, examples_of, folds_of
from ...util.embedding.embedder import Embedder
from ..training.export import write_head
from ..training.training import train_head
from .recording import Recording

Progress = Callable[[str], None]
"""Is told in a sentence what is being done."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some tasks of a recording."""

    places: tuple[int, ...]
    """Places of its tasks among the recording's cases."""
    others: tuple[int, ...]
    """Places of the tasks that may be learned from."""
    head: Path
    """Folder of a head that was trained on the others, or of the one that the policy names."""


@contextmanager
def held_out(
    recording: Recording, *, head: Path | None, embedder: Embedder | None, folds: int, seed: int, progress: Progress
) -> Iterator[list[Part]]:
    """Split a recording into parts. Yield them with a head for each that has not seen it; heads last as long as the context.

    Args:
        head: that the policy names and that is used for all parts, whatever it has seen; None: one is trained for each part.
        embedder: of the heads that are trained; None: they look at words and classes alone.
        folds: number of parts; tasks with the same prompt are in the same one.
        seed: of the split.

    Raises `ConfigError` for less than two parts or more parts than prompts, and what training raises.
    """
    with TemporaryDirectory(prefix="nearfar-heads-") as folder:
        split = _split(recording, folds, seed)
        if head is not None:
            yield [_part(recording, places, head) for places in split]
            return
        examples = _examples(recording, embedder, progress)
        parts = []
        for fold, places in enumerate(split):
            progress(f"training a head for part {fold + 1} of {folds} on the others")
            parts.append(_part(recording, places, Path(folder) / str(fold)))
            held = {recording.cases[place].prompt for place in places}
            write_head(train_head(_without(examples, held), seed=seed), parts[-1].head)
        yield parts


def _split(recording: Recording, folds: int, seed: int) -> list[tuple[int, ...]]:
    """Return places of the cases of each part."""
    prompts = [case.prompt for case in recording.cases]
    if not 2 <= folds <= len(set(prompts)):
        raise ConfigError(f"{len(set(prompts)):,} different prompts cannot be split into {folds} parts", hint="5 parts are usual")
    fold_of = folds_of(prompts, folds, seed)
    return [tuple(place for place, found in enumerate(fold_of) if found == fold) for fold in range(folds)]


def _part(recording: Recording, places: Sequence[int], head: Path) -> Part:
    held = set(places)
    return Part(tuple(places), tuple(place for place in range(len(recording.cases)) if place not in held), head)


def _examples(recording: Recording, embedder: Embedder | None, progress: Progress) -> Examples:
    """Return all examples that a head can be trained on. Raises `ConfigError` where torch is not installed."""
    try:
        import torch  # noqa: F401 - asked for here, before anything takes long
    except ImportError as error:
        hint = "pip install 'nearfar[train]', or name a trained head as policy.router.head"
        raise ConfigError("a replay trains heads, and needs torch for it", hint=hint) from error
    examples = examples_of([*recording.cases, *recording.incomplete], list(recording.sides))
    if embedder is None:
        return examples
    progress(f"embedding {len(examples.prompts):,} prompts")
    return replace(examples, embeddings=embedder.early_all(examples.prompts))


def _without(examples: Examples, prompts: set[str]) -> Examples:
    import numpy

    return examples.part(numpy.array([row for row, prompt in enumerate(examples.prompts) if prompt not in prompts], dtype=numpy.int64))
