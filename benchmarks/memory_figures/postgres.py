"""The store on Postgres compared with LangGraph's own, on one server that is started for it, durable, and with a cache for all of it."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy
from langgraph.store.base import BaseStore, PutOp

from nearfar import MemoryStore, SearchMode

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from postgres_server import PostgresServer, installed, running

WIDTH: Final = 384
_USERS: Final = 100
_TOPICS: Final = 50
_VOCABULARY: Final = 5_000
_WORDS: Final = 24
_LIMIT: Final = 10
_QUERIES: Final = 40
_SERVER: Final = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on", "shared_buffers": "1GB"}
_NAMES: Final = ("put_ms_p50", "hybrid_ms_p50", "vector_ms_p50", "vector_vs_langgraph", "narrow_rows", "langgraph_narrow_rows")


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Of 10,000 items, or 1,500 if `quick`; `data` is not needed."""
    programs = installed(with_vectors=True)
    if programs is None or find_spec("langgraph.store.postgres") is None:
        missing = "needs a Postgres with pgvector and langgraph-checkpoint-postgres"
        return {f"postgres_{name}": None for name in _NAMES} | {"postgres_missing": missing}
    with running(programs, **_SERVER) as server:
        found = _measured(server, Notes(1_500 if quick else 10_000))
    return {f"postgres_{name}": value for name, value in found.items()}


class Notes:
    """Made-up notes of many users, and vectors that lie around topics, as an embedder that has them all by heart."""

    name = "benchmark/384"
    width = WIDTH

    def __init__(self, count: int) -> None:
        dice = numpy.random.default_rng(7)
        words = numpy.minimum(dice.zipf(1.3, (count, _WORDS)), _VOCABULARY)
        self.texts = [" ".join(f"word{word}" for word in row) for row in words]
        topics = dice.standard_normal((_TOPICS, WIDTH))
        vectors = topics[numpy.arange(count) % _TOPICS] + 0.7 * dice.standard_normal((count, WIDTH))
        unit = (vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)).astype(numpy.float32)
        self.queries = [" ".join(text.split()[:4]) for text in self.texts[:: max(1, count // _QUERIES)]][:_QUERIES]
        self._vectors = dict(zip(self.texts + self.queries, [*unit, *unit[:: max(1, count // _QUERIES)]], strict=False))

    def embed_all(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 - an array of numpy
        return numpy.stack([self._vectors[text] for text in texts])

    def embed_for_langgraph(self, texts: Sequence[str]) -> list[list[float]]:
        made: list[list[float]] = self.embed_all(texts).tolist()
        return made

    def batches(self) -> Iterator[list[PutOp]]:
        puts = [PutOp(("notes", f"user{number % _USERS}"), str(number), {"text": text}) for number, text in enumerate(self.texts)]
        return (puts[start : start + 500] for start in range(0, len(puts), 500))


def _measured(server: PostgresServer, notes: Notes) -> dict[str, Any]:
    queries = notes.queries
    with closing(MemoryStore.open(server.address(), embedder=notes, index=None)) as ours, _langgraph(server, notes) as theirs:
        for batch in notes.batches():
            ours.batch(batch)
            theirs.batch(batch)
        _analyze(server)
        vector_ms = _median_ms(lambda query: ours.search(("notes",), query=query, limit=_LIMIT, mode=SearchMode.SEMANTIC), queries)
        langgraph_ms = _median_ms(lambda query: theirs.search(("notes",), query=query, limit=_LIMIT), queries)
        return {
            "items": len(notes.texts),
            "put_ms_p50": _median_ms(lambda query: ours.put(("more",), query, {"text": query}), queries),
            "hybrid_ms_p50": _median_ms(lambda query: ours.search(("notes",), query=query, limit=_LIMIT), queries),
            "vector_ms_p50": vector_ms,
            "vector_vs_langgraph": langgraph_ms / vector_ms,
            "narrow_rows": _rows_of_one_user(ours, queries),
            "langgraph_narrow_rows": _rows_of_one_user(theirs, queries),
        }


@contextmanager
def _langgraph(server: PostgresServer, notes: Notes) -> Iterator[BaseStore]:
    from langgraph.store.postgres import PostgresStore

    index: Any = {"dims": WIDTH, "embed": notes.embed_for_langgraph, "fields": ["text"]}
    with PostgresStore.from_conn_string(server.address(), index=index) as store:
        store.setup()
        yield store


def _analyze(server: PostgresServer) -> None:
    """What autovacuum would do within a minute."""
    import psycopg

    with psycopg.connect(server.address(), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _rows_of_one_user(store: BaseStore, queries: Sequence[str]) -> float:
    """Mean number of rows that a search for ten in the notes of one user comes back with; each has at least 15."""
    return statistics.fmean(
        len(store.search(("notes", f"user{number}"), query=query, limit=_LIMIT)) for number, query in enumerate(queries)
    )


def _median_ms(call: Callable[[str], object], queries: Sequence[str]) -> float:
    def seconds(query: str) -> float:
        started = time.perf_counter()
        call(query)
        return time.perf_counter() - started

    return 1000 * statistics.median(seconds(query) for query in queries)
