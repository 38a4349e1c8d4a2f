"""Several processes write to one replica, and others follow."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from postgres_writes import ALL, NOW, Opener, forget, put, put_within, value_of

from nearfar import MemoryStore
from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.protocols import StoreUnavailable
from nearfar.protocols.items import ItemAddress

A = ItemAddress(("notes",), "a")
B = ItemAddress(("notes", "b"), "b")


def test_nobody_writes_while_another_does(opened: Opener) -> None:
    first, second = opened(), opened(patience=0.2)
    with first.transaction() as transaction:
        put_within(transaction, first.device, {A: ({"n": 1}, None)}, Meta())
        with pytest.raises(StoreUnavailable, match="another process is writing"):
            put(second, B, {"n": 2})
        assert second.changes(0, limit=10) == []
    put(second, B, {"n": 2})
    assert [one.address for one in second.changes(0, limit=10)] == [A, B]


def test_more_writers_than_connections_do_not_wait_for_each_other_in_a_circle(opened: Opener) -> None:
    store = MemoryStore(opened(connections=2, patience=5.0))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: store.put(A.namespace, A.key, {"n": n}, ttl=10), range(24)))
    assert store.stats()["items"] == 1


def test_a_follower_misses_no_change_of_concurrent_writers(opened: Opener) -> None:
    writers, follower = [opened() for _ in range(4)], opened()
    done = threading.Event()

    def write(number: int) -> None:
        for count in range(25):
            put(writers[number], ItemAddress(("writer", str(number)), str(count)), {"n": count})

    def follow() -> list[ItemAddress]:
        seen: list[ItemAddress] = []
        position = 0
        while True:
            was_done = done.is_set()
            found = follower.changes(position, limit=7)
            seen += [one.address for one in found]
            position = found[-1].position if found else position
            if was_done and not found:
                return seen

    with ThreadPoolExecutor() as threads:
        following = threads.submit(follow)
        list(threads.map(write, range(4)))
        done.set()
        seen = following.result()
    assert len(seen) == len(set(seen)) == 100


def test_numbers_of_concurrent_writers_have_no_gaps(opened: Opener) -> None:
    engines = [opened() for _ in range(4)]

    def count_up(engine: PostgresEngine) -> None:
        for _ in range(20):
            with engine.transaction() as transaction:
                heads = transaction.heads([A]).get(A, ())
                n = int((heads[0].value or {})["n"]) if heads else 0
                put_within(transaction, engine.device, {A: ({"n": n + 1}, None)}, Meta())

    with ThreadPoolExecutor() as threads:
        list(threads.map(count_up, engines))
    assert value_of(engines[0], A) == {"n": 80}
    with engines[0].transaction() as transaction:
        assert transaction.known() == {engines[0].device: 80}


def test_processes_that_come_first_together_make_one_replica(opened: Opener) -> None:
    with ThreadPoolExecutor() as threads:
        engines = list(threads.map(lambda _: opened(embedder="test/8"), range(4)))
    assert len({engine.device for engine in engines}) == 1


def test_a_write_that_fails_leaves_nothing_behind(engine: PostgresEngine) -> None:
    put(engine, A, {"n": 1})

    def write_and_fail() -> None:
        with engine.transaction() as transaction:
            put_within(transaction, engine.device, {A: ({"n": 2}, None), B: ({"n": 2}, None)}, Meta())
            transaction.set("name", "value")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert value_of(engine, A) == {"n": 1}
    assert value_of(engine, B) is None
    with engine.transaction() as transaction:
        assert transaction.setting("name") is None
        assert transaction.reserve(1, NOW)[0] == 2


def test_what_is_forgotten_is_gone_from_everywhere_but_the_numbers(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "here"})
    forget(engine, [A])
    assert engine.rows([A], ALL) == {}
    assert engine.changes(0, limit=10) == []
    assert engine.operations(0, limit=10) == []
    assert engine.keyword("here", ALL, limit=10) == []
    with engine.transaction() as transaction:
        assert transaction.known() == {engine.device: 1}


def test_names_of_any_length_are_kept(engine: PostgresEngine) -> None:
    long = ItemAddress(tuple("\N{LEOPARD}" * 255 + str(number % 10) for number in range(32)), "\N{LEOPARD}" * 1024)
    put(engine, long, {"n": 1})
    assert value_of(engine, long) == {"n": 1}


def test_numbers_come_back_as_they_were_written(engine: PostgresEngine) -> None:
    value = {"large": 1e22, "negative": -0.0, "small": 5e-324, "whole": 2**63 - 1, "float": 1.0, "int": 1}
    put(engine, A, value)
    assert repr(value_of(engine, A)) == repr(value)
