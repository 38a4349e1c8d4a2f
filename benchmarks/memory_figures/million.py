"""A store of a million items: how long searches take, how much memory and disk they need, and how many of the exact ten are found.

The vectors are of texts: each is a mixture of two turns of LoCoMo as the shipped embedder reads them, with some noise. Without LoCoMo,
turns are replaced by 5,000 random directions. The store is measured by a process of its own that has just opened it.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy
import psutil
from langgraph.store.base import PutOp
from numpy.typing import NDArray

from nearfar import MemoryStore, SearchMode
from nearfar.orchestrator.memory.vectors import ShippedEmbedder

from .locomo_data import conversations
from .speed import NAMESPACE, WIDTH, _milliseconds, _texts

ITEMS: Final = 1_000_000
_AT_ONCE: Final = 5_000
_QUERIES: Final = 100
_LIMIT: Final = 10
_NOISE: Final = 0.35

Vectors = NDArray[numpy.float32]


class Given:
    """Vectors that are at hand for the texts that are written or asked for next."""

    name = f"given/{WIDTH}"
    width = WIDTH

    def __init__(self) -> None:
        self.vectors: dict[str, Vectors] = {}

    def embed_all(self, texts: Sequence[str]) -> Vectors:
        return numpy.stack([self.vectors[text] for text in texts])


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Nothing, if `quick`."""
    if quick:
        return {"million": None, "million_left_out": "--quick"}
    numbers = numpy.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.db"
        fill(path, seeds(data, numbers), numbers)
        command = [sys.executable, "-m", "benchmarks.memory_figures.million", str(path)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        return {"million": json.loads(done.stdout)}


def seeds(data: Path, numbers: numpy.random.Generator) -> Vectors:
    """What the vectors are mixed of."""
    turns = [
        f"{turn.speaker}: {turn.text}" for one in conversations(data) for session in one.sessions.values() for turn in session.values()
    ]
    if turns and ShippedEmbedder.is_installed():
        return ShippedEmbedder().embed_all(turns)
    return numbers.standard_normal((5_000, WIDTH), dtype=numpy.float32)


def fill(path: Path, seeds: Vectors, numbers: numpy.random.Generator, items: int = ITEMS) -> None:
    """Write the items, and next to them the queries with the keys of the ten that are nearest to each."""
    questions = _mixed(seeds, numbers, _QUERIES)
    best, keys = numpy.full((_QUERIES, _LIMIT), -1.0, numpy.float32), numpy.zeros((_QUERIES, _LIMIT), numpy.int64)
    embedder = Given()
    with MemoryStore.open(path, embedder=embedder) as store:
        for first in range(0, items, _AT_ONCE):
            vectors = _mixed(seeds, numbers, _AT_ONCE)
            texts = [f"{text} {first + number}" for number, text in enumerate(_texts(numbers, _AT_ONCE))]
            embedder.vectors = dict(zip(texts, vectors, strict=True))
            store.batch([PutOp(NAMESPACE, str(first + number), {"text": text}) for number, text in enumerate(texts)])
            scores = numpy.concatenate([best, questions @ vectors.T], axis=1)
            numbered = numpy.concatenate([keys, numpy.tile(numpy.arange(first, first + _AT_ONCE), (_QUERIES, 1))], axis=1)
            order = numpy.argsort(-scores, axis=1)[:, :_LIMIT]
            best, keys = numpy.take_along_axis(scores, order, 1), numpy.take_along_axis(numbered, order, 1)
    numpy.savez(path.with_suffix(".npz"), questions=questions, keys=keys, texts=numpy.array(_texts(numbers, _QUERIES, words=8)))


def _mixed(seeds: Vectors, numbers: numpy.random.Generator, count: int) -> Vectors:
    one, other = (seeds[numbers.integers(0, len(seeds), count)] for _ in range(2))
    share = numbers.uniform(0.25, 0.75, (count, 1)).astype(numpy.float32)
    noise = numbers.standard_normal((count, WIDTH), dtype=numpy.float32) * (_NOISE / WIDTH**0.5)
    made: Vectors = one * share + other * (1 - share) + noise
    made /= numpy.linalg.norm(made, axis=1, keepdims=True)
    return made


def measured(path: Path) -> dict[str, float]:
    """The figures of the store at `path`, in this process."""
    asked = numpy.load(path.with_suffix(".npz"))
    queries, embedder = asked["texts"].tolist(), Given()
    embedder.vectors = dict(zip(queries, asked["questions"], strict=True))
    before = psutil.Process().memory_info().rss
    started = time.perf_counter()
    with MemoryStore.open(path, embedder=embedder) as store:
        opened = time.perf_counter()
        store.search(NAMESPACE, query=queries[0])
        ready = time.perf_counter()
        hybrid = _milliseconds(lambda query: store.search(NAMESPACE, query=query), queries)
        meaning = _milliseconds(lambda query: store.search(NAMESPACE, query=query, mode=SearchMode.SEMANTIC), queries)
        words = _milliseconds(lambda query: store.search(NAMESPACE, query=query, mode=SearchMode.KEYWORD), queries)
        found = [{int(item.key) for item in store.search(NAMESPACE, query=query, mode=SearchMode.SEMANTIC)} for query in queries]
        after = psutil.Process().memory_info().rss
    hits = sum(len(one & {*keys}) for one, keys in zip(found, asked["keys"].tolist(), strict=True))
    return {
        "search_ms_p50": hybrid,
        "semantic_ms_p50": meaning,
        "keyword_ms_p50": words,
        "recall_of_exact_ten": hits / (_LIMIT * len(queries)),
        "memory_mb": (after - before) / 1e6,
        "file_gb": path.stat().st_size / 1e9,
        "open_s": opened - started,
        "first_search_s": ready - opened,
    }


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]))))
