"""Items are found by what they say now, and by nothing else."""

import logging
import math
from datetime import UTC, datetime

import pytest
from langgraph.store.base import PutOp
from memory_bench import DAY, BrokenEmbedder, Clock, LetterEmbedder, MakeStore

from nearfar import MemoryStore, Ranking, SearchMode, Source
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.ranking import MEANING
from nearfar.protocols import ConfigError, InvalidRequest

NOTES = ("notes",)
ODD_QUERIES = [
    '"',
    "'",
    "tea AND",
    "NOT tea",
    "tea*",
    "(tea",
    "tea NEAR/2 green",
    "text:tea",
    "-tea",
    "^tea",
    "tea\0",
    "a" * 10_000,
    "tea " * 3000,
    "!?",
    "😀",
]
PATHS: list[tuple[str, list[str]]] = [
    ("title", ["one"]),
    ("meta.name", ["two"]),
    ("parts[0].text", ["three"]),
    ("parts[-1].text", ["four"]),
    ("parts[*].text", ["three", "four"]),
    ("meta.tags[*]", ["five", "six"]),
    ("meta.deep[*].parts[*].text", ["seven", "eight"]),
    ("missing", []),
    ("missing[*].text", []),
    ("title.text", []),
    ("number", ["7"]),
]
LANGUAGES = [
    ("Ich trinke Tee im Café", "cafe"),
    ("naïve Ärzte", "NAIVE ärzte"),
    ("私は東京に住んでいます", "東京"),
    ("我喜欢喝绿茶", "绿茶"),
    ("서울에 살아요", "서울"),
    ("чай с молоком", "Чай"),
    ("the flight is LH1234", "lh1234"),
    ("call 030 12345", "12345"),
]


def keys(store: MemoryStore, query: str, mode: SearchMode = SearchMode.KEYWORD, **options: object) -> list[str]:
    return [item.key for item in store.search((), query=query, mode=mode, **options)]  # type: ignore[arg-type]  # options of several types


def similarity(store: MemoryStore, query: str, key: str) -> float:
    found = {item.key: item.score for item in store.search((), query=query, mode=SearchMode.SEMANTIC)}
    return found[key] or 0.0


def test_words_find_the_items_that_have_them(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "Ann likes green tea."})
    store.put(NOTES, "car", {"text": "Bob drives a red car."})
    assert keys(store, "tea") == ["tea"]
    assert keys(store, "GREEN Tea?") == ["tea"]
    assert keys(store, "red tea") in (["tea", "car"], ["car", "tea"])
    assert keys(store, "coffee") == []


def test_rare_words_count_for_more_than_common_ones(store: MemoryStore) -> None:
    store.batch([PutOp(NOTES, str(number), {"text": "we had tea together"}) for number in range(10)])
    store.put(NOTES, "rare", {"text": "we had champagne"})
    assert keys(store, "tea with champagne")[0] == "rare"


def test_a_word_that_nothing_had_before_is_found_once_something_has_it(store: MemoryStore) -> None:
    store.batch([PutOp(NOTES, str(number), {"text": f"tea {number}"}) for number in range(20)])
    assert keys(store, "zebra") == keys(store, "zebra green") == []
    store.put(NOTES, "new", {"text": "a zebra"})
    assert keys(store, "zebra") == keys(store, "zebra green") == ["new"]


def test_meanings_find_what_is_nearest_first(store: MemoryStore) -> None:
    store.put(NOTES, "far", {"text": "zzz yyy xxx"})
    store.put(NOTES, "near", {"text": "abc"})
    found = store.search(NOTES, query="cab", mode=SearchMode.SEMANTIC)
    assert [item.key for item in found] == ["near", "far"]
    assert found[0].score == pytest.approx(1, abs=1e-3)
    assert found[1].score == pytest.approx(0, abs=1e-3)


def test_an_item_is_as_near_as_its_nearest_passage(store: MemoryStore) -> None:
    store.put(NOTES, "both", {"a": "abc", "b": "xyz"}, index=["a", "b"])
    store.put(NOTES, "mixed", {"a": "abcxyz"}, index=["a"])
    assert similarity(store, "abc", "both") == pytest.approx(1, abs=1e-3)
    assert similarity(store, "abc", "mixed") == pytest.approx(0.7071, abs=1e-3)


