"""What a cache of answers serves, how often it is wrong, and what a look into it takes.

    python benchmarks/cache.py --json --quick                   every figure from fewer questions: under 45 seconds
    python benchmarks/cache.py --json --data FOLDER             the figures of docs/benchmarks.md

FOLDER, or its folder `cache`, holds qqp_labelled_10k.json.gz: pairs of questions of people with a label that says whether both ask the
same (Quora Question Pairs). The pairs are divided in two by a hash of their text. The threshold is learned on one half; on the other, the
first question of each pair is stored, and what is asked are the second ones, and questions whose meaning was changed by a small edit
(`cache_figures/swaps.py`).

* `development_false_hit_rate`, `fresh_false_hit_rate`: of the changed questions of two sets written by hand, by kind of change
  (`cache_figures/questions.py`), the share that the guards let pass at any similarity; `..._hit_rate`: of those that ask the
  same. The fresh set was written before the guards and not read until they were done.
* `qqp_hit_rate`: share of the questions served whose pair is labelled the same; `qqp_hit_rate_all`: share of all second questions.
* `qqp_false_hit_rate`: share of the changed questions served; `..._high` is the end of its 95 % interval.
* `qqp_noisy_false_hit_rate`: share of the hits on a pair's own question whose label says that both ask different things.
* `cosine_only_...`: the same cache without guards, at the threshold of the same hit rate.
"""

import argparse
import gzip
import hashlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache import thresholds as lookups
from nearfar.orchestrator.cache.database import StoredAnswer
from nearfar.orchestrator.cache.guards import objection
from nearfar.orchestrator.cache.thresholds import Interval, QuestionPair, calibrate_threshold, judge_pairs
from nearfar.orchestrator.task import TaskScope
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.protocols import AgentCard, Finished, FinishReason, Message, Side, StepReply, StepRequest, Usage
from nearfar.protocols.steps import Sensitivity

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cache_figures.questions import SETS, written
from benchmarks.cache_figures.swaps import Swap, swaps

