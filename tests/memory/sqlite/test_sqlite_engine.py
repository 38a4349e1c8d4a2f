"""The SQLite engine: what is its own. What all engines do is in the conformance suite."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sqlite_writes import ALL, NOW, forget, put, put_within, value_of, vector

from nearfar.orchestrator.memory.engine import ItemSelection
from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.sqlite.search import phrases
from nearfar.orchestrator.memory.sqlite.tables import decode_namespace, encode_namespace, end_of_prefix, namespace_range
from nearfar.orchestrator.memory.sqlite.transaction import SqliteTransaction
from nearfar.protocols import InvalidRequest, StoreUnavailable
from nearfar.protocols.items import ItemAddress

LABELS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x00\x01\x02\x03\x04a.%_"), max_size=3)
NAMESPACES = st.lists(LABELS, max_size=4).map(tuple)
A = ItemAddress(("notes",), "a")
B = ItemAddress(("notes", "b"), "b")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    opened = SqliteEngine(tmp_path / "memory" / "memory.db", embedder="test/8")
    yield opened
    opened.close()


def put_twice(transaction: SqliteTransaction, device: str) -> None:
    put_within(transaction, device, A, {"text": "gone"}, meta=Meta())
    put_within(transaction, device, B, {"text": "two vectors for one text"}, meta=Meta(), vectors=[vector(1), vector(1)])


@given(NAMESPACES, NAMESPACES)
def test_namespaces_are_encoded_in_their_own_order_and_each_differently(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    assert (encode_namespace(first) < encode_namespace(second)) == (first < second)
    assert decode_namespace(encode_namespace(first)) == first


@given(NAMESPACES.filter(bool), NAMESPACES)
def test_a_range_of_namespaces_holds_exactly_what_is_in_or_below_one(prefix: tuple[str, ...], namespace: tuple[str, ...]) -> None:
    for candidate in (namespace, prefix + namespace):
        start, end = namespace_range(prefix)
        assert (start <= encode_namespace(candidate) < end) == (candidate[: len(prefix)] == prefix)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_the_end_of_a_prefix_is_behind_all_that_begin_with_it_and_nothing_else(prefix: str, other: str) -> None:
    end = end_of_prefix(prefix)
    for candidate in (other, prefix + other):
        assert (prefix <= candidate and (end is None or candidate < end)) == candidate.startswith(prefix)


def test_only_the_owner_can_read_the_files(engine: SqliteEngine, tmp_path: Path) -> None:
    put(engine, A, {"text": "mine"})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "memory").iterdir()}
    assert modes == {"memory.db": 0o600, "memory.db-wal": 0o600, "memory.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700


def test_permissions_of_others_are_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    SqliteEngine(path).close()
    path.chmod(0o644)
    SqliteEngine(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    os.symlink(target, tmp_path / "memory.db")
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        SqliteEngine(tmp_path / "memory.db")
    assert not target.exists()


def test_what_was_written_is_there_after_opening_again_under_the_same_device(tmp_path: Path) -> None:
    first = SqliteEngine(tmp_path / "memory.db")
    put(first, A, {"text": "kept"})
    first.close()
    second = SqliteEngine(tmp_path / "memory.db")
    assert (second.device, value_of(second, A)) == (first.device, {"text": "kept"})
    second.close()


def test_an_error_within_a_transaction_leaves_nothing_of_it(engine: SqliteEngine) -> None:
    with pytest.raises(InvalidRequest), engine.transaction() as transaction:
        put_twice(transaction, engine.device)
    assert value_of(engine, A) is None
    assert engine.keyword("gone", ALL, limit=10) == []
    with engine.transaction() as transaction:
        assert transaction.reserve(1, NOW)[0] == 1


def test_a_closed_engine_says_so(engine: SqliteEngine) -> None:
    engine.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        engine.rows([A], ALL)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Crème brûlée at the café", "creme CAFE"),
        ("我们在北京大学见面", "北京大学"),
        ("明日は東京タワーへ行く", "東京タワー"),
        ("ผมชอบข้าวผัด", "ข้าวผัด"),
        ("She was running late", "runs"),
    ],
)
def test_words_are_found_in_every_script(engine: SqliteEngine, text: str, query: str) -> None:
    put(engine, A, {"text": "something else altogether, 大北"})
    put(engine, B, {"text": text})
    (hit, *_) = engine.keyword(query, ALL, limit=10)
    assert engine.numbered([hit.row])[hit.row].address == B


@given(st.text())
def test_every_text_is_a_valid_query(query: str) -> None:
    assert all(phrase.count('"') == 2 for phrase in phrases(query))


@pytest.mark.parametrize(
    "query", ['"', "a AND", "NEAR(", "text:", "*", "-a", "^", "()", "\x00", "a" * 100_000, "_ _", "'; DROP TABLE items"]
)
def test_what_is_syntax_to_fts5_is_text_in_a_query(engine: SqliteEngine, query: str) -> None:
    put(engine, A, {"text": "nothing of that"})
    assert engine.keyword(query, ALL, limit=10) == []


def test_an_overwritten_text_is_found_no_longer_by_word_nor_by_meaning(engine: SqliteEngine) -> None:
    put(engine, A, {"text": "secret"}, vectors=[vector(1)])
    assert [hit.score for hit in engine.nearest(vector(1), ALL, limit=10)] == [1.0]
    put(engine, A, {"text": "public"})
    assert engine.nearest(vector(1), ALL, limit=10) == []
    assert engine.keyword("secret", ALL, limit=10) == []
    assert len(engine.keyword("public", ALL, limit=10)) == 1


def test_another_engine_on_the_same_file_follows_vectors(engine: SqliteEngine, tmp_path: Path) -> None:
    other = SqliteEngine(tmp_path / "memory" / "memory.db", embedder="test/8")
    put(engine, A, {"text": "a"}, vectors=[vector(1)])
    put(engine, B, {"text": "b"}, vectors=[vector(0, 1)])
    assert len(other.nearest(vector(1), ALL, limit=10)) == 2
    put(engine, B, {"text": "b"}, vectors=[vector(1, 1)])
    forget(engine, A)
    ((_, score),) = other.nearest(vector(1), ALL, limit=10)
    assert score == pytest.approx(0.5**0.5)
    other.close()


def test_a_narrow_selection_still_gives_as_many_as_are_asked_for(engine: SqliteEngine) -> None:
    for number in range(200):
        put(engine, ItemAddress(("wide",), str(number)), {"text": "near words"}, vectors=[vector(1, number / 1000)])
    for number in range(3):
        put(engine, ItemAddress(("narrow",), str(number)), {"text": "near but far away words"}, vectors=[vector(0, 1, number / 10)])
    narrow = ItemSelection(now=NOW, prefix=("narrow",))
    hits = engine.nearest(vector(1), narrow, limit=3)
    assert {row.address.namespace for row in engine.numbered([hit.row for hit in hits]).values()} == {("narrow",)}
    assert len(hits) == len(engine.keyword("near", narrow, limit=3)) == 3


def test_an_item_counts_once_and_by_its_best_passage(engine: SqliteEngine) -> None:
    put(engine, A, {"text": "a"}, vectors=[vector(1)])
    put(engine, B, {"text": "b"})
    (waiting,) = engine.unembedded(limit=10)
    engine.embed([(waiting, [vector(0.6, 0.8)])])
    assert engine.unembedded(limit=10) == []
    assert [round(hit.score, 2) for hit in engine.nearest(vector(0.6, 0.8), ALL, limit=10)] == [1.0, 0.6]


def test_vectors_of_another_embedder_are_left_alone_and_made_anew(engine: SqliteEngine, tmp_path: Path) -> None:
    put(engine, A, {"text": "a"}, vectors=[vector(1)])
    other = SqliteEngine(tmp_path / "memory" / "memory.db", embedder="other/4")
    assert other.nearest(vector(1, width=4), ALL, limit=10) == []
    other.embed([(waiting, [vector(1, width=4)]) for waiting in other.unembedded(limit=10)])
    assert len(other.nearest(vector(1, width=4), ALL, limit=10)) == len(engine.nearest(vector(1), ALL, limit=10)) == 1
    assert engine.unembedded(limit=10) == []
    other.close()


@pytest.mark.parametrize("vectors", [[vector(1, width=4)], [], [vector(1), vector(1)]])
def test_vectors_of_the_wrong_width_or_number_are_refused(engine: SqliteEngine, vectors: list[object]) -> None:
    put(engine, A, {"text": "a"}, vectors=[vector(1)])
    with pytest.raises(InvalidRequest):
        put(engine, A, {"text": "b"}, vectors=vectors)  # type: ignore[arg-type]  # the parameters of a test are objects
    assert value_of(engine, A) == {"text": "a"}
    with pytest.raises(InvalidRequest, match="width"):
        engine.nearest(vector(1, width=4), ALL, limit=10)


def test_pages_by_word_fit_together_and_reach_the_last_item_in_a_store_of_many(engine: SqliteEngine) -> None:
    with engine.transaction() as transaction:
        for number in range(700):
            text = "common " * (number % 7 + 1) + ("rare " if number % 100 == 0 else "") + ("other " if number % 2 else "")
            put_within(transaction, engine.device, ItemAddress(("many",), str(number)), {"text": text}, meta=Meta())
    whole = engine.keyword("common other rare nowhere", ALL, limit=10_000)
    assert len({hit.row for hit in whole}) == len(whole) == 700
    assert [hit.score for hit in whole] == sorted((hit.score for hit in whole), reverse=True)
    assert {row.value["text"].count("rare") for row in engine.numbered([hit.row for hit in whole[:7]]).values()} == {1}
    for limit in (1, 10, 350, 699):
        assert engine.keyword("common other rare nowhere", ALL, limit=limit) == whole[:limit]


def test_the_nearest_of_thousands_are_those_of_a_comparison_with_each_while_items_come_and_go(engine: SqliteEngine) -> None:
    numbers = numpy.random.default_rng(0)
    kept: dict[ItemAddress, NDArray[numpy.float32]] = {}
    for first in range(0, 6_000, 1_500):
        written = [ItemAddress(("many",), str(number)) for number in range(max(0, first - 300), first + 1_500)]  # some once more
        kept |= {address: vector(*numbers.standard_normal(8)) for address in written}
        with engine.transaction() as transaction:
            for address in written:
                put_within(transaction, engine.device, address, {"text": "a"}, meta=Meta(), vectors=[kept[address]])
        gone = written[:100]
        forget(engine, *gone)
        kept = {address: made for address, made in kept.items() if address not in gone}
        asked = vector(*numbers.standard_normal(8))
        hits = engine.nearest(asked, ALL, limit=10)
        rows = engine.numbered([hit.row for hit in hits])
        similarities = sorted((float(made @ asked) for made in kept.values()), reverse=True)[:10]
        assert [hit.score for hit in hits] == pytest.approx(similarities, abs=0.02)  # a byte for each number
        assert [float(kept[rows[hit.row].address] @ asked) for hit in hits] == pytest.approx([hit.score for hit in hits], abs=0.02)


def test_words_that_are_written_item_by_item_are_soon_in_few_segments(engine: SqliteEngine, tmp_path: Path) -> None:
    for number in range(15):
        put(engine, ItemAddress(("many",), str(number)), {"text": "each of these is a segment of the index, until they are merged"})
    with closing(sqlite3.connect(tmp_path / "memory" / "memory.db")) as connection:
        (segments,) = connection.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchone()
    assert segments <= 8
