"""From pairs of questions that people judged to the threshold that holds a false-hit budget."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ...protocols import ConfigError
from ...protocols.messages import Value
from .answers import EmbedsText
from .budget import Interval, Judgement, learned_threshold
from .guards import objection


class Pair(Value):
    """Two questions, and whether the answer to one is right for the other: a line of a file of pairs."""

    asked: str
    stored: str
    is_same: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """The threshold that judged pairs prove for a budget."""

    pairs: int
    stopped: int
    """Pairs that a guard tells apart: they are never served, at any threshold."""
    stopped_same: int
    """Stopped pairs with the same answer: hits that the guards cost."""
    threshold: float | None
    """The lowest that is proved to hold the budget; None where there are too few pairs, or too many are false."""
    false_hits: Interval
    """The false ones among the pairs that pass at that threshold; among all that no guard stops where there is none."""


def judged(pairs: Iterable[Pair], embedder: EmbedsText) -> Iterator[Judgement | None]:
    """Yield the judgement of each pair; None where a guard tells its questions apart."""
    for pair in pairs:
        if objection(pair.asked, pair.stored) is None:
            yield Judgement(float(embedder.embed(pair.asked) @ embedder.embed(pair.stored)), pair.is_same)
        else:
            yield None


def calibrated(pairs: Iterable[Pair], judgements: Iterable[Judgement | None], budget: float) -> Calibration:
    """Compute the calibration from pairs and their judgements."""
    both = list(zip(pairs, judgements, strict=True))
    passed = [judgement for _, judgement in both if judgement is not None]
    stopped = [pair for pair, judgement in both if judgement is None]
    threshold = learned_threshold(passed, budget)
    served = [judgement for judgement in passed if threshold is None or judgement.similarity >= threshold]
    return Calibration(
        pairs=len(both),
        stopped=len(stopped),
        stopped_same=sum(pair.is_same for pair in stopped),
        threshold=threshold,
        false_hits=Interval(sum(not judgement.is_same for judgement in served), len(served)),
    )


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file of JSON lines. Raises `ConfigError` with the line that is none, and `OSError`."""
    pairs = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            pairs.append(Pair.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            hint = 'a line is {"asked": "...", "stored": "...", "is_same": true}'
            raise ConfigError(f"{path}, line {number}: {where}: {problem['msg']}", hint=hint) from error
    return pairs