def test_both_rankings_together_find_what_either_finds(store: MemoryStore) -> None:
    store.put(NOTES, "word", {"text": "tea zzzzzzzzzzzzzz"})
    store.put(NOTES, "meaning", {"text": "eat"})
    found = store.search(NOTES, query="tea")
    assert {item.key for item in found} == {"word", "meaning"}
    scores = {item.key: item.score for item in found}
    assert scores["meaning"] == pytest.approx(MEANING, rel=1e-2)
    assert scores["word"] == pytest.approx(1 + MEANING * math.sqrt(3 / (3 + 14**2)), rel=1e-2)


def test_weights_decide_which_ranking_counts(store: MemoryStore) -> None:
    store.put(NOTES, "word", {"text": "tea zzzzzzzzzzzzzz"})
    store.put(NOTES, "meaning", {"text": "eat"})
    by_words = store.search(NOTES, query="tea", ranking=Ranking(keyword=5))
    by_meaning = store.search(NOTES, query="tea", ranking=Ranking(keyword=0))
    assert [item.key for item in by_words] == ["word", "meaning"]
    assert [item.key for item in by_meaning] == ["meaning", "word"]


def test_recent_items_come_first_where_that_is_asked_for(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "old", {"text": "tea tea tea"})
    clock.advance(100 * DAY)
    store.put(NOTES, "new", {"text": "tea and much else that has nothing to do with it"})
    assert keys(store, "tea") == ["old", "new"]
    recent = Ranking(recency=1, half_life=10 * DAY)
    for mode in SearchMode:
        assert keys(store, "tea", mode, ranking=recent) == ["new", "old"]
    aged, fresh = store.search(NOTES, query="tea", ranking=recent)[1], store.search(NOTES, query="tea")[0]
    assert aged.score == pytest.approx((fresh.score or 0) * 2**-10, rel=0.1)


def test_trusted_items_come_first_where_that_is_asked_for(store: MemoryStore) -> None:
    store.bound(source=Source.EXTERNAL_TOOL).put(NOTES, "web", {"text": "tea"})
    store.bound(source=Source.USER).put(NOTES, "said", {"text": "tea, I think"})
    assert keys(store, "tea", SearchMode.HYBRID) == ["web", "said"]
    assert keys(store, "tea", SearchMode.HYBRID, ranking=Ranking(trust=1)) == ["said", "web"]


@pytest.mark.parametrize("ranking", [{"keyword": -1}, {"keyword": 0, "semantic": 0}, {"recency": 2}, {"half_life": 0}, {"trust": -0.1}])
def test_a_ranking_that_makes_no_sense_is_refused(ranking: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        Ranking(**ranking)


@pytest.mark.parametrize("mode", SearchMode)
def test_overwritten_and_deleted_text_is_not_found(store: MemoryStore, mode: SearchMode) -> None:
    store.put(NOTES, "tea", {"text": "qqq"})
    store.put(NOTES, "milk", {"text": "qqq jjj"})
    store.put(NOTES, "tea", {"text": "abc"})
    store.delete(NOTES, "milk")
    assert "milk" not in keys(store, "qqq jjj", mode)
    if mode is SearchMode.KEYWORD:
        assert keys(store, "qqq", mode) == []
    if mode is SearchMode.SEMANTIC:
        assert similarity(store, "qqq", "tea") == pytest.approx(0, abs=1e-3)


def test_patched_text_is_found_at_once(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "abc"})
    store.patch(NOTES, "tea", {"text": "xyz"})
    store.append(NOTES, "log", "entries", ["jjj"])
    store.append(NOTES, "log", "entries", ["kkk"])
    assert similarity(store, "xyz", "tea") == pytest.approx(1, abs=1e-3)
    assert keys(store, "jjj kkk") == ["log"]


