"""Stores in which agents remember."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nearfar.orchestrator.memory.store import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryStore]:
    """A store that finds by words only."""
    with MemoryStore.open(":memory:" if request.param == "memory" else tmp_path / "memory.db", user="ann", embedder=None) as store:
        yield store
