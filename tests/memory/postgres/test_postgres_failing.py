"""What goes wrong with a database: the server away or started anew, the wrong schema, no rights, no pgvector."""

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest
from postgres_server import PostgresServer, installed, running
from postgres_writes import ALL, Opener, put, unit, value_of

from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.protocols import ConfigError, InvalidRequest, StoreCorrupt, StoreError, StoreUnavailable, SyncRefused
from nearfar.protocols.items import ItemAddress

A = ItemAddress(("notes",), "a")
PASSWORD = "horse/staple"


def run(address: str, statement: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture
def plain_user(postgres_server: PostgresServer, postgres_database: str) -> Iterator[str]:
    """The address of the database as its owner, who is nobody special and has a password."""
    name = f"user_{uuid4().hex}"
    rules = postgres_server.data / "pg_hba.conf"
    before = rules.read_text(encoding="utf-8")
    rules.write_text(f"local all {name} scram-sha-256\n{before}", encoding="utf-8")
    database = psycopg.conninfo.conninfo_to_dict(postgres_database)["dbname"]
    run(postgres_database, f"CREATE USER {name} PASSWORD '{PASSWORD}'")
    run(postgres_database, f"ALTER DATABASE {database} OWNER TO {name}")
    run(postgres_database, "SELECT pg_reload_conf()")
    yield postgres_server.address(str(database), user=name, password=PASSWORD.replace("/", "%2F"))
    rules.write_text(before, encoding="utf-8")
    run(postgres_database, f"ALTER DATABASE {database} OWNER TO postgres")
    run(postgres_database, f"DROP OWNED BY {name} CASCADE")
    run(postgres_database, f"DROP USER {name}")
    run(postgres_database, "SELECT pg_reload_conf()")


def test_a_server_that_was_started_anew_is_used_again(postgres_server: PostgresServer, opened: Opener) -> None:
    engine = opened()
    put(engine, A, {"n": 1})
    postgres_server.stop()
    postgres_server.start()
    assert value_of(engine, A) == {"n": 1}
    put(engine, A, {"n": 2})
    assert value_of(engine, A) == {"n": 2}


def test_while_the_server_is_away_each_call_says_so_soon(postgres_server: PostgresServer, opened: Opener) -> None:
    engine = opened(patience=0.5)
    put(engine, A, {"n": 1})
    postgres_server.stop()
    try:
        calls: list[Callable[[], object]] = [lambda: value_of(engine, A), lambda: put(engine, A, {"n": 2}), engine.scrub]
        for call in calls:
            with pytest.raises(StoreUnavailable, match="check that the server is up"):
                call()
        with pytest.raises(StoreUnavailable, match="cannot connect to Postgres"):
            opened(patience=0.5)
    finally:
        postgres_server.start()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            assert value_of(engine, A) == {"n": 1}
            return
        except StoreUnavailable:
            continue  # an attempt to connect that began while the server was away
    pytest.fail("the engine does not come back")


def test_a_crash_loses_nothing_that_was_acknowledged(postgres_server: PostgresServer, opened: Opener) -> None:
    engine = opened()
    acknowledged: list[int] = []
    stopped = threading.Event()

    def write() -> None:
        try:
            for number in range(10_000):
                put(engine, ItemAddress(("n",), str(number)), {"n": number})
                acknowledged.append(number)
                stopped.set()
        except StoreUnavailable:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    stopped.wait(10)
    postgres_server.stop()
    postgres_server.start()
    writer.join(30)
    wanted = [ItemAddress(("n",), str(number)) for number in acknowledged]
    assert len(engine.rows(wanted, ALL)) == len(wanted) > 0


def test_a_connection_that_was_cut_is_replaced(opened: Opener, postgres_database: str) -> None:
    engine = opened()
    put(engine, A, {"n": 1})
    run(postgres_database, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'nearfar'")
    assert value_of(engine, A) == {"n": 1}


def test_a_transaction_whose_connection_is_cut_is_not_acknowledged(opened: Opener, postgres_database: str) -> None:
    engine = opened()

    def write_and_lose() -> None:
        with engine.transaction() as transaction:
            transaction.set("name", "value")
            run(postgres_database, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'nearfar'")
            transaction.reserve(1, 0)

    with pytest.raises(StoreUnavailable):
        write_and_lose()
    with engine.transaction() as transaction:
        assert transaction.setting("name") is None


def test_who_finds_all_connections_taken_does_not_wait_for_ever(opened: Opener) -> None:
    engine = opened(connections=1, patience=0.2)
    with engine.transaction(), ThreadPoolExecutor(1) as others:
        with pytest.raises(StoreUnavailable, match=r"no connection to Postgres within 0\.2 s"):
            others.submit(engine.rows, [A], ALL).result()
        assert engine.rows([A], ALL) == {}  # whoever has the connection reads by it


def test_a_statement_that_takes_too_long_is_ended(opened: Opener) -> None:
    engine = opened(longest=0.05)
    with pytest.raises(StoreUnavailable, match="took too long"), engine._connections.connection() as connection:
        connection.execute("SELECT pg_sleep(60)")


def test_a_server_that_takes_no_writes_is_told(opened: Opener, postgres_database: str) -> None:
    opened().close()
    database = psycopg.conninfo.conninfo_to_dict(postgres_database)["dbname"]
    run(postgres_database, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="connect to the primary one"):
        put(opened(), A, {"n": 1})


def test_an_engine_is_not_used_after_a_fork(opened: Opener) -> None:
    engine = opened()
    put(engine, A, {"n": 1})
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.rows([A], ALL)
        except StoreUnavailable as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        assert "before this process was forked" in answer.read()
    os.waitpid(child, 0)
    assert value_of(engine, A) == {"n": 1}


def test_tables_of_a_newer_version_are_refused(opened: Opener, postgres_database: str) -> None:
    opened().close()
    run(postgres_database, "UPDATE nearfar.replica SET version = 99")
    with pytest.raises(SyncRefused, match="has version 99.*update nearfar"):
        opened()


def test_a_schema_of_another_program_is_left_alone(opened: Opener, postgres_database: str) -> None:
    run(postgres_database, "CREATE SCHEMA theirs; CREATE TABLE theirs.items (n integer)")
    with pytest.raises(StoreCorrupt, match="another program"):
        opened(schema="theirs")


@pytest.mark.parametrize("statement", ["DROP TABLE nearfar.items CASCADE", "DELETE FROM nearfar.replica"])
def test_a_store_that_lost_a_part_is_called_damaged(opened: Opener, postgres_database: str, statement: str) -> None:
    engine = opened()
    run(postgres_database, statement)
    with pytest.raises(StoreCorrupt):
        put(engine, A, {"n": 1})


def test_an_item_that_is_damaged_is_not_shown_as_something_else(opened: Opener, postgres_database: str) -> None:
    engine = opened()
    put(engine, A, {"n": 1})
    run(postgres_database, "UPDATE nearfar.items SET content = '[]'; UPDATE nearfar.operations SET payload = 'x'")
    with pytest.raises(StoreCorrupt):
        engine.rows([A], ALL)
    with pytest.raises(StoreCorrupt):
        engine.operations(0, limit=1)


def test_text_that_postgres_cannot_keep_is_refused(opened: Opener) -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        put(opened(), ItemAddress(("notes",), "a\0"), {"n": 1})


@pytest.mark.parametrize("schema", ["", "Upper", "a-b", 'a"; DROP TABLE x; --', "a" * 42])
def test_a_schema_has_a_plain_name(opened: Opener, schema: str) -> None:
    with pytest.raises(ConfigError, match="name of a schema"):
        opened(schema=schema)


def test_several_stores_live_in_one_database(opened: Opener) -> None:
    first, second = opened(schema="first"), opened(schema="second")
    put(first, A, {"n": 1})
    assert value_of(second, A) is None
    assert first.device != second.device


def test_a_user_without_special_rights_can_have_a_store(plain_user: str) -> None:
    with closing(PostgresEngine(plain_user)) as engine:
        put(engine, A, {"text": "some words"})
        engine.scrub()
        assert len(engine.keyword("words", ALL, limit=5)) == 1


def test_without_pgvector_the_store_says_so_and_still_finds_words(plain_user: str) -> None:
    with pytest.raises(ConfigError, match=r"no pgvector.*CREATE EXTENSION vector"):
        PostgresEngine(plain_user, embedder="test/8")
    with closing(PostgresEngine(plain_user)) as engine:
        put(engine, A, {"text": "some words"})
        assert len(engine.keyword("words", ALL, limit=5)) == 1
        assert engine.nearest(unit(1), ALL, limit=5) == []
        assert engine.unembedded(limit=5) == []


def test_an_older_postgres_without_the_extension_does_as_well() -> None:
    programs = installed(with_vectors=False)
    if programs is None:
        pytest.skip("every Postgres on this machine has pgvector")
    with running(programs) as server:
        with pytest.raises(ConfigError, match="no pgvector"):
            PostgresEngine(server.address(), embedder="test/8")
        with closing(PostgresEngine(server.address())) as engine:
            put(engine, A, {"text": "some words"})
            assert len(engine.keyword("words", ALL, limit=5)) == 1


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ana:{PASSWORD}@/database",
        f"host=/nowhere user=ana password={PASSWORD}",
        f"postgresql://ana:@{PASSWORD}@localhost:1/database",
        f"postgresql://ana:{PASSWORD}",
        f"postgresql://ana:{PASSWORD.replace('/', '%2F')}@localhost:1/database",
        f"password '{PASSWORD}'",
    ],
)
def test_no_error_shows_a_password(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises((ConfigError, StoreError)) as raised:
        PostgresEngine(address, patience=0.5)
    assert "staple" not in shown(raised.value).replace(address, "") + caplog.text
    assert "staple" not in str(raised.value)


def test_a_wrong_password_is_told_without_it(plain_user: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreUnavailable, match="password authentication failed") as raised:
        PostgresEngine(plain_user.replace("staple", "battery"))
    assert "battery" not in str(raised.value) + caplog.text
