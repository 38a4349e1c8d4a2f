"""Fixtures for the tests of the engine on Postgres."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

pytest.importorskip("psycopg")
from postgres_writes import Opener

from nearfar.orchestrator.memory.postgres import PostgresEngine


@pytest.fixture
def opened(postgres_database: str) -> Iterator[Opener]:
    """Opens the store of an empty database as one more process would; `embedder="test/8"` makes it one with vectors."""
    with ExitStack() as stack:

        def one_more(**options: Any) -> PostgresEngine:  # noqa: ANN401 - the engine's own
            return stack.enter_context(closing(PostgresEngine(postgres_database, **options)))

        yield one_more


@pytest.fixture
def engine(opened: Opener) -> PostgresEngine:
    return opened(embedder="test/8")
