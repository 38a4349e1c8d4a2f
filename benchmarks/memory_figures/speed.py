"""How long searches and writes take, compared with LangGraph's own stores, and whether several processes get into each other's way.

Texts are 30 words of a vocabulary of 30,000, as often as words of a language are (the k-th most frequent one 1/k times as often as the
first); queries are 8 words drawn in the same way, each asked once. Vectors are random, and looked up: the time of an embedder is no
part of any figure. Every figure is through the store's public interface, but for those of plain FTS5, which ranks all items with any of the
words, and plain numpy, which compares all vectors: they tell how fast the machine is at the moment.
"""

import contextlib
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import numpy
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from numpy.typing import NDArray

from nearfar import MemoryStore, SearchMode
from nearfar.protocols import StoreError, VersionConflict

WIDTH: Final = 384
NAMESPACE: Final = ("documents", "notes")
VOCABULARY: Final = 30_000
PROCESSES: Final = 4
_AT_ONCE: Final = 1000
_LIMIT: Final = 10


class LookedUp:
    """Vectors that are made before anything is measured."""

    name = f"looked up/{WIDTH}"
    width = WIDTH

    def __init__(self, texts: Sequence[str], numbers: numpy.random.Generator) -> None:
        vectors = numbers.standard_normal((len(texts), WIDTH), dtype=numpy.float32)
        self._vectors = dict(zip(texts, vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True), strict=True))

    def embed_all(self, texts: Sequence[str]) -> NDArray[numpy.float32]:
        return numpy.stack([self._vectors[text] for text in texts])

    def as_lists(self, texts: Sequence[str]) -> list[list[float]]:
        """As LangGraph wants them. Its SqliteStore asks for the whole item, whatever its `fields` are."""
        plain = [json.loads(text)["text"] if text.startswith("{") else text for text in texts]
        vectors: list[list[float]] = self.embed_all(plain).tolist()
        return vectors


class _Batched(Protocol):
    def batch(self, ops: Sequence[PutOp]) -> object: ...


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """With `quick`, the store of 100,000 items is left out."""
    numbers = numpy.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        found = _small(Path(folder), numbers, rounds=100 if quick else 400, others=5 if quick else 20)
        searches = {"10k": found.pop("search"), "100k": None if quick else _large(Path(folder), numbers)}
        reason = {"search_100k_left_out": "--quick"} if quick else {}
        return {"search_ms_p50": searches, **reason, **found, **_several_processes(Path(folder), 50 if quick else 250)}


def _small(folder: Path, numbers: numpy.random.Generator, *, rounds: int, others: int) -> dict[str, Any]:
    """With so many puts, and searches of other stores, of which some are slow."""
    texts, queries = _texts(numbers, 10_000 + rounds), _texts(numbers, 100, words=8)
    embedder = LookedUp([*texts, *queries], numbers)
    index: Any = {"dims": WIDTH, "embed": embedder.as_lists, "fields": ["text"]}
    with MemoryStore.open(folder / "small.db", embedder=embedder) as ours:
        _fill(ours, texts[:10_000])
        hybrid = _milliseconds(lambda query: ours.search(NAMESPACE, query=query), queries)
        vectors = _milliseconds(lambda query: ours.search(NAMESPACE, query=query, mode=SearchMode.SEMANTIC), queries)
        put = _milliseconds(lambda text: ours.put(("written",), text[:40], {"text": text}), texts[10_000:])
    alone = _alone(texts[:10_000], embedder, queries, others)
    in_memory = _milliseconds_of(InMemoryStore(index=index), texts[:10_000], queries[:others])
    with contextlib.closing(_connection(folder / "theirs.db")) as connection:
        theirs = SqliteStore(connection, index=index)
        theirs.setup()
        sqlite = _milliseconds_of(theirs, texts[:10_000], queries[:others])
    return {
        "search": hybrid,
        "search_alone_ms_p50": alone,
        "vector_search_ms_p50": {"nearfar": vectors, "sqlitestore": sqlite, "inmemorystore": in_memory},
        "vs_sqlitestore": sqlite / vectors,
        "vs_inmemorystore": in_memory / vectors,
        "put_ms_p50": put,
    }


