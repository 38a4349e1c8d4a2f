"""The step log keeps what can be resumed, within its bounds."""

import anyio
import pytest

from nearfar.protocols import IdempotencyConflict, InvalidOutput, InvalidRequest, RateLimited, ResumeLost, Unavailable
from nearfar.protocols.step_log import LoggedStep, Retention, StepLog
from nearfar.protocols.testing import eventually

pytestmark = pytest.mark.anyio

KEY = ("ann", "key")


def start(log: StepLog, name: str = "key", *, events: int = 0) -> LoggedStep:
    step, is_new = log.join(("ann", name), b"request")
    assert is_new
    for _ in range(events):
        log.append(step, b"x" * 10)
    return step


def holds(log: StepLog, name: str) -> bool:
    try:
        log.join(("ann", name), b"request", resume_from=1)
    except ResumeLost:
        return False
    return True


async def test_finished_step_is_replayed_and_not_started_again() -> None:
    log = StepLog(Retention())
    step = start(log, events=2)
    log.finish(step)
    for resume_from in (None, 0, 1, 2):
        assert log.join(KEY, b"request", resume_from=resume_from) == (step, False)


async def test_other_request_with_the_same_key_conflicts_while_running_and_after() -> None:
    log = StepLog(Retention())
    step = start(log)
    with pytest.raises(IdempotencyConflict):
        log.join(KEY, b"other")
    log.finish(step)
    with pytest.raises(IdempotencyConflict):
        log.join(KEY, b"other")


async def test_other_caller_with_the_same_key_has_a_step_of_its_own() -> None:
    log = StepLog(Retention())
    step = start(log)
    other, is_new = log.join(("bob", "key"), b"other")
    assert is_new
    assert other is not step


@pytest.mark.parametrize("resume_from", [0, 1])
async def test_unknown_step_cannot_be_resumed(resume_from: int) -> None:
    with pytest.raises(ResumeLost):
        StepLog(Retention()).join(KEY, b"request", resume_from=resume_from)


async def test_resuming_behind_the_last_event_is_invalid() -> None:
    log = StepLog(Retention())
    start(log, events=2)
    with pytest.raises(InvalidRequest):
        log.join(KEY, b"request", resume_from=3)


async def test_failed_step_is_replayed_to_who_resumes_and_run_again_for_who_asks_anew() -> None:
    log = StepLog(Retention())
    step = start(log, events=1)
    log.finish(step, Unavailable("gone"))
    for resume_from in (0, 1):
        assert log.join(KEY, b"request", resume_from=resume_from) == (step, False)
    again, is_new = log.join(KEY, b"request")
    assert is_new
    assert again is not step


async def test_step_that_its_only_reader_leaves_is_stopped_and_forgotten() -> None:
    log = StepLog(Retention())
    step = start(log, events=1)
    with log.reading(step, reader="one"), log.reading(step, reader="one"):  # the second connection of a reader that lost the first
        log.leave(KEY, reader="one")
        assert step.done
    assert not holds(log, "key")


async def test_step_runs_on_until_its_last_reader_leaves() -> None:
    log = StepLog(Retention())
    step = start(log, events=1)
    with log.reading(step, reader="one"), log.reading(step, reader="two"):
        log.leave(KEY, reader="one")
        assert not step.done
        log.leave(KEY, reader="two")
        assert step.done
    assert step.grace is None


async def test_finished_step_is_forgotten_after_the_window() -> None:
    log = StepLog(Retention(resume_window=0.05))
    for name in ("first", "second"):
        log.finish(start(log, name, events=1))
    with anyio.fail_after(30):
        await eventually(lambda: not holds(log, "first") and not holds(log, "second"))


async def test_running_step_outlives_the_window() -> None:
    log = StepLog(Retention(resume_window=0.05))
    start(log, "running", events=1)
    log.finish(start(log, "finished", events=1))
    with anyio.fail_after(30):
        await eventually(lambda: not holds(log, "finished"))
    assert holds(log, "running")


async def test_oldest_finished_step_makes_room_when_there_are_too_many() -> None:
    log = StepLog(Retention(max_steps=2))
    for name in ("first", "second", "third"):
        log.finish(start(log, name, events=1))
    assert [holds(log, name) for name in ("first", "second", "third")] == [False, True, True]


async def test_oldest_finished_step_makes_room_when_they_are_too_large() -> None:
    log = StepLog(Retention(max_bytes=100))
    for name in ("first", "second", "third"):
        log.finish(start(log, name, events=4))
    assert [holds(log, name) for name in ("first", "second", "third")] == [False, True, True]


async def test_new_step_is_refused_when_all_running_ones_fill_the_log() -> None:
    log = StepLog(Retention(max_steps=2))
    start(log, "first")
    start(log, "second")
    with pytest.raises(RateLimited) as refused:
        start(log, "third")
    assert refused.value.retry_after is not None


async def test_running_step_cannot_grow_without_end() -> None:
    step = start(StepLog(Retention(max_bytes=100)), events=11)
    assert isinstance(step.error, InvalidOutput)


async def test_largest_running_step_ends_and_not_the_one_that_fills_the_log() -> None:
    log = StepLog(Retention(max_bytes=100))
    large, small = start(log, "large", events=9), start(log, "small", events=2)
    assert isinstance(large.error, InvalidOutput)
    assert not small.done
    assert [holds(log, name) for name in ("large", "small")] == [False, True]


async def test_reader_that_returns_within_the_grace_keeps_the_step_running() -> None:
    log = StepLog(Retention(resume_grace=0.05))
    kept, lost = start(log, "kept"), start(log, "lost")
    for step in (kept, lost):
        with log.reading(step):
            pass
    with log.reading(kept), anyio.fail_after(30):
        await eventually(lambda: lost.done)
        assert not kept.done


async def test_a_reader_that_cannot_return_leaves_its_step_no_grace_unless_another_one_is_there() -> None:
    log = StepLog(Retention(resume_grace=1000))
    shared, alone = start(log, "shared"), start(log, "alone")
    with anyio.fail_after(30), log.reading(shared, reader="other"):
        for step in (shared, alone):
            with log.reading(step, reader="gone", may_return=False):
                pass
        await eventually(lambda: alone.done)
        assert not shared.done


async def test_every_waiting_reader_is_woken() -> None:
    log = StepLog(Retention())
    step = start(log)
    woken = 0

    async def wait() -> None:
        nonlocal woken
        await step.change()
        woken += 1

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            log.append(step, b"event")
    assert woken == 3


async def test_one_caller_cannot_take_the_room_of_all() -> None:
    log = StepLog(Retention(max_steps=4, max_steps_of_a_caller=2))
    first, _ = start(log, "1"), start(log, "2")
    with pytest.raises(RateLimited):
        start(log, "3")
    assert log.join(("bob", "key"), b"request")[1]
    log.finish(first)
    start(log, "3")
