"""What is erased from the memory stays in no cache that stands beside it: neither in an answer nor in a plan."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from nearfar import Hybrid, MemoryStore, Policy, Records
from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache.database import ErasedMemory
from nearfar.orchestrator.memory.in_tasks import TaskMemory
from nearfar.orchestrator.memory.sync.messages import Peer
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import ScriptedAgent, Side, StepRequest, StoreUnavailable
from nearfar.protocols.fakes import Reply
from nearfar.protocols.items import Tier

pytestmark = pytest.mark.anyio
CANARY = "canary-7f3a"
PEVR = Policy.model_validate({"strategy": "pevr", "sensitivity": "public"})
PROMPT = "Find the emblem of East Calder."


def remembering(path: Path) -> MemoryStore:
    store = MemoryStore.open(path, user="ana", embedder=None, tier=Tier.USER)
    store.put(("people",), "carl", {"text": f"Carl's number is {CANARY}."}, subject="carl")
    return store


def hybrid(folder: Path, store: MemoryStore, *, near: Callable[[StepRequest], Reply] = lambda _: f"{CANARY} it is.") -> Hybrid:
    """One whose plans and answers repeat the canary."""
    return Hybrid(
        near=ScriptedAgent(near, name="near"),
        far=ScriptedAgent(f"1. call {CANARY}\n2. answer", name="far", side=Side.FAR),
        policy=PEVR,
        records=Records(
            cache=CacheConfig(path=folder / "answers.db", plans=True, semantic=False, sides=(Side.NEAR, Side.FAR), shadow_share=0)
        ),
        memory=TaskMemory(store, recall=None),
    )


def repeats(folder: Path) -> list[str]:
    """Files of the cache that hold the canary."""
    return sorted(file.name for file in folder.glob("answers.db*") if CANARY.encode() in file.read_bytes())


async def test_erasing_from_a_program_empties_answers_and_plans_at_once(tmp_path: Path) -> None:
    with remembering(tmp_path / "memory.db") as store:
        async with hybrid(tmp_path, store) as both:
            await both.run(PROMPT)
            assert repeats(tmp_path)
            store.bound(agent="tool").erase(subject="carl")
            assert not repeats(tmp_path)
        assert store.erasing.count == 0


async def test_an_erasure_that_a_peer_tells_of_does_so_too(tmp_path: Path) -> None:
    with remembering(tmp_path / "memory.db") as store, MemoryStore.open(user="ana", embedder=None) as phone:
        async with hybrid(tmp_path, store) as both:
            await both.run(PROMPT)
            phone.erase(subject="carl")
            store.replica().absorb(Peer("phone", "ana"), phone.replica().facts())
            assert not repeats(tmp_path)


async def test_what_was_under_way_when_something_was_erased_is_not_stored(tmp_path: Path) -> None:
    with remembering(tmp_path / "memory.db") as store:

        def erasing(_: StepRequest) -> Reply:
            store.erase(subject="carl")
            return f"{CANARY} it is."

        async with hybrid(tmp_path, store, near=erasing) as both:
            assert CANARY in (await both.run(PROMPT)).text
            assert not repeats(tmp_path)
            again = await both.run(PROMPT)
            assert all(call.saved is None for call in again.calls)


async def test_an_erasure_of_another_process_counts_before_the_next_task(tmp_path: Path) -> None:
    with remembering(tmp_path / "memory.db") as store:
        async with hybrid(tmp_path, store) as both:
            await both.run(PROMPT)
            with MemoryStore.open(tmp_path / "memory.db", user="ana", embedder=None) as other:
                other.erase(subject="carl")
            assert repeats(tmp_path)
            assert all(call.saved is None for call in (await both.run("Find the motto of Ulm.", cache="no-store")).calls)
            assert not repeats(tmp_path)


async def test_a_cache_is_emptied_once_for_each_erasure(tmp_path: Path) -> None:
    cache = AnswerCache(CacheConfig(path=tmp_path / "answers.db", semantic=False))
    with remembering(tmp_path / "memory.db") as store:
        erased = ErasedMemory(cache, store)
        async with hybrid(tmp_path, store) as both:
            await both.run(PROMPT)
            assert erased.forget() == 0  # nothing was ever erased
            assert repeats(tmp_path)
            store.erase(subject="carl")
            await both.run(PROMPT)
            assert erased.forget() == 0
            assert repeats(tmp_path)
    cache.close()


async def test_a_cache_that_fails_is_left_out_of_the_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with remembering(tmp_path / "memory.db") as store:
        async with hybrid(tmp_path, store) as both:
            (tmp_path / "answers.db").mkdir()
            result = await both.run(PROMPT)
            assert all(call.saved is None for call in result.calls)
    assert "goes without the cache" in caplog.text


async def test_an_erasure_is_unfinished_until_all_that_listen_have_forgotten(tmp_path: Path) -> None:
    calls = []

    def full() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StoreUnavailable("the disk is full")

    with remembering(tmp_path / "memory.db") as store, store.erasing.calling(full):
        with pytest.raises(StoreUnavailable):
            store.erase(subject="carl")
        assert store.get(("people",), "carl") is None
        await anyio.to_thread.run_sync(store.replica().finish_erasing)
        assert len(calls) == 2
        store.replica().finish_erasing()
        assert len(calls) == 2
