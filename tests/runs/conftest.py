"""Fixtures for the tests of runs: a store on each database."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from run_stores import Opener

from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task.stores import RunsConfig


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store as one more process would."""
    config = RunsConfig(folder=tmp_path / "runs", keep=3)
    address = request.getfixturevalue("postgres_database") if request.param == "postgres" else None
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(RunStore.open(config, address=address)))


@pytest.fixture
def store(opened: Opener) -> RunStore:
    return opened()
