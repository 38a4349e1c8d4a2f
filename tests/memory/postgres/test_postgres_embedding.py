"""Several processes make the vectors that are missing, none of them twice."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
from postgres_writes import ALL, Opener, put, put_all, unit

from nearfar.orchestrator.memory.engine import Unembedded
from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.protocols.items import ItemAddress

A = ItemAddress(("notes",), "a")
ITEMS = [ItemAddress(("notes",), str(number)) for number in range(30)]


def test_no_row_is_given_to_two_processes(opened: Opener) -> None:
    engines = [opened(embedder="test/8") for _ in range(3)]
    put_all(engines[0], {address: ({"text": address.key}, None) for address in ITEMS})
    with ThreadPoolExecutor() as threads:
        given = list(threads.map(lambda engine: engine.unembedded(limit=10), engines))
    rows = [one.row for rows in given for one in rows]
    assert len(rows) == len(set(rows)) == 30
    assert engines[1].unembedded(limit=50) == given[1]


def test_rows_of_a_process_that_died_are_given_to_another(opened: Opener, postgres_database: str) -> None:
    first, second = opened(embedder="test/8"), opened(embedder="test/8")
    put(first, A, {"text": "a"})
    claimed = first.unembedded(limit=5)
    assert len(claimed) == 1
    assert second.unembedded(limit=5) == []
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("UPDATE nearfar.items SET claimed_until = claimed_until - interval '1 hour'")
    assert second.unembedded(limit=5) == claimed


def test_a_row_waits_until_it_has_its_vectors(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "a"})
    [waiting] = engine.unembedded(limit=5)
    assert waiting.texts == ("a",)
    assert engine.nearest(unit(1), ALL, limit=5) == []
    engine.embed([(waiting, [unit(1)])])
    assert engine.unembedded(limit=5) == []
    assert [hit.row for hit in engine.nearest(unit(1), ALL, limit=5)] == [waiting.row]


def test_vectors_of_what_was_overwritten_meanwhile_are_not_kept(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "old"})
    [old] = engine.unembedded(limit=5)
    put(engine, A, {"text": "new"})
    engine.embed([(old, [unit(1)])])
    assert engine.nearest(unit(1), ALL, limit=5) == []
    assert [one.texts for one in engine.unembedded(limit=5)] == [("new",)]


def test_processes_that_make_the_first_vectors_together_keep_all(opened: Opener) -> None:
    engines = [opened(embedder="test/8") for _ in range(4)]
    put_all(engines[0], {address: ({"text": address.key}, None) for address in ITEMS})
    given = [engine.unembedded(limit=7) for engine in engines]

    def embed(engine: PostgresEngine, rows: list[Unembedded]) -> None:
        engine.embed([(row, [unit(row.row)]) for row in rows])

    with ThreadPoolExecutor() as threads:
        list(threads.map(embed, engines, given))
    assert engines[0].statistics()["vectors"] == 28


def test_a_write_does_not_wait_for_vectors_that_are_being_made(opened: Opener) -> None:
    first, second = opened(embedder="test/8", patience=0.2), opened(embedder="test/8", patience=0.2)
    put(first, A, {"text": "a"})
    first.unembedded(limit=5)
    put(second, A, {"text": "b"})
    assert [one.texts for one in second.unembedded(limit=5)] == [("b",)]
