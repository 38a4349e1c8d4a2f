"""Stores are opened by what a user names, with the embedder that is there."""

import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import IndexConfig

pytest.importorskip("numpy")

from nearfar import MemoryStore, SearchMode
from nearfar.orchestrator.memory.sync import books
from nearfar.orchestrator.memory.vectors import Embedder, LangChainEmbedder, ShippedEmbedder, from_index_config, query_vector
from nearfar.protocols import ConfigError, InvalidRequest, StoreCorrupt, StoreUnavailable

NOTES = ("notes",)


def vowels(texts: Sequence[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "aeiou"] for text in texts]


async def later(texts: Sequence[str]) -> list[list[float]]:
    return vowels(texts)


class Vowels(Embeddings):
    """Reads questions backwards, so that a test can tell."""

    model = "vowels-1"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return vowels(texts)

    def embed_query(self, text: str) -> list[float]:
        return vowels([text])[0][::-1]


def index(embed: object, **more: object) -> IndexConfig:
    return cast(IndexConfig, {"dims": 5, "embed": embed, **more})


def test_a_store_in_a_file_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, embedder=None) as store:
        store.put(NOTES, "tea", {"text": "green"})
        device = store.engine.device
    with MemoryStore.open(str(path), embedder=None) as store:
        assert store.get(NOTES, "tea") is not None
        assert store.engine.device == device


