"""Fixtures for the tests of effects: a run in a store on each database."""

from pathlib import Path

import pytest
from ledgers import Run

from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task.stores import RunsConfig


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str | None:
    """Where Postgres is; None: the runs are in a file."""
    found: str | None = request.getfixturevalue("postgres_database") if request.param == "postgres" else None
    return found


@pytest.fixture
def run(address: str | None, tmp_path: Path) -> Run:
    return Run(lambda: RunStore.open(RunsConfig(folder=tmp_path / "runs"), address=address))
