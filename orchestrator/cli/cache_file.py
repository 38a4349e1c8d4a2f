"""`nearfar cache stats | clear | calibrate`."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.progress import track
from rich.table import Table

from ...protocols import ConfigError
from ..cache.answers import AnswerCache
from ..cache.database import ErasedMemory
from ..cache.lookups import CategoryStatistics, statistics
from ..cache.thresholds import Calibration, Interval, calibrated, judged, needed, read_pairs
from ..task.sections.cache import CacheConfig
from .configuration import read_config
from .console import notes, output, print_json, reported

if TYPE_CHECKING:
    from ..memory.store import MemoryStore


def show_statistics(path: Path | None, *, as_json: bool) -> None:
    """Print what was counted since the file was begun."""
    with reported(as_json=as_json), _opened(path) as cache:
        found = statistics(cache.database)
        thresholds = {each.category: cache.thresholds.of(each.category) for each in found}
    if as_json:
        print_json({"path": str(cache.database.path), "categories": [_described(each, thresholds[each.category]) for each in found]})
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("category", "entries", "lookups", "hits", "exact", "other words", "shared", "tokens", "dollars", "seconds", "wrong"):
        table.add_column(column, justify="left" if column == "category" else "right")
    for each in found:
        table.add_row(each.category, *_row(each))
    output.print(table)
    notes.print("tokens, dollars and seconds: saved; wrong: of the hits in other words, as far as they were judged", style="dim")


def clear_cache(path: Path | None, *, as_json: bool) -> None:
    """Empty the file."""
    with reported(as_json=as_json), _opened(path) as cache:
        removed = cache.clear()
    if as_json:
        print_json({"removed": removed})
    else:
        output.print(f"removed {removed} answers and plans")


def clear_answers(path: Path | None, store: "MemoryStore") -> None:
    """Empty the file where there is one, and note in it that it has heard of all erasures of the store."""
    cache = AnswerCache(_settings(path))
    if cache.database.path.exists():
        with closing(cache):
            cache.clear()
            ErasedMemory(cache, store).forget()


def forget_answers(path: Path | None, store: "MemoryStore") -> int:
    """Empty the file where there is one and the store has erased something since, which answers may repeat; returns how many there were."""
    cache = AnswerCache(_settings(path))
    if not cache.database.path.exists():
        return 0
    try:
        return ErasedMemory(cache, store).forget()
    finally:
        cache.close()


def calibrate_cache(pairs: Path, path: Path | None, *, budget: float | None, learn: str | None, as_json: bool) -> None:
    """Print the threshold for a budget, and what it rests on."""
    with reported(as_json=as_json):
        from ..util.embedding.embedder import Embedder

        settings = _settings(path)
        budget = budget or settings.false_hit_budget
        known = read_pairs(pairs)
        shown = track(known, "comparing", console=notes, disable=as_json, transient=True)
        judgements = list(judged(shown, Embedder()))
        found = calibrated(known, judgements, budget)
        if learn is not None:
            cache = AnswerCache(settings)
            for judgement in judgements:
                if judgement is not None:
                    cache.thresholds.add(learn, judgement.similarity, was_served=False, is_same=judgement.is_same)
            cache.close()
    if as_json:
        print_json(_calibration(found, budget))
    else:
        _show(found, budget)


@contextmanager
def _opened(path: Path | None) -> Iterator[AnswerCache]:
    """The cache of a configuration. Raises `ConfigError` where there is no file yet."""
    cache = AnswerCache(_settings(path))
    if not cache.database.path.exists():
        raise ConfigError(f"there is no cache at {cache.database.path}", hint="[cache] in nearfar.toml turns it on")
    try:
        yield cache
    finally:
        cache.close()


def _settings(path: Path | None) -> CacheConfig:
    config = read_config(path)
    return CacheConfig() if config is None or config.cache is None else config.cache


def _row(each: CategoryStatistics) -> tuple[str, ...]:
    counts = (each.entries, each.lookups, "" if each.hit_rate is None else f"{each.hit_rate:.1%}", each.exact, each.semantic, each.shared)
    saved = (each.saved_tokens, f"{each.saved_dollars:.4f}", f"{each.saved_seconds:.1f}")
    return (*map(str, (*counts, *saved)), _interval(each.false_hits))


def _interval(found: Interval) -> str:
    if found.share is None:
        return "not judged"
    return f"{found.share:.1%} ({found.low:.1%} to {found.high:.1%})"


def _described(each: CategoryStatistics, threshold: float | None) -> dict[str, object]:
    return {**each.model_dump(), "lookups": each.lookups, "hit_rate": each.hit_rate, "threshold": threshold, **_false_hits(each.false_hits)}


def _false_hits(found: Interval) -> dict[str, object]:
    return {"false_hit_rate": found.share, "false_hit_rate_low": found.low, "false_hit_rate_high": found.high}


def _calibration(found: Calibration, budget: float) -> dict[str, object]:
    counts = {"pairs": found.pairs, "stopped": found.stopped, "stopped_same": found.stopped_same, "served": found.false_hits.judged}
    return {**counts, "budget": budget, "threshold": found.threshold, **_false_hits(found.false_hits)}


def _show(found: Calibration, budget: float) -> None:
    output.print(f"{found.pairs} pairs; the guards stop {found.stopped} of them, {found.stopped_same} although the answers are the same")
    if found.threshold is None:
        output.print(
            f"no threshold is proved to hold {budget:.2%}: it takes {needed(budget)} pairs or more that pass the guards, and few false ones"
        )
    else:
        output.print(f"threshold {found.threshold:.2f} holds {budget:.2%}")
    output.print(f"wrong among the {found.false_hits.judged} pairs served: {_interval(found.false_hits)}")
