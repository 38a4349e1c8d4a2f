"""What the store asks of an engine beyond what can be seen through it: all or nothing, dense numbers, operations in order."""

from contextlib import suppress

import pytest
from memory_bench import Clock, concurrent, write_elsewhere

from nearfar import ItemAddress, MemoryStore, Tier
from nearfar.orchestrator.memory.engine import Change, Engine, ItemSelection
from nearfar.orchestrator.memory.merge import succeed
from nearfar.orchestrator.memory.operation import Dot, Meta, tick
from nearfar.orchestrator.memory.vectors import change_of

NOTES = ("notes",)
TEA = ItemAddress(NOTES, "tea")


class Interrupted(Exception):
    """Something went wrong in mid-transaction."""


def write(engine: Engine, clock: Clock, key: str) -> Dot:
    """A write as the store makes it, by hand."""
    address = ItemAddress(NOTES, key)
    with engine.transaction() as transaction:
        sequence, stamp = transaction.reserve(1, clock.time)
        meta = Meta(created_at=clock.time)
        operation = concurrent(address, {"text": key}, device=engine.device, sequence=sequence, clock=stamp, meta=meta)
        transaction.apply([change_of(address, (operation,), now=clock.time, fields=["$"])])
    return operation.dot


def test_an_item_that_is_written_over_in_one_transaction_is_found_by_its_last_words_alone(engine: Engine, clock: Clock) -> None:
    last = None
    with engine.transaction() as transaction:
        for words in ("green tea", "black coffee"):
            sequence, stamp = transaction.reserve(1, clock.time)
            operation = succeed(
                transaction.heads([TEA]).get(TEA, ()),
                dot=Dot(engine.device, sequence),
                clock=stamp,
                address=TEA,
                value={"text": words},
                meta=Meta(),
            )
            transaction.apply([change_of(TEA, (operation,), now=clock.time, fields=["$"])])
            last = operation
    assert [logged.operation for logged in engine.operations(0, limit=10)] == [last]
    assert [len(engine.keyword(word, ItemSelection(now=clock.time), limit=10)) for word in ("tea", "coffee")] == [0, 1]


