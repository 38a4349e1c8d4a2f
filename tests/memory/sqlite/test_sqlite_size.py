"""How little of the file an item takes: its texts are kept once, and its vectors leave no page half empty."""

from contextlib import closing
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_writes import ALL, put, put_within, vector

from nearfar.orchestrator.memory.engine import ItemRow
from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.sqlite import SqliteEngine, nearest
from nearfar.orchestrator.memory.sqlite.tables import decode_texts, encode_row, encode_texts, seed_of
from nearfar.protocols import StoreCorrupt
from nearfar.protocols.items import ItemAddress

A = ItemAddress(("notes",), "a")
TEXTS = st.text(max_size=40) | st.sampled_from(["green tea", "black tea " * 30, "0", ""])
PARTS = st.recursive(TEXTS | st.integers(0, 9) | st.none(), lambda parts: st.lists(parts, max_size=3), max_leaves=6)
VALUES = st.dictionaries(TEXTS, PARTS)
ITEMS, PASSAGES, WIDTH = 300, 5, 384


def packed(value: dict[str, object], texts: tuple[str, ...]) -> tuple[bytes, bytes | None]:
    seed = seed_of(A)
    content = encode_row(ItemRow(A, value, Meta(), "1@a", "a", 0.0, None, 0), seed)
    return content, encode_texts(texts, seed, value, content)


@given(VALUES, st.lists(TEXTS, max_size=4).map(tuple))
def test_texts_are_read_as_they_were_written_whether_the_value_has_them_or_not(value: dict[str, object], others: tuple[str, ...]) -> None:
    parts = tuple(part for part in value.values() if isinstance(part, str))
    content, texts = packed(value, (*others, *parts))
    assert (() if texts is None else decode_texts(A, texts, content)) == (*others, *parts)


def test_texts_that_the_value_has_take_a_few_bytes() -> None:
    said = [f"sentence {number} " * 10 for number in range(8)]
    _, texts = packed({"text": "x", "searchable": said}, tuple(said))
    assert texts is not None
    assert len(texts) < 32


def test_texts_of_another_item_are_noticed() -> None:
    _, texts = packed({"text": "one", "more": "two"}, ("two",))
    content, _ = packed({"text": "one"}, ())
    assert texts is not None
    with pytest.raises(StoreCorrupt):
        decode_texts(A, texts, content)


def test_vectors_leave_little_of_a_page_empty(tmp_path: Path) -> None:
    with_vectors, without = (
        size_of_store(tmp_path / name, embedded=embedded) for name, embedded in (("with.db", True), ("without.db", False))
    )
    assert WIDTH < (with_vectors - without) / (ITEMS * PASSAGES) < 1.15 * WIDTH


def size_of_store(path: Path, *, embedded: bool) -> int:
    numbers = numpy.random.default_rng(0)
    with closing(SqliteEngine(path, embedder=f"test/{WIDTH}")) as engine, engine.transaction() as transaction:
        for number in range(ITEMS):
            said = {f"{part}": f"part {part} of {number}" for part in range(PASSAGES)}
            made = list(numbers.standard_normal((PASSAGES, WIDTH), dtype=numpy.float32)) if embedded else None
            put_within(transaction, engine.device, ItemAddress(("many",), str(number)), said, meta=Meta(index=tuple(said)), vectors=made)
    return path.stat().st_size


def test_an_item_whose_vectors_are_read_in_pieces_is_found_by_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "_AT_ONCE", 1)
    texts = tuple("abcde")
    with closing(SqliteEngine(tmp_path / "memory.db", embedder="test/8")) as engine:
        made = [vector(*[0] * place, 1) for place in range(5)]
        put(engine, A, {name: name for name in texts}, meta=Meta(index=texts), vectors=made)
        for one in made:
            (hit,) = engine.nearest(one, ALL, limit=10)
            assert hit.score == pytest.approx(1.0)


def test_vectors_that_another_process_made_again_take_the_place_of_the_first(tmp_path: Path) -> None:
    with closing(SqliteEngine(tmp_path / "memory.db", embedder="test/8")) as engine:
        put(engine, A, {"text": "a"})
        (waiting,) = engine.unembedded(limit=10)
        for made in (vector(1), vector(0, 1)):
            engine.embed([(waiting, [made])])
            (hit,) = engine.nearest(made, ALL, limit=10)
            assert hit.score == pytest.approx(1.0)
        (hit,) = engine.nearest(vector(1), ALL, limit=10)
        assert hit.score == pytest.approx(0.0)