def test_an_item_that_is_not_indexed_is_found_by_no_query(store: MemoryStore) -> None:
    store.put(NOTES, "hidden", {"text": "tea"}, index=False)
    for mode in SearchMode:
        assert keys(store, "tea", mode) == []
    assert [item.key for item in store.search(NOTES)] == ["hidden"]
    assert [item.key for item in store.search(NOTES, filter={"text": "tea"})] == ["hidden"]


def test_only_the_configured_fields_are_indexed(make_store: MakeStore, embedder: LetterEmbedder) -> None:
    store = make_store(fields=["title", "author.name"])
    store.put(NOTES, "book", {"title": "Tea", "author": {"name": "Okakura", "born": "Yokohama"}, "text": "steam"})
    assert keys(store, "tea") == keys(store, "okakura") == ["book"]
    assert keys(store, "yokohama") == keys(store, "steam") == keys(store, "title") == []
    assert "steam" not in " ".join(embedder.seen)


def test_a_write_may_name_fields_of_its_own(make_store: MakeStore) -> None:
    store = make_store(fields=["title"])
    store.put(NOTES, "book", {"title": "Tea", "text": "steam"}, index=["text"])
    assert keys(store, "tea") == []
    assert keys(store, "steam") == ["book"]


def test_paths_lead_into_values(store: MemoryStore, embedder: LetterEmbedder) -> None:
    deep = [{"parts": [{"text": "seven"}]}, {"parts": [{"text": "eight"}, {"other": "nine"}]}]
    value = {"title": "one", "meta": {"name": "two", "tags": ["five", "six"], "deep": deep}, "parts": [{"text": "three"}, {"text": "four"}]}
    for path, texts in PATHS:
        embedder.seen.clear()
        store.put(NOTES, "k", {**value, "number": 7}, index=[path])
        assert embedder.seen == texts
        for text in texts:
            assert keys(store, text) == ["k"]


def test_paths_that_make_no_sense_are_refused(store: MemoryStore) -> None:
    for index in ("title", [""], [1], ["\0"], ["\ud800"]):
        with pytest.raises(InvalidRequest):
            store.put(NOTES, "k", {"title": "a"}, index=index)  # type: ignore[arg-type]  # what is tested


def test_a_long_text_is_found_by_each_part_of_it(store: MemoryStore, embedder: LetterEmbedder) -> None:
    words = [f"word{number}" for number in range(3000)]
    store.put(NOTES, "book", {"text": " ".join([*words[:1500], "zebra zebra zebra", *words[1500:]])})
    assert 1 < len(embedder.seen) <= 32
    assert " ".join(embedder.seen).split() == [*words[:1500], "zebra", "zebra", "zebra", *words[1500:]]
    for word in ("word0", "word1499", "zebra", "word2999"):
        assert keys(store, word) == ["book"]


def test_words_of_many_languages_are_found(store: MemoryStore) -> None:
    store.put(NOTES, "other", {"text": "nothing of that kind"})
    for text, _ in LANGUAGES:
        store.put(NOTES, text, {"text": text})
    assert [keys(store, query)[:1] for _, query in LANGUAGES] == [[text] for text, _ in LANGUAGES]


def test_any_text_is_a_query(store: MemoryStore) -> None:
    store.put(NOTES, "k", {"text": "green tea"})
    for query in ODD_QUERIES:
        found = keys(store, query)
        assert found == (["k"] if "tea" in query else [])
        for mode in (SearchMode.SEMANTIC, SearchMode.HYBRID):
            keys(store, query, mode)


def test_a_query_of_nothing_is_no_query(store: MemoryStore) -> None:
    store.put(NOTES, "hidden", {"text": "tea"}, index=False)
    for query in ("", "  \n", None):
        assert [(item.key, item.score) for item in store.search(NOTES, query=query)] == [("hidden", None)]
    with pytest.raises(InvalidRequest, match="text"):
        store.search(NOTES, query=7)  # type: ignore[arg-type]  # what is tested


def test_without_an_embedder_words_find_what_they_can(make_store: MakeStore) -> None:
    store = make_store(embedder=None)
    store.put(NOTES, "tea", {"text": "green tea"})
    assert keys(store, "tea", SearchMode.HYBRID) == keys(store, "tea", SearchMode.KEYWORD) == ["tea"]
    assert store.index_pending() == 0
    with pytest.raises(ConfigError, match="embedder"):
        store.search(NOTES, query="tea", mode=SearchMode.SEMANTIC)


