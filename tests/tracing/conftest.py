"""Fixtures for the tests of traces."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import TraceStore, open_traces


@pytest.fixture
def config(tmp_path: Path) -> RunsConfig:
    return RunsConfig(folder=tmp_path / "runs")


@pytest.fixture
def traces(config: RunsConfig) -> Iterator[TraceStore]:
    with closing(open_traces(config)) as store:
        yield store
