"""Stores with something to be consolidated, and a clock that the tests move."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_memory_engine import InMemoryEngine
from nights import Clock, Night

from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.store import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def night(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Night]:
    """A store that finds by words only, with nothing in it."""
    clock = Clock()
    engine = InMemoryEngine() if request.param == "memory" else SqliteEngine(tmp_path / "memory.db")
    with MemoryStore(engine, user="ann", now=clock) as store:
        yield Night(store, clock)
