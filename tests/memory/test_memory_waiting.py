"""What takes long holds nobody else up, and may be given up."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("numpy")

from nearfar import MemoryStore

NOTES = ("notes",)


class SlowEmbedder:
    """Begins, and goes on when it is told to."""

    name = "slow/1"
    width = 1

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def embed_all(self, texts: Sequence[str]) -> list[list[float]]:
        self.begun.set()
        assert self.may_end.wait(60)
        return [[1.0] for _ in texts]


@pytest.fixture
def embedder() -> SlowEmbedder:
    return SlowEmbedder()


@pytest.fixture
def store(tmp_path: Path, embedder: SlowEmbedder) -> Iterator[MemoryStore]:
    with MemoryStore.open(tmp_path / "memory.db", embedder=embedder) as store:
        yield store


def test_writes_do_not_wait_for_what_others_embed(store: MemoryStore, embedder: SlowEmbedder) -> None:
    slow = threading.Thread(target=store.put, args=(NOTES, "slow", {"text": "tea"}))
    slow.start()
    assert embedder.begun.wait(60)
    store.put(NOTES, "fast", {}, index=False)
    assert [item.key for item in store.search(NOTES)] == ["fast"]
    embedder.may_end.set()
    slow.join(60)
    assert store.get(NOTES, "slow") is not None


@pytest.mark.anyio
async def test_the_event_loop_goes_on_while_something_is_embedded(store: MemoryStore, embedder: SlowEmbedder) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.aput, NOTES, "slow", {"text": "tea"})
            await anyio.to_thread.run_sync(embedder.begun.wait)
            await store.aput(NOTES, "fast", {}, False)
            embedder.may_end.set()
    assert len(await store.asearch(NOTES)) == 2


@pytest.mark.anyio
async def test_a_write_that_is_given_up_is_done_or_not_begun(store: MemoryStore, embedder: SlowEmbedder) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.aput, NOTES, "slow", {"text": "tea", "more": 1})
            await anyio.to_thread.run_sync(embedder.begun.wait)
            tasks.cancel_scope.cancel()
            embedder.may_end.set()
    item = await store.aget(NOTES, "slow")
    assert item is None or item.value == {"text": "tea", "more": 1}
    await store.aput(NOTES, "slow", {"text": "milk"})
    item = await store.aget(NOTES, "slow")
    assert item is not None
    assert item.value == {"text": "milk"}
