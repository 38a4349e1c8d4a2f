"""Search on Postgres: by words as the engine in plain Python, by meaning with as many hits as there are."""

import random

import numpy
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_memory_engine import InMemoryEngine
from postgres_writes import ALL, NOW, Opener, Vector, put, put_all, unit

from nearfar.orchestrator.memory.engine import Condition, ItemSelection, Operator
from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.orchestrator.memory.postgres import search as vectors
from nearfar.orchestrator.memory.postgres.search import Where, words_asked, words_of
from nearfar.protocols import InvalidRequest
from nearfar.protocols.items import ItemAddress

A = ItemAddress(("notes",), "a")
B = ItemAddress(("notes",), "b")
SCORES = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def found(engine: PostgresEngine, query: str) -> list[str]:
    hits = engine.keyword(query, ALL, limit=10)
    rows = engine.numbered([hit.row for hit in hits])
    return [rows[hit.row].address.key for hit in hits]


def test_words_rank_as_in_the_engine_that_says_how(engine: PostgresEngine) -> None:
    dice = random.Random(7)
    words = ["fox", "dog", "lake", "moon", "river", "stone", "tree", "wolf"]
    texts = {
        ItemAddress(("notes",), str(number)): " ".join(dice.choices(words, range(1, 9), k=dice.randrange(1, 30))) for number in range(80)
    }
    reference = InMemoryEngine()
    for each in (engine, reference):
        put_all(each, {address: ({"text": text}, None) for address, text in texts.items()})
    for query in ("fox", "moon river", "fox dog lake wolf tree", "nothing"):
        ours, theirs = (
            {one.address: hit.score for hit in each.keyword(query, ALL, limit=100) for one in [each.numbered([hit.row])[hit.row]]}
            for each in (engine, reference)
        )
        assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Die Katze läuft über den Zaun", "LAUFT"),
        ("she runs", "running"),
        ("写真を送ってください", "写真"),
        ("写真を送ってください", "送"),
        ("한국어를 공부합니다", "한국어를"),
        ("ภาษาไทย", "ไทย"),
        ("ask ana@example.org, or see https://example.org/a/b", "example"),
        ("state-of-the-art snake_case", "case art"),
        ("version 3.14.15 of 2026", "2026"),
        ("Ελληνικά και Русский", "русский"),
        ("the", "the"),
    ],
)
def test_a_word_is_found_however_it_is_written(engine: PostgresEngine, text: str, query: str) -> None:
    put(engine, A, {"text": text})
    put(engine, B, {"text": "something else entirely"})
    assert found(engine, query) == ["a"]


def test_characters_that_are_no_neighbours_are_not_found_together(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "東大寺は京にある"})
    assert found(engine, "東京") == []


@SCORES
@given(text=st.text(), query=st.text())
def test_any_text_can_be_kept_and_asked_for(engine: PostgresEngine, text: str, query: str) -> None:
    text, query = text.replace("\0", ""), query.replace("\0", "")
    put(engine, A, {"text": f"{text} {query}"})
    assert found(engine, query) == (["a"] if words_asked(query) else [])


def test_a_text_of_megabytes_is_found_by_its_beginning(engine: PostgresEngine) -> None:
    put(engine, A, {"text": " ".join(f"word{number}" for number in range(300_000))})
    assert found(engine, "word7") == ["a"]


def test_a_word_that_is_repeated_for_ever_has_room(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "again " * 100_000})
    assert found(engine, "again") == ["a"]


def test_words_of_a_text_are_cut_off_at_the_length_that_is_searched() -> None:
    assert words_of("x" * 100) == words_asked("x" * 99) == ["x" * 64]


def test_what_is_overwritten_is_found_by_its_new_words_alone(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "old"}, unit(1))
    put(engine, A, {"text": "new"}, unit(0, 1))
    assert found(engine, "old") == []
    assert found(engine, "new") == ["a"]
    assert [hit.score for hit in engine.nearest(unit(1), ALL, limit=5)] == [pytest.approx(0)]


def many(engine: PostgresEngine, count: int) -> dict[ItemAddress, Vector]:
    """Items around a circle, every tenth in another namespace."""
    angles = {ItemAddress(("tens" if number % 10 == 0 else "ones", str(number % 3)), str(number)): number for number in range(count)}
    made = {address: unit(float(numpy.cos(0.01 * number)), float(numpy.sin(0.01 * number))) for address, number in angles.items()}
    put_all(engine, {address: ({"text": address.key, "n": angles[address]}, vector) for address, vector in made.items()})
    return made


