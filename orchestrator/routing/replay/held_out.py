"""Parts of a recording, each with a head that has not seen it: nothing is judged on what it learned from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from ....protocols import ConfigError
from ..traces import Trace
from .recording import Recording

TrainHead = Callable[[Sequence[Trace], Path], object]
"""Trains a head on traces and writes it into a folder."""
Progress = Callable[[str], None]
"""Is told in a sentence what is being done."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some tasks of a recording."""

    places: tuple[int, ...]
    """Of its tasks among the recording's cases."""
    others: tuple[int, ...]
    """Places of the tasks that may be learned from."""
    head: Path
    """Folder of a head that was trained on the others, or of the one that the policy names."""


@contextmanager
def held_out(
    recording: Recording, *, head: Path | None, train: TrainHead, folds: int, seed: int, progress: Progress
) -> Iterator[list[Part]]:
    """The parts, as long as the context lasts.

    Args:
        head: that the policy names and that is used for all parts, whatever it has seen; None: one is trained for each part.
        train: makes these heads.
        folds: number of parts; tasks with the same prompt are in the same one.
        seed: of the split.

    Raises `ConfigError` for less than two parts or more parts than prompts, and what training raises.
    """
    split = _split(recording.cases, folds, seed)
    with TemporaryDirectory(prefix="nearfar-heads-") as folder:
        parts = []
        for fold, places in enumerate(split):
            held = {recording.cases[place].prompt for place in places}
            others = tuple(place for place, case in enumerate(recording.cases) if case.prompt not in held)
            trained = Path(folder) / str(fold)
            if head is None:
                known = [trace for trace in (*recording.cases, *recording.incomplete) if trace.prompt not in held]
                progress(f"part {fold + 1} of {folds}: training a head on the other parts, {len(known):,} tasks")
                train(known, trained)
            parts.append(Part(places, others, head or trained))
        yield parts


def _split(cases: Sequence[Trace], folds: int, seed: int) -> list[tuple[int, ...]]:
    """Places of the cases of each part."""
    prompts = sorted({case.prompt for case in cases})
    if not 2 <= folds <= len(prompts):
        raise ConfigError(f"{len(prompts):,} different prompts cannot be split into {folds} parts", hint="folds = 5 is usual")
    Random(seed).shuffle(prompts)
    fold_of = {prompt: place % folds for place, prompt in enumerate(prompts)}
    return [tuple(place for place, case in enumerate(cases) if fold_of[case.prompt] == fold) for fold in range(folds)]