DATA: Final = "qqp_labelled_10k.json.gz"
FOLDER: Final = Path(__file__).parents[2] / "shared" / "data"
"""Where the pairs are by default, in `cache`."""
BUDGET: Final = 0.05
"""False hits on a stream of which half are duplicates and half are changed questions: harder than what people ask."""
QUICK: Final = 1_000
"""Questions of each kind that a quick run asks."""
LOOKS: Final = 1_000
"""Looks of each kind that are timed."""
CARD: Final = AgentCard(name="far", side=Side.FAR, model="model")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A pair of the data."""

    first: str
    second: str
    is_same: bool


class Remembering:
    """The embedder, which computes each text once, so that a look can be timed without it."""

    def __init__(self) -> None:
        self._embedder = MiniLmEmbedder()
        self._known: dict[str, Any] = {}

    def embed(self, text: str) -> Any:  # noqa: ANN401 - numpy's arrays
        if text not in self._known:
            self._known[text] = self._embedder.embed(text)
        return self._known[text]


def main() -> None:
    """Print the figures."""
    options = _options()
    found: dict[str, Any] = {name: value for each in SETS for name, value in written_figures(each).items()}
    path = next((each for each in (options.data / DATA, options.data / "cache" / DATA) if each.is_file()), None)
    if path is None:
        found |= {"skipped": f"there is no {DATA} in {options.data}; --data names the folder that holds it"}
    else:
        found |= figures(read(path), most=QUICK if options.quick else None)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {json.dumps(value)}")


def written_figures(name: str) -> dict[str, Any]:
    """What the guards alone, at any similarity, say of the pairs of one written set."""
    asked, served = Counter[tuple[bool, str]](), Counter[tuple[bool, str]]()
    for pair in written(name):
        asked[pair.is_same, pair.kind] += 1
        served[pair.is_same, pair.kind] += objection(pair.first, pair.second) is None
    same, changed = ([(served[each], asked[each]) for each in asked if each[0] is is_same] for is_same in (True, False))
    interval = Interval(sum(each[0] for each in changed), sum(each[1] for each in changed))
    return {
        f"{name}_changed": interval.judged,
        f"{name}_false_hit_rate": interval.share,
        f"{name}_false_hit_rate_high": interval.high,
        f"{name}_false_hits_by_kind": {kind: served[False, kind] for is_same, kind in asked if not is_same and served[False, kind]},
        f"{name}_same": sum(each[1] for each in same),
        f"{name}_hit_rate": sum(each[0] for each in same) / sum(each[1] for each in same),
    }


def read(path: Path) -> list[Labelled]:
    """The pairs, in the order of their hashes."""
    rows = json.loads(gzip.decompress(path.read_bytes()))
    pairs = [Labelled(row["text_a"], row["text_b"], bool(row["label"])) for row in rows if row["text_a"].strip() and row["text_b"].strip()]
    return sorted(pairs, key=_hash)


def figures(pairs: Sequence[Labelled], *, most: int | None) -> dict[str, Any]:
    """Everything that is measured; `most` bounds the questions of each kind that are asked, not what is stored."""
    embedder = Remembering()
    fit, held_out = [pair for pair in pairs if _half(pair) == 0], [pair for pair in pairs if _half(pair) == 1]
    stored, others = sorted({pair.first for pair in held_out}), sorted({pair.first for pair in fit})
    changed = sorted(swaps(stored), key=lambda swap: _digest(swap.changed))[:most]
    threshold = _learned(fit, embedder)
    settings = CacheConfig(shadow_share=0.0, entries=100_000)
    used = settings.threshold if threshold is None else threshold
    with TemporaryDirectory() as folder:
        cache = AnswerCache(settings.model_copy(update={"path": Path(folder) / "answers.db", "threshold": used}), embedder=embedder)
        for question in stored:
            _store(cache, question)
        quality = {**_hits(cache, held_out[:most]), **_false_hits(cache, changed)}
        quality |= _cosine_only(held_out[:most], stored, changed, quality["qqp_hit_rate"], embedder)
        for question in others if most is None else ():
            _store(cache, question)
        speed = _latency(cache, held_out, embedder)
        cache.close()
    sizes = {"pairs": len(pairs), "stored": len(stored), "swaps": len(changed)}
    return {**sizes, "threshold": used, "threshold_is_learned": threshold is not None, **quality, **speed}


def _learned(fit: Sequence[Labelled], embedder: Remembering) -> float | None:
    """The threshold that holds the budget on as many changed questions as there are duplicates."""
    same = [QuestionPair(asked=pair.second, stored=pair.first, is_same=True) for pair in fit if pair.is_same]
    changed = sorted(swaps(sorted({pair.first for pair in fit})), key=lambda swap: _digest(swap.changed))[: len(same)]
    known = [*same, *(QuestionPair(asked=swap.changed, stored=swap.original, is_same=False) for swap in changed)]
    return calibrate_threshold(known, judge_pairs(known, embedder), BUDGET).threshold


def _hits(cache: AnswerCache, pairs: Sequence[Labelled]) -> dict[str, Any]:
    found = [_look(cache, pair.second) for pair in pairs]
    own = [pair for pair, answer in zip(pairs, found, strict=True) if answer is not None and answer.question == pair.first]
    duplicates = [answer for pair, answer in zip(pairs, found, strict=True) if pair.is_same]
    return {
        "qqp_hit_rate": sum(answer is not None for answer in duplicates) / len(duplicates),
        "qqp_hit_rate_all": sum(answer is not None for answer in found) / len(found),
        "qqp_noisy_false_hit_rate": sum(not pair.is_same for pair in own) / max(1, len(own)),
        "qqp_noisy_hits": len(own),
    }


def _false_hits(cache: AnswerCache, changed: Sequence[Swap]) -> dict[str, Any]:
    asked = Counter(swap.kind for swap in changed)
    served = Counter(swap.kind for swap in changed if _look(cache, swap.changed) is not None)
    interval = Interval(served.total(), asked.total())
    return {
        "qqp_false_hit_rate": interval.share,
        "qqp_false_hit_rate_high": interval.high,
        "qqp_false_hit_rate_by_kind": {kind: served[kind] / count for kind, count in asked.items()},
    }


def _cosine_only(
    pairs: Sequence[Labelled], questions: Sequence[str], changed: Sequence[Swap], hit_rate: float, embedder: Remembering
) -> dict[str, Any]:
    """What closeness alone gives: the nearest stored question, from the similarity at which it serves as many duplicates."""
    stored = numpy.stack([embedder.embed(question) for question in questions])
    nearest = [float((stored @ embedder.embed(pair.second)).max()) for pair in pairs if pair.is_same]
    threshold = float(numpy.quantile(nearest, 1 - hit_rate))
    served = sum(float((stored @ embedder.embed(swap.changed)).max()) >= threshold for swap in changed)
    return {"cosine_only_threshold": threshold, "cosine_only_false_hit_rate": served / len(changed)}


def _latency(cache: AnswerCache, pairs: Sequence[Labelled], embedder: Remembering) -> dict[str, Any]:
    """Looks into the cache, in milliseconds; the semantic ones without the embedding."""
    asked = [pair.second for pair in pairs[:LOOKS]]
    for question in asked:
        embedder.embed(question)
    fresh = MiniLmEmbedder()
    return {
        "entries": sum(each.entries for each in lookups.statistics(cache.database)),
        "look_exact_ms_p50": _milliseconds(lambda question: _look(cache, question), [pair.first for pair in pairs[:LOOKS]]),
        "look_semantic_ms_p50": _milliseconds(lambda question: _look(cache, question), asked),
        "embed_ms_p50": _milliseconds(fresh.embed, asked),
        "store_ms_p50": _milliseconds(lambda question: _store(cache, question), asked),
    }


def _milliseconds(work: Callable[[str], object], questions: Sequence[str]) -> float:
    taken = []
    for question in questions:
        started = time.perf_counter()
        work(question)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1_000


def _look(cache: AnswerCache, question: str) -> StoredAnswer | None:
    return cache.look(_request(question), CARD, TaskScope()).answer


def _store(cache: AnswerCache, question: str) -> None:
    finished = Finished(reason=FinishReason.STOP, usage=Usage(input_tokens=10, output_tokens=10), model="model")
    cache.keep(
        cache.look(_request(question), CARD, TaskScope()),
        StepReply(text=question, tool_calls=(), finished=finished),
        seconds=1.0,
        dollars=None,
    )


def _request(question: str) -> StepRequest:
    return StepRequest(messages=(Message.user(question),), sensitivity=Sensitivity.PUBLIC)


def _half(pair: Labelled) -> int:
    return int(_hash(pair)[:8], 16) % 2


def _hash(pair: Labelled) -> str:
    return _digest(f"{pair.first}\n{pair.second}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Figures of the cache.")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the labelled pairs, or the one above it")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer questions: under 45 seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