@pytest.mark.parametrize("small", [0, 2000])
def test_a_narrow_selection_gets_as_many_hits_as_it_has(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    made = many(engine, 1500)
    monkeypatch.setattr(vectors, "_SMALL", small)
    far_away = unit(-1)
    for selection in (
        ItemSelection(now=NOW, prefix=("tens",)),
        ItemSelection(now=NOW, prefix=("tens", "0")),
        ItemSelection(now=NOW, conditions=(Condition(("n",), Operator.LESS, 25),)),
    ):
        wanted = {row.address for row in engine.select(selection, limit=2000, offset=0)}
        exact = sorted((float(far_away @ made[address]) for address in wanted), reverse=True)[:20]
        hits = engine.nearest(far_away, selection, limit=20)
        assert [hit.score for hit in hits] == pytest.approx(exact, abs=1e-5)


def test_the_nearest_of_all_come_from_the_index(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = many(engine, 1500)
    monkeypatch.setattr(vectors, "_SMALL", 0)
    asked = unit(1, 1)
    exact = sorted((float(asked @ vector) for vector in made.values()), reverse=True)[:10]
    assert [hit.score for hit in engine.nearest(asked, ALL, limit=10)] == pytest.approx(exact, abs=1e-5)


def test_the_planner_takes_the_index_whatever_it_thinks_of_the_selection(engine: PostgresEngine, postgres_database: str) -> None:
    many(engine, 1500)
    selection = Where(ItemSelection(now=NOW, prefix=("ones",), conditions=(Condition(("n",), Operator.GREATER, 5),)))
    statement = vectors._INDEXED.format(type="vector(8)", table="vectors_1", where=selection.sql)
    asked = vectors.written(unit(1, 1))
    with psycopg.connect(postgres_database, autocommit=True, options="-c search_path=nearfar,public") as connection:
        connection.execute("ANALYZE")
        plan = connection.execute(f"EXPLAIN {statement}", [asked, *selection.parameters, asked, 100]).fetchall()
    assert any("Index Scan using vectors_1_nearest" in line for (line,) in plan)


def test_an_item_with_many_passages_is_one_hit(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_SMALL", 0)
    put(engine, A, {"text": "a"})
    put(engine, B, {"text": "b"}, unit(0, 1))
    waiting = engine.unembedded(limit=1)[0]
    engine.embed([(waiting._replace(texts=("",) * 50), [unit(1, number / 100) for number in range(50)])])
    assert len(engine.nearest(unit(1), ALL, limit=2)) == 2


@pytest.mark.parametrize("width", [2500, 4500])
def test_wide_vectors_are_found(opened: Opener, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(vectors, "_SMALL", 0)
    engine = opened(embedder="wide")
    put(engine, A, {"text": "a"}, unit(1, width=width))
    put(engine, B, {"text": "b"}, unit(0, 1, width=width))
    scores = [hit.score for hit in engine.nearest(unit(1, width=width), ALL, limit=2)]
    assert scores == pytest.approx([1, 0], abs=1e-3)


def test_a_vector_of_another_width_is_refused(engine: PostgresEngine) -> None:
    put(engine, A, {"text": "a"}, unit(1))
    with pytest.raises(InvalidRequest, match="whose vectors have width 8"):
        put(engine, B, {"text": "b"}, unit(1, width=4))
    with pytest.raises(InvalidRequest, match="whose vectors have width 8"):
        engine.nearest(unit(1, width=4), ALL, limit=1)
    assert engine.rows([B], ALL) == {}


def test_vectors_of_another_embedder_are_left_alone(opened: Opener) -> None:
    first, second = opened(embedder="first"), opened(embedder="second")
    put(first, A, {"text": "a"}, unit(1))
    assert second.nearest(unit(1, width=4), ALL, limit=1) == []
    [waiting] = second.unembedded(limit=5)
    second.embed([(waiting, [unit(1, width=4)])])
    assert len(second.nearest(unit(1, width=4), ALL, limit=1)) == 1
    assert len(first.nearest(unit(1), ALL, limit=1)) == 1


def test_where_vectors_are_made_without_a_name_they_are_refused(opened: Opener) -> None:
    with pytest.raises(InvalidRequest, match="vectors need an embedder"):
        put(opened(), A, {"text": "a"}, unit(1))
