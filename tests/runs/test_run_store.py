"""What a store of runs keeps, whichever database it is on."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio
import pytest
from run_stores import Opener

from nearfar.orchestrator.runs import KeptTask, Lease, RunFailure, RunState, digest
from nearfar.orchestrator.runs.leases import check_lease
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.storage import DatabaseSession
from nearfar.orchestrator.storage.sqlite import SqliteDatabase
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.util.runtime import in_thread
from nearfar.protocols import Cancelled, IdempotencyConflict, InvalidRequest, Message, NotFound, RunBusy, StoreUnavailable

pytestmark = pytest.mark.anyio


def kept(run: str, *, user: str = "", prompt: str = "What is near?") -> KeptTask:
    task = Task(messages=(Message.user(prompt),), idempotency_key=run, user=user)
    return KeptTask.of(task, tools=("look",), agents=("near",))


async def begin(store: RunStore, run: str, *, user: str = "") -> Lease:
    task = kept(run, user=user)
    return await store.begin(task, digest(task.task))


async def test_a_run_is_found_again_with_its_task_and_its_result(opened: Opener) -> None:
    first, second = opened(), opened()
    lease = await begin(first, "r1")
    assert second.show("r1").state is RunState.RUNNING
    assert second.task("r1") == kept("r1")
    await first.finish(lease, '{"text": "here"}')
    assert second.show("r1").state is RunState.DONE
    assert second.outcome("r1") == '{"text": "here"}'


async def test_runs_are_listed_newest_first_by_state_and_user(store: RunStore) -> None:
    for number in range(4):
        lease = await begin(store, f"r{number}", user="ann" if number % 2 else "bob")
        if number == 3:
            await store.finish(lease, RunFailure(error="Unavailable", message="no agent"))
    assert [run.id for run in store.list()] == ["r3", "r2", "r1", "r0"]
    assert [run.id for run in store.list(limit=1)] == ["r3"]
    assert [run.id for run in store.list(user="ann")] == ["r3", "r1"]
    assert [run.id for run in store.list(user="ann", state=RunState.FAILED)] == ["r3"]
    assert store.list(state=RunState.DONE) == []


async def test_of_two_who_claim_a_run_one_is_told_who_has_it(opened: Opener) -> None:
    first, second, third = opened(), opened(), opened()
    lease = await begin(first, "r1")
    with pytest.raises(RunBusy, match="process"):
        await second.claim("r1")
    await first.release(lease)
    assert [run.id for run in second.orphans()] == ["r1"]
    await second.claim("r1")
    with pytest.raises(RunBusy, match="process"):
        await third.claim("r1")


async def test_who_has_lost_a_run_writes_nothing_into_it_any_more(opened: Opener) -> None:
    first, second = opened(), opened()
    lease = await begin(first, "r1")
    first.owners.close()
    taken = await second.claim("r1")
    assert taken.epoch == lease.epoch + 1
    with pytest.raises(RunBusy, match="taken over"):
        await first.finish(lease, "{}")
    with pytest.raises(RunBusy, match="taken over"):
        await first.writer.write(lambda session: check_lease(session, lease))
    assert second.show("r1").state is RunState.RUNNING
    await second.finish(taken, "{}")


async def test_another_users_run_is_as_unknown_as_none(store: RunStore) -> None:
    await begin(store, "r1", user="ann")
    with pytest.raises(NotFound) as foreign:
        await store.claim("r1", user="bob")
    with pytest.raises(NotFound) as unknown:
        await store.claim("r2", user="bob")
    assert foreign.value.message.replace("r1", "r2") == unknown.value.message
    with pytest.raises(NotFound):
        store.show("r1", user="bob")
    with pytest.raises(NotFound):
        store.cancel("r1", user="bob")


async def test_a_key_names_one_task_of_one_user(store: RunStore) -> None:
    task = kept("r1", user="ann").task
    await begin(store, "r1", user="ann")
    found = await store.find("r1", user="ann", digest=digest(task))
    assert found is not None
    assert found.id == "r1"
    assert await store.find("r2", user="ann", digest=digest(task)) is None
    with pytest.raises(IdempotencyConflict):
        await store.find("r1", user="bob", digest=digest(task))
    with pytest.raises(IdempotencyConflict):
        await store.find("r1", user="ann", digest=digest(kept("r1", prompt="Another").task))


async def test_a_run_that_is_worked_on_is_cancelled_at_its_next_step_and_an_idle_one_at_once(opened: Opener) -> None:
    first, second = opened(), opened()
    lease = await begin(first, "r1")
    assert second.cancel("r1").state is RunState.RUNNING
    assert await first.writer.write(lambda session: check_lease(session, lease))
    await first.finish(lease, RunFailure(error="Cancelled", message="cancelled"))
    other = await begin(first, "r2")
    await first.release(other)
    assert second.cancel("r2").state is RunState.CANCELLED
    with pytest.raises(Cancelled):
        await second.claim("r2")


async def test_a_run_that_is_done_cannot_be_claimed_and_one_that_failed_can(store: RunStore) -> None:
    await store.finish(await begin(store, "r1"), "{}")
    with pytest.raises(InvalidRequest, match="done"):
        await store.claim("r1")
    failure = RunFailure(error="Unavailable", message="no agent")
    await store.finish(await begin(store, "r2"), failure)
    assert store.outcome("r2") == failure
    lease = await store.claim("r2")
    assert store.outcome("r2") is None
    await store.finish(lease, "{}")


async def test_the_oldest_runs_that_ended_are_forgotten_and_running_ones_never(store: RunStore) -> None:
    await begin(store, "runs on")
    for number in range(5):
        await store.finish(await begin(store, f"r{number}"), "{}")
    assert store.tidy() == 2  # three are kept
    assert [run.id for run in store.list()] == ["r4", "r3", "r2", "runs on"]
    with store.database.reading() as session:
        assert session.execute("SELECT count(*) FROM outcomes").fetchone()[0] == 3


async def test_what_a_newer_nearfar_has_written_is_refused_and_left_alone(store: RunStore) -> None:
    lease = await begin(store, "r1")
    await store.release(lease)
    with store.database.writing() as session:
        session.execute("UPDATE runs SET version = 99 WHERE run = ?", ("r1",))
    await begin(store, "r2")
    with pytest.raises(StoreUnavailable, match="version 99"):
        await store.claim("r1")
    assert [run.id for run in store.list()] == ["r2", "r1"]
    assert [run.id for run in store.orphans()] == ["r1"]
    with store.database.reading() as session:
        assert tuple(session.execute("SELECT epoch, version FROM runs WHERE run = 'r1'").fetchone()) == (1, 99)


async def test_a_run_whose_beginner_was_cancelled_meanwhile_is_anybodys(store: RunStore) -> None:
    def wait(session: DatabaseSession) -> None:
        may_write.wait()

    for take in (partial(begin, store, "r1"), partial(store.claim, "r1")):
        may_write = threading.Event()
        store.writer.submit(wait)
        taking = asyncio.ensure_future(take())
        await asyncio.sleep(0)  # it waits for the writer by now
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        may_write.set()
        await in_thread(store.writer.submit(lambda session: None).result)
        assert store.show("r1").is_orphaned
    assert await store.claim("r1") == Lease("r1", 3)


async def test_a_run_is_cancelled_whose_process_died_before_it_noticed(opened: Opener) -> None:
    first, second = opened(), opened()
    await begin(first, "r1")
    second.cancel("r1")
    first.close()
    with pytest.raises(Cancelled):
        await second.claim("r1")
    assert second.show("r1").state is RunState.CANCELLED


async def test_a_run_that_fails_or_waits_after_its_end_was_asked_for_is_cancelled(store: RunStore) -> None:
    failing, waiting = await begin(store, "r1"), await begin(store, "r2")
    for run in ("r1", "r2"):
        await in_thread(store.cancel, run)
    await store.finish(failing, RunFailure(error="Unavailable", message="gone"))
    await store.release(waiting, waiting=True)
    assert [run.state for run in store.list()] == [RunState.CANCELLED] * 2


async def test_of_two_claims_by_one_process_one_wins(store: RunStore) -> None:
    await store.release(await begin(store, "r1"))
    won: list[Lease] = []

    async def claim() -> None:
        with suppress(RunBusy):
            won.append(await store.claim("r1"))

    async with anyio.create_task_group() as claiming:
        claiming.start_soon(claim)
        claiming.start_soon(claim)
    assert won == [Lease("r1", 2)]


async def test_a_hundred_thousand_runs_are_listed_by_their_indexes(store: RunStore) -> None:
    orders = [("", ""), ("state = ? AND", "runs_by_state"), ("user_name = ? AND", "runs_by_user")]
    if not isinstance(store.database, SqliteDatabase):
        pytest.skip("Postgres chooses by what it has counted")
    with store.database.reading() as session:
        for condition, index in orders:
            query = f"EXPLAIN QUERY PLAN SELECT run FROM runs WHERE {condition} 1 = 1 ORDER BY number DESC LIMIT 100"
            plan = " ".join(row[-1] for row in session.execute(query, ("x",) if condition else ()).fetchall())
            assert index in plan
            assert "TEMP B-TREE" not in plan


async def test_runs_begun_at_once_under_one_key_are_one(opened: Opener) -> None:
    first, second = opened(), opened()
    await begin(first, "r1")
    with pytest.raises(RunBusy):
        await begin(second, "r1")


async def test_what_is_kept_of_a_run_elsewhere_is_forgotten_with_it_and_before_it(store: RunStore) -> None:
    forgotten: list[tuple[str, str]] = []
    store.forgetting.append(lambda runs: forgotten.extend((run, store.show(run).state) for run in runs))
    lease = await begin(store, "r1")
    with pytest.raises(RunBusy):
        await in_thread(store.forget, "r1")
    await store.finish(lease, "{}")
    await in_thread(store.forget, "r1")
    assert forgotten == [("r1", "done")]
    assert store.list() == []
    with pytest.raises(NotFound):
        await in_thread(store.forget, "r1")


async def test_a_run_that_was_half_forgotten_is_not_gone_on_with(store: RunStore) -> None:
    def die(runs: Sequence[str]) -> None:
        raise StoreUnavailable("the disk has failed")

    lease = await begin(store, "r1")
    await store.release(lease, waiting=True)
    store.forgetting.append(die)
    with pytest.raises(StoreUnavailable):
        await in_thread(store.forget, "r1")
    with pytest.raises(Cancelled):
        await store.claim("r1")
    store.forgetting.clear()
    await in_thread(store.forget, "r1")
    assert store.list() == []


async def test_what_a_newer_nearfar_has_written_is_in_the_way_of_no_others_end(store: RunStore) -> None:
    for number in range(6):
        await store.finish(await begin(store, f"r{number}"), "{}")
    with store.database.writing() as session:
        session.execute("UPDATE runs SET version = 99 WHERE run = 'r0'")
    assert await in_thread(store.tidy) == 2
    assert [run.id for run in store.list()] == ["r5", "r4", "r3", "r0"]