def _alone(texts: Sequence[str], embedder: LookedUp, queries: Sequence[str], others: int) -> dict[str, float]:
    """Ten of the texts by plain FTS5, in memory, and by plain numpy."""
    matrix = embedder.embed_all(texts)

    def by_meaning(query: str) -> list[int]:
        scores = matrix @ embedder.embed_all([query])[0]
        best = numpy.argpartition(scores, -_LIMIT)[-_LIMIT:]
        found: list[int] = best[numpy.argsort(-scores[best])].tolist()
        return found

    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize='porter unicode61')")
        connection.executemany("INSERT INTO words VALUES (?)", ((text,) for text in texts))

        def by_words(query: str) -> list[tuple[int]]:
            either = " OR ".join(query.split())
            return connection.execute(f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT {_LIMIT}", (either,)).fetchall()

        return {"fts5": _milliseconds(by_words, queries[:others]), "numpy": _milliseconds(by_meaning, queries)}


def _connection(path: Path) -> sqlite3.Connection:
    """As LangGraph's store opens it; where Python's own cannot load extensions, with the SQLite of sqlcipher3, and no encryption."""
    module: Any = sqlite3 if hasattr(sqlite3.Connection, "enable_load_extension") else import_module("sqlcipher3.dbapi2")
    connection: sqlite3.Connection = module.connect(str(path), check_same_thread=False, isolation_level=None)
    return connection


def _large(folder: Path, numbers: numpy.random.Generator) -> float:
    texts, queries = _texts(numbers, 100_000), _texts(numbers, 100, words=8)
    with MemoryStore.open(folder / "large.db", embedder=LookedUp([*texts, *queries], numbers)) as store:
        _fill(store, texts)
        return _milliseconds(lambda query: store.search(NAMESPACE, query=query), queries)


def _milliseconds_of(store: Any, texts: Sequence[str], queries: Sequence[str]) -> float:  # noqa: ANN401  # any of LangGraph's stores
    _fill(store, texts)
    return _milliseconds(lambda query: store.search(NAMESPACE, query=query), queries)


def _fill(store: _Batched, texts: Sequence[str]) -> None:
    for first in range(0, len(texts), _AT_ONCE):
        store.batch([PutOp(NAMESPACE, f"{first + place}", {"text": text}) for place, text in enumerate(texts[first : first + _AT_ONCE])])


def _milliseconds(call: Callable[[str], object], inputs: Sequence[str], clock: Callable[[], float] = time.perf_counter) -> float:
    """The median, after a first call that is not counted."""
    call(inputs[0])
    times = []
    for one in inputs:
        started = clock()
        call(one)
        times.append(clock() - started)
    return float(numpy.median(times)) * 1000


def _texts(numbers: numpy.random.Generator, count: int, words: int = 30) -> list[str]:
    weights = 1 / numpy.arange(1, VOCABULARY + 1)
    ranks = numbers.choice(VOCABULARY, size=(count, words), p=weights / weights.sum())
    return [" ".join(f"word{rank}" for rank in line) for line in ranks]


def _several_processes(folder: Path, rounds: int) -> dict[str, Any]:
    """Each counts in the same three items, by compare-and-set, and puts items of its own."""
    path = str(folder / "shared.db")
    command = [sys.executable, "-m", "benchmarks.memory_figures.speed", path, str(rounds)]
    started = time.monotonic()
    writers = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) for number in range(PROCESSES)
    ]
    reports = [json.loads(writer.communicate()[0]) for writer in writers]
    seconds = time.monotonic() - started
    with MemoryStore.open(path, embedder=None) as store:
        counted = sum(item.value["count"] for item in store.search(("counters",)))
        kept = store.engine.statistics()["items"]
    expected = PROCESSES * rounds
    return {
        "lock_errors": sum(report["errors"] for report in reports),
        "lost_updates": 2 * expected - counted - (kept - 3),
        "processes_writes_per_s": round(2 * expected / seconds),
    }


def _write(path: str, rounds: int, name: str) -> None:
    """One of the processes."""
    errors = 0
    with MemoryStore.open(path, embedder=None) as store:
        for number in range(rounds):
            try:
                _count_up(store, f"{number % 3}")
                store.put(("own", name), f"{number}", {"text": f"item {number} of {name}"})
            except StoreError:
                errors += 1
    print(json.dumps({"errors": errors}))


def _count_up(store: MemoryStore, key: str) -> None:
    while True:
        item = store.get(("counters",), key)
        try:
            if item is None:
                store.put(("counters",), key, {"count": 1}, if_version="absent")
            else:
                store.put(("counters",), key, {"count": item.value["count"] + 1}, if_version=item.version)
        except VersionConflict:
            continue
        return


if __name__ == "__main__":
    _write(sys.argv[1], int(sys.argv[2]), sys.argv[3])