def test_what_was_written_without_an_embedder_can_be_embedded_later(make_store: MakeStore, store: MemoryStore) -> None:
    plain = make_store(embedder=None)
    plain.batch([PutOp(NOTES, str(number), {"text": f"abc {number}"}) for number in range(700)])
    plain.put(NOTES, "hidden", {"text": "abc"}, index=False)
    assert keys(store, "abc", SearchMode.SEMANTIC) == []
    assert store.index_pending() == 700
    assert store.index_pending() == 0
    assert len(store.search(NOTES, query="abc", mode=SearchMode.SEMANTIC, limit=1000)) == 700


def test_an_embedder_that_fails_loses_no_write(make_store: MakeStore, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    embedder = BrokenEmbedder()
    broken = make_store(embedder=embedder)
    with caplog.at_level(logging.WARNING):
        broken.put(NOTES, "tea", {"text": "very private tea"})
    assert "RuntimeError" in caplog.text
    assert "private" not in caplog.text
    assert keys(broken, "tea") == keys(broken, "tea", SearchMode.HYBRID) == ["tea"]
    with pytest.raises(RuntimeError, match="no embeddings"):
        broken.search(NOTES, query="tea", mode=SearchMode.SEMANTIC)
    with pytest.raises(RuntimeError, match="no embeddings"):
        broken.index_pending()
    embedder.is_broken = False
    assert broken.index_pending() == 1
    assert keys(store, "tea", SearchMode.SEMANTIC) == ["tea"]


def test_vectors_of_an_item_that_changed_meanwhile_are_not_used(store: MemoryStore, make_store: MakeStore, engine: Engine) -> None:
    make_store(embedder=None).put(NOTES, "tea", {"text": "abc"})
    (waiting,) = engine.unembedded(limit=10)
    store.put(NOTES, "tea", {"text": "xyz"})
    import numpy

    engine.embed([(waiting, [numpy.eye(36, dtype=numpy.float32)[0]])])
    assert similarity(store, "xyz", "tea") == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("width", [35, 37])
def test_an_embedder_of_another_width_than_it_says_writes_nothing(make_store: MakeStore, engine: Engine, width: int) -> None:
    store = make_store(embedder=LetterEmbedder(width=width))
    with pytest.raises(ConfigError, match="36"):
        store.put(NOTES, "tea", {"text": "abc"})
    with pytest.raises(ConfigError, match="36"):
        store.search(NOTES, query="abc")
    assert engine.position() == 0


def test_an_embedder_that_gives_no_numbers_writes_nothing(make_store: MakeStore, engine: Engine) -> None:
    class Odd(LetterEmbedder):
        def _vector(self, text: str) -> list[float]:
            return [float("nan")] * self.width

    with pytest.raises(ConfigError, match="finite"):
        make_store(embedder=Odd()).put(NOTES, "tea", {"text": "abc"})
    assert engine.position() == 0


def test_a_text_without_meaning_is_near_to_nothing(store: MemoryStore) -> None:
    store.put(NOTES, "odd", {"text": "!!!"})
    store.put(NOTES, "tea", {"text": "abc"})
    assert keys(store, "abc", SearchMode.SEMANTIC)[0] == "tea"
    assert set(keys(store, "???", SearchMode.SEMANTIC)) <= {"odd", "tea"}


def test_a_search_finds_what_is_true_now(store: MemoryStore, clock: Clock) -> None:
    tomorrow = datetime.fromtimestamp(clock.time + DAY, UTC)
    store.put(NOTES, "job", {"text": "works in Berlin"}, valid_from=tomorrow)
    assert store.search(NOTES) == store.search(NOTES, query="berlin") == []
    assert len(store.search(NOTES, valid_at=tomorrow)) == len(store.search(NOTES, include_superseded=True)) == 1
    assert store.get(NOTES, "job") is not None
    clock.advance(DAY)
    assert keys(store, "berlin") == ["job"]