def test_a_transaction_that_fails_leaves_everything_as_it_was(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    before = (list(store.export()), engine.position(), engine.operations(0, limit=10))
    with suppress(Interrupted), engine.transaction() as transaction:
        transaction.reserve(3, clock.time)
        transaction.learn({"phone": 7}, 1 << 60)
        transaction.set("name", "value")
        transaction.apply([Change(ItemAddress(NOTES, "tea"), (), None)])
        raise Interrupted
    assert (list(store.export()), engine.position(), engine.operations(0, limit=10)) == before
    with engine.transaction() as transaction:
        assert transaction.known() == {engine.device: 1}
        assert transaction.setting("name") is None
        assert transaction.reserve(1, clock.time)[1] < 1 << 60


def test_writes_are_numbered_without_gaps(engine: Engine, clock: Clock) -> None:
    assert [write(engine, clock, key).sequence for key in "abc"] == [1, 2, 3]
    with engine.transaction() as transaction:
        assert transaction.reserve(5, clock.time)[0] == 4
        assert transaction.reserve(1, clock.time)[0] == 9
    with engine.transaction() as transaction:
        assert transaction.known() == {engine.device: 9}


def test_clock_stamps_never_run_backwards(engine: Engine, clock: Clock) -> None:
    stamps: list[int] = []
    for step in (0.0, 1.0, -3600.0, 0.0):
        clock.advance(step)
        with engine.transaction() as transaction:
            _, stamp = transaction.reserve(2, clock.time)
        stamps += [stamp, stamp + 1]
    assert stamps == sorted(set(stamps))
    with engine.transaction() as transaction:
        transaction.learn({}, tick(stamps[-1], clock.time + 7200))
        assert transaction.reserve(1, clock.time)[1] > tick(0, clock.time + 7199)


def test_what_is_known_only_grows(engine: Engine) -> None:
    with engine.transaction() as transaction:
        transaction.learn({"phone": 7, "laptop": 2}, 5)
        transaction.learn({"phone": 3, "tablet": 1}, 4)
    with engine.transaction() as transaction:
        assert transaction.known() == {"phone": 7, "laptop": 2, "tablet": 1}


def test_settings_are_kept_changed_and_removed(engine: Engine) -> None:
    for value in ("one", "zwei ✓", None):
        with engine.transaction() as transaction:
            transaction.set("name", value)
            assert transaction.setting("name") == value
        with engine.transaction() as transaction:
            assert transaction.setting("name") == value
            assert transaction.setting("other") is None


def test_operations_come_in_the_order_in_which_they_were_heard_of(engine: Engine, clock: Clock) -> None:
    write(engine, clock, "a")
    meta = Meta(user="ann", tier=Tier.USER, created_at=clock.time)
    heard = [("b", "phone", 2), ("c", "laptop", 1), ("a", "phone", 1)]
    for key, device, sequence in heard:
        operation = concurrent(ItemAddress(NOTES, key), {"n": 1}, device=device, sequence=sequence, clock=tick(0, clock.time), meta=meta)
        write_elsewhere(engine, operation, now=clock.time)
    found = engine.operations(0, limit=10)
    assert [logged.operation.dot for logged in found] == [
        Dot(engine.device, 1),
        *(Dot(device, sequence) for _, device, sequence in heard),
    ]
    positions = [logged.position for logged in found]
    assert positions == sorted(set(positions))
    assert engine.operations(positions[1], limit=1) == found[2:3]
    assert engine.operations(positions[-1], limit=10) == []


def test_the_log_is_looked_through_for_the_first_write_that_somebody_does_not_know(engine: Engine, clock: Clock) -> None:
    write(engine, clock, "a")
    write(engine, clock, "b")
    heard = concurrent(ItemAddress(NOTES, "c"), {"n": 1}, device="phone", sequence=2, clock=tick(0, clock.time), meta=Meta(user="ann"))
    write_elsewhere(engine, heard, now=clock.time)
    first, second, third = [logged.position for logged in engine.operations(0, limit=10)]
    assert engine.first_unknown(0, {}) == first
    assert engine.first_unknown(first, {}) == second
    assert engine.first_unknown(0, {engine.device: 1, "phone": 7}) == second
    assert engine.first_unknown(0, {engine.device: 2, "phone": 1}) == third
    assert engine.first_unknown(0, {engine.device: 2, "phone": 2}) is None
    assert engine.first_unknown(third, {}) is None


def test_operations_come_back_as_they_were(engine: Engine, clock: Clock) -> None:
    meta = Meta(
        "ann", "near", lineage=(ItemAddress(("a", "b"), "c"),), tier=Tier.USER, subject="bob", valid_from=1.5, ttl=3600.0, index=("x", "y")
    )
    operation = concurrent(
        ItemAddress(NOTES, "a"), {"é": [1, 2.5, None, {}]}, device="phone", sequence=3, clock=tick(0, clock.time), meta=meta
    )
    write_elsewhere(engine, operation, now=clock.time)
    ((_, found, _),) = engine.operations(0, limit=10)
    assert found == operation
    with engine.transaction() as transaction:
        assert transaction.heads([operation.address, ItemAddress(NOTES, "none")]) == {operation.address: (operation,)}


def test_a_number_of_a_row_that_is_gone_is_left_out(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "a", {"text": "tea"})
    store.put(NOTES, "b", {"text": "tea"})
    hits = engine.keyword("tea", ItemSelection(now=clock.time), limit=10)
    store.delete(NOTES, "a")
    rows = engine.numbered([hit.row for hit in hits])
    assert [row.address.key for row in rows.values()] == ["b"]
    assert set(rows) < {hit.row for hit in hits}
    assert engine.numbered([]) == {}


def test_items_are_told_apart_whatever_their_names_are(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    addresses = [
        ItemAddress(("a", "b"), "c"),
        ItemAddress(("a",), "b/c"),
        ItemAddress(("a", "b/c"), "x"),
        ItemAddress(("a/b",), "c"),
        ItemAddress(("a\x01b",), "c"),
        ItemAddress(("a", "b"), "C"),
        ItemAddress(("a", "b "), "c"),
        ItemAddress(("a", "é"), "c"),
        ItemAddress(("a", "e\u0301"), "c"),
    ]
    for number, address in enumerate(addresses):
        store.put(*address, {"n": number})
    assert engine.traces(prefix=()) == sorted(addresses)
    rows = engine.rows(addresses, ItemSelection(now=clock.time))
    assert [rows[address].value["n"] for address in addresses] == list(range(len(addresses)))


@pytest.mark.parametrize("count", [0, 1, 1500])
def test_many_items_are_asked_for_at_once(store: MemoryStore, engine: Engine, clock: Clock, count: int) -> None:
    from langgraph.store.base import PutOp

    store.batch([PutOp(NOTES, str(number), {"n": number}, index=False) for number in range(count)])
    addresses = [ItemAddress(NOTES, str(number)) for number in range(count)]
    assert len(engine.rows(addresses, ItemSelection(now=clock.time))) == count
    with engine.transaction() as transaction:
        assert len(transaction.heads(addresses)) == count


def test_statistics_count_what_is_there(store: MemoryStore) -> None:
    store.put(NOTES, "a", {"text": "tea"})
    store.put(NOTES, "b", {"a": "tea", "b": "milk"}, index=["a", "b"])
    store.put(NOTES, "c", {})
    store.delete(NOTES, "c")
    stats = store.stats()
    assert {name: stats[name] for name in ("items", "deleted", "operations", "conflicts")} == {
        "items": 2,
        "deleted": 1,
        "operations": 3,
        "conflicts": 0,
    }
    assert stats["vectors"] > 0
    assert stats["bytes"] > 0


def test_a_deletion_goes_as_far_as_the_item_did(store: MemoryStore, engine: Engine) -> None:
    for tier in Tier:
        store.put(NOTES, tier.value, {"text": "a"}, tier=tier)
        store.delete(NOTES, tier.value)
    deleted = [operation for _, operation, _ in engine.operations(0, limit=10)]
    assert [(one.value, one.meta.tier) for one in deleted] == [(None, tier) for tier in Tier]


def test_superseding_what_is_not_there_takes_one_number(store: MemoryStore, engine: Engine) -> None:
    for count, value in enumerate(("a", "b"), start=1):
        store.supersede(NOTES, "k", {"text": value})
        with engine.transaction() as transaction:
            assert transaction.known() == {engine.device: 2 * count - 1}
