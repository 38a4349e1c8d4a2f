"""`nearfar cache`: show what the cache of answers and plans holds and saves, empty it, and calibrate its thresholds."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track

from ...protocols import ConfigError
from ..cache import AnswerCache
from ..cache.database import ErasedMemory
from ..cache.thresholds import (
    CategoryStatistics,
    Interval,
    ThresholdCalibration,
    calibrate_threshold,
    judge_pairs,
    judgements_needed,
    read_pairs,
    statistics,
)
from ..task.stores import CacheConfig
from . import options
from .running import Line, Note, notes, report_errors, right, show, table

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

_COUNTS = ("entries", "lookups", "hits", "exact", "other words", "shared", "tokens", "dollars", "seconds", "wrong")

app = typer.Typer(no_args_is_help=True)


@app.command("stats")
def show_statistics(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print, for each category, the hits, what they saved, and how many of the hits in other words are wrong."""
    with report_errors(as_json=as_json), _open_cache(config) as cache:
        found = statistics(cache.database)
        described = [_category(each, cache.thresholds.of(each.category)) for each in found]
    lines: list[Line] = [
        table(("category", *right(*_COUNTS)), map(_cells, found)),
        Note("tokens, dollars and seconds: saved; wrong: share of the judged hits in other words"),
    ]
    show({"path": str(cache.database.path), "categories": described}, lines, as_json=as_json)


@app.command("clear")
def clear(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Erase all answers and plans from the cache's files. Counts and judgements stay."""
    with report_errors(as_json=as_json), _open_cache(config) as cache:
        removed = cache.clear()
    show({"removed": removed}, [f"removed {removed} answers and plans"], as_json=as_json)


@app.command("calibrate")
def calibrate(
    pairs: Annotated[Path, typer.Argument(help='JSON lines: {"asked": "...", "stored": "...", "is_same": true}.')],
    budget: Annotated[
        float | None, typer.Option(min=0.0001, max=0.9999, help="Share of hits that may be wrong. Default: [cache] false_hit_budget.")
    ] = None,
    learn: Annotated[str | None, typer.Option(help="Keep the judgements for this category, so that its threshold follows them.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the similarity threshold that holds a false-hit budget, from pairs of questions that people have judged."""
    with report_errors(as_json=as_json):
        from ..util.embedding import MiniLmEmbedder

        section = options.read_section(config, "cache", CacheConfig)
        allowed = budget or section.false_hit_budget
        known = read_pairs(pairs)
        shown = track(known, "comparing", console=notes, disable=as_json, transient=True)
        judgements = list(judge_pairs(shown, MiniLmEmbedder()))
        found = calibrate_threshold(known, judgements, allowed)
        if learn is not None:
            with closing(AnswerCache(section)) as cache:
                for judgement in judgements:
                    if judgement is not None:
                        cache.thresholds.add(learn, judgement.similarity, was_served=False, is_same=judgement.is_same)
    show(_calibration(found, allowed), _calibration_lines(found, allowed), as_json=as_json)


def clear_answers(path: Path | None, store: "MemoryStore") -> None:
    """Empty the cache, if its file exists, and record in it that it has seen all erasures of the memory store."""
    cache = AnswerCache(options.read_section(path, "cache", CacheConfig))
    if cache.database.path.exists():
        with closing(cache):
            cache.clear()
            ErasedMemory(cache, store).forget()


def forget_answers(path: Path | None, store: "MemoryStore") -> int:
    """Empty the cache if the memory store has erased something since the last time, and return the number of removed answers.

    A cached answer may repeat an erased item. Without a file, return 0.
    """
    cache = AnswerCache(options.read_section(path, "cache", CacheConfig))
    if not cache.database.path.exists():
        return 0
    with closing(cache):
        return ErasedMemory(cache, store).forget()


@contextmanager
def _open_cache(path: Path | None) -> Iterator[AnswerCache]:
    """Open the cache that a configuration names. Raises `ConfigError` if its file does not exist yet."""
    cache = AnswerCache(options.read_section(path, "cache", CacheConfig))
    if not cache.database.path.exists():
        raise ConfigError(f"there is no cache at {cache.database.path}", hint="[cache] in nearfar.toml turns it on")
    with closing(cache):
        yield cache


def _cells(each: CategoryStatistics) -> tuple[str, ...]:
    counts = (each.entries, each.lookups, "" if each.hit_rate is None else f"{each.hit_rate:.1%}", each.exact, each.semantic, each.shared)
    saved = (each.saved_tokens, f"{each.saved_dollars:.4f}", f"{each.saved_seconds:.1f}")
    return (each.category, *map(str, (*counts, *saved)), _interval_text(each.false_hits))


def _interval_text(found: Interval) -> str:
    if found.share is None:
        return "not judged"
    return f"{found.share:.1%} ({found.low:.1%} to {found.high:.1%})"


def _category(each: CategoryStatistics, threshold: float | None) -> dict[str, object]:
    return {**each.model_dump(), "lookups": each.lookups, "hit_rate": each.hit_rate, "threshold": threshold, **_false_hits(each.false_hits)}


def _false_hits(found: Interval) -> dict[str, object]:
    return {"false_hit_rate": found.share, "false_hit_rate_low": found.low, "false_hit_rate_high": found.high}


def _calibration(found: ThresholdCalibration, budget: float) -> dict[str, object]:
    counts = {"pairs": found.pairs, "stopped": found.stopped, "stopped_same": found.stopped_same, "served": found.false_hits.judged}
    return {**counts, "budget": budget, "threshold": found.threshold, **_false_hits(found.false_hits)}


def _calibration_lines(found: ThresholdCalibration, budget: float) -> Iterator[Line]:
    yield f"{found.pairs} pairs; the guards stop {found.stopped} of them, {found.stopped_same} although the answers are the same"
    if found.threshold is None:
        need = f"{judgements_needed(budget)} pairs or more that pass the guards, and few false ones"
        yield f"no threshold is proved to hold {budget:.2%}: that needs {need}"
    else:
        yield f"threshold {found.threshold:.2f} holds {budget:.2%}"
    yield f"wrong among the {found.false_hits.judged} pairs served: {_interval_text(found.false_hits)}"
