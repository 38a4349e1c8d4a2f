"""The same tests for every engine, with the same bodies."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Unpack
from uuid import uuid4

import pytest
from memory_bench import Clock, LetterEmbedder, MakeStore, StoreOptions
from postgres_server import PostgresServer

pytest.importorskip("numpy")

from in_memory_engine import InMemoryEngine

from nearfar import MemoryStore, Principal
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.sqlite import SqliteEngine

ENGINES = ("plain", "sqlite", "postgres")
VIEWED = "viewed"
"""SQLite, through the eyes of the store's own user on this device, who sees everything."""
ENCRYPTED = "encrypted"
IN_MEMORY = "memory"
"""SQLite in this process's memory."""
OF_MODULE = {
    "test_memory_bad_input": ("plain",),  # it is the store that refuses, before it asks an engine
    "test_memory_items": (*ENGINES, VIEWED, ENCRYPTED, IN_MEMORY),
    "test_memory_erasing": (*ENGINES, IN_MEMORY),
    "test_memory_filters": (*ENGINES, VIEWED),
    "test_memory_pages": (*ENGINES, VIEWED),
    "test_memory_ttl": (*ENGINES, VIEWED),
}

_EMPTY = """
WITH items AS (DELETE FROM nearfar.items), operations AS (DELETE FROM nearfar.operations), known AS (DELETE FROM nearfar.known),
  settings AS (DELETE FROM nearfar.settings), forgotten AS (DELETE FROM nearfar.forgotten),
  embedders AS (DELETE FROM nearfar.embedders)
UPDATE nearfar.replica SET device = %(device)s, sequence = 0, clock = 0, position = 0, documents = 0, words = 0
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "open_engine" in metafunc.fixturenames:
        metafunc.parametrize("open_engine", OF_MODULE.get(metafunc.module.__name__, ENGINES), indirect=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def embedder() -> LetterEmbedder:
    return LetterEmbedder()


@pytest.fixture
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str | None], Engine]:
    """Opens the database of this test; in memory each is one of its own."""
    path = tmp_path / "memory.db"
    match request.param:
        case "plain":
            return lambda embedder: InMemoryEngine(embedder=embedder)
        case "sqlite" | "viewed":
            return lambda embedder: SqliteEngine(path, embedder=embedder)
        case "memory":
            return lambda embedder: SqliteEngine(":memory:", embedder=embedder)
        case "encrypted":
            pytest.importorskip("sqlcipher3", reason="encryption is an extra")
            return lambda embedder: SqliteEngine(path, embedder=embedder, key=lambda: "correct horse")
        case _:
            postgres = pytest.importorskip("nearfar.orchestrator.memory.postgres", reason="Postgres is an extra")
            address = request.getfixturevalue("emptied_postgres")
            return lambda embedder: postgres.PostgresEngine(address, embedder=embedder)


@pytest.fixture
def emptied_postgres(postgres_server: PostgresServer) -> str:
    """The address of a database with no items. To make all tables anew takes several times as long as most tests."""
    import psycopg

    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('nearfar.replica')").fetchone() != (None,):
            for (number,) in connection.execute("SELECT number FROM nearfar.embedders").fetchall():
                connection.execute(f"DROP TABLE nearfar.vectors_{number}")
            connection.execute(_EMPTY, {"device": uuid4().hex})
    return postgres_server.address()


@pytest.fixture
def engine(open_engine: Callable[[str | None], Engine], embedder: LetterEmbedder) -> Iterator[Engine]:
    with closing(open_engine(embedder.name)) as engine:
        yield engine


@pytest.fixture
def make_store(engine: Engine, clock: Clock, embedder: LetterEmbedder, request: pytest.FixtureRequest) -> MakeStore:
    is_viewed = VIEWED in request.node.name

    def make(**options: Unpack[StoreOptions]) -> MemoryStore:
        options.setdefault("embedder", embedder)
        options.setdefault("user", "ann")
        store = MemoryStore(engine, now=clock, **options)
        return store.view(Principal(options["user"], engine.device)) if is_viewed else store

    return make


@pytest.fixture
def store(make_store: MakeStore) -> MemoryStore:
    return make_store()
