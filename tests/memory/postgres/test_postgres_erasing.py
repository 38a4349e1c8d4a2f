"""What is deleted leaves the database's files."""

import psycopg
import pytest
from postgres_server import PostgresServer
from postgres_writes import ALL, Opener, forget, put, put_all, unit, value_of

from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.protocols import StoreUnavailable
from nearfar.protocols.items import ItemAddress

CANARY = "zanzibarquokka"
SECRET = ItemAddress(("people", CANARY), CANARY)
OTHERS = [ItemAddress(("people",), str(number)) for number in range(50)]
DIRECTION = unit(1, -1, 1, -1)
"""Of length 1 to the last bit, so that the index has it as it is."""


def files_with(server: PostgresServer, *needles: bytes) -> list[str]:
    """Of the tables and indexes, and of whatever else is not the write-ahead log, which belongs to the server."""
    files = (path for path in server.data.rglob("*") if path.is_file() and "pg_wal" not in path.parts)
    return [path.name for path in files if any(needle in path.read_bytes() for needle in needles)]


def write_secrets(engine: PostgresEngine) -> None:
    put_all(engine, {address: ({"text": f"plain {address.key}"}, unit(1)) for address in OTHERS})
    meta = Meta(user=CANARY, subject=CANARY, agent=CANARY, lineage=(SECRET,))
    for number in range(20):
        put(engine, SECRET, {"text": f"{CANARY} {number}", CANARY: number}, DIRECTION, meta)
        put(engine, ItemAddress(("people",), f"{CANARY}{number}"), {"text": CANARY * 500}, DIRECTION, meta)


def test_nothing_that_was_forgotten_is_in_the_files_of_the_tables(
    postgres_server: PostgresServer, opened: Opener, postgres_database: str
) -> None:
    engine = opened(embedder="test/8")
    write_secrets(engine)
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")
    vector = DIRECTION.astype("<f4").tobytes()
    assert len(files_with(postgres_server, CANARY.encode())) > 3
    assert len(files_with(postgres_server, vector)) > 1
    forget(engine, engine.traces(subject=CANARY))
    engine.scrub()
    assert files_with(postgres_server, CANARY.encode(), vector) == []
    assert len(engine.rows(OTHERS, ALL)) == len(OTHERS)
    assert len(engine.nearest(unit(1), ALL, limit=50)) == 50
    assert len(engine.keyword("plain", ALL, limit=50)) == 50


def test_scrubbing_waits_for_whoever_still_sees_what_was_deleted(opened: Opener, postgres_database: str) -> None:
    engine = opened(patience=0.3)
    put(engine, SECRET, {"text": CANARY})
    with psycopg.connect(postgres_database) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM pg_class")
        forget(engine, [SECRET])
        with pytest.raises(StoreUnavailable, match="another session of the database still sees them"):
            engine.scrub()
    engine.scrub()


def test_the_connection_that_scrubbed_keeps_its_limits(opened: Opener) -> None:
    engine = opened(connections=1, longest=30)
    engine.scrub()
    put(engine, SECRET, {"n": 1})
    assert value_of(engine, SECRET) == {"n": 1}
    with engine._connections.connection() as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("30s",)


def test_traces_are_found_in_heads_and_siblings_alone(engine: PostgresEngine) -> None:
    put(engine, SECRET, {"text": "x"}, meta=Meta(subject="ana"))
    derived, deleted = ItemAddress(("summaries",), "s"), ItemAddress(("people",), "gone")
    put(engine, derived, {"text": "y"}, meta=Meta(lineage=(SECRET,)))
    put(engine, deleted, None, meta=Meta(subject="ana"))
    assert engine.traces(subject="ana") == [deleted, SECRET]
    assert engine.traces(derived_from=[SECRET]) == [derived]
    assert engine.traces(prefix=("people",)) == [deleted, SECRET]
    assert engine.traces(prefix=()) == [deleted, SECRET, derived]
    assert engine.traces() == []