def held(folder: Path) -> list[str]:
    """Files in the folder that this process has open."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.exists())
    return sorted(target.name for link in links if (target := link.resolve()).is_relative_to(folder))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells open files by /proc")
def test_a_store_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, embedder=None):
        assert held(tmp_path)
    with pytest.raises(InvalidRequest):
        MemoryStore.open(path, embedder=None, ttl={"default_ttl": -1})
    assert held(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells open files by /proc")
def test_a_store_whose_erasure_cannot_be_finished_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, embedder=None) as store, store.engine.transaction() as transaction:
        books.keep_pending_keys(transaction, [b"of somebody"])
    Path(f"{path}.keys").write_bytes(b"no database" * 100)
    with pytest.raises(StoreCorrupt):
        MemoryStore.open(path, embedder=None, ttl={"sweep_interval_minutes": 1})
    assert held(tmp_path) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "nearfar memory sweeper"]


@pytest.mark.anyio
async def test_a_store_is_closed_with_its_block(tmp_path: Path) -> None:
    async with MemoryStore.open(tmp_path / "memory.db", embedder=None) as store:
        await store.aput(NOTES, "tea", {})
    with pytest.raises(StoreUnavailable):
        await store.aget(NOTES, "tea")


@pytest.mark.parametrize("where", [":memory:", "postgres://localhost/memory", "postgresql://localhost/memory"])
def test_only_files_are_encrypted_by_a_key(where: str) -> None:
    with pytest.raises(ConfigError, match="file"):
        MemoryStore.open(where, key=lambda: "secret")


def test_a_store_of_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreUnavailable) as failed:
        MemoryStore.open(f"postgresql://ann:secret@/memory?host={tmp_path}&connect_timeout=2", embedder=None)
    assert "secret" not in str(failed.value)


def test_the_shipped_embedder_is_used_where_it_is_installed() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    with MemoryStore.open() as store:
        store.put(NOTES, "tea", {"text": "Ann is allergic to peanuts."})
        store.put(NOTES, "car", {"text": "The car is in the garage."})
        assert store.search(NOTES, query="What must Ann not eat?", mode=SearchMode.SEMANTIC)[0].key == "tea"


def test_without_it_words_find_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(ShippedEmbedder, "is_installed", staticmethod(lambda: False))
    with MemoryStore.open() as store:
        store.put(NOTES, "tea", {"text": "green tea"})
        assert [item.key for item in store.search(NOTES, query="tea")] == ["tea"]


@pytest.mark.parametrize("embed", [vowels, later, Vowels()])
def test_embeddings_of_langgraphs_configuration_rank_as_in_its_own_stores(embed: object) -> None:
    with MemoryStore.open(index=index(embed, fields=["text"])) as store:
        store.put(NOTES, "a", {"text": "aaa", "other": "ooo"})
        store.put(NOTES, "both", {"text": "ae"})
        query = "u" if isinstance(embed, Vowels) else "a"
        found = store.search(NOTES, query=query)
        assert [item.key for item in found] == ["a", "both"]
        assert [item.score for item in found] == pytest.approx([1, 0.7071], abs=1e-3)


@pytest.mark.anyio
@pytest.mark.parametrize("embed", [vowels, later])
async def test_they_do_so_within_a_running_loop(embed: object) -> None:
    async with MemoryStore.open(index=index(embed)) as store:
        await store.aput(NOTES, "a", {"text": "aaa"})
        store.put(NOTES, "e", {"text": "eee"})
        assert [item.key for item in await store.asearch(NOTES, query="e")] == ["e", "a"]


def test_another_mode_may_be_asked_for() -> None:
    with MemoryStore.open(index=index(vowels), mode=SearchMode.HYBRID) as store:
        store.put(NOTES, "word", {"text": "xyz aeiou"})
        store.put(NOTES, "vowel", {"text": "a"})
        assert {item.key for item in store.search(NOTES, query="xyz a")} == {"word", "vowel"}
        assert 4 <= (store.search(NOTES, query="xyz a")[0].score or 0) <= 5


def test_fields_can_be_configured_without_an_embedder() -> None:
    with MemoryStore.open(embedder=None, index=cast(IndexConfig, {"fields": ["title"]})) as store:
        store.put(NOTES, "k", {"title": "tea", "text": "milk"})
        assert len(store.search(NOTES, query="tea")) == 1
        assert store.search(NOTES, query="milk") == []


@pytest.mark.parametrize("config", [{"embed": vowels}, {"embed": vowels, "dims": 0}, {"embed": vowels, "dims": "5"}])
def test_the_width_of_an_embedder_has_to_be_given(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="width"):
        MemoryStore.open(index=cast(IndexConfig, config))


def test_embedders_have_names_that_tell_them_apart() -> None:
    names = [
        embedder.name
        for embed in (vowels, later, Vowels(), partial(vowels), lambda texts: vowels(texts))
        if (embedder := from_index_config(index(embed))) is not None
    ]
    assert len(set(names)) == 5
    assert any("vowels-1" in name for name in names)
    named = from_index_config(index(vowels, name="mine/2"))
    assert named is not None
    assert named.name == "mine/2"
    assert isinstance(named, Embedder)


def test_vectors_of_another_embedder_are_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, index=index(vowels, name="one")) as store:
        store.put(NOTES, "a", {"text": "aaa"})
    with MemoryStore.open(path, index=index(Vowels(), name="two")) as store:
        assert store.search(NOTES, query="u", mode=SearchMode.SEMANTIC) == []
        assert store.index_pending() == 1
        assert len(store.search(NOTES, query="u", mode=SearchMode.SEMANTIC)) == 1
    with MemoryStore.open(path, index=index(vowels, name="one")) as store:
        assert len(store.search(NOTES, query="a")) == 1


@pytest.mark.parametrize("made", [[[1.0, 2.0], [1.0]], [["a", "b"]], "text", [[1.0], [2.0]], [1.0, 2.0], [[float("inf"), 0.0]]])
def test_an_embedder_that_gives_something_else_is_an_error(made: Any) -> None:  # noqa: ANN401 - of any type
    embedder = LangChainEmbedder(Vowels(), width=2, name="odd")
    embedder.embed_query = lambda text: made[0]  # type: ignore[method-assign]  # what is tested
    embedder.embed_all = lambda texts: made  # type: ignore[method-assign]  # what is tested
    with MemoryStore.open(embedder=embedder) as store, pytest.raises(ConfigError, match="odd"):
        store.put(NOTES, "a", {"text": "a"})


def test_an_error_of_an_asynchronous_embedder_reaches_who_asked() -> None:
    async def failing(texts: Sequence[str]) -> list[list[float]]:
        raise RuntimeError("no embeddings today")

    embedder = from_index_config(index(failing))
    assert embedder is not None
    with pytest.raises(RuntimeError, match="today"):
        query_vector(embedder, "a")
